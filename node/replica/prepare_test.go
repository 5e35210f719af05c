package replica

import "testing"

// TestSuffixIsReadOnce: an elected primary repeats its question every 300 ms. A member whose disk takes longer must not
// gather reads.
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
