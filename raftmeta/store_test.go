package raftmeta

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/storage"
)

// openStore opens a real store in a directory.
func openStore(t testing.TB, dir string) *storage.Store {
	t.Helper()
	s, err := storage.Open(storage.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLogInStore creates a cluster in a real store, proposes through several compactions of the
// log, and restarts from the disk.
func TestLogInStore(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	if _, err := Bootstrap(StoreKV(store, 0), catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)}); err != nil {
		t.Fatal(err)
	}
	net := newTestNetwork(1)
	defer net.close()
	open := func() *Group {
		config := DefaultConfig()
		config.Node, config.KV, config.Transport, config.LogSize, config.LogKeep = 1, StoreKV(store, 0), endpoint{net, 1}, 4<<10, 10
		g, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	for round := range 3 {
		g := open()
		for i := range 60 {
			if res, err := g.Propose(t.Context(), catalog.AddRegion{Name: fmt.Sprintf("r%d-%d", round, i)}); err != nil || res.Failure != nil {
				t.Fatal(err, res.Failure)
			}
		}
		st, err := g.Status(t.Context())
		if err != nil || round > 0 && st.First < 2 {
			t.Fatalf("the log begins at %d, %v", st.First, err)
		}
		want := g.State().Encode()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = openStore(t, dir)
		g = open()
		if _, err := g.Linearize(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(g.State().Encode(), want) {
			t.Fatalf("round %d: the state differs after the restart", round)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLogStore saves, replaces and compacts random parts of a log. After a crash the log must open
// with everything that was saved.
func TestLogStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := newMemKV()
		l, err := openLog(kv)
		if err != nil {
			t.Fatal(err)
		}
		want, base, term := []*raftpb.Entry(nil), uint64(0), uint64(1)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"append", "replace", "cut", "crash"}).Draw(t, "step") {
			case "replace":
				if len(want) == 0 {
					continue
				}
				want = want[:rapid.IntRange(0, len(want)-1).Draw(t, "keep")]
				term++
				fallthrough
			case "append":
				var added []*raftpb.Entry
				for range rapid.IntRange(1, 5).Draw(t, "entries") {
					index := base + uint64(len(want)) + 1
					e := &raftpb.Entry{Term: proto.Uint64(term), Index: proto.Uint64(index), Data: []byte(fmt.Sprint(term, index))}
					added, want = append(added, e), append(want, e)
				}
				hard := &raftpb.HardState{Term: proto.Uint64(term), Vote: proto.Uint64(1), Commit: proto.Uint64(base)}
				if err := l.saveReady(hard, added, nil, true); err != nil {
					t.Fatal(err)
				}
			case "cut":
				if len(want) == 0 {
					continue
				}
				n := rapid.IntRange(1, len(want)).Draw(t, "cut")
				metadata := &raftpb.SnapshotMetadata{Index: proto.Uint64(base + uint64(n)), Term: proto.Uint64(want[n-1].GetTerm()), ConfState: &raftpb.ConfState{}}
				if err := l.compact(&raftpb.Snapshot{Data: []byte("state"), Metadata: metadata}, rapid.Uint64Range(0, 3).Draw(t, "kept")); err != nil {
					t.Fatal(err)
				}
				base, want = base+uint64(n), want[n:]
			case "crash":
				kv = kv.crash()
				if l, err = openLog(kv); err != nil {
					t.Fatal(err)
				}
			}
			checkLog(t, l, base, want)
		}
	})
}

// checkLog compares the entries above base.
func checkLog(t *rapid.T, l *logStore, base uint64, want []*raftpb.Entry) {
	last, err := l.LastIndex()
	if err != nil || last != base+uint64(len(want)) {
		t.Fatalf("the log ends at %d, want %d (%v)", last, base+uint64(len(want)), err)
	}
	if l.transferred != base {
		t.Fatalf("the state transfer is at %d, want %d", l.transferred, base)
	}
	if len(want) == 0 {
		return
	}
	got, err := l.Entries(base+1, last+1, 1<<40)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d entries, want %d (%v)", len(got), len(want), err)
	}
	for i := range got {
		if !proto.Equal(got[i], want[i]) {
			t.Fatalf("entry %d: %v, want %v", base+1+uint64(i), got[i], want[i])
		}
	}
}

// BenchmarkPropose proposes from one and from many callers, to one voter and to three, on real
// stores in real time.
func BenchmarkPropose(b *testing.B) {
	for _, voters := range []int{1, 3} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("voters=%d/callers=%d", voters, callers), func(b *testing.B) {
				groups := benchGroups(b, voters)
				b.SetParallelism((callers + 1) / 2)
				start := time.Now()
				propose := func() {
					cmd := catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeLive}
					if res, err := groups[0].Propose(context.Background(), cmd); err != nil || res.Failure != nil {
						b.Error(err, res.Failure)
					}
				}
				if callers == 1 {
					for b.Loop() {
						propose()
					}
				} else {
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							propose()
						}
					})
				}
				b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "proposals/s")
			})
		}
	}
}

// benchGroups creates a group of voters without delay between them.
func benchGroups(b *testing.B, n int) []*Group {
	net := newTestNetwork(1)
	net.delay = 0
	var groups []*Group
	for i := range n {
		id := rhumb.NodeID(i + 1)
		store := openStore(b, b.TempDir())
		kv := StoreKV(store, 0)
		if i == 0 {
			if _, err := Bootstrap(kv, catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)}); err != nil {
				b.Fatal(err)
			}
		} else if res, err := groups[0].Propose(context.Background(), registration(id, 1)); err != nil || res.Failure != nil {
			b.Fatal(err, res.Failure)
		}
		config := DefaultConfig()
		config.Node, config.KV, config.Transport = id, kv, endpoint{net, id}
		g, err := Open(config)
		if err != nil {
			b.Fatal(err)
		}
		net.set(id, g)
		groups = append(groups, g)
		b.Cleanup(func() {
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	b.Cleanup(func() {
		for _, g := range groups {
			if err := g.Close(); err != nil {
				b.Error(err)
			}
		}
		net.close()
	})
	for {
		st, err := groups[0].Status(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if len(st.Voters) == n && len(st.Outgoing) == 0 && st.Leader == 1 {
			return groups
		}
		if err := groups[0].AwaitRevision(context.Background(), groups[0].State().Revision()); err != nil {
			b.Fatal(err)
		}
	}
}
