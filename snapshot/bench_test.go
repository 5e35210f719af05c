package snapshot_test

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// benchValue makes a record of 128 bytes with a key of 8.
const benchValue = 104

// cpu returns the processor time of this process in seconds: wall time means little on a machine that others use too.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// numbered returns n records with scattered keys, and with boxes when they are wanted.
func numbered(n uint64, boxes bool) iter.Seq2[snapshot.Record, error] {
	return func(yield func(snapshot.Record, error) bool) {
		value := make([]byte, benchValue)
		if boxes {
			value = value[:benchValue-16]
		}
		rng := rand.New(rand.NewPCG(7, 7))
		for i := range n {
			rec := snapshot.Record{Key: format.Key{Number: i * 0x9E3779B97F4A7C15}, Value: value}
			if boxes {
				x, y := int32(rng.Uint32()>>1)%1_790_000_000, int32(rng.Uint32()>>1)%890_000_000 // they move in BenchmarkRollMoved
				rec.Box, rec.HasBox = format.Box{MinX: x, MinY: y, MaxX: x + 1000, MaxY: y + 1000}, true
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func benchTable(b *testing.B, records uint64, spec snapshot.TableSpec, cfg snapshot.Config) (*snapshot.Publisher, *snapshot.Table) {
	b.Helper()
	cfg.Dir, cfg.HugePages = shmDir(b), snapshot.HugeTry
	p := open(b, cfg)
	spec.ID, spec.Name, spec.ExpectedRecords = 1, "t", int64(records)
	t, err := p.Table(spec)
	check(b, err)
	_, err = p.Load(t, numbered(records, spec.Spatial), snapshot.CommitInfo{})
	check(b, err)
	return p, t
}

// BenchmarkPublish changes records of a base of 4 M at random: how long a commit of so many takes until it is visible. What it
// takes must not depend on how many shards the records lie in.
func BenchmarkPublish(b *testing.B) {
	const base = 4 << 20
	for _, shards := range []int64{4, 64} {
		b.Run(fmt.Sprintf("shards=%d", shards), func(b *testing.B) {
			p, t := benchTable(b, base, snapshot.TableSpec{}, snapshot.Config{AppendRatio: 1, ShardRecordsMax: base / shards})
			benchPublish(b, p, t, base)
		})
	}
}

func benchPublish(b *testing.B, p *snapshot.Publisher, t *snapshot.Table, base uint64) {
	for _, n := range []int{1, 100, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			value := make([]byte, benchValue)
			rolls, start := p.Stats().Rolls, cpu()
			for b.Loop() {
				c := p.Begin()
				for range n {
					if err := c.Put(t, snapshot.Record{Key: format.Key{Number: rng.Uint64N(base) * 0x9E3779B97F4A7C15}, Value: value}); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := c.Publish(snapshot.CommitInfo{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-start)*1e9/float64(b.N*n), "cpu-ns/record")
			b.ReportMetric(float64(p.Stats().Rolls-rolls)/float64(b.N), "rolls/op")
		})
	}
}

// BenchmarkGrow commits new keys to a table that begins without any, and rolls its shards again and again meanwhile.
func BenchmarkGrow(b *testing.B) {
	const records, each = 2 << 20, 1 << 16
	value := make([]byte, benchValue)
	start := cpu()
	for b.Loop() {
		p, t := benchTable(b, 0, snapshot.TableSpec{}, snapshot.Config{ShardRecordsMax: records})
		for next := uint64(0); next < records; {
			c := p.Begin()
			for range each {
				next++
				if err := c.Put(t, snapshot.Record{Key: format.Key{Number: next * 0x9E3779B97F4A7C15}, Value: value}); err != nil {
					b.Fatal(err)
				}
			}
			_, err := c.Publish(snapshot.CommitInfo{})
			check(b, err)
		}
		check(b, p.Close())
	}
	b.ReportMetric((cpu()-start)*1e9/float64(b.N*records), "cpu-ns/record")
}

// BenchmarkLoad fills a table, into fresh pages the first time and into recycled ones afterwards.
func BenchmarkLoad(b *testing.B) {
	const records = 4 << 20
	for _, spatial := range []bool{false, true} {
		b.Run(fmt.Sprintf("spatial=%t", spatial), func(b *testing.B) {
			start := cpu()
			p, t := benchTable(b, records, snapshot.TableSpec{Spatial: spatial}, snapshot.Config{Recycle: 16})
			b.Logf("fresh pages: %.0f cpu-ns/record", (cpu()-start)*1e9/records)
			start = cpu()
			for b.Loop() {
				_, err := p.Load(t, numbered(records, spatial), snapshot.CommitInfo{})
				check(b, err)
			}
			b.ReportMetric((cpu()-start)*1e9/float64(b.N*records), "cpu-ns/record")
		})
	}
}

// BenchmarkRoll rolls a shard of a million records.
func BenchmarkRoll(b *testing.B) {
	const records = 1 << 20
	for _, spatial := range []bool{false, true} {
		b.Run(fmt.Sprintf("spatial=%t", spatial), func(b *testing.B) {
			p, t := benchTable(b, records, snapshot.TableSpec{Spatial: spatial}, snapshot.Config{})
			check(b, p.Roll(t, 0))
			start := cpu()
			for b.Loop() {
				check(b, p.Roll(t, 0))
			}
			b.ReportMetric((cpu()-start)*1e9/float64(b.N*records), "cpu-ns/record")
		})
	}
}

// shuffled returns the records of a table in random order, and where the randomness came from.
func shuffled(t *snapshot.Table) (all []snapshot.Record, rng *rand.Rand) {
	for rec := range t.All() {
		rec.Value = make([]byte, len(rec.Value)) // that of the image goes with the next roll
		all = append(all, rec)
	}
	rng = rand.New(rand.NewPCG(1, 1))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, rng
}

// rollBench is what happens to a shard of a million records before each roll that is measured.
type rollBench struct {
	spatial, ordered bool
	share            int // one record in so many changes; a tenth when it is 0
	anew             bool
	// change changes a record, and returns false when it is to be deleted; nil writes the same once more.
	change func(rng *rand.Rand, i int, rec *snapshot.Record) bool
}

func (r rollBench) run(b *testing.B) {
	const records = 1 << 20
	share := cmp.Or(r.share, 10)
	p, t := benchTable(b, records, snapshot.TableSpec{Spatial: r.spatial, Ordered: r.ordered},
		snapshot.Config{ShardRecordsMax: records, AppendRatio: 0.25 + 1/float64(share)})
	all, rng := shuffled(t)
	rolls, kept, spent := p.Stats().Rolls, p.Stats().Kept, 0.0
	for at := 0; b.Loop(); at++ {
		c := p.Begin()
		for i := range records / share {
			rec := &all[(at*(records/share)+i)%records]
			if r.change == nil || r.change(rng, i, rec) {
				check(b, c.Put(t, *rec))
			} else {
				check(b, c.Delete(t, rec.Key, 0))
			}
		}
		_, err := c.Publish(snapshot.CommitInfo{})
		check(b, err)
		roll := p.Roll
		if r.anew {
			roll = p.RollAnew
		}
		start := cpu()
		check(b, roll(t, 0))
		spent += cpu() - start
	}
	b.ReportMetric(spent*1e9/float64(b.N*records), "cpu-ns/record")
	if n := p.Stats().Rolls - rolls; n > 0 { // those that are made to build anew are not counted
		b.ReportMetric(float64(p.Stats().Kept-kept)/float64(n), "kept/roll")
	}
}

// BenchmarkRollChanged rolls a shard of a million records that all changed since the last roll, in random order.
func BenchmarkRollChanged(b *testing.B) {
	for _, spatial := range []bool{false, true} {
		b.Run(fmt.Sprintf("spatial=%t", spatial), rollBench{spatial: spatial, share: 1}.run)
	}
}

// BenchmarkRollMoved rolls a shard of a million records after a quarter of them moved a little.
func BenchmarkRollMoved(b *testing.B) {
	rollBench{spatial: true, share: 4, change: func(rng *rand.Rand, _ int, rec *snapshot.Record) bool {
		x, y := rec.Box.MinX+rng.Int32N(20_001)-10_000, rec.Box.MinY+rng.Int32N(20_001)-10_000
		rec.Box = format.Box{MinX: x, MinY: y, MaxX: x + 1000, MaxY: y + 1000}
		return true
	}}.run(b)
}

// BenchmarkRollBuilt rolls a shard of a million records with a new layout, after a tenth of them changed, of which every tenth
// moved.
func BenchmarkRollBuilt(b *testing.B) {
	for _, spatial := range []bool{false, true} {
		b.Run(fmt.Sprintf("spatial=%t", spatial), rollBench{spatial: spatial, anew: true, change: func(_ *rand.Rand, i int, rec *snapshot.Record) bool {
			if spatial && i%10 == 0 {
				rec.Box.MinX, rec.Box.MaxX = rec.Box.MinX/2, rec.Box.MinX/2+1000
			}
			return true
		}}.run)
	}
}

// BenchmarkRollKept rolls a shard of a million records after a tenth of them changed: the values of all, and of one in a hundred
// something that the layout was not kept for once. From time to time too much of the base lies idle, and that roll takes longer.
func BenchmarkRollKept(b *testing.B) {
	b.Run("values", rollBench{spatial: true}.run)
	b.Run("deleted", rollBench{spatial: true, change: func(_ *rand.Rand, i int, _ *snapshot.Record) bool { return i%100 != 0 }}.run)
	b.Run("size", rollBench{spatial: true, change: func(_ *rand.Rand, i int, rec *snapshot.Record) bool {
		if i%100 == 0 {
			rec.Value = make([]byte, 3*benchValue-len(rec.Value))
		}
		return true
	}}.run)
	b.Run("new in order", rollBench{ordered: true, change: func(_ *rand.Rand, i int, rec *snapshot.Record) bool {
		if i%100 == 0 {
			rec.Key.Number++
		}
		return true
	}}.run)
}
