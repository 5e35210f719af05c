package host

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
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

// TestTransfersWaitForTheVersion guards that no message about copies leaves a node before every program in the cluster
// can read it, and that they do afterwards.
func TestTransfersWaitForTheVersion(t *testing.T) {
	const most = 4 << 20
	var allowed atomic.Bool
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 4 << 20}, func(c *Config) {
		c.LogKeepStore, c.Transfers = most, allowed.Load
	})
	w.put(1, "k", "v")
	w.isolate(3, true)
	w.elect(1, 1, 2)
	h, value := w.hosts[1], strings.Repeat("x", 256<<10)
	for range 64 {
		w.put(1, "k", value)
	}
	w.eventually(func() error {
		w.put(1, "k", value)
		if size, _ := h.cfg.Engine.Stores()[0].Size(testRange); size.Log > 2*most {
			return fmt.Errorf("%d bytes of log are kept", size.Log)
		}
		return nil
	})
	w.isolate(3, false)
	// The primary knows that the log does not reach far enough, and repeats the message every second.
	w.eventually(func() error {
		tr, err := h.Troubles(t.Context())
		if err == nil && tr.Counts[replica.LogLost] == 0 {
			err = errors.New("the primary does not know yet that the replica is behind its log")
		}
		return err
	})
	if n := len(w.hosts[3].CopiesWanted()); n != 0 {
		t.Fatalf("%d copies are wanted before the version has transfers", n)
	}
	allowed.Store(true)
	w.eventually(func() error {
		if len(w.hosts[3].CopiesWanted()) != 1 {
			return errors.New("no copy is wanted")
		}
		return nil
	})
}
