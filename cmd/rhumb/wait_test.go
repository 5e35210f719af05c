package main

import (
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// TestHandoverWatch: a handover is over when the node is primary, or when the record has lost the handover that it had. A record from before the
// handover, in a copy of the metadata that lags, is no end.
func TestHandoverWatch(t *testing.T) {
	rng := func(primary, prepared rhumb.NodeID) *rhumb.Range {
		r := &rhumb.Range{Primary: primary}
		if prepared != rhumb.NoNode {
			r.Prepared = &rhumb.Handover{Target: prepared}
		}
		return r
	}
	for name, tt := range map[string]struct {
		records []*rhumb.Range
		want    bool
	}{
		"carried out":            {[]*rhumb.Range{rng(1, 2), rng(2, 0)}, true},
		"cancelled":              {[]*rhumb.Range{rng(1, 0), rng(1, 2), rng(1, 0)}, true},
		"another handover after": {[]*rhumb.Range{rng(1, 2), rng(1, 3)}, true},
		"an old record":          {[]*rhumb.Range{rng(1, 0)}, false},
		"an old handover":        {[]*rhumb.Range{rng(1, 3), rng(1, 0)}, false},
		"prepared":               {[]*rhumb.Range{rng(1, 0), rng(1, 2)}, false},
	} {
		w, got := &handoverWatch{to: 2}, false
		for _, r := range tt.records {
			got = w.isOver(r)
		}
		if got != tt.want {
			t.Errorf("%s: over %v, want %v", name, got, tt.want)
		}
	}
}

// TestEndsWait: a command that waits for an operation ends on errors that stay, and asks again after all others.
func TestEndsWait(t *testing.T) {
	for kind, want := range map[rhumb.Kind]bool{
		rhumb.NotFound: true, rhumb.PermissionDenied: true, rhumb.Unauthenticated: true, rhumb.Incompatible: true, rhumb.WrongCluster: true,
		rhumb.Unavailable: false, rhumb.DeadlineExceeded: false, rhumb.Overloaded: false, rhumb.Internal: false,
	} {
		if got := endsWait(rhumb.E("t", kind, "x")); got != want {
			t.Errorf("%s: ends %v, want %v", kind, got, want)
		}
	}
}

// TestOperationTexts: the text beside a bar says what the operation waits for, and the progress of a vote does not count ranges.
func TestOperationTexts(t *testing.T) {
	d := operationDoc{ID: "op5", Kind: rhumb.OperationDecommission.String(), About: "n3", Waits: "no node of the region has room", Total: 4}
	if got := d.barText(); got != "op5 decommission n3, no node of the region has room" {
		t.Errorf("bar: %q", got)
	}
	if got := d.progress(); got != "0% (0 of 4 ranges)" {
		t.Errorf("progress: %q", got)
	}
	d = operationDoc{ID: "op6", Kind: rhumb.OperationMoveVote.String(), Total: 1}
	if got := d.progress(); got != "0% (0 of 1 votes)" {
		t.Errorf("progress of a vote: %q", got)
	}
}

// TestNodeLoss: before a node is given up, the ranges are named that it has the only copy of, or the only one in sync and undamaged.
func TestNodeLoss(t *testing.T) {
	rng := func(slot rhumb.Slot, replicas, inSync, damaged []rhumb.NodeID) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: slot}, Replicas: replicas, InSync: inSync, Quarantined: damaged}
	}
	type ids = []rhumb.NodeID
	l := describeNodeLoss(3, []*rhumb.Range{
		rng(0, ids{3}, ids{3}, nil), rng(1, ids{1, 3}, ids{3}, nil), rng(2, ids{1, 3}, ids{1, 3}, ids{1}), rng(3, ids{1, 3}, ids{1, 3}, nil),
		rng(4, ids{1, 3}, ids{1}, nil), rng(5, ids{1, 2}, ids{1}, nil),
	})
	if a, s := strings.Join(l.alone, " "), strings.Join(l.inSync, " "); a != "1/0" || s != "1/1 1/2" {
		t.Errorf("alone %q, in sync %q", a, s)
	}
	if lines := l.lines(3); len(lines) != 2 || !strings.Contains(lines[0], "is lost: 1/0") || !strings.Contains(lines[1], "unsafe-recover range") {
		t.Errorf("%q", lines)
	}
	if n := lostTogether(ids{1, 3}, []*rhumb.Range{rng(0, ids{3}, nil, nil), rng(1, ids{1, 3}, nil, nil), rng(2, ids{1, 2}, nil, nil)}); n != 2 {
		t.Errorf("%d ranges are on the two nodes only, want 2", n)
	}
	if lines := (nodeLoss{}).lines(3); len(lines) > 0 {
		t.Errorf("no loss: %q", lines)
	}
	var many []*rhumb.Range
	for slot := range rhumb.Slot(givenUpShown + 3) {
		many = append(many, rng(slot, ids{3}, ids{3}, nil))
	}
	if text := strings.Join(describeNodeLoss(3, many).lines(3), ""); !strings.HasSuffix(text, "1/9 and 3 others") {
		t.Errorf("many: %q", text)
	}
}

// TestMayGiveUp: nobody is asked about a node that does not exist, serves, or was removed already.
func TestMayGiveUp(t *testing.T) {
	nodes := []rhumb.Node{{ID: 1, State: rhumb.NodeLive}, {ID: 2, State: rhumb.NodeFenced}, {ID: 3, State: rhumb.NodeFenced, Forgotten: true}}
	for _, c := range []struct {
		id   rhumb.NodeID
		yes  bool
		ask  bool
		kind rhumb.Kind
	}{
		{9, false, false, rhumb.NotFound},
		{9, true, false, rhumb.NotFound},
		{1, false, false, rhumb.Conflict},
		{1, true, true, 0},
		{2, false, true, 0},
		{3, false, false, 0},
		{3, true, false, 0},
	} {
		ask, err := mayGiveUp(nodes, c.id, c.yes)
		if ask != c.ask || (err != nil) != (c.kind != 0) || err != nil && rhumb.KindOf(err) != c.kind {
			t.Errorf("%s, --yes %v: ask %v, %v", c.id, c.yes, ask, err)
		}
	}
}

// TestStillPrimary: a drain that leaves primaries says whether waiting helps. A range without another copy that could serve stays.
func TestStillPrimary(t *testing.T) {
	nodes := []rhumb.Node{{ID: 1, State: rhumb.NodeDraining}, {ID: 2, State: rhumb.NodeLive}, {ID: 3, State: rhumb.NodeFenced}}
	rng := func(slot rhumb.Slot, inSync ...rhumb.NodeID) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: slot}, Primary: 1, Replicas: inSync, InSync: inSync}
	}
	if err := stillPrimary(1, 1, []*rhumb.Range{rng(0, 1, 2)}, nodes); rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "run the command again") {
		t.Errorf("another node can take over: %v", err)
	}
	err := stillPrimary(1, 3, []*rhumb.Range{rng(0, 1, 2), rng(1, 1), rng(2, 1, 3)}, nodes)
	if rhumb.KindOf(err) != rhumb.Conflict || !strings.Contains(err.Error(), "2 ranges without another copy in sync on a live node: 1/1 1/2; they are not served") {
		t.Errorf("nobody can take over: %v", err)
	}
}

// TestRegionLoss: before a region is given up, the command shows what is lost and what restarts empty. It asks for no decision while another range has to be
// decided about first, and names the command for that.
func TestRegionLoss(t *testing.T) {
	id := func(slot rhumb.Slot) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: slot} }
	fra := rhumb.Region{ID: 1, Name: "fra"}
	nodes := []rhumb.Node{{ID: 1, Region: 1, State: rhumb.NodeFenced}, {ID: 4, Region: 2, State: rhumb.NodeFenced}, {ID: 5, Region: 2, State: rhumb.NodeLive}}
	ranges := []*rhumb.Range{
		{ID: id(0), Class: 1, Replicas: []rhumb.NodeID{1}},
		{ID: id(1), Class: 1, Replicas: []rhumb.NodeID{1}},
		{ID: id(2), Class: 1, Replicas: []rhumb.NodeID{4, 5}},
		{ID: id(3), Class: 1, Replicas: []rhumb.NodeID{1, 4, 5}},
	}
	tables := []client.TableStatus{{Table: rhumb.Table{Name: "cargo", Class: 1}}, {Table: rhumb.Table{Name: "other", Class: 2}}}
	loss := client.RegionLoss{Into: 2, Ranges: []rhumb.RangeID{id(0), id(1)}, Restarts: []rhumb.RangeID{id(1)}}
	doc, lines := describeRegionLoss(fra, "vir", loss, ranges, tables)
	text := strings.Join(lines, "\n")
	if doc.kept != 2 || len(doc.Ranges) != 2 || len(doc.Tables) != 1 || len(doc.Restarts) != 1 || !strings.Contains(text, "1 lost range restarts empty in region vir") {
		t.Errorf("%+v\n%s", doc, text)
	}
	if err := checkDecided(fra, loss, ranges, nodes); err != nil {
		t.Error(err)
	}
	loss.Undecided = []rhumb.RangeID{id(3), id(9)}
	err := checkDecided(fra, loss, ranges, nodes)
	if rhumb.KindOf(err) != rhumb.Conflict || !strings.Contains(err.Error(), "`rhumb unsafe-recover range 1/3 --node n5`, `rhumb unsafe-recover range 1/9 --node NODE`") {
		t.Errorf("got %v", err)
	}
}

// TestRangeChanges: the document of a range names copies that are to go, and the neighbour that it is being merged with.
func TestRangeChanges(t *testing.T) {
	left := &rhumb.Range{ID: rhumb.RangeID{Region: 1}, Last: 9, TakesOver: 7, Leaving: []rhumb.NodeID{2}}
	right := &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: 10}, Last: 19, Ends: 7}
	all := []*rhumb.Range{{ID: rhumb.RangeID{Region: 2, Slot: 10}, Ends: 7}, left, right, {ID: rhumb.RangeID{Region: 1, Slot: 20}}}
	if l, r, none := mergingWith(left, all), mergingWith(right, all), mergingWith(all[3], all); l != "1/10" || r != "1/0" || none != "" {
		t.Errorf("left with %q, right with %q, another with %q", l, r, none)
	}
	doc := names{}.describeRange(left)
	doc.MergingWith = mergingWith(left, all)
	if got := doc.changesText(); got != "leaving: n2; merging with 1/10" {
		t.Errorf("%q", got)
	}
}

// TestMissing: `rhumb status --wait` waits for nodes and copies, and not for ranges to return to their preferred primary, nor for nodes that were removed.
func TestMissing(t *testing.T) {
	doc := statusDoc{Nodes: []nodeDoc{{ID: "n1", Ready: true, State: "live"}, {ID: "n2", State: "fenced", Removed: true}}}
	doc.Ranges.Displaced = 3
	if got := doc.missing(); got != "" {
		t.Errorf("nothing is missing: %q", got)
	}
	doc.Nodes = append(doc.Nodes, nodeDoc{ID: "n3", Ready: true, State: "fenced"}, nodeDoc{ID: "n4", State: "live"})
	doc.Ranges.UnderReplicated, doc.Ranges.NoPrimary, doc.LocalCopy = 2, 1, true
	doc.Revision, doc.Nodes[0].Revision = 7, 8
	want := "n3 is not ready, n4 is not ready, 1 range has no live primary, 2 ranges lack copies in sync, the metadata group has no leader" +
		", the metadata that this command has is older than that of n1"
	if got := doc.missing(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
