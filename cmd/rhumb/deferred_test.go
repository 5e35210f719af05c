package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// TestDeferredTable guards a table that defers syncs for longer than the test takes: all processes of the cluster are killed while
// writes go on, and every acknowledged write is there afterwards, because the operating systems had it.
func TestDeferredTable(t *testing.T) {
	k := startCrew(t, 3, rand.New(rand.NewPCG(1, 1)))
	var d tableDoc
	okJSON(t, &d, "table", "create", "telemetry", "--hash-slots", "4", "--durability", "deferred=10s")
	if d.Durability != "deferred=10s" {
		t.Errorf("durability is %q", d.Durability)
	}
	okJSON(t, &d, "table", "create", "orders", "--hash-slots", "4")
	if d.Durability != rhumb.Synced.String() {
		t.Errorf("the default durability is %q", d.Durability)
	}
	var status statusDoc
	okJSON(t, &status, "status", "-o", "json")
	if !slices.ContainsFunc(status.Notes, func(note string) bool { return strings.HasPrefix(note, "table telemetry defers syncs by up to 10s") }) {
		t.Errorf("the notes of the status are %q", status.Notes)
	}
	if _, errOut, code := runIn(t.Context(), "", "table", "create", "bad", "--durability", "deferred=1h"); code == 0 {
		t.Errorf("a window of an hour is accepted: %s", errOut)
	}
	await(t, "the cluster to be whole", settleWait, k.isHealthy)
	table, err := k.c.Table(t.Context(), "telemetry")
	if err != nil {
		t.Fatal(err)
	}
	// A client repeats what the nodes did not answer when they died, so writers go on over the restart until they are stopped.
	acked := make([]int, 8)
	var writers sync.WaitGroup
	enough := make(chan struct{}, len(acked))
	var stop atomic.Bool
	for w := range acked {
		writers.Go(func() {
			for !stop.Load() {
				if _, err := table.Put(t.Context(), fmt.Appendf(nil, "%d-%d", w, acked[w]), []byte("value"), client.PutOptions{}); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				if acked[w]++; acked[w] == 50 {
					enough <- struct{}{}
				}
			}
		})
	}
	for range acked {
		<-enough
	}
	k.killAll(0)
	stop.Store(true)
	writers.Wait()
	await(t, "the cluster to be whole again", settleWait, k.isHealthy)
	n := 0
	for w, end := range acked {
		n += end
		// The newest are those that a crash could have taken.
		for i := max(0, end-500); i < end; i++ {
			if _, err := table.Get(t.Context(), fmt.Appendf(nil, "%d-%d", w, i), client.GetOptions{}); err != nil {
				t.Fatalf("acknowledged write %d of writer %d: %v", i, w, err)
			}
		}
	}
	t.Logf("%d acknowledged writes are there", n)
}
