package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestFormerRangesReturn kills one of four nodes until its copies were created elsewhere, and starts it again: by `rhumb node failback` it
// gets the ranges back that had preferred it, with every record.
func TestFormerRangesReturn(t *testing.T) {
	k := startCrew(t, 4, rand.New(rand.NewPCG(1, 1)))
	ok(t, "table", "create", "notes", "--replicas", "3", "--hash-slots", "8")
	ok(t, "setting", "set", "failback", "manual")
	ok(t, "setting", "set", "replace_after", "5s")
	for i := range 24 {
		ok(t, "put", "notes", fmt.Sprint("note-", i), fmt.Sprintf("n=%d", i))
	}
	await(t, "the cluster to be whole", settleWait, k.isHealthy)
	victim := k.nodes[3]
	// had are the ranges that prefer the victim.
	had := map[rhumb.RangeID]bool{}
	for _, r := range k.c.Ranges() {
		if r.Preferred == victim.ID {
			had[r.ID] = true
		}
	}
	if len(had) == 0 {
		t.Fatalf("no range prefers %s", victim.ID)
	}
	before := k.life(victim.ID)
	k.kill(victim)
	await(t, "the copies to be created elsewhere", settleWait, func() bool {
		for _, r := range k.c.Ranges() {
			if r.IsReplica(victim.ID) || had[r.ID] && r.Former != victim.ID {
				return false
			}
		}
		return true
	})
	var shown []rangeDoc
	okJSON(t, &shown, "range", "ls")
	for _, r := range shown {
		id, err := rhumb.ParseRangeID(r.ID)
		if err != nil || (r.Former == victim.ID.String()) != had[id] {
			t.Errorf("range %s: its former node is shown as %q, %v", r.ID, r.Former, err)
		}
	}
	k.start(victim)
	k.awaitNewLife(victim, before)
	copied := 0
	await(t, "the ranges to return", settleWait, func() bool {
		// The command fails while a range cannot return, and says which.
		var d failbackDoc
		out, _, _ := runIn(t.Context(), "", "node", "failback", victim.ID.String(), "-o", "json")
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			return false
		}
		copied += d.Returning
		for _, r := range k.c.Ranges() {
			if had[r.ID] && (r.Primary != victim.ID || r.Former != rhumb.NoNode || len(r.Replicas) != 3) {
				return false
			}
		}
		return k.isHealthy()
	})
	if copied == 0 {
		t.Error("the command showed no range on its way")
	}
	for i := range 24 {
		var d map[string]any
		okJSON(t, &d, "get", "notes", fmt.Sprint("note-", i))
	}
}
