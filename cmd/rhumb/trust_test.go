package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// TestTrustCommands runs the commands for certificates, authorities, keys of gossip, regions and lost nodes against real
// processes, through a change of the authority.
func TestTrustCommands(t *testing.T) {
	c := startSecureCluster(t, "frankfurt", "frankfurt", "frankfurt")
	c.ok(t, "table", "create", "flights", "--replicas", "1", "--min-in-sync", "1")
	c.ok(t, "put", "flights", "SWR8", "ident=SWR8")
	t.Run("denials", func(t *testing.T) { testDenials(t, c) })
	t.Run("gossip", func(t *testing.T) { testGossipCommands(t, c) })
	t.Run("region", func(t *testing.T) {
		c.ok(t, "region", "add", "bern", "--location", "46.9,7.4")
		c.ok(t, "region", "add", "bern", "--location", "46.9,7.4")
		fails(t, exit.Precondition, c.as("region", "add", "bern", "--location", "1,1")...)
		if text := c.ok(t, "region", "ls"); !strings.Contains(text, "bern") {
			t.Errorf("region ls: %s", text)
		}
	})
	t.Run("authority", func(t *testing.T) { testNewAuthority(t, c) })
	t.Run("revoke and forget", func(t *testing.T) { testLostNode(t, c) })
	c.ok(t, "get", "flights", "SWR8")
}

// testDenials guards that a connection that certificates decide about fails at once, as a matter of identity and not of
// patience.
func testDenials(t *testing.T, c *secureCluster) {
	ca, twin := filepath.Join(c.operator, "ca.crt"), c.secondAuthority(t, "mallory")
	foreign := filepath.Join(c.dir, "foreign")
	ok(t, "init", "--authority", foreign, "--advertise", "127.0.0.1")
	ok(t, "authority", "operator", "eve", "--authority", foreign, "--out", filepath.Join(foreign, "out"))
	both := filepath.Join(c.dir, "both.crt")
	must(os.WriteFile(both, append(mustRead(t, ca), mustRead(t, filepath.Join(twin, "ca.crt"))...), 0o600))
	for _, tc := range []struct {
		what     string
		identity []string
		code     int
		kind     string
	}{
		{"nobody", []string{"--ca", ca}, exit.Auth, "unauthenticated"},
		{"an authority that did not issue the certificates of the nodes", []string{"--ca", filepath.Join(twin, "ca.crt")}, exit.Auth, "unauthenticated"},
		{"an operator whom the nodes do not trust", []string{"--ca", both, "--cert", filepath.Join(twin, "out", "operator.crt"), "--key", filepath.Join(twin, "out", "operator.key")}, exit.Auth, "unauthenticated"},
		{"an operator of another cluster", []string{"--ca", filepath.Join(foreign, "ca.crt"), "--cert", filepath.Join(foreign, "out", "operator.crt"), "--key", filepath.Join(foreign, "out", "operator.key")}, exit.Failure, "wrong cluster"},
	} {
		for _, cmd := range [][]string{{"get", "flights", "SWR8"}, {"put", "flights", "SWR9", "ident=x"}, {"node", "ls"}} {
			begin := time.Now()
			_, stderr, code := runIn(t.Context(), "", c.with(tc.identity, append(cmd, "--timeout", "30s")...)...)
			if code != tc.code || !strings.Contains(stderr, tc.kind) || strings.Contains(stderr, "try again") || strings.Contains(stderr, "(certificate ") {
				t.Errorf("%s, %s: exit %d, want %d and %q: %s", tc.what, cmd, code, tc.code, tc.kind, stderr)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("%s, %s: refused after %v only", tc.what, cmd, took)
			}
		}
	}
	// A node that is away is no matter of identity.
	away := c.with(nil, "get", "flights", "SWR8", "--timeout", "2s")
	for i := range away {
		if away[i] == "--addr" {
			away[i+1] = freeAddr(t)
		}
	}
	fails(t, exit.Unavailable, append(away, "--ca", ca)...)
}

// secondAuthority makes another authority of the cluster, with an operator in its folder out.
func (c *secureCluster) secondAuthority(t *testing.T, operator string) string {
	t.Helper()
	dir := filepath.Join(c.dir, "authority-of-"+operator)
	id := strings.TrimSpace(string(mustRead(t, filepath.Join(c.authorityDir, "cluster"))))
	ok(t, "init", "--authority", dir, "--cluster", id, "--advertise", "127.0.0.1")
	ok(t, "authority", "operator", operator, "--authority", dir, "--out", filepath.Join(dir, "out"))
	return dir
}

// mustRead reads a file.
func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// testGossipCommands rotates the key of gossip.
func testGossipCommands(t *testing.T, c *secureCluster) {
	list := func() (doc struct {
		Version uint64
		Keys    []uint32
		Nodes   []client.NodeIdentity
	},
	) {
		okJSON(t, &doc, c.as("gossip", "ls")...)
		return doc
	}
	before := list()
	c.ok(t, "gossip", "rotate")
	after := list()
	if len(after.Keys) != 1 || after.Keys[0] != before.Keys[0]+1 || after.Version <= before.Version || len(after.Nodes) != len(c.nodes) {
		t.Errorf("gossip was %+v and is %+v", before, after)
	}
	for _, n := range after.Nodes {
		if n.GossipVersion != after.Version {
			t.Errorf("node %s has version %d of the keys, want %d", n.Name, n.GossipVersion, after.Version)
		}
	}
}

// testNewAuthority replaces the authority while the nodes run: the new one is trusted, the nodes get its certificates,
// and the old one is rejected.
func testNewAuthority(t *testing.T, c *secureCluster) {
	next := c.secondAuthority(t, "heir")
	c.ok(t, "cert", "trust", filepath.Join(next, "ca.crt"))
	if text := c.ok(t, "cert", "ls"); strings.Contains(text, "not accepted") {
		t.Errorf("cert ls: %s", text)
	}
	// Clients have the metadata's authorities from nobody: their files get the new one before the nodes do.
	caOld := mustRead(t, filepath.Join(c.operator, "ca.crt"))
	both := append(mustRead(t, filepath.Join(next, "ca.crt")), caOld...)
	must(os.WriteFile(filepath.Join(c.operator, "ca.crt"), both, 0o600))
	var all client.Certificates
	okJSON(t, &all, c.as("cert", "ls")...)
	old := ""
	for _, cert := range all.Certificates {
		if cert.Role == "node" {
			old = cert.Authority
		}
	}
	if len(all.Authorities) != 2 || old == "" {
		t.Fatalf("cert ls: %+v", all)
	}
	// Rejecting the authority of the nodes would end the cluster.
	fails(t, exit.Usage, c.as("cert", "distrust", old)...)
	for _, n := range c.nodes {
		made := filepath.Join(next, n.name)
		ok(t, "cert", "create", "node", n.name, "--authority", next, "--out", made)
		for _, file := range []string{"node.crt", "node.key"} {
			must(os.WriteFile(filepath.Join(n.dir, "identity", file), mustRead(t, filepath.Join(made, file)), 0o600))
		}
	}
	await(t, "all nodes to use the new authority", bootWait, func() bool {
		okJSON(t, &all, c.as("cert", "ls")...)
		for _, cert := range all.Certificates {
			if cert.Role == "node" && cert.Authority == old {
				return false
			}
		}
		return true
	})
	// Operators change last. Their new certificate works as soon as the authority is trusted.
	before := c.as("get", "flights", "SWR8")
	c.operator = filepath.Join(next, "out")
	c.ok(t, "cert", "distrust", old)
	c.ok(t, "get", "flights", "SWR8")
	// Each node rejects it when its copy of the metadata is up to date.
	await(t, "the old authority to be rejected", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", before...)
		return code == exit.Auth
	})
	fails(t, exit.Usage, c.as("cert", "trust", filepath.Join(c.authorityDir, "ca.crt"))...)
	if text := c.ok(t, "cert", "ls"); !strings.Contains(text, "distrusted") {
		t.Errorf("cert ls: %s", text)
	}
	c.authorityDir = next
}

// testLostNode revokes the certificate of a node at the cluster and the authority in one step, and forgets the node.
func testLostNode(t *testing.T, c *secureCluster) {
	lost := c.nodes[2]
	var nodes []nodeDoc
	okJSON(t, &nodes, c.as("node", "ls")...)
	id := ""
	for _, n := range nodes {
		if n.Name == lost.name {
			id = n.ID
		}
	}
	fails(t, exit.Precondition, c.as("node", "forget", id, "--yes")...)
	_, stderr, code := runIn(t.Context(), "", c.as("cert", "revoke", "--user-name", "nobody")...)
	// Certificates that no node has seen are refused as well, so a name without any is not an error. It may be misspelled.
	if code != exit.OK || !strings.Contains(stderr, "no user named nobody is connected") {
		t.Errorf("a user without a certificate: exit %d %s", code, stderr)
	}
	begin := time.Now()
	stdout, stderr, code := runIn(t.Context(), "", c.as("cert", "revoke", "--node", lost.name, "--why", "stolen", "--authority", c.authorityDir)...)
	if code != exit.OK || !strings.Contains(stdout, lost.name) || strings.Contains(stderr, "rhumb authority revoke") {
		t.Fatalf("cert revoke: exit %d\n%s%s", code, stdout, stderr)
	}
	if text := ok(t, "authority", "ls", "--authority", c.authorityDir); !strings.Contains(text, "revoked") {
		t.Errorf("authority ls: %s", text)
	}
	await(t, "the revoked node to be fenced", bootWait, func() bool {
		okJSON(t, &nodes, c.as("node", "ls")...)
		for _, n := range nodes {
			if n.Name == lost.name {
				return n.State == "fenced"
			}
		}
		return false
	})
	t.Logf("the revoked node was fenced %v after the command began", time.Since(begin).Round(time.Millisecond))
	// Without the directory, the command says what is left to do.
	_, stderr, code = runIn(t.Context(), "", c.as("cert", "revoke", "abc123")...)
	if code != exit.OK || !strings.Contains(stderr, "rhumb authority revoke abc123") {
		t.Errorf("cert revoke without the authority: exit %d %s", code, stderr)
	}
	must(lost.Process.Kill())
	lost.wait()
	// Nobody answers the question, so nothing happens.
	_, stderr, code = runIn(t.Context(), "", c.as("node", "forget", id)...)
	if code != exit.Precondition || !strings.Contains(stderr, "was not confirmed") {
		t.Errorf("node forget without an answer: exit %d %s", code, stderr)
	}
	c.ok(t, "node", "forget", id, "--yes")
	c.nodes = c.nodes[:2]
}
