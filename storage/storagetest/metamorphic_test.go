package storagetest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestMetamorphic runs random operations under random Pebble options, with restarts and crashes at
// random points, and compares every answer of the store with a map. After a crash the store must be
// in the state after some applied batch that is not older than the last synced one.
func TestMetamorphic(t *testing.T) {
	runs := 30
	if testing.Short() {
		runs = 4
	}
	for i := range runs {
		t.Run(fmt.Sprint(i), func(t *testing.T) { newMetamorphic(t, storagetest.Seed(t, int64(i+1))).run(150) })
	}
}

// state is the model of a whole store.
type state map[rhumb.RangeID]*storagetest.Log

func (s state) clone() state {
	c := state{}
	for id, l := range s {
		c[id] = l.Clone()
	}
	return c
}

// check compares a store with the state that it should have.
func (s state) check(st *storage.Store) error {
	ranges, err := st.Ranges()
	if err != nil {
		return err
	}
	if len(ranges) != len(s) {
		return fmt.Errorf("%d ranges, want %d", len(ranges), len(s))
	}
	for _, l := range s {
		if err := l.Check(st); err != nil {
			return err
		}
	}
	return nil
}

type metamorphic struct {
	*storagetest.World
	rnd   *rand.Rand
	now   state           // the state after all applied batches
	older []state         // the states after earlier batches, back to the last durable one
	open  *storage.Batch  // applied and not synced
	ids   []rhumb.RangeID // ranges that may exist
	epoch rhumb.Epoch
	reqs  uint64
	trace []string
}

// newMetamorphic returns a run with an empty store. Everything that it does follows from the seed.
func newMetamorphic(t *testing.T, seed int64) *metamorphic {
	m := &metamorphic{now: state{}, epoch: 1}
	t.Cleanup(func() { // registered first and so run last, because closing the store may fail the test too
		if t.Failed() {
			t.Logf("last operations: %q", m.trace[max(0, len(m.trace)-100):])
		}
	})
	w := storagetest.NewWorld(t, seed)
	m.World, m.rnd = w, w.Rand
	for slot := range rhumb.Slot(4) {
		m.ids = append(m.ids, rhumb.RangeID{Region: 1, Slot: slot})
	}
	m.ids = append(m.ids, rhumb.RangeID{Region: ^rhumb.RegionID(0), Slot: ^rhumb.Slot(0)})
	w.Config = func(c *storage.Config) {
		c.MemTableBytes = 64 << 10 << m.rnd.IntN(4)
		c.CacheBytes = int64(m.rnd.IntN(3)) << 16
		c.Options = m.options
	}
	w.Start()
	return m
}

// options draws settings of the database, which must not change any answer.
func (m *metamorphic) options(o *storage.PebbleOptions) {
	o.L0CompactionThreshold = 1 + m.rnd.IntN(4)
	o.LBaseMaxBytes = 1 << (10 + m.rnd.IntN(10))
	o.DisableAutomaticCompactions = m.rnd.IntN(4) == 0
	o.MaxManifestFileSize = 1 << (8 + m.rnd.IntN(16))
	o.WALBytesPerSync = m.rnd.IntN(2) * 1024
	o.FlushSplitBytes = 1 << (8 + m.rnd.IntN(14))
	o.MaxOpenFiles = 10 + m.rnd.IntN(100)
	for i := range o.Levels {
		o.Levels[i].BlockSize = 1 << (4 + m.rnd.IntN(9))
		o.Levels[i].IndexBlockSize = 1 << (4 + m.rnd.IntN(9))
		o.Levels[i].FilterPolicy = []pebble.FilterPolicy{nil, bloom.FilterPolicy(1 + m.rnd.IntN(10))}[m.rnd.IntN(2)]
		o.TargetFileSizes[i] = 1 << (8 + m.rnd.IntN(12))
	}
}

// run draws and takes steps, and compares store and state at the end.
func (m *metamorphic) run(steps int) {
	for range steps {
		op := m.pick()
		op()
	}
	m.settle()
	m.must(m.now.check(m.Store))
	m.Verify()
	m.must(m.now.check(m.Store))
}

func (m *metamorphic) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatalf("%v", err)
	}
}

// pick draws an operation by weight.
func (m *metamorphic) pick() func() {
	ops := []struct {
		weight int
		name   string
		do     func()
	}{
		{60, "write", m.write},
		{10, "collect", m.collect},
		{3, "history", m.history},
		{6, "check", func() { m.must(m.now.check(m.Store)) }},
		{4, "flush", func() { m.must(m.Store.Flush()) }},
		{2, "compact", func() { m.must(m.Store.Compact(m.ids[m.rnd.IntN(len(m.ids))])) }},
		{2, "restart", func() { m.settle(); m.Restart() }},
		{1, "verify", func() { m.settle(); m.Verify() }},
		{5, "crash", m.crash},
	}
	total := 0
	for _, op := range ops {
		total += op.weight
	}
	n := m.rnd.IntN(total)
	for _, op := range ops {
		if n -= op.weight; n < 0 {
			m.trace = append(m.trace, op.name)
			return op.do
		}
	}
	panic("weights do not add up")
}

// write applies a batch of random writes, and syncs it now or later.
func (m *metamorphic) write() {
	before := m.now.clone()
	b := m.Store.NewBatch()
	dropped := map[rhumb.RangeID]bool{}
	for range 1 + m.rnd.IntN(6) {
		id := m.ids[m.rnd.IntN(len(m.ids))]
		switch l := m.now[id]; {
		case dropped[id]:
		case l == nil:
			b.CreateRange(storage.RangeState{Range: id})
			m.now[id] = &storagetest.Log{ID: id}
		case m.rnd.IntN(60) == 0 && before[id] != nil:
			b.DropRange(id)
			m.Dropped(id)
			delete(m.now, id)
			dropped[id] = true
			m.trace = append(m.trace, "drop "+id.String())
		default:
			m.writeTo(b, l)
		}
	}
	m.must(b.Apply())
	m.older = append(m.older, before)
	if m.rnd.IntN(3) > 0 {
		m.finish(b)
		return
	}
	m.settle() // one batch waits at a time
	m.older = append(m.older, before)
	m.open = b
}

// finish makes a batch durable, and with it all earlier ones.
func (m *metamorphic) finish(b *storage.Batch) {
	m.must(b.Sync())
	if m.open != nil {
		m.must(m.open.Sync())
		m.open = nil
	}
	m.older = nil
}

// settle syncs the batch that is waiting.
func (m *metamorphic) settle() {
	if m.open != nil {
		b := m.open
		m.open = nil
		m.finish(b)
	}
}

// writeTo adds a drawn entry of a log to a batch, and to the state.
func (m *metamorphic) writeTo(b *storage.Batch, l *storagetest.Log) {
	end := rhumb.Seq(len(l.Entries))
	switch n := m.rnd.IntN(20); {
	case n < 11:
		if m.rnd.IntN(10) == 0 {
			m.epoch++
		}
		e := l.Add(m.epoch, rhumb.NodeID(m.epoch), m.requests()...)
		b.Append(l.ID, e, l.CommitPos())
	case n < 13:
		l.Commit += rhumb.Seq(m.rnd.IntN(int(end-l.Commit) + 1))
		b.SetCommit(l.ID, l.CommitPos())
	case n < 16:
		above := l.Commit + rhumb.Seq(m.rnd.IntN(int(end-l.Commit)+1))
		m.must(b.Undo(l.ID, above))
		l.Undo(above)
		m.epoch++ // undo follows the evidence of a newer epoch
		m.trace = append(m.trace, fmt.Sprintf("undo %s above %d of %d", l.ID, above, end))
	case n < 18:
		l.Trim += rhumb.Seq(m.rnd.IntN(int(l.Commit-l.Trim) + 1))
		b.SetCommit(l.ID, l.CommitPos())
		b.Trim(l.ID, l.Trim)
	default:
		l.Promised = max(l.Promised, m.epoch)
		b.SetPromised(l.ID, l.Promised)
	}
}

// requests returns up to three requests on few keys, so that keys are often rewritten.
func (m *metamorphic) requests() (reqs []entry.Request) {
	for range m.rnd.IntN(4) {
		var r entry.Request
		if m.rnd.IntN(2) == 0 {
			m.reqs++
			r.ID = rhumb.RequestID{Client: rhumb.UUID{byte(m.rnd.IntN(3) + 1)}, Seq: m.reqs}
		}
		written := map[string]bool{}
		for range m.rnd.IntN(5) {
			name := []string{"", "\x00", "\x00\x00", "\xff", "a", "a\x00", "a\xff", "ab", "b", "\x0d"}[m.rnd.IntN(10)]
			w := entry.Write{Table: rhumb.TableID(1 + m.rnd.IntN(3)), Name: []byte(name), Value: rhumb.Tombstone}
			if written[fmt.Sprint(w.Table, name)] {
				continue // at most one write per key and request
			}
			written[fmt.Sprint(w.Table, name)] = true
			if m.rnd.IntN(4) > 0 {
				w.Value = rhumb.EncodeOpaque(nil, make([]byte, m.rnd.IntN(1<<m.rnd.IntN(12))))
				for i := range w.Value[1:] {
					w.Value[1+i] = byte(m.rnd.Uint32())
				}
			}
			r.Writes = append(r.Writes, w)
		}
		r.Noop = len(r.Writes) == 0
		reqs = append(reqs, r)
	}
	return reqs
}

// collect removes some of what no reader needs any more, which must change no answer.
func (m *metamorphic) collect() {
	for id := range m.now {
		c, err := m.Store.Collect(id, storage.CollectLimits{Before: storage.Newest, WritesMax: 1 + m.rnd.IntN(20)})
		m.must(err)
		if c.Entries+c.Results > 0 {
			m.trace = append(m.trace, fmt.Sprintf("%s %+v", id, c))
		}
	}
}

func (m *metamorphic) history() {
	for id, l := range m.now {
		// The check reads at the commit position on disk, which is not older than the trim
		// position.
		_, _, err := m.Store.CollectHistory(id, 2, l.At(l.Trim), nil)
		m.must(err)
	}
}

// crash cuts the disk off with any part of the unsynced bytes, and finds the batch after which the
// store is.
func (m *metamorphic) crash() {
	m.Crash([]int{0, 0, 30, 70, 100}[m.rnd.IntN(5)])
	m.open = nil
	var errs []error
	for _, s := range slices.Backward(append(m.older, m.now)) {
		err := s.check(m.Store)
		if err == nil {
			m.forgetTimes(s)
			m.now, m.older = s, nil
			return
		}
		errs = append(errs, err)
	}
	m.Fatalf("after a crash the store is in none of the states after the last %d batches: %v", len(errs), errors.Join(errs...))
}

// forgetTimes prevents the timestamps of lost entries from being used again, as a node's persisted
// ceiling does.
func (m *metamorphic) forgetTimes(s state) {
	for id, l := range s {
		if last := m.now[id]; last != nil {
			l.HLC = max(l.HLC, last.HLC)
		}
		// Commit positions are lower bounds on disk. From here on the store's position counts.
		if st, ok := m.Store.State(id); ok {
			l.Commit = st.Commit
		}
	}
}
