package local

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// lifeError returns an error unless the second life of a node is later than the first one.
func lifeError(node rhumb.NodeID, boot rhumb.BootSeq, node2 rhumb.NodeID, boot2 rhumb.BootSeq) error {
	if isLater(rhumb.NodeIdentity{Node: node2, Boot: boot2}, rhumb.NodeIdentity{Node: node, Boot: boot}) {
		return nil
	}
	return errNoEffect
}

// refusalError returns whether node 2 refuses writes.
func refusalError(one client.NodeStatus) error {
	_, err := checkRefusal("eu-2", 2, []client.NodeStatus{one})
	return err
}

// TestKeepChanging guards that changes of which none was made do not pass for a fault, and that one
// which failed is no refusal.
func TestKeepChanging(t *testing.T) {
	wrong := errors.New("wrong")
	for _, tt := range []struct {
		name    string
		changed bool
		err     error
		want    error
	}{{"made", true, nil, nil}, {"refused", false, nil, errNoEffect}, {"failed", false, wrong, wrong}, {"made and failed", true, wrong, wrong}} {
		called := make(chan struct{}, changesMost)
		s := keepChanging(t.Context(), "split", "splits", func(context.Context) (bool, error) {
			called <- struct{}{}
			return tt.changed, tt.err
		})
		<-called
		if _, err := s.heal(t.Context()); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestMeanwhile guards that a change during a fault hides neither a fault that did nothing nor a
// failure of its own.
func TestMeanwhile(t *testing.T) {
	strike := func(what string, err error) *Strike {
		return &Strike{What: what, heal: func(context.Context) (string, error) { return what + " healed", err }}
	}
	wrong, busy := &rhumb.Error{Kind: rhumb.Internal}, &rhumb.Error{Kind: rhumb.Conflict}
	for _, tt := range []struct {
		name          string
		fault, change error
		want          error
	}{
		{"both", nil, nil, nil},
		{"a fault without effect", errNoEffect, nil, errNoEffect},
		{"a change without effect", nil, errNoEffect, nil},
		{"a change that was refused", nil, busy, nil},
		{"a change that failed", nil, wrong, wrong},
	} {
		evidence, err := strike("cut", tt.fault).and(strike("split", tt.change)).heal(t.Context())
		if !errors.Is(err, tt.want) || tt.want == nil && err != nil || !strings.Contains(evidence, "cut healed; split healed") {
			t.Errorf("%s: %q, %v, want %v", tt.name, evidence, err, tt.want)
		}
	}
	for kind, passes := range map[rhumb.Kind]bool{
		rhumb.Conflict: true, rhumb.Unavailable: true, rhumb.Overloaded: true, rhumb.DeadlineExceeded: true, rhumb.Unknown: true,
		rhumb.Internal: false, rhumb.Corrupt: false, rhumb.InvalidArgument: false, rhumb.NotFound: false, rhumb.Other: false,
	} {
		if got := isRefusal(&rhumb.Error{Kind: kind}); got != passes {
			t.Errorf("%v: %v, want %v", kind, got, passes)
		}
	}
}

// TestChangesWithoutEffect guards that a drain which moved no range, and a split that is not made, do not pass for trials.
func TestChangesWithoutEffect(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want bool // whether it had an effect
	}{
		{"drain of three ranges", checkDrained("eu-1", 3, 0), true},
		{"drain of a node without ranges", checkDrained("eu-1", 0, 0), false},
		{"drain that left a range", checkDrained("eu-1", 3, 1), false},
		{"drain of a node that got a range", checkDrained("eu-1", 0, 1), false},
		{"split below the bound", maySplit(splitMost - 1), true},
		{"split at the bound", maySplit(splitMost), false},
		{"a killed node in its next life", lifeError(1, 7, 1, 8), true},
		{"a killed node in the same life", lifeError(1, 7, 1, 7), false},
		{"a killed node in an earlier life", lifeError(1, 7, 1, 6), false},
		{"a node that came back as another one", lifeError(1, 7, 4, 1), true},
		{"a node that is not known any more", lifeError(1, 7, 0, 0), false},
		{"a pause of a stopped process", checkStopped("Tsl\n"), true},
		{"a pause of a running process", checkStopped("Ssl\n"), false},
		{"a pause of no process", checkStopped(""), false},
		{"a cut that dropped a packet", checkDropped("eu-1", 1), true},
		{"a cut that dropped none", checkDropped("eu-1", 0), false},
		{"a delay of a packet", (&shape{delay: 1}).checkPackets(1, 0, 0), true},
		{"a delay of none", (&shape{delay: 1}).checkPackets(0, 0, 0), false},
		{"a loss of a packet", (&shape{loss: 0.1}).checkPackets(9, 1, 0), true},
		{"a loss of none", (&shape{loss: 0.1}).checkPackets(9, 0, 1), false},
		{"a packet that overtook another", (&shape{overtake: 0.1}).checkPackets(9, 0, 1), true},
		{"none that overtook another", (&shape{overtake: 0.1}).checkPackets(9, 1, 0), false},
		{"a disk that stalled a write", checkStalled(stalledLeast), true},
		{"a disk that stalled none", checkStalled(stalledLeast - 1), false},
		{"a wrong clock in the log", checkLogged("eu-1", "its clock is wrong", 3, 4), true},
		{"a wrong clock that is not in the log", checkLogged("eu-1", "its clock is wrong", 3, 3), false},
		{"a full disk whose store refuses writes", refusalError(client.NodeStatus{Node: rhumb.Node{ID: 2}, Stores: []client.StoreStatus{{}, {Refuses: "full"}}}), true},
		{"a full disk whose node does not answer", refusalError(client.NodeStatus{Node: rhumb.Node{ID: 2}, Err: "no answer"}), true},
		{"a full disk whose stores refuse nothing", refusalError(client.NodeStatus{Node: rhumb.Node{ID: 2}, Stores: []client.StoreStatus{{}, {}}}), false},
		{"a full disk of another node", refusalError(client.NodeStatus{Node: rhumb.Node{ID: 3}, Stores: []client.StoreStatus{{Refuses: "full"}}}), false},
		{"a new node with a copy", checkHolds("eu-4", 1), true},
		{"a new node without a copy", checkHolds("eu-4", 0), false},
		{"an upgrade to another program", checkExchanged("eu-1", "v1", "v2"), true},
		{"an upgrade to the same program", checkExchanged("eu-1", "v1", "v1"), false},
		{"certificates of another key", checkAuthorities([]string{"a"}, []string{"b"}), true},
		{"certificates of the same key", checkAuthorities([]string{"a"}, []string{"a"}), false},
	} {
		if (tt.err == nil) != tt.want || tt.err != nil && !errors.Is(tt.err, errNoEffect) {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
}
