package catalog

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

// speakState has n1 = eu-1, n2 = eu-2 in life 2, n3 without a name, n4 = old, which is forgotten.
func speakState(t *testing.T) *State {
	s := founded()
	for _, cmd := range []Command{
		RegisterNode{Binary: testBinary, Node: 1, Store: rhumb.UUID{1}, Boot: 2, Nonce: 20, Region: "fra", Zone: "z", Name: "eu-1"},
		RegisterNode{Binary: testBinary, Store: rhumb.UUID{2}, Boot: 2, Nonce: 1, Region: "fra", Zone: "z", Name: "eu-2"},
		RegisterNode{Binary: testBinary, Store: rhumb.UUID{3}, Boot: 1, Nonce: 1, Region: "fra", Zone: "z"},
		RegisterNode{Binary: testBinary, Store: rhumb.UUID{4}, Boot: 1, Nonce: 1, Region: "fra", Zone: "z", Name: "old"},
		FenceNode{4, 1},
		ForgetNode{4, 1, false},
	} {
		var res Result
		if s, res, _ = s.Apply(cmd); res.Failure != nil {
			t.Fatal(res.Failure)
		}
	}
	return s
}

// TestMaySpeak guards that the certificate of one node never suffices to act as another.
func TestMaySpeak(t *testing.T) {
	s := speakState(t)
	const ok = rhumb.Kind(255)
	for _, tt := range []struct {
		what           string
		name           string
		id             rhumb.NodeID
		strict, joined rhumb.Kind // without and with joining
	}{
		{"itself", "eu-2", 2, ok, ok},
		{"another node", "eu-2", 1, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"a node without a name", "eu-2", 3, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"a node that does not exist", "eu-2", 9, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"nobody", "eu-2", 0, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"a named node by an unregistered one", "eu-9", 1, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"an unnamed node by an unregistered one", "eu-9", 3, rhumb.Unavailable, ok},
		{"a new node", "eu-9", 9, rhumb.Unavailable, ok},
		{"a forgotten node", "old", 4, rhumb.PermissionDenied, rhumb.PermissionDenied},
		{"a new node with the name of a forgotten one", "old", 9, rhumb.Unavailable, ok},
	} {
		for _, joining := range []bool{false, true} {
			want := tt.strict
			if joining {
				want = tt.joined
			}
			err := s.MaySpeak(tt.name, tt.id, joining)
			if err == nil && want != ok || err != nil && rhumb.KindOf(err) != want {
				t.Errorf("%s, joining %v: %v, want %s", tt.what, joining, err, want)
			}
		}
	}
}

// TestMayPropose guards that a node proposes no change of another node's roles.
func TestMayPropose(t *testing.T) {
	s := goldenState(t)
	r, _ := s.Range(rhumb.RangeID{Region: 1})
	other := 3 - r.Primary
	for _, tt := range []struct {
		cmd  Command
		from rhumb.NodeID
		ok   bool
	}{
		{AlterISR{Range: r.ID}, r.Primary, true},
		{AlterISR{Range: r.ID}, other, false},
		{QuarantineReplica{Range: r.ID, Node: 2}, 2, true},
		{QuarantineReplica{Range: r.ID, Node: 2}, 1, false},
		{ReadmitReplica{Range: r.ID, Node: 2}, 2, true},
		{ReadmitReplica{Range: r.ID, Node: 2}, 1, false},
		{FenceNode{Node: 2}, 2, false},
		{SetRegionDead{1}, 1, false},
		{SetVoters{[]rhumb.NodeID{1}}, 1, false},
		{CreateTable{Name: "t"}, 1, true},
		{Batch{[]Command{CreateTable{}, FenceNode{}}}, 1, false},
	} {
		if err := s.MayPropose(tt.from, tt.cmd); (err == nil) != tt.ok {
			t.Errorf("%T by %s: %v", tt.cmd, tt.from, err)
		}
	}
}
