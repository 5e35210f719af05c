package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/exit"
)

// secureCluster is an authority and nodes with TLS, each a process of its own, made by the commands
// of the book.
type secureCluster struct {
	t testing.TB
	// dir holds everything: authority, nodes, operator.
	dir string
	// authorityDir is the directory of the authority, authorityAddr where it serves.
	authorityDir, authorityAddr string
	authority                   *process // nil while it is down
	nodes                       []*secureNode
	// operator is the folder of the operator's certificate.
	operator string
}

// secureNode is one node of a secureCluster.
type secureNode struct {
	name, region, dir                   string
	addr, heartbeats, gossip, adminAddr string
	token                               string // file
	*process
}

// newSecureCluster makes the authority, an operator and one token per node, and starts the
// authority. The nodes are named after their regions: frankfurt-1 and so on. None runs yet.
func newSecureCluster(t *testing.T, regions ...string) *secureCluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	c := &secureCluster{t: t, dir: t.TempDir(), authorityAddr: freeAddr(t)}
	c.authorityDir, c.operator = filepath.Join(c.dir, "authority"), filepath.Join(c.dir, "operator")
	ok(t, "init", "--authority", c.authorityDir, "--advertise", c.authorityAddr)
	ok(t, "authority", "operator", "test", "--authority", c.authorityDir, "--out", c.operator)
	c.startAuthority(t)
	for _, region := range regions {
		c.addNode(t, region)
	}
	return c
}

// startSecureCluster starts a secure cluster with one node in each of the regions, and waits until
// all nodes are ready.
func startSecureCluster(t *testing.T, regions ...string) *secureCluster {
	t.Helper()
	c := newSecureCluster(t, regions...)
	begin := time.Now()
	for _, n := range c.nodes {
		c.startNode(t, n)
	}
	c.awaitReady(t)
	t.Logf("%d nodes with TLS were ready after %v", len(c.nodes), time.Since(begin).Round(time.Millisecond))
	return c
}

// startAuthority starts the server of the authority and waits until it listens.
func (c *secureCluster) startAuthority(t *testing.T) {
	t.Helper()
	c.authority = startProcess(t, nil, "authority", "serve", "--authority", c.authorityDir, "--listen", c.authorityAddr)
	await(t, "the authority to listen", bootWait, func() bool {
		conn, err := net.Dial("tcp", c.authorityAddr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// stopAuthority stops the server of the authority.
func (c *secureCluster) stopAuthority(t *testing.T) {
	t.Helper()
	must(c.authority.Process.Signal(os.Interrupt))
	if code := c.authority.wait(); code != exit.OK {
		t.Errorf("the authority exits with %d\n%s", code, c.authority.stderr.String())
	}
	c.authority = nil
}

// addNode makes a token for another node in a region. The first node is the founder.
func (c *secureCluster) addNode(t *testing.T, region string) *secureNode {
	t.Helper()
	n := &secureNode{name: fmt.Sprintf("%s-%d", region, len(c.nodes)+1), region: region}
	n.dir, n.token = filepath.Join(c.dir, n.name), filepath.Join(c.dir, n.name+".token")
	n.addr, n.heartbeats, n.gossip, n.adminAddr = freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	args := []string{"token", "create", "--authority", c.authorityDir, "--node", n.name, "--out", n.token}
	if len(c.nodes) == 0 {
		args = append(args, "--founder")
	}
	ok(t, args...)
	c.nodes = append(c.nodes, n)
	return n
}

// startArgs returns the command line that starts a node.
func (c *secureCluster) startArgs(n *secureNode) []string {
	args := []string{
		"start", "--region", n.region, "--zone", n.name, "--dir", n.dir, "--token", n.token, "--addr", n.addr, "--heartbeat-addr", n.heartbeats,
		"--gossip-addr", n.gossip, "--admin-addr", n.adminAddr, "--memory", "512MiB", "--drain-timeout", "1s",
	}
	// The founder joins nobody, and all others join the founder.
	if n != c.nodes[0] {
		args = append(args, "--join", c.nodes[0].addr)
	}
	return args
}

// startNode starts a node, for the first time or again.
func (c *secureCluster) startNode(t *testing.T, n *secureNode, extra ...string) {
	t.Helper()
	n.process = startProcess(t, nil, append(c.startArgs(n), extra...)...)
}

// awaitReady waits until the cluster has all nodes that run, and each is ready.
func (c *secureCluster) awaitReady(t *testing.T) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	await(t, "all nodes to be ready", bootWait, func() bool {
		stdout, stderr, code := runIn(t.Context(), "", c.as("node", "ls", "-o", "json", "--timeout", "2s")...)
		var nodes []nodeDoc
		last = stdout + stderr
		if code != exit.OK || json.Unmarshal([]byte(stdout), &nodes) != nil {
			return false
		}
		ready := 0
		for _, n := range nodes {
			if n.Ready {
				ready++
			}
		}
		running := 0
		for _, n := range c.nodes {
			if n.process != nil {
				running++
			}
		}
		return ready == running
	})
}

// stopNode stops a node in order.
func (c *secureCluster) stopNode(t *testing.T, n *secureNode) {
	t.Helper()
	must(n.Process.Signal(os.Interrupt))
	n.wait()
	n.process = nil
}

// as returns a command line that connects to the cluster as its operator.
func (c *secureCluster) as(args ...string) []string {
	return c.with([]string{
		"--ca", filepath.Join(c.operator, "ca.crt"), "--cert", filepath.Join(c.operator, "operator.crt"), "--key", filepath.Join(c.operator, "operator.key"),
	}, args...)
}

// with returns a command line that connects to the cluster with an identity.
func (c *secureCluster) with(identity []string, args ...string) []string {
	out := slices.Clone(args)
	for _, n := range c.nodes {
		out = append(out, "--addr", n.addr)
	}
	return append(out, identity...)
}

// ok runs a command as the operator, which must succeed.
func (c *secureCluster) ok(t *testing.T, args ...string) string {
	t.Helper()
	return ok(t, c.as(args...)...)
}

// TestSecureCluster guards the promise of the book: an authority, tokens and starts make a secured
// cluster without any further step, nobody without an identity gets an answer, and nodes restart
// while the authority is away.
func TestSecureCluster(t *testing.T) {
	c := startSecureCluster(t, "frankfurt", "singapore", "virginia")
	c.ok(t, "table", "create", "flights", "--replicas", "1", "--min-in-sync", "1")
	c.ok(t, "put", "flights", "SWR8", "ident=SWR8", "--from", "frankfurt")
	if text := c.ok(t, "get", "flights", "SWR8", "--from", "virginia", "-o", "json"); !strings.Contains(text, "SWR8") {
		t.Errorf("get: %s", text)
	}
	t.Run("strangers", func(t *testing.T) { testStrangers(t, c) })
	t.Run("tokens", func(t *testing.T) { testUsedTokens(t, c) })
	t.Run("restart", func(t *testing.T) {
		c.stopAuthority(t)
		for _, n := range c.nodes {
			must(os.Remove(n.token))
			c.stopNode(t, n)
		}
		for _, n := range c.nodes {
			c.startNode(t, n)
		}
		c.awaitReady(t)
		c.ok(t, "get", "flights", "SWR8", "--from", "singapore")
	})
}

// testStrangers tries to be served without an identity of the cluster.
func testStrangers(t *testing.T, c *secureCluster) {
	for name, identity := range map[string][]string{
		"plain text":     {"--insecure"},
		"no certificate": {"--ca", filepath.Join(c.operator, "ca.crt")},
	} {
		_, stderr, code := runIn(t.Context(), "", c.with(identity, "get", "flights", "SWR8", "--timeout", "2s")...)
		if code == exit.OK {
			t.Errorf("%s is served: %s", name, stderr)
		}
	}
	other := filepath.Join(t.TempDir(), "authority")
	ok(t, "init", "--authority", other, "--advertise", "127.0.0.1")
	ok(t, "authority", "operator", "mallory", "--authority", other, "--out", filepath.Join(other, "out"))
	foreign := filepath.Join(other, "out", "operator")
	_, stderr, code := runIn(t.Context(), "", c.with([]string{"--ca", filepath.Join(c.operator, "ca.crt"), "--cert", foreign + ".crt", "--key", foreign + ".key"},
		"get", "flights", "SWR8", "--timeout", "2s")...)
	if code == exit.OK {
		t.Errorf("an operator of another authority is served: %s", stderr)
	}
}

// testUsedTokens guards that a token of a node that runs enrols no other directory.
func testUsedTokens(t *testing.T, c *secureCluster) {
	thief := *c.nodes[1]
	thief.dir, thief.process = filepath.Join(c.dir, "thief"), nil
	thief.addr, thief.heartbeats, thief.gossip, thief.adminAddr = freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	p := startProcess(t, nil, c.startArgs(&thief)...)
	if code := p.wait(); code != exit.Auth || !strings.Contains(p.stderr.String(), "already used") {
		t.Errorf("a used token: exit %d\n%s", code, p.stderr.String())
	}
	text := ok(t, "token", "ls", "--authority", c.authorityDir)
	if strings.Count(text, "used") != 3 || !strings.Contains(text, "frankfurt-1") {
		t.Errorf("token ls: %s", text)
	}
	if text := ok(t, "authority", "ls", "--authority", c.authorityDir); strings.Count(text, "enrol ") != 3 || !strings.Contains(text, "operator") {
		t.Errorf("authority ls: %s", text)
	}
}
