package rhumb

import "testing"

func TestVoterCount(t *testing.T) {
	for _, tt := range []struct{ nodes, regions, want int }{
		{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {3, 1, 3}, {9, 3, 3}, {9, 4, 3}, {5, 5, 5}, {30, 12, 5},
	} {
		if got := VoterCount(tt.nodes, tt.regions); got != tt.want {
			t.Errorf("%d nodes in %d regions: %d voters, want %d", tt.nodes, tt.regions, got, tt.want)
		}
	}
}
