package client_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node"
)

// TestLostMajorityIsTheReason guards that a command which needs the metadata says so when most voters are gone. The client also asks the nodes
// that are gone, and that one of them cannot be reached tells nobody what to do.
func TestLostMajorityIsTheReason(t *testing.T) {
	place := rhumb.Point{Lat: 50.11, Lon: 8.68}
	first := startNode(t, "frankfurt", place, "a")
	initialise(t, first)
	nodes := []*node.Node{first}
	for _, zone := range []string{"b", "c"} {
		nodes = append(nodes, startNode(t, "frankfurt", place, zone, first.Addr()))
	}
	awaitReady(t, nodes...)
	c := open(t, "frankfurt", first)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	voters := func() (count int) {
		for _, n := range c.Nodes() {
			if n.Voter {
				count++
			}
		}
		return count
	}
	for voters() < 3 {
		select {
		case <-c.Changed():
		case <-ctx.Done():
			t.Fatalf("the cluster has %d voters", voters())
		}
	}
	nodes[1].Close()
	nodes[2].Close()
	_, err := c.Operations(ctx)
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "metadata") || strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("operations without a majority: %v", err)
	}
}
