package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// rowHistory is what the committed entries of a range did to some names.
type rowHistory struct {
	mu sync.Mutex // guards all below
	// committed is the timestamp of the last committed write, and writes are those of each name, in order.
	committed rhumb.Timestamp
	writes    map[string][]rowWrite
}

type rowWrite struct {
	at      rhumb.Timestamp
	deleted bool
}

// at returns the newest write of a name at or before a timestamp.
func (h *rowHistory) at(name string, at rhumb.Timestamp) (last rowWrite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.writes[name] {
		if w.at <= at {
			last = w
		}
	}
	return last
}

// TestRowsWhileWritten reads records while they are written, deleted and undone: each read at a commit position has the newest
// version up to it, whatever the memory holds. Values say when they were written.
func TestRowsWhileWritten(t *testing.T) {
	const entries, names = 3_000, 6
	nameOf := func(i int) string { return fmt.Sprintf("name %d", i) }
	for _, memory := range []int64{rowShards, rowShards * rowShareMax * 300, 1 << 20} {
		t.Run(fmt.Sprint(memory), func(t *testing.T) {
			s, err := Open(Config{Dir: "rows", FS: vfs.NewMem(), RowsBytes: memory, DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			l := newNameLog(t, s)
			h := &rowHistory{writes: map[string][]rowWrite{}}
			var readers sync.WaitGroup
			stop := make(chan struct{})
			for i := range 4 {
				rnd := rand.New(rand.NewPCG(2, uint64(i)))
				readers.Go(func() {
					for !t.Failed() {
						select {
						case <-stop:
							return
						default:
						}
						h.mu.Lock()
						at := h.committed
						h.mu.Unlock()
						check := func(name string, f Found) {
							want := h.at(name, at)
							if found := f.Value != nil; f.Version.HLC != want.at || found == (want.deleted || want.at == 0) || found && binary.BigEndian.Uint64(f.Value[1:]) != uint64(want.at) {
								t.Errorf("%s at %d: found %+v, want %+v", name, at, f, want)
							}
						}
						if i%2 == 0 {
							name := nameOf(rnd.IntN(names))
							f, err := s.Lookup(l.key(name), at)
							if err != nil {
								t.Error(err)
							}
							check(name, f)
							continue
						}
						// Some of all names, in any order.
						order := rnd.Perm(names)[:1+rnd.IntN(names)]
						all := make([]rhumb.Key, names)
						for n := range all {
							all[n] = l.key(nameOf(n))
						}
						done := 0
						err := s.LookupEach(all, order, at, func(n int, f Found) error {
							if n != order[done] {
								t.Errorf("result %d is of name %d, want %d", done, n, order[done])
							}
							done++
							check(nameOf(n), f)
							return nil
						})
						if err != nil || done != len(order) {
							t.Errorf("%d results of %d: %v", done, len(order), err)
						}
					}
				})
			}
			rnd := rand.New(rand.NewPCG(3, 0))
			for range entries {
				name, deleted, undone := nameOf(rnd.IntN(names)), rnd.IntN(5) == 0, rnd.IntN(4) == 0
				before, hlc := l.pos, l.hlc
				l.append(t, name, deleted)
				// Conditions are judged by the newest version, which may be undone later.
				if f, err := s.LookupForWrite(l.key(name), Newest, deleted); err != nil || f.Version.HLC != l.hlc {
					t.Fatal(f, err)
				}
				if undone {
					b := s.NewBatch()
					if err := errors.Join(b.Undo(l.id, before.Seq), b.Apply(), b.Sync()); err != nil {
						t.Fatal(err)
					}
					// The next entry takes the timestamp of the undone one, as after a failover.
					l.pos, l.hlc = before, hlc
					continue
				}
				h.mu.Lock()
				h.writes[name] = append(h.writes[name], rowWrite{l.hlc, deleted})
				h.committed = l.hlc
				h.mu.Unlock()
			}
			close(stop)
			readers.Wait()
			if bytes, rows := s.rows.usage(); bytes > memory {
				t.Errorf("%d rows have %d bytes; the bound is %d", rows, bytes, memory)
			}
			if memory == 1<<20 && testutil.ToFloat64(s.rows.hits) == 0 {
				t.Error("no read found a row")
			}
		})
	}
}

// key returns the key of a name.
func (l *nameLog) key(name string) rhumb.Key {
	home := rhumb.RangeID{Region: l.id.Region, Slot: l.id.Slot + keys.HashSlot([]byte(name), 0, nameSlots)}
	return rhumb.Key{Table: 1, Home: home, Name: []byte(name)}
}

// append applies an entry that is not committed, which writes its timestamp to a name, or deletes the name.
func (l *nameLog) append(t testing.TB, name string, deleted bool) {
	t.Helper()
	l.hlc++
	value := binary.BigEndian.AppendUint64([]byte{0x11}, uint64(l.hlc))
	if deleted {
		value = rhumb.Tombstone
	}
	e := &entry.Entry{Epoch: 1, Node: 1, Seq: l.pos.Seq + 1, Prev: l.pos.Hash, Requests: []entry.Request{
		{HLC: l.hlc, Writes: []entry.Write{{Table: 1, Slot: l.key(name).Home.Slot, Name: []byte(name), Value: value}}},
	}}
	e.Seal(nil)
	l.pos = e.Position()
	b := l.s.NewBatch()
	b.Append(l.id, e, Commit{})
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatal(err)
	}
}

// TestPopularRowsStay reads few records often and many once: the former stay.
func TestPopularRowsStay(t *testing.T) {
	const popular, others = 100, 100_000
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{}) }
	// Every shard has room for about ten rows.
	c := &rowCache{shardMax: 10 * (rowOverhead + 20), hits: counter(), misses: counter(), evictions: counter()}
	read := func(i int) {
		prefix := fmt.Appendf(nil, "%010d", i)
		if _, miss, ok := c.get(prefix, 1, true); !ok {
			c.add(prefix, Found{Value: make([]byte, 10), Version: rhumb.Version{HLC: 1}}, miss)
		}
	}
	for i := range others {
		read(i % popular)
		read(popular + i)
	}
	if hits := testutil.ToFloat64(c.hits); hits < 0.9*others {
		t.Errorf("%v of %d reads of popular records found a row", hits, others)
	}
	if evicted := testutil.ToFloat64(c.evictions); evicted < others/2 {
		t.Errorf("%v rows were evicted", evicted)
	}
	bytes, rows := c.usage()
	if most := c.shardMax * rowShards; bytes > most || rows == 0 {
		t.Errorf("%d rows have %d bytes, the bound is %d", rows, bytes, most)
	}
	c.clear()
	if bytes, rows := c.usage(); bytes != 0 || rows != 0 {
		t.Errorf("a cleared cache has %d rows with %d bytes", rows, bytes)
	}
}

// TestRowsOfWrites looks records up for writes: they find rows, add none, and are not counted.
func TestRowsOfWrites(t *testing.T) {
	s, err := Open(Config{Dir: "rows", FS: vfs.NewMem(), DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l := newNameLog(t, s)
	l.append(t, "read", false)
	l.append(t, "written", false)
	if _, err := s.Lookup(l.key("read"), Newest); err != nil {
		t.Fatal(err)
	}
	_, before := s.rows.usage()
	for _, name := range []string{"read", "written", "absent"} {
		if f, err := s.LookupForWrite(l.key(name), Newest, name == "absent"); err != nil || (f.Value != nil) != (name != "absent") {
			t.Errorf("%s is %+v: %v", name, f, err)
		}
	}
	_, after := s.rows.usage()
	if hits, misses := testutil.ToFloat64(s.rows.hits), testutil.ToFloat64(s.rows.misses); after != before || hits != 0 || misses != 1 {
		t.Errorf("%d rows became %d, with %v hits and %v misses", before, after, hits, misses)
	}
}
