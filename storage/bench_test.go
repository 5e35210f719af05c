package storage

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

func benchStore(b testing.TB) *Store {
	b.Helper()
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// feed builds the entries of one range.
type feed struct {
	id  rhumb.RangeID
	pos entry.Position
	hlc rhumb.Timestamp
}

func (f *feed) next(requests, value int) *entry.Entry {
	e := &entry.Entry{Epoch: 1, Node: 1, Seq: f.pos.Seq + 1, Prev: f.pos.Hash, Requests: make([]entry.Request, requests)}
	for i := range e.Requests {
		f.hlc++
		e.Requests[i] = entry.Request{
			ID: rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(f.hlc)}, HLC: f.hlc,
			Writes: []entry.Write{{Table: 1, Name: fmt.Appendf(nil, "key%06d", uint64(f.hlc)%100_000), Value: make([]byte, value)}},
		}
		e.Requests[i].Writes[0].Value[0] = 0x11
	}
	e.Seal(nil)
	f.pos = e.Position()
	return e
}

func newFeed(b testing.TB, s *Store, slot rhumb.Slot) *feed {
	b.Helper()
	f := &feed{id: rhumb.RangeID{Region: 1, Slot: slot}}
	batch := s.NewBatch()
	batch.CreateRange(RangeState{Range: f.id})
	if err := batch.Apply(); err != nil {
		b.Fatal(err)
	}
	if err := batch.Sync(); err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkAppendSync measures the data path: one commit for all ready ranges is applied and then
// synced in the background while the next one is built, with four in flight.
func BenchmarkAppendSync(b *testing.B) {
	for _, c := range []struct{ ranges, requests int }{{1, 1}, {8, 1}, {8, 8}, {64, 4}} {
		b.Run(fmt.Sprintf("ranges=%d/requests=%d", c.ranges, c.requests), func(b *testing.B) {
			s := benchStore(b)
			feeds := make([]*feed, c.ranges)
			for i := range feeds {
				feeds[i] = newFeed(b, s, rhumb.Slot(i))
			}
			inFlight := make(chan struct{}, 4)
			var work sync.WaitGroup
			b.ReportAllocs()
			for b.Loop() {
				batch := s.NewBatch()
				for _, f := range feeds {
					commit := Commit{f.pos.Seq, f.hlc} // the entry before
					batch.Append(f.id, f.next(c.requests, 101), commit)
				}
				if err := batch.Apply(); err != nil {
					b.Fatal(err)
				}
				inFlight <- struct{}{}
				work.Go(func() {
					if err := batch.Sync(); err != nil {
						b.Error(err)
					}
					<-inFlight
				})
			}
			work.Wait()
			b.ReportMetric(float64(b.N*c.ranges*c.requests)/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

// BenchmarkSyncedLength measures the cost of recording the synced length at each sync of the log.
func BenchmarkSyncedLength(b *testing.B) {
	f, err := openSynced(vfs.Default, b.TempDir(), syncedState{}, func(err error) { b.Error(err) })
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.close() }()
	f.began(1)
	length := int64(0)
	for b.Loop() {
		length++
		f.synced(1, length)
	}
}

// BenchmarkAppendSyncAlone measures one caller that waits for each commit.
func BenchmarkAppendSyncAlone(b *testing.B) {
	s := benchStore(b)
	f := newFeed(b, s, 1)
	for b.Loop() {
		batch := s.NewBatch()
		batch.Append(f.id, f.next(1, 101), Commit{})
		if err := batch.Apply(); err != nil {
			b.Fatal(err)
		}
		if err := batch.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookup reads 100,000 keys of 100 B that are in memory: from the memtable, then from
// cached tables.
func BenchmarkLookup(b *testing.B) {
	s := benchStore(b)
	f := newFeed(b, s, 1)
	for range 1000 {
		batch := s.NewBatch()
		batch.Append(f.id, f.next(100, 101), Commit{})
		if err := batch.Apply(); err != nil {
			b.Fatal(err)
		}
		if err := batch.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	get := func(b *testing.B) {
		b.ReportAllocs()
		var n atomic.Uint64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				key := rhumb.Key{Table: 1, Home: f.id, Name: fmt.Appendf(nil, "key%06d", n.Add(7919)%100_000)}
				if _, err := s.Lookup(key, f.hlc); err != nil {
					b.Error(err)
				}
			}
		})
	}
	// 16 names that are far from each other, per operation.
	each := func(b *testing.B) {
		b.ReportAllocs()
		const names = 16
		order := make([]int, names)
		for i := range order {
			order[i] = i
		}
		var n atomic.Uint64
		b.RunParallel(func(pb *testing.PB) {
			wanted := make([]rhumb.Key, names)
			for pb.Next() {
				first := n.Add(7919) % (100_000 / names)
				for i := range wanted {
					wanted[i] = rhumb.Key{Table: 1, Home: f.id, Name: fmt.Appendf(nil, "key%06d", first+uint64(i)*100_000/names)}
				}
				if err := s.LookupEach(wanted, order, f.hlc, func(int, Found) error { return nil }); err != nil {
					b.Error(err)
				}
			}
		})
	}
	s.rows.shardMax = 0
	b.Run("memtable", get)
	if err := s.Compact(f.id); err != nil {
		b.Fatal(err)
	}
	b.Run("tables", get)
	b.Run("tables-16", each)
	s.rows.shardMax = 64 << 20 / rowShards
	b.Run("rows", get)
	b.Run("rows-16", each)
}

// BenchmarkLookUpAbsent measures what a creation and the search for superseded versions ask of tables
// in the last level: names that are there, and names between them that are not.
func BenchmarkLookUpAbsent(b *testing.B) {
	s := benchStore(b)
	f := newFeed(b, s, 1)
	for range 400 {
		batch := s.NewBatch()
		e := f.next(250, 101)
		batch.Append(f.id, e, Commit{e.Seq, e.LastHLC()})
		if err := batch.Apply(); err != nil {
			b.Fatal(err)
		}
		if err := batch.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Compact(f.id); err != nil {
		b.Fatal(err)
	}
	for _, format := range []string{"key%06d", "key%06d-"} {
		lookUp := map[string]func([]rhumb.Key) error{
			"LookupForWrite": func(wanted []rhumb.Key) error {
				_, err := s.LookupForWrite(wanted[0], f.hlc, format != "key%06d")
				return err
			},
			"Exists": func(wanted []rhumb.Key) error {
				_, err := s.Exists(f.id, wanted, f.hlc)
				return err
			},
		}
		for name, do := range lookUp {
			b.Run(fmt.Sprintf("%s/%t", name, format == "key%06d"), func(b *testing.B) {
				n := 0
				for b.Loop() {
					n += 7919
					if err := do([]rhumb.Key{{Table: 1, Home: f.id, Name: fmt.Appendf(nil, format, n%100_000)}}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkCollect removes all but the newest version of each key.
func BenchmarkCollect(b *testing.B) {
	s := benchStore(b)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		f := newFeed(b, s, rhumb.Slot(i))
		for n := range rhumb.Timestamp(100) {
			f.hlc = n * 100_000 // the same hundred keys again
			batch := s.NewBatch()
			e := f.next(100, 101)
			batch.Append(f.id, e, Commit{e.Seq, e.LastHLC()})
			batch.Trim(f.id, f.pos.Seq)
			if err := batch.Apply(); err != nil {
				b.Fatal(err)
			}
			if err := batch.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		versions := 0
		for more := true; more; {
			c, err := s.Collect(f.id, CollectLimits{Before: Newest})
			if err != nil {
				b.Fatal(err)
			}
			versions += c.Versions
			more = c.More
		}
		b.ReportMetric(float64(versions), "versions/op")
	}
}
