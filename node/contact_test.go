package node

import (
	"context"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestJoinAddr checks which addresses --join completes.
func TestJoinAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"eu-1":             "eu-1:7600",
		"eu-1:7610":        "eu-1:7610",
		"10.0.0.1":         "10.0.0.1:7600",
		"::1":              "[::1]:7600",
		"[::1]":            "[::1]:7600",
		"[::1]:7":          "[::1]:7",
		"":                 "",
		"not:an:addr:ess":  "not:an:addr:ess",
		"localhost":        "localhost:7600",
		"a.b.example.com.": "a.b.example.com.:7600",
	} {
		if got := joinAddr(addr); got != want {
			t.Errorf("joinAddr(%q) = %q, want %q", addr, got, want)
		}
	}
}

// TestCallerFindsCluster checks that a node without --join joins a node that contacted it. Gossip cannot
// tell it of the cluster when gossip is encrypted.
func TestCallerFindsCluster(t *testing.T) {
	waiting := startNode(t, t.TempDir(), "singapore", "a")
	first := startNode(t, t.TempDir(), "singapore", "b", waiting.Addr())
	for !containsAddr(waiting.callers.list(), first.Addr()) {
		select {
		case <-t.Context().Done():
			t.Fatal("the caller was not remembered")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, _, err := first.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := waiting.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if waiting.Identity().Cluster != first.Identity().Cluster {
		t.Fatalf("clusters %s and %s", waiting.Identity().Cluster, first.Identity().Cluster)
	}
	// The catalog command is one thing; through the node it also has to be visible at once.
	res, st, err := waiting.Propose(ctx, catalog.AddRegion{Name: "bern", Location: rhumb.Point{Lat: 46.9, Lon: 7.4}})
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := st.Region(res.Region); !ok || r.Name != "bern" {
		t.Fatalf("region %+v, %v", r, ok)
	}
}

func containsAddr(addrs []string, addr string) bool {
	for _, a := range addrs {
		if a == addr {
			return true
		}
	}
	return false
}

// TestCallersAreBounded checks that the oldest caller gives way.
func TestCallersAreBounded(t *testing.T) {
	var c callers
	for i := range callersMax + 1 {
		c.add(string(rune('a' + i)))
	}
	if got := c.list(); len(got) != callersMax || got[0] != "b" {
		t.Fatalf("callers %v", got)
	}
}
