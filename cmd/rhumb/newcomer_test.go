package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

var (
	newcomerRounds = flag.Int("newcomer.rounds", 4, "number of new nodes that TestNewcomerIsKilled starts")
	newcomerSeed   = flag.Uint64("newcomer.seed", 1, "seed of the times at which TestNewcomerIsKilled kills")
)

const (
	// newcomerKills is how often a new node is killed. newcomerLives bounds how long it lives each
	// time.
	newcomerKills = 5
	newcomerLives = 400 * time.Millisecond
	// newcomerWait bounds how long the node may then take to join.
	newcomerWait = 15 * time.Second
)

// TestNewcomerIsKilled kills a new node several times at random moments of its first second: before
// it registers, while it does, or before it learns that it has. After that it must join soon.
func TestNewcomerIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	base := t.TempDir()
	nodes := startSolo(t, base)
	t.Logf("seed %d", *newcomerSeed)
	rnd := rand.New(rand.NewPCG(*newcomerSeed, 0))
	for round := range *newcomerRounds {
		n := &soloNode{dir: filepath.Join(base, fmt.Sprint("new", round)), addr: freeAddr(t), gossip: freeAddr(t), admin: freeAddr(t)}
		for range newcomerKills {
			n.start(t, "d", nodes[0].addr)
			time.Sleep(time.Duration(rnd.Int64N(int64(newcomerLives)))) // a random moment is the point of the test
			n.end(t)
		}
		n.start(t, "d", nodes[0].addr)
		start := time.Now()
		await(t, "the new node to be in its cluster", newcomerWait, func() bool { return isReady(n.admin) })
		t.Logf("round %d: in its cluster after %v", round, time.Since(start).Round(time.Millisecond))
		n.end(t)
	}
}

// isReady reports whether the node with an admin address is in its cluster.
func isReady(admin string) bool {
	resp, err := http.Get("http://" + admin + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
