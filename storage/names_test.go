package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// nameSlots is the number of slots of the range of these tests.
const nameSlots = 16

// nameLog writes one range of nameSlots slots.
type nameLog struct {
	feed
	s *Store
}

func newNameLog(t testing.TB, s *Store) *nameLog {
	t.Helper()
	l := &nameLog{feed: feed{id: rhumb.RangeID{Region: 1, Slot: 5}}, s: s}
	b := s.NewBatch()
	b.CreateRange(RangeState{Range: l.id, LastSlot: l.id.Slot + nameSlots - 1})
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatal(err)
	}
	return l
}

// write applies one committed entry with a value for each name, or a deletion of it.
func (l *nameLog) write(t testing.TB, value []byte, names ...string) {
	t.Helper()
	e := &entry.Entry{Epoch: 1, Node: 1, Seq: l.pos.Seq + 1, Prev: l.pos.Hash}
	for _, name := range names {
		l.hlc++
		w := entry.Write{Table: 1, Slot: l.id.Slot + keys.HashSlot([]byte(name), 0, nameSlots), Name: []byte(name), Value: value}
		e.Requests = append(e.Requests, entry.Request{HLC: l.hlc, Writes: []entry.Write{w}})
	}
	e.Seal(nil)
	l.pos = e.Position()
	b := l.s.NewBatch()
	b.Append(l.id, e, Commit{l.pos.Seq, l.hlc})
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatal(err)
	}
}

// namesFrom returns up to limit names that have a record at a timestamp.
func (l *nameLog) namesFrom(t testing.TB, from string, at rhumb.Timestamp, limit int) (names []string) {
	t.Helper()
	r, err := l.s.NewReader()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	c := l.s.Names(NameQuery{Range: l.id, Last: l.id.Slot + nameSlots - 1, Table: 1, From: []byte(from), At: at})
	for len(names) < limit {
		key, ok, err := c.Next()
		if err != nil {
			t.Error(err)
		}
		if !ok {
			break
		}
		f, err := r.Lookup(key, at)
		if err != nil {
			t.Error(err)
		}
		if f.Version.IsZero() || f.Tombstone {
			c.Absent(key)
			continue
		}
		names = append(names, string(key.Name))
	}
	return names
}

// TestNamesWhileWritten reads a range by its names while names are added, with so little memory that segments are evicted all the time: each
// read has exactly the names that were written up to its timestamp.
func TestNamesWhileWritten(t *testing.T) {
	const writes = 2_000
	for _, memory := range []int64{1, 20_000, 1 << 20} {
		t.Run(fmt.Sprint(memory), func(t *testing.T) {
			s, err := Open(Config{
				Dir: "names", FS: vfs.NewMem(), NamesBytes: memory, DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			l := newNameLog(t, s)
			// The name of the write with timestamp n; the order of names is not that of the writes.
			nameOf := func(n int) string { return fmt.Sprintf("%04d", n*7_919%10_000) }
			var published atomic.Int64
			var readers sync.WaitGroup
			for i := range 4 {
				rnd := rand.New(rand.NewPCG(1, uint64(i)))
				readers.Go(func() {
					for at := int64(0); at < writes && !t.Failed(); {
						at = published.Load()
						from := nameOf(rnd.IntN(10_000))
						var want []string
						for n := 1; n <= int(at); n++ {
							if name := nameOf(n); name >= from {
								want = append(want, name)
							}
						}
						slices.Sort(want)
						want = want[:min(len(want), 20)]
						if got := l.namesFrom(t, from, rhumb.Timestamp(at), 20); !slices.Equal(got, want) {
							t.Errorf("from %s at %d: %v, want %v", from, at, got, want)
						}
					}
				})
			}
			for n := 1; n <= writes; n++ {
				l.write(t, []byte{0x11}, nameOf(n))
				published.Store(int64(n))
			}
			readers.Wait()
			s.names.mu.Lock()
			defer s.names.mu.Unlock()
			sum := int64(0)
			for e := s.names.order.Front(); e != nil; e = e.Next() {
				g := e.Value.(*nameSegment)
				sum += nameOverhead + int64(len(g.from))
				for _, m := range g.names {
					sum += nameOverhead + int64(len(m.name))
				}
			}
			if s.names.bytes != sum || sum > memory {
				t.Errorf("%d bytes are counted, %d are there, %d are allowed", s.names.bytes, sum, memory)
			}
		})
	}
}

// TestDeletedNames guards that names without a record leave the memory when reads have met many of them, and that a read at an older
// timestamp still finds what was deleted later.
func TestDeletedNames(t *testing.T) {
	s := benchStore(t)
	l := newNameLog(t, s)
	var names []string
	for i := range 500 {
		names = append(names, fmt.Sprintf("%03d", i))
	}
	l.write(t, []byte{0x11}, names...)
	before := l.hlc
	if got := l.namesFrom(t, "", before, 600); !slices.Equal(got, names) {
		t.Fatalf("%d names", len(got))
	}
	l.write(t, rhumb.Tombstone, names[:400]...)
	kept := func() (n int) {
		s.names.mu.Lock()
		defer s.names.mu.Unlock()
		for e := s.names.order.Front(); e != nil; e = e.Next() {
			n += len(e.Value.(*nameSegment).names)
		}
		return n
	}
	for range 10 {
		if got := l.namesFrom(t, "", l.hlc, 10); !slices.Equal(got, names[400:410]) {
			t.Fatalf("%v", got)
		}
	}
	if n := kept(); n > 200 {
		t.Errorf("%d names are in memory, and 100 have a record", n)
	}
	if got := l.namesFrom(t, "", before, 600); !slices.Equal(got, names) {
		t.Fatalf("at the older timestamp there are %d names", len(got))
	}
	// The names that a read at an older timestamp has added do no harm to later reads.
	if got := l.namesFrom(t, "", l.hlc, 600); !slices.Equal(got, names[400:]) {
		t.Fatalf("%d names", len(got))
	}
}

// BenchmarkNames reads 10 records of a range of 64 slots in the order of names: with its names in memory, and with a walk for each read.
func BenchmarkNames(b *testing.B) {
	for _, kept := range []bool{true, false} {
		b.Run(fmt.Sprintf("kept=%v", kept), func(b *testing.B) {
			memory := int64(namesBytesDefault)
			if !kept {
				memory = 1
			}
			s, err := Open(Config{Dir: b.TempDir(), NamesBytes: memory})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			l := newNameLog(b, s)
			value := make([]byte, 1_000)
			value[0] = 0x11
			for i := range 100 {
				var names []string
				for j := range 200 {
					names = append(names, fmt.Sprintf("key%06d", 200*i+j))
				}
				l.write(b, value, names...)
			}
			if err := s.Flush(); err != nil {
				b.Fatal(err)
			}
			n := 0
			for b.Loop() {
				n = len(l.namesFrom(b, "key005000", l.hlc, 10))
			}
			if n != 10 {
				b.Fatalf("%d records", n)
			}
		})
	}
}
