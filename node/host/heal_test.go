package host

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestMayHeal: a damaged copy is discarded without a person only if enough intact copies are left.
func TestMayHeal(t *testing.T) {
	good := func() *rhumb.Range {
		return &rhumb.Range{Replicas: []rhumb.NodeID{1, 2, 3}, InSync: []rhumb.NodeID{2, 3}, Quarantined: []rhumb.NodeID{1}}
	}
	all := func(rhumb.NodeID) bool { return true }
	for name, c := range map[string]struct {
		change    func(d *rhumb.Range)
		min       int
		connected func(rhumb.NodeID) bool
		want      bool
	}{
		"two intact copies":             {min: 2, want: true},
		"one, and one suffices":         {change: func(d *rhumb.Range) { d.InSync = []rhumb.NodeID{2} }, min: 1, want: true},
		"one, and two are needed":       {change: func(d *rhumb.Range) { d.InSync = []rhumb.NodeID{2} }, min: 2},
		"another one is damaged":        {change: func(d *rhumb.Range) { d.Quarantined = []rhumb.NodeID{1, 2} }, min: 2},
		"still in sync":                 {change: func(d *rhumb.Range) { d.InSync = []rhumb.NodeID{1, 2, 3} }, min: 2},
		"metadata does not know":        {change: func(d *rhumb.Range) { d.Quarantined = nil }, min: 2},
		"not a replica any more":        {change: func(d *rhumb.Range) { d.Replicas = []rhumb.NodeID{2, 3} }, min: 2},
		"given up by an operator":       {change: func(d *rhumb.Range) { d.Recovery = &rhumb.Recovery{Node: 2, Gone: []rhumb.NodeID{1}} }, min: 2},
		"the others cannot be reached":  {min: 2, connected: func(n rhumb.NodeID) bool { return n == 2 }},
		"no minimum, and nobody intact": {change: func(d *rhumb.Range) { d.InSync = nil }, min: 0},
	} {
		d := good()
		if c.change != nil {
			c.change(d)
		}
		if c.connected == nil {
			c.connected = all
		}
		if got := mayHeal(1, d, c.min, c.connected); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if mayHeal(1, nil, 1, all) {
		t.Error("a range without a record")
	}
}
