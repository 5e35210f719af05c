package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
)

// secureCluster is an authority and nodes with TLS, each a process of its own, made by the commands
// of the book.
type secureCluster struct {
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
	c := &secureCluster{dir: t.TempDir(), authorityAddr: freeAddr(t)}
	c.makeAuthority(t)
	for i, region := range regions {
		c.makeToken(t, c.addNode(t, region), i == 0)
	}
	return c
}

// makeAuthority makes the authority and an operator, and starts the server.
func (c *secureCluster) makeAuthority(t *testing.T, extra ...string) {
	t.Helper()
	c.authorityDir, c.operator = filepath.Join(c.dir, "authority"), filepath.Join(c.dir, "operator")
	ok(t, append([]string{"init", "--authority", c.authorityDir, "--advertise", c.authorityAddr}, extra...)...)
	ok(t, "authority", "operator", "test", "--authority", c.authorityDir, "--out", c.operator)
	c.startAuthority(t)
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

// addNode describes another node in a region. It has no token yet.
func (c *secureCluster) addNode(t *testing.T, region string) *secureNode {
	t.Helper()
	n := &secureNode{name: fmt.Sprintf("%s-%d", region, len(c.nodes)+1), region: region}
	n.dir, n.token = filepath.Join(c.dir, n.name), filepath.Join(c.dir, n.name+".token")
	n.addr, n.heartbeats, n.gossip, n.adminAddr = freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	c.nodes = append(c.nodes, n)
	return n
}

// makeToken makes the token of a node.
func (c *secureCluster) makeToken(t *testing.T, n *secureNode, founder bool) {
	t.Helper()
	args := []string{"token", "create", "--authority", c.authorityDir, "--node", n.name, "--out", n.token}
	if founder {
		args = append(args, "--founder")
	}
	ok(t, args...)
}

// startArgs returns the command line that starts a node.
func (c *secureCluster) startArgs(n *secureNode) []string {
	args := []string{
		"start", "--region", n.region, "--zone", n.name, "--dir", n.dir, "--addr", n.addr, "--heartbeat-addr", n.heartbeats,
		"--gossip-addr", n.gossip, "--admin-addr", n.adminAddr, "--memory", "512MiB", "--drain-timeout", "1s",
	}
	if c.authorityDir != "" {
		args = append(args, "--token", n.token)
	} else {
		args = append(args, "--insecure")
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

// as returns a command line that connects to the cluster as its operator, or in plain text before
// there is an authority.
func (c *secureCluster) as(args ...string) []string {
	if c.authorityDir == "" {
		return c.with([]string{"--insecure"}, args...)
	}
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

// TestSecureAnInsecureCluster guards the steps of docs/operations/secure-a-cluster.md: a cluster
// that was begun with --insecure keeps its data and its nodes, and never serves without TLS again.
func TestSecureAnInsecureCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	c := &secureCluster{dir: t.TempDir(), authorityAddr: freeAddr(t)}
	for _, region := range []string{"frankfurt", "frankfurt", "virginia"} {
		c.startNode(t, c.addNode(t, region))
	}
	await(t, "the cluster to exist", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", "init", "--insecure", "--addr", c.nodes[0].addr)
		return code == exit.OK || code == exit.Precondition
	})
	c.awaitReady(t)
	var before, after statusDoc
	okJSON(t, &before, c.as("status")...)
	c.ok(t, "table", "create", "flights", "--replicas", "1", "--min-in-sync", "1")
	const records = 50
	for i := range records {
		c.ok(t, "put", "flights", fmt.Sprint("F", i), fmt.Sprint("n=", i), "--from", []string{"frankfurt", "virginia"}[i%2])
	}
	for _, n := range c.nodes {
		c.stopNode(t, n)
	}

	c.makeAuthority(t, "--cluster", before.ClusterID)
	for _, n := range c.nodes {
		c.makeToken(t, n, false)
		c.startNode(t, n)
	}
	c.awaitReady(t)
	okJSON(t, &after, c.as("status")...)
	if after.ClusterID != before.ClusterID || len(after.Nodes) != len(before.Nodes) {
		t.Errorf("%d nodes of cluster %s, were %d of %s", len(after.Nodes), after.ClusterID, len(before.Nodes), before.ClusterID)
	}
	if text := c.ok(t, "scan", "flights", "--limit", "0", "-o", "json"); strings.Count(text, "\n") != records {
		t.Errorf("%d records, want %d", strings.Count(text, "\n"), records)
	}
	c.ok(t, "put", "flights", "NEW", "n=1")
	n := c.nodes[2]
	c.stopNode(t, n)
	args := slices.DeleteFunc(c.startArgs(n), func(a string) bool { return a == "--token" || a == n.token })
	p := startProcess(t, nil, append(args, "--insecure")...)
	if code := p.wait(); code == exit.OK || !strings.Contains(p.stderr.String(), "served with TLS") {
		t.Errorf("a secured directory is served without TLS: exit %d, %s", code, p.stderr.String())
	}
}

// TestRotateAuthority guards that a rotation reaches all nodes without a restart, under load, and
// that the old key can then be retired.
func TestRotateAuthority(t *testing.T) {
	c := startSecureCluster(t, "frankfurt")
	c.ok(t, "table", "create", "flights", "--replicas", "1", "--min-in-sync", "1")
	var before, after struct{ Keys []string }
	okJSON(t, &before, "authority", "ls", "--authority", c.authorityDir)
	ok(t, "authority", "rotate", "--authority", c.authorityDir)
	// An operator's files from before the rotation still work, and new ones do at once.
	c.ok(t, "put", "flights", "A", "n=1")
	c.operator = filepath.Join(c.dir, "operator-2")
	ok(t, "authority", "operator", "test", "--authority", c.authorityDir, "--out", c.operator)
	c.ok(t, "put", "flights", "B", "n=1")
	// A restart asks the authority at once; a running node asks within minutes.
	fails(t, exit.Precondition, "authority", "rotate", "--authority", c.authorityDir, "--retire", before.Keys[0][:16])
	n := c.nodes[0]
	c.stopNode(t, n)
	c.startNode(t, n)
	c.awaitReady(t)
	await(t, "the node to renew", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", "authority", "rotate", "--authority", c.authorityDir, "--retire", before.Keys[0][:16])
		return code == exit.OK
	})
	okJSON(t, &after, "authority", "ls", "--authority", c.authorityDir)
	if len(after.Keys) != 1 || after.Keys[0] == before.Keys[0] {
		t.Errorf("keys %q after %q", after.Keys, before.Keys)
	}
	c.ok(t, "get", "flights", "A")
	// Another node still finds its way in.
	other := c.addNode(t, "virginia")
	c.makeToken(t, other, false)
	c.startNode(t, other)
	c.awaitReady(t)
}

// TestSecureDemo guards that a secure demo starts with one command, that commands on this machine
// use it without flags, and that it continues on its directory.
func TestSecureDemo(t *testing.T) {
	dir := ""
	for round := range 2 {
		args := []string{"--secure", "--latency", "none", "--load", "none", "--nodes-per-region", "1", "--regions", "singapore,frankfurt,virginia"}
		if dir != "" {
			args = append(args, "--dir", dir)
		}
		layout, p := startDemo(t, args...)
		dir = layout.Dir
		if layout.Identity == nil || len(layout.Nodes) != 3 {
			t.Fatalf("the layout is %+v", layout)
		}
		if round == 0 {
			ok(t, "put", "flights", "SWR8", "ident=SWR8")
		}
		ok(t, "get", "flights", "SWR8", "--from", "virginia")
		ok(t, "status", "--check")
		viewer := []string{"--addr", layout.Nodes[0].Addr, "--ca", filepath.Join(dir, "viewer", "ca.crt"), "--cert", filepath.Join(dir, "viewer", "user.crt"), "--key", filepath.Join(dir, "viewer", "user.key")}
		ok(t, append([]string{"get", "flights", "SWR8"}, viewer...)...)
		fails(t, exit.Auth, append([]string{"put", "flights", "SWR8", "ident=SWR9"}, viewer...)...)
		fails(t, exit.Unavailable, "get", "flights", "SWR8", "--addr", layout.Nodes[0].Addr, "--insecure", "--timeout", "1s")
		for _, n := range layout.Nodes {
			if _, err := os.Stat(n.Dir + ".token"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the token of %s is left: %v", n.Dir, err)
			}
		}
		must(p.Process.Signal(os.Interrupt))
		if code := p.wait(); code != exit.OK {
			t.Errorf("the demo exits with %d", code)
		}
	}
}

// serialOf returns the serial number of the first certificate of a file, as logs show it.
func serialOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(err)
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no certificate", file)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	must(err)
	return fmt.Sprintf("%x", cert.SerialNumber)
}

// TestRotateUnderLoad guards that the certificates of all nodes and the key of the authority are
// replaced while clients write, without a failed write.
func TestRotateUnderLoad(t *testing.T) {
	c := startSecureCluster(t, "frankfurt", "frankfurt", "frankfurt")
	c.ok(t, "table", "create", "flights")
	var log lockedBuffer
	cl, err := client.Open(t.Context(), client.Config{
		Addrs:  []string{c.nodes[0].addr, c.nodes[1].addr, c.nodes[2].addr},
		TLS:    &client.TLS{CA: filepath.Join(c.operator, "ca.crt"), Cert: filepath.Join(c.operator, "operator.crt"), Key: filepath.Join(c.operator, "operator.key")},
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	must(err)
	defer cl.Close()
	table, err := cl.Table(t.Context(), "flights")
	must(err)
	stop := make(chan struct{})
	var writes, failures atomic.Int64
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := table.Put(t.Context(), fmt.Append(nil, "W", i), fmt.Append(nil, n), client.PutOptions{}); err != nil {
					failures.Add(1)
					t.Errorf("a write failed: %v", err)
				}
				writes.Add(1)
			}
		})
	}
	// Each rotation happens while writes are under way, and writes go on after it.
	awaitWrites := func() {
		seen := writes.Load()
		await(t, "writes", settleWait, func() bool { return writes.Load() > seen+500 })
	}
	awaitWrites()
	begin := time.Now()
	const rounds = 3
	for range rounds {
		var before struct{ Keys []string }
		okJSON(t, &before, "authority", "ls", "--authority", c.authorityDir)
		ok(t, "authority", "rotate", "--authority", c.authorityDir)
		for _, n := range c.nodes {
			must(n.Process.Signal(syscall.SIGHUP))
		}
		// The operator's certificate is the only one that is not renewed by itself. Its file is
		// replaced while the client uses it.
		fresh := filepath.Join(c.dir, "fresh-"+before.Keys[0][:8])
		ok(t, "authority", "operator", "test", "--authority", c.authorityDir, "--out", fresh)
		for _, file := range []string{"ca.crt", "operator.key", "operator.crt"} {
			must(os.Rename(filepath.Join(fresh, file), filepath.Join(c.operator, file)))
		}
		// The client looks at its files once a second, and nodes may forget the old key sooner.
		serial := serialOf(t, filepath.Join(c.operator, "operator.crt"))
		await(t, "the client to load its certificate", settleWait, func() bool { return strings.Contains(log.String(), serial) })
		await(t, "all nodes to renew", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", "authority", "rotate", "--authority", c.authorityDir, "--retire", before.Keys[0][:16])
			return code == exit.OK
		})
		for _, n := range c.nodes {
			must(n.Process.Signal(syscall.SIGHUP))
		}
		await(t, "all nodes to forget the old key", settleWait, func() bool {
			return !slices.ContainsFunc(c.nodes, func(n *secureNode) bool {
				text, err := os.ReadFile(filepath.Join(n.dir, "identity", "ca.crt"))
				return err != nil || strings.Count(string(text), "BEGIN") != 1
			})
		})
		awaitWrites()
	}
	close(stop)
	work.Wait()
	t.Logf("%d rotations of 3 nodes in %v: %d writes, %d failed", rounds, time.Since(begin).Round(time.Millisecond), writes.Load(), failures.Load())
	if writes.Load() == 0 {
		t.Error("nothing was written")
	}
}

// TestWrongClock guards that a host whose clock is wrong by a day is told so when it joins, and
// joins with the same token once the clock is right.
func TestWrongClock(t *testing.T) {
	c := newSecureCluster(t, "frankfurt")
	n := c.nodes[0]
	for _, wrong := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		must(os.WriteFile(n.dir+clockSuffix, fmt.Appendf(nil, "offset=%v", wrong), 0o600))
		c.startNode(t, n)
		if code := n.wait(); code != exit.Auth || !strings.Contains(n.stderr.String(), "the clock of this host is wrong") {
			t.Errorf("a clock that is wrong by %v: exit %d\n%s", wrong, code, n.stderr.String())
		}
	}
	must(os.Remove(n.dir + clockSuffix))
	c.startNode(t, n)
	c.awaitReady(t)
}

// metadataLeader returns the node that leads the metadata group, by the answers of all nodes, or nil while they disagree or know none.
func (c *secureCluster) metadataLeader(t *testing.T) *secureNode {
	t.Helper()
	stdout, _, code := runIn(t.Context(), "", c.as("node", "ls", "-o", "json", "--timeout", "2s")...)
	var nodes []nodeDoc
	if code != exit.OK || json.Unmarshal([]byte(stdout), &nodes) != nil {
		return nil
	}
	for _, n := range nodes {
		if i := slices.IndexFunc(c.nodes, func(own *secureNode) bool { return own.addr == n.Addr }); n.Leader && i >= 0 {
			return c.nodes[i]
		}
	}
	return nil
}

// TestMetadataLeaderWithWrongClock guards that nodes get into the cluster while the clock of the metadata leader is an hour off: one that
// restarts, although the leader cannot tell before which of the two clocks left is wrong, and one that joins. As soon as three clocks are
// compared, another node leads.
func TestMetadataLeaderWithWrongClock(t *testing.T) {
	c := newSecureCluster(t, "frankfurt", "frankfurt", "frankfurt")
	start := func(n *secureNode) { c.startNode(t, n, "--clock-error-file", n.dir+clockSuffix) }
	for _, n := range c.nodes {
		start(n)
	}
	c.awaitReady(t)
	var leader *secureNode
	await(t, "three voters and a metadata leader", bootWait, func() bool {
		var voters []voterDoc
		okJSON(t, &voters, c.as("voter", "ls")...)
		voters = slices.DeleteFunc(voters, func(v voterDoc) bool { return !v.Voter })
		leader = c.metadataLeader(t)
		return len(voters) == 3 && leader != nil
	})
	down := c.nodes[(slices.Index(c.nodes, leader)+1)%len(c.nodes)]
	must(syscall.Kill(down.Process.Pid, syscall.SIGKILL))
	down.wait()
	down.process = nil
	// Certificates are valid from an hour before they were issued, so at a little less than an hour the clock decides nothing else.
	must(os.WriteFile(leader.dir+clockSuffix, []byte("offset=-59m"), 0o600))
	await(t, "the leader to have the wrong clock", bootWait, func() bool { return strings.Contains(leader.stderr.String(), "wrong on purpose") })
	began := time.Now()
	start(down)
	c.awaitReady(t)
	restarted := time.Since(began)
	await(t, "a leader whose clock is right", bootWait, func() bool {
		now := c.metadataLeader(t)
		return now != nil && now != leader
	})
	if !strings.Contains(leader.stderr.String(), "it hands the leadership of the metadata to a voter whose clock is right") {
		t.Errorf("%s does not say that it hands the leadership over\n%s", leader.name, leader.stderr.String())
	}
	added := c.addNode(t, "frankfurt")
	c.makeToken(t, added, false)
	began = time.Now()
	start(added)
	c.awaitReady(t)
	t.Logf("the node that restarted was ready after %v, the one that joined after %v", restarted, time.Since(began))
}

// TestAuthorityKilled guards that a node enrols although the authority is killed again and again
// while it tries, and that no token makes two certificates for two keys.
func TestAuthorityKilled(t *testing.T) {
	c := newSecureCluster(t, "frankfurt", "virginia")
	must(c.authority.Process.Kill())
	c.authority.wait()
	for _, n := range c.nodes {
		c.startNode(t, n)
	}
	for range 5 {
		p := startProcess(t, nil, "authority", "serve", "--authority", c.authorityDir, "--listen", c.authorityAddr)
		await(t, "the authority to listen", bootWait, func() bool {
			conn, err := net.Dial("tcp", c.authorityAddr)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		// Killed at once: in the middle of a handshake, a request or a write.
		must(p.Process.Kill())
		p.wait()
	}
	c.startAuthority(t)
	c.awaitReady(t)
	var doc struct {
		Gaps         int
		Certificates []issuedDoc
	}
	okJSON(t, &doc, "authority", "ls", "--authority", c.authorityDir)
	names := map[string]bool{}
	for _, cert := range doc.Certificates {
		if cert.Role == "node" {
			names[cert.Name] = true
		}
	}
	if doc.Gaps != 0 || len(names) != 2 {
		t.Errorf("%d gaps, certificates of %v", doc.Gaps, names)
	}
}

// TestForeignAuthority guards that an authority of any origin works by files alone: nodes and an
// operator with certificates that crypto/x509 made, without tokens and without a directory.
func TestForeignAuthority(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	c := &secureCluster{dir: t.TempDir()}
	c.operator = filepath.Join(c.dir, "operator")
	sign := newForeignAuthority(t)
	cluster := rhumb.ClusterID{0xfe, 0xed}
	sign(identity.Name{Cluster: cluster, Role: identity.RoleOperator, Name: "vault"}, c.operator)
	c.authorityDir = "none" // commands are to use the operator's files
	for i := range 2 {
		n := c.addNode(t, "frankfurt")
		files := filepath.Join(c.dir, n.name+"-files")
		sign(identity.Name{Cluster: cluster, Role: identity.RoleNode, Name: n.name}, files)
		args := slices.DeleteFunc(c.startArgs(n), func(a string) bool { return a == "--token" || a == n.token })
		args = append(args, "--cert", filepath.Join(files, "node.crt"), "--key", filepath.Join(files, "node.key"), "--ca", filepath.Join(files, "ca.crt"))
		n.process = startProcess(t, nil, args...)
		if i > 0 {
			continue
		}
		await(t, "the cluster to exist", bootWait, func() bool {
			_, _, code := runIn(t.Context(), "", c.as("init")...)
			return code == exit.OK || code == exit.Precondition
		})
	}
	c.awaitReady(t)
	c.ok(t, "table", "create", "flights", "--replicas", "2", "--min-in-sync", "1")
	c.ok(t, "put", "flights", "SWR8", "ident=SWR8")
	var status statusDoc
	okJSON(t, &status, c.as("status")...)
	if status.ClusterID != cluster.String() || len(status.Nodes) != 2 {
		t.Errorf("status: %+v", status)
	}
}

// newForeignAuthority makes an authority with nothing but the standard library, and returns a
// function that writes the files of a certificate into a folder.
func newForeignAuthority(t *testing.T) (sign func(name identity.Name, dir string)) {
	t.Helper()
	now := time.Now()
	caKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Example Corp"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	serial := int64(1)
	return func(name identity.Name, dir string) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		must(err)
		serial++
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(serial), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: name.Role.Usages(), URIs: []*url.URL{name.URI()},
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
		must(err)
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		must(err)
		must(os.MkdirAll(dir, 0o700))
		for file, block := range map[string]*pem.Block{
			"ca.crt": {Type: "CERTIFICATE", Bytes: caDER}, name.Role.String() + ".crt": {Type: "CERTIFICATE", Bytes: der},
			name.Role.String() + ".key": {Type: "PRIVATE KEY", Bytes: pkcs8},
		} {
			must(os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
		}
	}
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
