package peer

import (
	"encoding/binary"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestGossipBoundsStreams guards the memory of a node against strangers: memberlist buffers what a stream sends before
// it can tell whether the sender has a key. It also guards that members still find each other meanwhile.
func TestGossipBoundsStreams(t *testing.T) {
	start := func(name string) *Gossip {
		g, err := StartGossip(GossipConfig{Name: name, Addr: "127.0.0.1:0", Encrypted: true, Logger: slog.New(slog.DiscardHandler)}, Member{Addr: name + ":1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	g := start("one")
	dial := func() net.Conn {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		return c
	}
	// An encrypted message (type 10) of almost 20 MiB, the limit of memberlist.
	const size = 20<<20 - 1
	c := dial()
	head := binary.BigEndian.AppendUint32([]byte{10}, size)
	sent, err := c.Write(append(head, make([]byte, size)...))
	// The kernel holds some of what the node never reads.
	if err == nil || sent > 12<<20 {
		t.Errorf("a stranger could send %d bytes in one stream: %v; want about %d", sent, err, gossipStreamBytes)
	}
	// Idle streams of strangers take all places; those of members wait for a second.
	for range 4 * gossipStreams {
		dial()
	}
	other := start("two")
	for _, x := range []*Gossip{g, other} {
		if err := x.SetKeys(rhumb.GossipKeys{Version: 1, Keys: []rhumb.GossipKey{gossipKey(1)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Join([]string{g.Addr()}); err != nil {
		t.Errorf("a member cannot join while strangers hold streams open: %v", err)
	}
}
