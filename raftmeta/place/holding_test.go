package place

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestHoldings says what nodes hold, and what keeps them from being removed, while operators and deaths change that.
func TestHoldings(t *testing.T) {
	w := grow(t, 4)
	stays := func(id rhumb.NodeID, want string) {
		t.Helper()
		if got := Holdings(w.s)[id].Stays; got != want {
			t.Errorf("n%d: %q, want %q", id, got, want)
		}
	}
	stays(1, "it is live and has copies of 6 ranges; run `rhumb node decommission n1` first")
	stays(4, "it is live; run `rhumb node decommission n4` first")
	w.do(catalog.SetVoters{Voters: []rhumb.NodeID{1, 2, 3}})
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	stays(1, "6 copies (2 primary) and a vote in the metadata group: op1 (decommission) moves that away")
	// The first round begins the copies, and the second one waits for them.
	w.plan()
	w.plan()
	if got := Holdings(w.s)[1]; !strings.HasPrefix(got.Stays, "6 copies (2 primary) and a vote in the metadata group: op1 (decommission) moves that away; it waits: range 1/") || got.Operation != 1 {
		t.Errorf("while copies arrive elsewhere: %+v", got)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.PauseOperation})
	stays(1, "6 copies (2 primary) and a vote in the metadata group: op1 (decommission) moves that away, and is paused (`rhumb operation resume op1`)")
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.ResumeOperation})
	for range 60 {
		w.plan()
		w.follow(never)
		w.pass(sec)
	}
	stays(1, "a vote in the metadata group: op1 (decommission) moves that away; it waits: another node is to get its vote in the metadata group")
	w.do(catalog.SetVoters{Voters: []rhumb.NodeID{2, 3, 4}})
	w.plan()
	stays(1, "")
	// A dead node holds its copies until others have them.
	w.fence(2)
	w.pass(sec)
	stays(2, "6 copies and a vote in the metadata group: other nodes get copies when this one has been dead for as long as the setting replace_after says; add a node if the region has too few")
}

// TestHoldingsOfARegion says of the nodes of a region that is being removed what each still holds. They looked as if nothing happened to them, and an
// empty one as if it had to be removed by hand.
func TestHoldingsOfARegion(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, By: "ann", At: time.Unix(0, 0)})
	if got := Holdings(w.s)[1]; got.Operation != 1 || !strings.Contains(got.Stays, "2 copies") || !strings.Contains(got.Stays, "op1 (remove-region fra) moves that away") {
		t.Errorf("at the start: %+v", got)
	}
	if got := Holdings(w.s)[4]; got.Operation != 0 || !strings.HasPrefix(got.Stays, "it is live") {
		t.Errorf("a node of the other region: %+v", got)
	}
	w.do(catalog.SetVoters{Voters: []rhumb.NodeID{2, 4, 5}})
	for inRegion(w.s, 1) > 0 {
		w.plan()
		w.follow(never)
		w.safe()
		w.pass(sec)
	}
	w.plan()
	for id, want := range map[rhumb.NodeID]string{
		1: "nothing: op1 (remove-region fra) removes the node when all nodes of the region are empty; it waits: another node is to get the vote of n2 in the metadata group",
		2: "a vote in the metadata group: op1 (remove-region fra) moves that away; it waits: another node is to get the vote of n2 in the metadata group",
	} {
		if got := Holdings(w.s)[id].Stays; got != want {
			t.Errorf("n%d: %q, want %q", id, got, want)
		}
	}
}
