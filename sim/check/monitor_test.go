package check

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// fakeDisk is a log that is durable up to its end.
type fakeDisk []*entry.Entry

func (d fakeDisk) Durable(seq rhumb.Seq) (entry.Position, bool) {
	if seq == 0 || int(seq) > len(d) {
		return entry.Position{}, false
	}
	return d[seq-1].Position(), true
}

func config(epoch, version int, primary rhumb.NodeID, inSync ...rhumb.NodeID) *rhumb.Range {
	return &rhumb.Range{ID: testRange, Epoch: rhumb.Epoch(epoch), Version: uint64(version), Primary: primary, InSync: inSync, Replicas: inSync}
}

// quarantine marks a copy as damaged.
func quarantine(r *rhumb.Range, n rhumb.NodeID) *rhumb.Range {
	r.Quarantined = []rhumb.NodeID{n}
	return r
}

// TestMonitor runs sequences of steps. All but the last must pass, and the last must fail with bad.
func TestMonitor(t *testing.T) {
	log := chainOf(start(1), start(2), start(3)).Entries
	fork := chainOf(start(1), start(9), start(10)).Entries
	later := chainOf(start(1), start(2), &entry.Entry{Start: 3, Epoch: 2}).Entries
	commit := func(n rhumb.NodeID, es ...*entry.Entry) func(*Monitor) error {
		return func(m *Monitor) (err error) {
			for _, e := range es {
				if err == nil {
					err = m.Committed(testRange, n, e)
				}
			}
			return err
		}
	}
	disks := func(held ...rhumb.NodeID) func(rhumb.NodeID) Replica {
		return func(n rhumb.NodeID) Replica {
			if slices.Contains(held, n) {
				return fakeDisk(log)
			}
			return fakeDisk(log[:1])
		}
	}
	ack := func(seq rhumb.Seq, held ...rhumb.NodeID) func(*Monitor) error {
		return func(m *Monitor) error { return m.Acked(testRange, seq, disks(held...)) }
	}
	set := func(c *rhumb.Range) func(*Monitor) error { return func(m *Monitor) error { return m.Config(c) } }
	serve := func(e rhumb.Epoch, n rhumb.NodeID, commit rhumb.Seq) func(*Monitor) error {
		return func(m *Monitor) error { return m.Serving(testRange, e, n, commit) }
	}
	closed := func(n rhumb.NodeID, at rhumb.Timestamp, upTo rhumb.Seq) func(*Monitor) error {
		return func(m *Monitor) error { return m.Closed(testRange, n, at, upTo) }
	}
	undo := func(n rhumb.NodeID, e *entry.Entry, commit rhumb.Seq) func(*Monitor) error {
		return func(m *Monitor) error { return m.Undone(testRange, n, e, commit) }
	}
	type steps []func(*Monitor) error
	for _, tc := range []struct {
		name, bad string
		steps     steps
	}{
		{"one primary per epoch", "I1", steps{
			func(m *Monitor) error { return m.Primary(testRange, 3, 1, 1) },
			func(m *Monitor) error { return m.Primary(testRange, 4, 2, 1) },
			func(m *Monitor) error { return m.Primary(testRange, 3, 2, 1) },
		}},
		{"metadata names two primaries", "I1", steps{set(config(1, 1, 1, 1, 2)), set(config(1, 2, 2, 1, 2))}},
		{"two entries in one place and epoch", "I2", steps{
			func(m *Monitor) error { return m.Appended(testRange, 1, log[1]) },
			func(m *Monitor) error { return m.Appended(testRange, 2, log[1]) },
			func(m *Monitor) error { return m.Appended(testRange, 2, later[2]) },
			func(m *Monitor) error { return m.Appended(testRange, 2, fork[1]) },
		}},
		{"an in-sync member lacks what was acknowledged", "I3", steps{set(config(1, 1, 1, 1, 2)), commit(1, log...), ack(2, 1, 2), ack(3, 1)}},
		{"a member joins without what was acknowledged", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log...), ack(3, 1, 2), set(config(1, 2, 1, 1, 2, 3)),
			func(m *Monitor) error { return m.Held(testRange, disks(1, 2)) },
		}},
		{"damage excuses what is acknowledged later, and nothing above it", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log...),
			func(m *Monitor) error { m.Lost(testRange, 2, 2); return nil },
			ack(1, 1), ack(2, 1), ack(3, 1),
		}},
		{"an answer reveals what is not committed", "I3", steps{set(config(1, 1, 1, 1, 2)), commit(1, log[0]), ack(2, 1, 2)}},
		{"a new primary is behind", "I4", steps{set(config(1, 1, 1, 1, 2)), commit(1, log...), ack(3, 1, 2), serve(1, 1, 3), serve(2, 2, 2)}},
		{"an in-sync member undoes a committed entry", "I5", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log[:2]...), undo(2, log[2], 0), undo(3, log[1], 1), undo(2, log[1], 1),
		}},
		{"a learner undoes what it knew to be committed", "I5", steps{set(config(1, 1, 1, 1, 2)), commit(1, log[:2]...), undo(3, log[1], 2)}},
		{"two contents are committed", "I5", steps{commit(1, log...), commit(2, fork[:2]...)}},
		{"an entry comes below what is closed", "I7", steps{commit(1, log[0]), closed(2, 1, 1), closed(2, 2, 1), commit(1, log[1])}},
		{"a replica calls closed what it lacks", "I7", steps{commit(1, log[:2]...), closed(2, 1, 1), closed(2, 2, 2), closed(2, 2, 1)}},
		{"a commit skips", "I5", steps{commit(1, log[0], log[2])}},
		{"a stale read", "I6", steps{
			func(m *Monitor) error { return m.Read(testRange, 1, 7, 7) },
			func(m *Monitor) error { return m.Read(testRange, 1, 6, 7) },
		}},
		{"an in-sync set is too small", "I8", steps{set(config(1, 1, 1, 1, 2)), set(config(1, 2, 1, 1))}},
		{"the primary is not in sync", "I8", steps{set(config(1, 1, 3, 1, 2))}},
		{"a version goes back", "went back", steps{set(config(1, 2, 1, 1, 2)), set(config(2, 1, 1, 1, 2))}},
		{"a quarantined node is elected", "is quarantined", steps{
			set(quarantine(config(1, 1, 1, 1, 2), 2)), set(quarantine(config(1, 2, 1, 1, 2), 2)), set(quarantine(config(2, 3, 2, 1, 2), 2)),
		}},
		{"a primary begins an epoch again in another life", "I1", steps{
			func(m *Monitor) error { return m.Primary(testRange, 3, 1, 1) },
			func(m *Monitor) error { return m.Primary(testRange, 3, 1, 1) },
			func(m *Monitor) error { return m.Primary(testRange, 3, 1, 2) },
		}},
		{"the first entry that was acknowledged is missing", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, later[0]),
			func(m *Monitor) error {
				return m.Acked(testRange, 1, func(rhumb.NodeID) Replica { return fakeDisk(nil) })
			},
		}},
		{"another entry is in the place of the acknowledged one", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log...),
			func(m *Monitor) error {
				return m.Acked(testRange, 3, func(rhumb.NodeID) Replica { return fakeDisk(fork) })
			},
		}},
		{"damage excuses nothing after the member holds the entries again", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log...),
			func(m *Monitor) error { m.Lost(testRange, 2, 2); return nil },
			ack(2, 1), ack(2, 1, 2), ack(2, 1),
		}},
		{"damage excuses nothing after the member has joined again", "I3", steps{
			set(config(1, 1, 1, 1, 2)), commit(1, log...),
			func(m *Monitor) error { m.Lost(testRange, 2, 3); return nil },
			ack(3, 1), set(config(1, 2, 1, 1, 3)), set(config(1, 3, 1, 1, 2)), ack(3, 1),
		}},
		{"an epoch goes back", "went back", steps{set(config(2, 2, 1, 1, 2)), set(config(1, 3, 1, 1, 2))}},
		{"a lease outlives the next primary", "I9", steps{serve(1, 1, 0), serve(2, 2, 0), serve(1, 1, 0)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := Monitor{MinInSync: 2}
			for i, step := range tc.steps {
				if i == len(tc.steps)-1 {
					wantErr(t, step(&m), tc.bad)
					return
				}
				wantErr(t, step(&m), "")
			}
		})
	}
}

// TestWholeNeedsCommitted checks that a disk is not whole if it lacks an entry that is committed but
// that no answer has revealed.
func TestWholeNeedsCommitted(t *testing.T) {
	log := chainOf(start(1), start(2)).Entries
	m := Monitor{MinInSync: 2}
	wantErr(t, m.Config(config(1, 1, 1, 1, 2)), "")
	for _, e := range log {
		wantErr(t, m.Committed(testRange, 1, e), "")
	}
	disk := func(n rhumb.NodeID) Replica { return fakeDisk(log[:3-n]) }
	if !m.Whole(testRange, 1, disk) || m.Whole(testRange, 2, disk) {
		t.Error("the first disk holds all committed entries, and the second lacks one")
	}
	all := func(rhumb.NodeID) Replica { return fakeDisk(log) }
	if m.Whole(testRange, 3, all) {
		t.Error("a node that is not in sync is whole")
	}
	if other := chainOf(start(1), start(3)).Entries; m.Whole(testRange, 1, func(rhumb.NodeID) Replica { return fakeDisk(other) }) {
		t.Error("a disk with another entry is whole")
	}
	wantErr(t, m.Config(quarantine(config(1, 2, 1, 1, 2), 2)), "")
	if m.Whole(testRange, 2, all) {
		t.Error("a damaged copy is whole")
	}
}

// TestAccept checks that a range which continues without acknowledged entries is reported, and one
// that lacks none of them is not.
func TestAccept(t *testing.T) {
	log := chainOf(start(1), start(2), start(3)).Entries
	for kept, want := range map[int]bool{0: true, 1: true, 2: false, 3: false} {
		m := Monitor{}
		for _, e := range log {
			wantErr(t, m.Committed(testRange, 1, e), "")
		}
		wantErr(t, m.Acked(testRange, 2, nil), "")
		if _, n, lost := m.Accept(testRange, log[:kept]); n != kept || lost != want {
			t.Errorf("with %d entries: %d stay, lost %v", kept, n, lost)
		}
	}
}

// TestMonitorSplit checks that a range that was split off answers for what its part of the log has
// promised.
func TestMonitorSplit(t *testing.T) {
	born := rhumb.RangeID{Region: 1, Slot: 8}
	log := chainOf(start(1), start(2), start(3)).Entries
	for _, tc := range []struct {
		name, bad string
		seq       rhumb.Seq
		before    func(*Monitor) error
		after     func(*Monitor) error
	}{
		{"divided by a committed entry", "", 3, nil, nil},
		{"divided by what is not committed", "only 3 are committed", 4, nil, nil},
		{"divided by nothing", "only 3 are committed", 0, nil, nil},
		{"has a primary before", "before range", 2, func(m *Monitor) error { return m.Primary(born, 1, 1, 1) }, nil},
		{"has an entry before", "before range", 2, func(m *Monitor) error { return m.Committed(born, 1, log[0]) }, nil},
		{
			"serves without what was acknowledged", "I4", 3,
			func(m *Monitor) error { return m.Acked(testRange, 2, nil) }, func(m *Monitor) error { return m.Serving(born, 1, 1, 1) },
		},
		{
			"commits below what was closed", "I7", 2,
			func(m *Monitor) error { return m.Closed(testRange, 1, 2, 3) },
			func(m *Monitor) error { return m.Committed(born, 1, &entry.Entry{Seq: 3, Start: 2}) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := Monitor{}
			for _, e := range log {
				wantErr(t, m.Appended(testRange, 1, e), "")
				wantErr(t, m.Committed(testRange, 1, e), "")
			}
			if tc.before != nil {
				wantErr(t, tc.before(&m), "")
			}
			err := m.Split(testRange, born, tc.seq)
			if tc.after != nil && err == nil {
				err = tc.after(&m)
			}
			wantErr(t, err, tc.bad)
		})
	}
}

// TestMonitorMerge checks that a range is taken over once, at its end, and with everything that it
// has promised.
func TestMonitorMerge(t *testing.T) {
	right := rhumb.RangeID{Region: 1, Slot: 8}
	end := func(hlc int) *entry.Entry {
		return &entry.Entry{Requests: []entry.Request{{HLC: rhumb.Timestamp(hlc), End: true}}}
	}
	write := func(hlc int) *entry.Entry {
		return &entry.Entry{Requests: []entry.Request{{HLC: rhumb.Timestamp(hlc)}}}
	}
	take := func(hlc int, slot rhumb.Slot, epoch rhumb.Epoch, seq rhumb.Seq) *entry.Entry {
		e := write(hlc)
		e.Requests[0].Take = entry.Take{Slot: slot, Epoch: epoch, Seq: seq}
		return e
	}
	whole, none := func(*Monitor) error { return nil }, func(rhumb.NodeID) Replica { return fakeDisk(nil) }
	for _, tc := range []struct {
		name, bad     string
		seq           rhumb.Seq
		left, right   []*entry.Entry
		before, after func(*Monitor) error
	}{
		{"at its end", "", 2, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1), end(5)}, whole, whole},
		{"an epoch begins after the end", "", 2, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1), end(5), start(6)}, whole, whole},
		{"by what is not committed", "only 2 are committed", 3, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1), end(5)}, whole, whole},
		{"another range is named", "before the end", 2, []*entry.Entry{start(1), take(9, 7, 1, 2)}, []*entry.Entry{start(1), end(5)}, whole, whole},
		{"the end is not committed", "before the end", 2, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1)}, whole, whole},
		{"not at an end", "is no end", 2, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1), write(5)}, whole, whole},
		{"at an end of another epoch", "is no end", 2, []*entry.Entry{start(1), take(9, 8, 2, 2)}, []*entry.Entry{start(1), end(5)}, whole, whole},
		{"not above the end", "I7", 2, []*entry.Entry{start(1), take(5, 8, 1, 2)}, []*entry.Entry{start(1), end(5)}, whole, whole},
		{
			"not above what is closed", "I7", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			func(m *Monitor) error { return m.Closed(right, 1, 9, 2) }, whole,
		},
		{"a write after the end", "after its end", 2, []*entry.Entry{start(1), take(9, 8, 1, 2)}, []*entry.Entry{start(1), end(5), write(6)}, whole, whole},
		{
			"taken over twice", "has taken over", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			whole,
			func(m *Monitor) error { return m.Merge(testRange, right, 2) },
		},
		{
			"serves afterwards", "has taken over", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			whole,
			func(m *Monitor) error { return m.Serving(right, 2, 2, 2) },
		},
		{
			"writes afterwards", "has taken over", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			whole,
			func(m *Monitor) error {
				e := write(10)
				e.Seq = 3
				return m.Committed(right, 2, e)
			},
		},
		{
			"the left range serves without the entry", "I4", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			whole,
			func(m *Monitor) error { return m.Serving(testRange, 2, 2, 1) },
		},
		{
			"a member lacks the entry", "I3", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			func(m *Monitor) error { return m.Config(config(1, 1, 1, 1, 2)) }, func(m *Monitor) error { return m.Held(testRange, none) },
		},
		{
			"damage below what the other range had acknowledged excuses nothing", "I3", 2,
			[]*entry.Entry{start(1), take(9, 8, 1, 2)},
			[]*entry.Entry{start(1), end(5)},
			func(m *Monitor) error {
				for _, n := range []rhumb.NodeID{1, 2} {
					m.Lost(right, n, 1)
				}
				if err := m.Acked(right, 2, none); err != nil {
					return err
				}
				return m.Config(config(1, 1, 1, 1, 2))
			},
			func(m *Monitor) error { return m.Held(testRange, none) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := Monitor{}
			for r, entries := range map[rhumb.RangeID][]*entry.Entry{testRange: tc.left, right: tc.right} {
				for _, e := range chainOf(entries...).Entries {
					wantErr(t, m.Committed(r, 1, e), "")
				}
			}
			wantErr(t, tc.before(&m), "")
			err := m.Merge(testRange, right, tc.seq)
			if err == nil {
				err = tc.after(&m)
			}
			wantErr(t, err, tc.bad)
		})
	}
}

// TestMonitorCourse checks that an ordinary sequence with a failover passes.
func TestMonitorCourse(t *testing.T) {
	log := chainOf(start(1), start(2), &entry.Entry{Start: 5, Epoch: 2}).Entries
	held := func(rhumb.NodeID) Replica { return fakeDisk(log) }
	m := Monitor{MinInSync: 2}
	for i, step := range []error{
		m.Config(config(1, 1, 1, 1, 2, 3)), m.Primary(testRange, 1, 1, 1),
		m.Appended(testRange, 1, log[0]), m.Appended(testRange, 2, log[0]), m.Committed(testRange, 1, log[0]),
		m.Serving(testRange, 1, 1, 1), m.Appended(testRange, 1, log[1]), m.Committed(testRange, 1, log[1]),
		m.Acked(testRange, 2, held), m.Read(testRange, 1, 2, 2), m.Config(config(2, 2, 2, 2, 3)), m.Primary(testRange, 2, 2, 1),
		m.Appended(testRange, 2, log[2]), m.Committed(testRange, 2, log[0]), m.Committed(testRange, 2, log[1]),
		m.Committed(testRange, 2, log[2]), m.Serving(testRange, 2, 2, 3), m.Held(testRange, held),
	} {
		if step != nil {
			t.Fatalf("step %d: %v", i, step)
		}
	}
	if seq, ts := m.Acknowledged(testRange); seq != 2 || ts != 2 {
		t.Errorf("acknowledged %d at %d, want 2 at 2", seq, ts)
	}
	if got := len(m.Log(testRange).Entries); got != 3 {
		t.Errorf("the committed log has %d entries, want 3", got)
	}
}
