package upgrade

import (
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// node returns the status of a node whose program supports versions up to newest, and which has applied a version.
func node(id rhumb.NodeID, newest, applied rhumb.ClusterVersion, state rhumb.NodeState) client.NodeStatus {
	b := rhumb.Build{Program: "0.1" + newest.String(), Min: max(newest, 2) - 1, Max: newest}
	return client.NodeStatus{Node: rhumb.Node{ID: id, State: state, Binary: b.String()}, ClusterVersion: applied}
}

func TestJudge(t *testing.T) {
	const live, fenced = rhumb.NodeLive, rhumb.NodeFenced
	for _, tt := range []struct {
		name          string
		nodes         []client.NodeStatus
		version, next rhumb.ClusterVersion
		held          string // the nodes that hold the next version
		step, note    string // a part of each; "" for none
	}{
		{"nothing to do", []client.NodeStatus{node(1, 2, 2, live), node(2, 2, 2, live)}, 2, 0, "", "", ""},
		{"old programs only", []client.NodeStatus{node(1, 1, 1, live), node(2, 1, 1, live)}, 1, 0, "", "", ""},
		{"one upgraded", []client.NodeStatus{node(1, 2, 1, live), node(2, 1, 1, live), node(3, 1, 0, live)}, 1, 2, "n2 n3", "install release 0.14 on n2 n3", "1 of 3 nodes"},
		{"the last one is down", []client.NodeStatus{node(1, 2, 1, live), node(2, 1, 0, fenced)}, 1, 2, "n2", "start n2 with release 0.14", "1 of 2 nodes"},
		{"ready", []client.NodeStatus{node(1, 2, 1, live), node(2, 2, 0, fenced)}, 1, 2, "", "run `rhumb upgrade finalize`", "run `rhumb upgrade finalize`"},
		{"finalized without one", []client.NodeStatus{node(1, 2, 2, live), node(2, 1, 0, fenced)}, 2, 0, "n2", "install release 0.14 on n2 before it starts", ""},
		{"the next one begins", []client.NodeStatus{node(1, 3, 2, live), node(2, 2, 2, live)}, 2, 3, "n2", "install release", "1 of 2 nodes"},
		// A program two versions ahead can only be seen if the metadata was changed by hand; the step stays one.
		{"far ahead", []client.NodeStatus{node(1, 4, 0, live), node(2, 2, 2, live)}, 2, 3, "n1 n2", "install release", "0 of 2 nodes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Judge(tt.nodes)
			var held []string
			for _, n := range r.Held(nil) {
				held = append(held, n.ID)
			}
			if r.Version != tt.version || r.Next != tt.next || strings.Join(held, " ") != tt.held || r.Ready != (tt.next != 0 && tt.held == "") {
				t.Errorf("version %d, next %d, ready %v, held by %v", r.Version, r.Next, r.Ready, held)
			}
			for got, want := range map[string]string{r.Step: tt.step, r.Note(): tt.note} {
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
}

// TestForgottenNodesDoNotHold guards that a node that never returns does not keep an upgrade unfinished.
func TestForgottenNodesDoNotHold(t *testing.T) {
	gone := node(2, 1, 0, rhumb.NodeFenced)
	gone.Node.Forgotten = true
	if r := Judge([]client.NodeStatus{node(1, 2, 1, rhumb.NodeLive), gone}); !r.Ready || len(r.Nodes) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestWaiting(t *testing.T) {
	r := Judge([]client.NodeStatus{node(1, 2, 2, rhumb.NodeLive), node(2, 2, 1, rhumb.NodeDraining), node(3, 2, 0, rhumb.NodeFenced)})
	if got := r.Waiting(2); len(got) != 1 || got[0] != "n2" {
		t.Errorf("waiting for %v", got)
	}
	if held := r.Held([]rhumb.NodeID{2}); len(held) != 0 {
		t.Errorf("held by %v", held)
	}
}
