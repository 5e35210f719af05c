package peer

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// gossipKey returns a key whose bytes are its number.
func gossipKey(id uint32) rhumb.GossipKey {
	return rhumb.GossipKey{ID: id, Secret: bytes.Repeat([]byte{byte(id)}, rhumb.GossipSecretSize)}
}

// TestGossipKeys rotates the key of two nodes step by step. They stay in contact; a node with other keys, or
// with none, never gets in.
func TestGossipKeys(t *testing.T) {
	start := func(name string, encrypted bool) *Gossip {
		g, err := StartGossip(GossipConfig{Name: name, Addr: "127.0.0.1:0", Encrypted: encrypted, Logger: slog.New(slog.DiscardHandler)}, Member{Addr: name + ":1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	set := func(g *Gossip, version uint64, ids ...uint32) {
		keys := rhumb.GossipKeys{Version: version}
		for _, id := range ids {
			keys.Keys = append(keys.Keys, gossipKey(id))
		}
		if err := g.SetKeys(keys); err != nil {
			t.Fatal(err)
		}
	}
	a, b := start("a", true), start("b", true)
	if b.Join([]string{a.Addr()}) == nil {
		t.Fatal("a node without keys got in")
	}
	set(a, 1, 1)
	if b.Join([]string{a.Addr()}) == nil {
		t.Fatal("a node without keys got in")
	}
	set(b, 1, 1)
	if err := b.Join([]string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	// Between two steps the nodes differ, and still understand each other in both directions.
	region := 0
	inContact := func(step string) {
		t.Helper()
		region++
		want := fmt.Sprint(region)
		for _, pair := range [][2]*Gossip{{a, b}, {b, a}} {
			m := Member{Region: want, Addr: pair[0].Addr()}
			_ = pair[0].Announce(m) // the loop below waits for the effect
			deadline := time.Now().Add(20 * time.Second)
			for !containsRegion(pair[1].Members(), m.Addr, want) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: a label does not arrive: %+v", step, pair[1].Members())
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	inContact("one key")
	set(a, 2, 1, 2)
	inContact("one has the new key")
	set(b, 2, 1, 2)
	set(b, 3, 2, 1)
	inContact("one sends with the new key")
	set(a, 3, 2, 1)
	set(a, 4, 2)
	inContact("one dropped the old key")
	set(b, 4, 2)
	inContact("rotated")
	// A late message about an earlier version changes nothing.
	set(b, 1, 1)
	if v := b.Keys().Version; v != 4 {
		t.Fatalf("version %d", v)
	}
	old, plain := start("old", true), start("plain", false)
	set(old, 1, 1)
	for _, g := range []*Gossip{old, plain} {
		if g.Join([]string{a.Addr()}) == nil {
			t.Errorf("%s got in", g.Addr())
		}
		// memberlist encrypts only what it sends: the one without encryption must not learn of others
		// when they answer either.
		if m := g.Members(); len(m) != 1 {
			t.Errorf("%s knows %+v", g.Addr(), m)
		}
	}
	if a.Join([]string{plain.Addr()}) == nil {
		t.Error("an encrypted node joined one without encryption")
	}
}

// containsRegion reports whether a label names a region.
func containsRegion(members []Member, addr, region string) bool {
	for _, m := range members {
		if m.Addr == addr && m.Region == region {
			return true
		}
	}
	return false
}
