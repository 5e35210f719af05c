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
