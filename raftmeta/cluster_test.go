package raftmeta

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
)

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// cluster is several nodes of one group in one process.
type cluster struct {
	t      testing.TB
	net    *testNetwork
	kvs    map[rhumb.NodeID]*memKV
	groups map[rhumb.NodeID]*Group
	boots  map[rhumb.NodeID]rhumb.BootSeq
	adjust func(*Config)
	began  time.Time
}

// bubble is the runtime of a test in fake time.
type bubble struct {
	sched.Runtime
	began time.Time
}

func (b bubble) Now() time.Duration { return time.Since(b.began) }

// region returns the region of a node; three nodes share a region.
func region(id rhumb.NodeID) string { return string(rune('a' + (id-1)/3)) }

func registration(id rhumb.NodeID, boot rhumb.BootSeq) catalog.RegisterNode {
	return catalog.RegisterNode{
		Binary: testBinary, Store: rhumb.UUID{byte(id)}, Boot: boot, Nonce: uint64(boot), Region: region(id), Zone: fmt.Sprintf("z%d", id%3),
		Location: rhumb.Point{Lat: float64((id - 1) / 3), Lon: 1}, HasLocation: true,
	}
}

// inBubble runs a test with a cluster of n nodes in fake time.
func inBubble(t *testing.T, n int, adjust func(*Config), f func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n, adjust)
		defer c.close()
		f(c)
	})
}

func newCluster(t testing.TB, n int, adjust func(*Config)) *cluster {
	const seed = 20
	t.Logf("network seed %d", seed)
	c := &cluster{
		t: t, net: newTestNetwork(seed), kvs: make(map[rhumb.NodeID]*memKV), groups: make(map[rhumb.NodeID]*Group),
		boots: make(map[rhumb.NodeID]rhumb.BootSeq), adjust: adjust, began: time.Now(),
	}
	c.kvs[1] = newMemKV()
	if _, err := Bootstrap(c.kvs[1], catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)}); err != nil {
		t.Fatal(err)
	}
	c.boots[1] = 1
	c.open(1)
	for len(c.groups) < n {
		c.join()
	}
	c.await("all nodes are members", func() bool { return c.members() == n })
	return c
}

// join registers a new node and opens its group.
func (c *cluster) join() rhumb.NodeID {
	c.t.Helper()
	want := rhumb.NodeID(len(c.kvs) + 1)
	res := c.propose(1, registration(want, 1))
	if res.Node != want {
		c.t.Fatalf("joined as %s, want %s: %v", res.Node, want, res.Err())
	}
	c.kvs[want], c.boots[want] = newMemKV(), 1
	c.open(want)
	return want
}

// open starts a node from its KV.
func (c *cluster) open(id rhumb.NodeID) {
	c.t.Helper()
	config := DefaultConfig()
	config.Node, config.KV, config.Transport, config.Runtime = id, c.kvs[id], endpoint{c.net, id}, bubble{sched.System, c.began}
	if c.adjust != nil {
		c.adjust(&config)
	}
	g, err := Open(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.groups[id] = g
	c.net.set(id, g)
}

// kill stops a node and drops everything that it had not synced.
func (c *cluster) kill(id rhumb.NodeID) {
	c.net.set(id, nil)
	_ = c.groups[id].Close() // gives no error
	c.kvs[id] = c.kvs[id].crash()
	delete(c.groups, id)
}

// restart opens a killed node and registers its next life.
func (c *cluster) restart(id rhumb.NodeID) {
	c.t.Helper()
	c.open(id)
	c.boots[id]++
	r := registration(id, c.boots[id])
	r.Node = id
	c.propose(id, r)
}

func (c *cluster) close() {
	for id := range c.groups {
		c.kill(id)
	}
	c.net.close()
}

// propose proposes a command through a node and fails the test if it is not applied.
func (c *cluster) propose(id rhumb.NodeID, cmd catalog.Command) catalog.Result {
	c.t.Helper()
	return c.proposeVia(c.groups[id], cmd)
}

func (c *cluster) proposeVia(g *Group, cmd catalog.Command) catalog.Result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	res, err := g.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		c.t.Fatalf("%T through %s: %v", cmd, g.config.Node, err)
	}
	return res
}

// await waits until a condition holds, for at most five minutes of fake time.
func (c *cluster) await(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.After(5 * time.Minute)
	for !condition() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			c.t.Fatalf("never came true: %s", what)
		}
	}
}

// leader waits for a leader that is up and returns it.
func (c *cluster) leader() rhumb.NodeID {
	c.t.Helper()
	var found rhumb.NodeID
	c.await("there is a leader", func() bool {
		for id, g := range c.groups {
			if g.IsLeader() {
				found = id
				return true
			}
		}
		return false
	})
	return found
}

func (c *cluster) status(id rhumb.NodeID) Status {
	c.t.Helper()
	s, err := c.groups[id].Status(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// members returns the number of members that the leader knows.
func (c *cluster) members() int {
	s := c.status(c.leader())
	return len(s.Voters) + len(s.Learners)
}

// awaitVoters waits until every node knows a settled group of n voters.
func (c *cluster) awaitVoters(n int) {
	c.t.Helper()
	c.await("the voters are settled", func() bool {
		for id := range c.groups {
			if s := c.status(id); len(s.Voters) != n || len(s.Outgoing) != 0 {
				return false
			}
		}
		return true
	})
}

// ids returns the nodes that are up, except the given ones.
func (c *cluster) ids(except ...rhumb.NodeID) []rhumb.NodeID {
	var out []rhumb.NodeID
	for id := range c.groups {
		if !slices.Contains(except, id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// awaitAlike waits until all nodes that are up have equal states.
func (c *cluster) awaitAlike() {
	c.t.Helper()
	c.await("all states are alike", func() bool {
		want := ""
		for _, g := range c.groups {
			got := string(g.State().Encode())
			if want != "" && got != want {
				return false
			}
			want = got
		}
		return true
	})
}

func smallClass() rhumb.ClassSettings {
	s := rhumb.DefaultClassSettings()
	s.HashSlots = 6
	return s
}

// counterValue returns the value of a counter of a registry.
func counterValue(t testing.TB, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// readState is the leader's answer to a question about reads.
func readState(context []byte, index uint64) raft.ReadState {
	return raft.ReadState{RequestCtx: context, Index: index}
}
