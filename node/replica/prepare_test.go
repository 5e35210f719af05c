package replica

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestSuffixIsReadOnce guards that a member with a slow disk does not queue a read for each
// repetition of an elected replica's question.
func TestSuffixIsReadOnce(t *testing.T) {
	log := makeLog(1, 1, 1)
	r := follower(log, 1, 1)
	ask := Message{Kind: Fetch, Range: testRange, From: 3, To: 2, Epoch: 2, Prev: at(log, 1)}
	reads := func() []LogRead {
		if err := r.Step(ask); err != nil {
			t.Fatal(err)
		}
		return flush(r).Fetch
	}
	first := reads()
	if len(first) != 1 || len(reads()) != 0 {
		t.Fatalf("the first question is read as %v, or the second one is read, too", first)
	}
	r.Fetched(first[0], nil)
	if len(reads()) != 1 {
		t.Error("the question is not read again after the answer")
	}
	ask.Epoch, ask.From = 3, 1
	if len(reads()) != 1 {
		t.Error("the read for an earlier epoch keeps that of a later one away")
	}
}

// TestNoEntriesBeforeReadmission guards that a replica that begins empty after a quarantine takes
// no entries before metadata has ended the quarantine. With entries it would count as an older copy
// of the damaged one, and be quarantined again.
func TestNoEntriesBeforeReadmission(t *testing.T) {
	log := makeLog(1, 1)
	r := New(Config{Range: testRange, Self: 2, MinInSync: 1}, Durable{Promised: 1})
	record := &rhumb.Range{
		ID: testRange, Epoch: 1, Version: 3, Primary: 1, Replicas: []rhumb.NodeID{1, 2}, InSync: []rhumb.NodeID{1}, Quarantined: []rhumb.NodeID{2},
	}
	send := Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Entries: log}
	step := func() {
		t.Helper()
		r.Describe(record)
		if err := r.Step(send); err != nil {
			t.Fatal(err)
		}
		flush(r)
		record = record.Clone()
		record.Version++
	}
	step()
	step()
	if s := r.Status(); s.State == Quarantined || s.Last.Seq != 0 {
		t.Fatalf("before it is readmitted it is %s with a log up to %s: %s", s.State, s.Last, s.Quarantine)
	}
	record.Quarantined = nil
	step()
	if s := r.Status(); s.State != Learner || s.Last.Seq != 2 {
		t.Errorf("once it is readmitted it is %s with a log up to %s", s.State, s.Last)
	}
}

// TestSuffixBelowTrim guards an elected replica whose disk went back to entries of an earlier epoch, where the log of the member is trimmed: the
// member says that it is trimmed, so that it is elected itself. A hint from the trimmed lineage looked like another committed entry.
func TestSuffixBelowTrim(t *testing.T) {
	log := makeLog(1, 1, 3, 3, 3)
	other := makeLog(1, 1, 2, 2)
	ask := Message{Kind: Fetch, Range: testRange, From: 3, To: 2, Epoch: 4, Prev: at(other, 4)}
	for trim, want := range map[rhumb.Seq]bool{0: false, 2: false, 3: true, 4: true} {
		r := follower(log, 5, 3)
		if trim > 0 {
			r.setTrim(trim)
		}
		if err := r.Step(ask); err != nil {
			t.Fatal(err)
		}
		rd := flush(r)
		answers := append(rd.Messages, rd.AfterSync...)
		if len(answers) != 1 || answers[0].Kind != Suffix || answers[0].Trimmed != want {
			t.Errorf("trimmed to %d: %+v, want an answer that is trimmed: %v", trim, answers, want)
		}
	}
}
