package replica

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// testWindow is the window of the tables of these tests.
const testWindow = 50 * time.Millisecond

// electedDeferred returns node 2, elected in epoch 2 of a range with deferred syncs, with a log.
func electedDeferred(log []*entry.Entry, lives ...rhumb.MemberLife) *Replica {
	d := testDisk{promised: 1, commit: 1, entries: log}
	r := New(Config{Range: testRange, Self: 2, Life: 7, MinInSync: 2, Deferred: testWindow, DeferredWait: 5 * time.Second}, d.durable())
	r.Describe(&rhumb.Range{
		ID: testRange, Epoch: 2, Allocated: 2, Version: 2, Primary: 2, InSync: []rhumb.NodeID{1, 2, 3}, Replicas: []rhumb.NodeID{1, 2, 3}, Lives: lives,
	})
	flush(r)
	return r
}

// begins lets time pass up to a limit and returns after how long the replica may begin its epoch; ok is false if it may not.
func begins(r *Replica, limit time.Duration) (after time.Duration, ok bool) {
	for now := time.Second; now <= time.Second+limit; now += 100 * time.Millisecond {
		r.Tick(now)
		flush(r)
		if _, ok := r.AwaitsActivation(); ok {
			return now - time.Second, true
		}
	}
	return 0, false
}

// TestPowerLossElection guards an election in a range with deferred syncs whose members have lost power. The elected replica waits
// for the members that have not answered, because they may have the end of the log; it does not wait if somebody is known to have it;
// and it goes on without the end if nobody brings it, and says so.
func TestPowerLossElection(t *testing.T) {
	log := makeLog(1, 1, 1)
	promised := func(from rhumb.NodeID, life rhumb.BootSeq, end int) Message {
		return Message{Kind: Promise, Range: testRange, From: from, To: 2, Epoch: 2, Life: life, Prev: at(log, end), Commit: 1, CommitHash: log[0].Hash}
	}
	for _, tt := range []struct {
		name    string
		lives   []rhumb.MemberLife
		answers []Message
		early   bool // begins before DeferredWait
		unsure  bool
		end     rhumb.Seq // of the log with which the epoch begins
	}{
		{name: "one of two others is silent", answers: []Message{promised(1, 8, 2)}, unsure: true, end: 2},
		{name: "all have lost it", answers: []Message{promised(1, 8, 1), promised(3, 9, 2)}, early: true, unsure: true, end: 2},
		{name: "one has it", answers: []Message{promised(1, 8, 1), promised(3, 9, 3)}, early: true, unsure: true, end: 3},
		{
			name: "one did not stop", lives: []rhumb.MemberLife{{Node: 1, Life: 8}}, answers: []Message{promised(1, 8, 2)},
			early: true, end: 2,
		},
		{name: "one has started again", lives: []rhumb.MemberLife{{Node: 1, Life: 7}}, answers: []Message{promised(1, 8, 2)}, unsure: true, end: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := electedDeferred(log[:2], tt.lives...)
			for _, m := range tt.answers {
				step(t, r, m)
			}
			flush(r)
			if f := r.prep.fetchingFrom; f != rhumb.NoNode {
				step(t, r, Message{Kind: Suffix, Range: testRange, From: f, To: 2, Epoch: 2, Life: 9, Prev: at(log, 2), Entries: log[2:]})
				flush(r)
			}
			after, ok := begins(r, 10*time.Second)
			if !ok || after < 5*time.Second != tt.early {
				t.Fatalf("begins: %v, after %v; want early: %v; %s", ok, after, tt.early, r.Status().Preparing)
			}
			r.Activate(100)
			rd := r.Ready()
			if rd.Unsure != tt.unsure || r.start != tt.end+1 {
				t.Errorf("begins at %d, unsure: %v; want %d, %v", r.start, rd.Unsure, tt.end+1, tt.unsure)
			}
			// The entry that begins an epoch is synced.
			if rd.Deferred || !rd.MustSync {
				t.Errorf("the epoch-start entry: must sync %v, deferred %v", rd.MustSync, rd.Deferred)
			}
		})
	}
}

// TestDeferredReady guards which work of a replica may be reported before it is synced: plain writes, and only if everything before
// them that is not plain is durable.
func TestDeferredReady(t *testing.T) {
	r := leader(t, Config{MinInSync: 1, Deferred: testWindow}, 1, []rhumb.NodeID{1}, []rhumb.NodeID{1})
	put := func() Ready {
		t.Helper()
		r.Propose(1000, Proposal{Token: 9, Batch: putBatch("a", "1")})
		return r.Ready()
	}
	first := put()
	if !first.Deferred || !first.MustSync {
		t.Fatalf("a write: must sync %v, deferred %v", first.MustSync, first.Deferred)
	}
	r.Persisted(first.Batch)
	if s := r.Status(); s.Commit != s.Last.Seq {
		t.Errorf("a deferred write of the only copy is not committed: %d of %d", s.Commit, s.Last.Seq)
	}
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 2, Version: 9, Primary: 1, InSync: []rhumb.NodeID{1}, Replicas: []rhumb.NodeID{1}})
	if rd := r.Ready(); rd.Promised != 2 || rd.Deferred {
		t.Errorf("a promise of epoch %d is deferred: %v", rd.Promised, rd.Deferred)
	}
	sync := leader(t, Config{MinInSync: 1}, 1, []rhumb.NodeID{1}, []rhumb.NodeID{1})
	sync.Propose(1000, Proposal{Token: 9, Batch: putBatch("a", "1")})
	if rd := sync.Ready(); rd.Deferred {
		t.Error("a write of a table that does not defer syncs is deferred")
	}
}

// TestDeferredBehindPromise guards that an entry is not reported as persisted while the promise before it is on its way to the disk:
// the report would count for the promise too.
func TestDeferredBehindPromise(t *testing.T) {
	log := makeLog(1, 1, 1)
	d := testDisk{promised: 1, commit: 1, entries: log[:1]}
	r := New(Config{Range: testRange, Self: 2, Life: 1, MinInSync: 1, Deferred: testWindow}, d.durable())
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 2, Prev: at(log, 1), Entries: log[1:2]})
	if rd := r.Ready(); rd.Promised != 2 || rd.Deferred {
		t.Fatalf("promised %d, deferred %v", rd.Promised, rd.Deferred)
	}
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 2, Prev: at(log, 2), Entries: log[2:]})
	rd := r.Ready()
	if rd.Deferred {
		t.Error("an entry is deferred behind a promise that is not durable")
	}
	r.Persisted(rd.Batch)
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 2, Prev: at(log, 3), Entries: makeLog(1, 1, 1, 1)[3:]})
	if rd := r.Ready(); !rd.Deferred || len(rd.Append) != 1 {
		t.Errorf("%d entries, deferred %v, once the promise is durable", len(rd.Append), rd.Deferred)
	}
}

// TestGiveUpDeferred guards a copy that has committed entries which its range has lost: it is the copy that stops, so that it is
// replaced, and not the primary.
func TestGiveUpDeferred(t *testing.T) {
	log, other := makeLog(1, 1, 1, 1), makeLog(1, 1, 2)
	send := Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 2, Prev: at(other, 2), Entries: other[2:]}
	for _, deferred := range []time.Duration{0, testWindow} {
		d := testDisk{promised: 1, commit: 3, entries: log}
		r := New(Config{Range: testRange, Self: 2, Life: 1, MinInSync: 1, Deferred: deferred}, d.durable())
		step(t, r, send)
		rd := r.Ready()
		rd.Messages = append(rd.Messages, rd.AfterSync...)
		refused := len(rd.Messages) == 1 && rd.Messages[0].Contradicts
		if refused != (deferred == 0) || (rd.Quarantine != "") != (deferred != 0) {
			t.Errorf("window %v: refuses %v, is quarantined because %q", deferred, refused, rd.Quarantine)
		}
		if deferred != 0 && (rd.GivenUp != 2 || !strings.Contains(rd.Quarantine, "last 2 entries")) {
			t.Errorf("%d entries are given up: %s", rd.GivenUp, rd.Quarantine)
		}
	}
	// An uncommitted end is undone, as always.
	d := testDisk{promised: 1, commit: 2, entries: log}
	r := New(Config{Range: testRange, Self: 2, Life: 1, MinInSync: 1, Deferred: testWindow}, d.durable())
	step(t, r, send)
	if rd := r.Ready(); rd.Quarantine != "" || rd.UndoAbove == nil {
		t.Errorf("an uncommitted end is not undone: %q", rd.Quarantine)
	}
}

// TestDeferredTrim guards that a primary keeps what its copies acknowledged within the last window: one that loses power needs it again,
// and would have to copy the range if it were gone.
func TestDeferredTrim(t *testing.T) {
	r := New(Config{Range: testRange, Self: 1, Deferred: testWindow}, Durable{})
	r.now = 10 * testWindow
	if to := r.settledBy(5); to != 0 {
		t.Errorf("position 5 counts as settled up to %d at once", to)
	}
	r.now += testWindow
	if to := r.settledBy(8); to != 0 {
		t.Errorf("after one window, %d is settled", to)
	}
	r.now += testWindow
	if to := r.settledBy(9); to != 5 {
		t.Errorf("after two windows, %d is settled; want 5", to)
	}
	r.now += 2 * testWindow
	if to := r.settledBy(7); to != 7 {
		t.Errorf("a copy that has 7 only lets %d be settled", to)
	}
	if to := New(Config{Range: testRange, Self: 1}, Durable{}).settledBy(5); to != 5 {
		t.Errorf("a table that does not defer syncs keeps the log above %d", to)
	}
}
