package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// GrowthConfig configures RunGrowth.
type GrowthConfig struct {
	Cluster *Cluster
	// From and To are the sizes of the table, in bytes of its values, between which writes are measured. Up to From, the table is
	// filled with calls of many records.
	From, To int64
	// ValueBytes is the size of a record.
	ValueBytes int
	// SplitBytes is the size above which ranges are split, HashSlots the number of ranges of the empty table.
	SplitBytes int64
	HashSlots  int
	// Callers write single records, as fast as they are answered.
	Callers int
	// Steps is the number of rows between From and To.
	Steps int
	// Dir is the directory of the cluster, whose size and free space are measured.
	Dir string
	// Progress receives a line for each step. It may be nil.
	Progress func(text string)
}

// GrowthReport is the result of RunGrowth. Quantiles are in microseconds.
type GrowthReport struct {
	Steps []GrowthStep `json:"steps"`
	// Fill is how long the table took to reach its first size.
	Fill time.Duration `json:"fill_ns"`
	// Write covers all measured writes. Split covers those that were under way while the range of their key was being split, Calm
	// all others.
	Write Quantiles `json:"write_us"`
	Calm  Quantiles `json:"calm_us"`
	Split Quantiles `json:"split_us"`
	// Splits has the splits that measured writes met.
	Splits []GrowthSplit `json:"splits"`
	// Writes counts acknowledged writes, InSplits those of them in Split. Refused counts attempts that a node refused or that got no
	// answer; the client repeated them under the same number. Redirected counts attempts that followed a range to its new owner.
	// Failed counts writes whose caller got an error.
	Writes     int64  `json:"writes"`
	InSplits   int64  `json:"in_splits"`
	Refused    uint64 `json:"refused"`
	Redirected uint64 `json:"redirected"`
	Failed     int64  `json:"failed"`
	// Checked is the number of acknowledged records that were read back at the end, Lost those of them that were missing.
	Checked int `json:"checked"`
	Lost    int `json:"lost"`
}

// GrowthStep describes the table at a size, and the writes since the step before.
type GrowthStep struct {
	Bytes     int64     `json:"bytes"`
	Ranges    int       `json:"ranges"`
	Splits    int       `json:"splits"`
	PerSecond float64   `json:"writes_per_second"`
	Write     Quantiles `json:"write_us"`
	// Disk is the space of all nodes together.
	Disk int64 `json:"disk_bytes"`
}

// GrowthSplit is one split.
type GrowthSplit struct {
	Range rhumb.RangeID `json:"range"`
	New   rhumb.RangeID `json:"new"`
	// Took is the time from the reservation of the new range until it was complete, as the client's copy of the metadata showed it.
	Took  time.Duration `json:"took_ns"`
	Write Quantiles     `json:"write_us"`
	// Writes counts the writes to both parts that were under way meanwhile.
	Writes int64 `json:"writes"`
}

// Constants of RunGrowth.
const (
	// growthPoll is the time between two looks at the client's copy of the metadata. A split takes two round trips of the metadata
	// group, which is longer. A split that is over at the first look is taken to have lasted since the look before.
	growthPoll = 2 * time.Millisecond
	// growthTimeout bounds one write with all its attempts. For as long, a window that has ended may get another write.
	growthTimeout = 30 * time.Second
	// growthChecked is the number of records that are read back.
	growthChecked = 10_000
	// growthDisk is the space on disk for each byte of values, for all copies together: three copies, each compacted to
	// a second place. Logs come on top, in growthDiskBase.
	growthDisk     = 6
	growthDiskBase = 2 << 30
)

// growthRun is a run of RunGrowth.
type growthRun struct {
	cfg    GrowthConfig
	c      *client.Client
	t      *client.Table
	class  rhumb.ClassID
	next   atomic.Int64 // number of records that were handed to callers
	failed atomic.Int64
	// watching is false until writes are measured: splits of the fill are only counted.
	watching atomic.Bool

	mu      sync.Mutex // guards the fields below
	missing map[int64]bool
	whole   histogram
	step    histogram
	calm    histogram
	inSplit histogram
	// windows are the splits that a write under way may have met, past those that are over.
	windows, past []*splitWindow
	known         map[rhumb.RangeID]bool
	splits        int
}

// splitWindow is the time of a split, and the slots of both parts.
type splitWindow struct {
	old, id    rhumb.RangeID
	last       rhumb.Slot // of both together, which begin with the slot of old
	begin, end time.Time  // end is zero while the split is under way
	hist       histogram
}

// meets reports whether a write to a slot was under way during the split.
func (w *splitWindow) meets(slot rhumb.Slot, begin, end time.Time) bool {
	return slot >= w.old.Slot && slot <= w.last && end.After(w.begin) && (w.end.IsZero() || begin.Before(w.end))
}

// RunGrowth fills a table to its first size, lets it grow to the second one while every write is timed, and watches the splits of its
// ranges. At the end it reads back a sample of the records.
func RunGrowth(ctx context.Context, cfg GrowthConfig) (*GrowthReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if err := hasRoom(cfg.Dir, cfg.To*growthDisk+growthDiskBase); err != nil {
		return nil, err
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(growthTimeout))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetSetting(ctx, rhumb.SettingRangeSplitBytes, fmt.Sprintf("%dKiB", cfg.SplitBytes>>10)); err != nil {
		return nil, err
	}
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = cfg.HashSlots
	t, err := c.CreateTable(ctx, "growth", client.TableOptions{Settings: settings})
	if err != nil {
		return nil, err
	}
	g := &growthRun{cfg: cfg, c: c, t: t, class: t.Info().Class, missing: make(map[int64]bool), known: make(map[rhumb.RangeID]bool)}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { g.watch(watching) })
	report, err := g.grow(ctx)
	stop()
	watch.Wait()
	if err != nil {
		return nil, err
	}
	g.report(report)
	return report, g.audit(ctx, report)
}

// grow writes all records, and describes each step.
func (g *growthRun) grow(ctx context.Context) (*GrowthReport, error) {
	out := &GrowthReport{}
	records := func(bytes int64) int64 { return bytes / int64(g.cfg.ValueBytes) }
	begin := time.Now()
	if err := g.writeUpTo(ctx, min(g.cfg.Callers, fillCallers), records(g.cfg.From), g.fillOnce); err != nil {
		return nil, err
	}
	out.Fill = time.Since(begin)
	before, m := g.next.Load(), g.c.Metrics()
	if err := g.describe(out, float64(before)/out.Fill.Seconds()); err != nil {
		return nil, err
	}
	g.watching.Store(true)
	for i := range g.cfg.Steps {
		begin := time.Now()
		bytes := g.cfg.From + (g.cfg.To-g.cfg.From)*int64(i+1)/int64(g.cfg.Steps)
		if err := g.writeUpTo(ctx, g.cfg.Callers, records(bytes), g.putOnce); err != nil {
			return nil, err
		}
		now := g.next.Load()
		if err := g.describe(out, float64(now-before)/time.Since(begin).Seconds()); err != nil {
			return nil, err
		}
		before = now
	}
	n := g.c.Metrics()
	out.Redirected = n.Redirects - m.Redirects
	// Attempts after the first one of a request either follow a newer record of the range, or an error.
	out.Refused = n.Retries - m.Retries - out.Redirected
	return out, nil
}

// writeUpTo runs a number of callers until the table has a number of records. A call writes the records from its number on and returns how many
// these are.
func (g *growthRun) writeUpTo(ctx context.Context, callers int, records int64, once func(ctx context.Context, rng *rand.ChaCha8, most int64) error) error {
	var work sync.WaitGroup
	errs := make(chan error, callers)
	for i := range callers {
		work.Go(func() {
			// Values that do not compress, so that bytes on disk mean something.
			rng := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(g.next.Load())})
			for g.next.Load() < records && ctx.Err() == nil {
				if err := once(ctx, rng, records); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	work.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return ctx.Err()
	}
}

// take takes up to n numbers of records, below most. It returns the first one and how many it took.
func (g *growthRun) take(n, most int64) (first, taken int64) {
	for {
		first = g.next.Load()
		taken = min(n, most-first)
		if taken <= 0 || g.next.CompareAndSwap(first, first+taken) {
			return first, max(taken, 0)
		}
	}
}

// nameOf returns the name of a record.
func (g *growthRun) nameOf(n int64) []byte { return fmt.Appendf(nil, "g%012d", n) }

// fillOnce writes many records with one call.
func (g *growthRun) fillOnce(ctx context.Context, rng *rand.ChaCha8, most int64) error {
	first, n := g.take(fillBatch, most)
	return writeBatch(ctx, g.c, g.t, rng, n, g.cfg.ValueBytes, func(i int64) []byte { return g.nameOf(first + i) })
}

// putOnce writes one record and notes how long that took.
func (g *growthRun) putOnce(ctx context.Context, rng *rand.ChaCha8, most int64) error {
	number, n := g.take(1, most)
	if n == 0 {
		return nil
	}
	value := make([]byte, g.cfg.ValueBytes)
	_, _ = rng.Read(value) // never fails
	begin := time.Now()
	// The condition makes a write that is applied a second time fail.
	res, err := g.t.Put(ctx, g.nameOf(number), value, client.PutOptions{Local: true, If: rhumb.Condition{Kind: rhumb.IfAbsent}})
	if err == nil {
		g.note(res.Key.Home.Slot, begin, time.Now())
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g.failed.Add(1)
	g.mu.Lock()
	g.missing[number] = true
	g.mu.Unlock()
	g.cfg.Progress(fmt.Sprintf("record %d: %v", number, err))
	return nil
}

// note records an acknowledged write.
func (g *growthRun) note(slot rhumb.Slot, begin, end time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := end.Sub(begin)
	g.whole.add(d)
	g.step.add(d)
	met := false
	for _, w := range g.windows {
		if w.meets(slot, begin, end) {
			w.hist.add(d)
			met = true
		}
	}
	if met {
		g.inSplit.add(d)
	} else {
		g.calm.add(d)
	}
}

// watch looks for splits until ctx ends.
func (g *growthRun) watch(ctx context.Context) {
	var seen uint64
	for last := time.Now(); ctx.Err() == nil; _ = pauseFor(ctx, growthPoll) { // the loop ends with ctx
		now := time.Now()
		// Copies of all ranges are made only if one has changed, or windows have to be closed.
		if rev := g.c.Revision(); rev != seen || now.Sub(last) > growthTimeout {
			g.look(g.c.Ranges(), last, now)
			seen = rev
		}
		last = now
	}
}

// look compares the ranges with those of the look before.
func (g *growthRun) look(all []*rhumb.Range, before, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	beginning := len(g.known) == 0
	under := make(map[rhumb.RangeID]bool)
	for _, r := range all {
		if r.Class != g.class {
			continue
		}
		under[r.ID] = r.Birth != 0
		// The ranges of the empty table were not split off.
		if g.known[r.ID] || beginning {
			g.known[r.ID] = true
			continue
		}
		g.known[r.ID] = true
		g.splits++
		if g.watching.Load() {
			g.windows = append(g.windows, &splitWindow{old: parentOf(all, r), id: r.ID, last: r.LastSlot(), begin: before})
		}
	}
	g.windows = slices.DeleteFunc(g.windows, func(w *splitWindow) bool {
		if w.end.IsZero() && !under[w.id] {
			w.end = now
		}
		// A write that began before the end may still be under way.
		over := !w.end.IsZero() && now.Sub(w.end) > growthTimeout
		if over {
			g.past = append(g.past, w)
		}
		return over
	})
}

// parentOf returns the range that a new range was split from: the one before it.
func parentOf(all []*rhumb.Range, r *rhumb.Range) (id rhumb.RangeID) {
	id = r.ID
	for _, o := range all {
		if o.Class == r.Class && o.ID.Region == r.ID.Region && o.ID.Slot < r.ID.Slot && (id == r.ID || o.ID.Slot > id.Slot) {
			id = o.ID
		}
	}
	return id
}

// describe adds the present state as a step.
func (g *growthRun) describe(out *GrowthReport, perSecond float64) error {
	disk, err := diskBytes(g.cfg.Dir)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := GrowthStep{
		Bytes: g.next.Load() * int64(g.cfg.ValueBytes), Ranges: len(g.known), Splits: g.splits, PerSecond: perSecond,
		Write: g.step.quantiles(), Disk: disk,
	}
	g.step = histogram{}
	out.Steps = append(out.Steps, s)
	g.cfg.Progress(fmt.Sprintf("%d MiB in %d ranges, %.0f writes/s, p99 %.1f ms, %d MiB on disk",
		s.Bytes>>20, s.Ranges, s.PerSecond, s.Write.P99/1e3, s.Disk>>20))
	return nil
}

// report adds the counts of the whole run.
func (g *growthRun) report(out *GrowthReport) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out.Write, out.Calm, out.Split = g.whole.quantiles(), g.calm.quantiles(), g.inSplit.quantiles()
	out.Writes, out.InSplits, out.Failed = g.whole.total, g.inSplit.total, g.failed.Load()
	for _, w := range append(g.past, g.windows...) {
		// A split that is under way at the end has no length, and its writes are in Split all the same.
		if !w.end.IsZero() {
			out.Splits = append(out.Splits, GrowthSplit{Range: w.old, New: w.id, Took: w.end.Sub(w.begin), Write: w.hist.quantiles(), Writes: w.hist.total})
		}
	}
}

// audit reads back records that are spread evenly over all that were acknowledged.
func (g *growthRun) audit(ctx context.Context, out *GrowthReport) error {
	all := g.next.Load()
	step := max(all/growthChecked, 1)
	var names [][]byte
	for n := int64(0); n < all; n += step {
		if !g.missing[n] {
			names = append(names, g.nameOf(n))
		}
	}
	for part := range slices.Chunk(names, fillBatch) {
		got, err := g.t.GetMany(ctx, part, client.GetOptions{Local: true})
		if err != nil && rhumb.KindOf(err) != rhumb.NotFound {
			return err
		}
		for _, x := range got {
			out.Checked++
			if !x.Exists() || len(x.Value) < g.cfg.ValueBytes {
				out.Lost++
			}
		}
	}
	return nil
}
