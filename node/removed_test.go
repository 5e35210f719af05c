package node

import "testing"

// TestStandstill guards that a node asks whether it was removed only if its copy of the metadata stood still while another node was silent, twice in
// a row: an idle cluster and a passing loss of contact cause no question.
func TestStandstill(t *testing.T) {
	var s standstill
	for i, c := range []struct {
		revision uint64
		silent   bool
		ask      bool
	}{
		{7, false, false}, {7, false, false}, // idle
		{7, true, false}, {7, false, false}, // contact was lost for a moment
		{7, true, false}, {8, true, false}, {8, true, true}, // the copy stopped
		{8, true, true}, {9, true, false}, {9, false, false},
	} {
		if ask := s.next(c.revision, c.silent); ask != c.ask {
			t.Errorf("observation %d: ask is %v, want %v", i, ask, c.ask)
		}
	}
}
