package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// TestWitnessSecured loses one of two regions with data of a cluster with TLS and users, whose third region has a witness only. A user with a
// password goes on with every acknowledged write, also through the witness, and is refused what it was not granted. Before that, an operator
// hands the leadership of the metadata to a voter of the region that is lost, and afterwards to the one that stays.
func TestWitnessSecured(t *testing.T) {
	c := newSecureCluster(t, "frankfurt", "frankfurt", "virginia", "virginia", "singapore")
	witness := c.nodes[4]
	for _, n := range c.nodes {
		if n == witness {
			c.startNode(t, n, "--witness")
		} else {
			c.startNode(t, n)
		}
	}
	c.awaitReady(t)
	c.ok(t, "table", "create", "survives", "--survive", "region", "--replicas", "4", "--min-in-sync", "2", "--hash-slots", "4")
	c.ok(t, "table", "create", "secret", "--replicas", "2", "--hash-slots", "1")
	c.ok(t, "role", "create", "writer")
	c.ok(t, "grant", "writer", "--table", "survives", "--rights", "read,write")
	password := filepath.Join(c.dir, "password")
	must(os.WriteFile(password, []byte("correct horse\n"), 0o600))
	c.ok(t, "user", "create", "ada", "--new-password-file", password, "--role", "writer")
	ca := filepath.Join(c.operator, "ca.crt")
	through := func(n *secureNode, args ...string) []string {
		return append(args, "--addr", n.addr, "--ca", ca, "--user", "ada", "--password-file", password)
	}
	// The witness serves users like any node, and decides about their rights by its own copy of the metadata.
	// Which may be a moment behind that of the node that created the user.
	await(t, "the witness to know the user", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", through(witness, "put", "survives", "first", "n=1")...)
		return code == exit.OK
	})
	ok(t, through(witness, "get", "survives", "first")...)
	fails(t, exit.Auth, through(witness, "get", "secret", "first")...)
	fails(t, exit.Auth, through(witness, "voter", "lead", "n1")...)

	// votersNow returns the voters as a node of virginia knows them.
	votersNow := func() (votes []voterDoc) {
		stdout, _, code := runIn(t.Context(), "", c.as("voter", "ls", "-o", "json")...)
		if code != exit.OK || json.Unmarshal([]byte(stdout), &votes) != nil {
			return nil
		}
		return votes
	}
	voterIn := func(region string) (id string) {
		for _, v := range votersNow() {
			if v.Region == region {
				id = v.Node
			}
		}
		return id
	}
	await(t, "a voter in each region", settleWait, func() bool {
		return len(votersNow()) == 3 && voterIn("frankfurt") != "" && voterIn("virginia") != "" && voterIn("singapore") != ""
	})
	fails(t, exit.NotFound, c.as("voter", "lead", "n9")...)
	leads := func(id string) bool {
		return slices.ContainsFunc(votersNow(), func(v voterDoc) bool { return v.Node == id && v.Leader })
	}
	for _, region := range []string{"virginia", "frankfurt"} {
		id := voterIn(region)
		c.ok(t, "voter", "lead", id)
		await(t, "all to know the leader", settleWait, func() bool { return leads(id) })
	}

	cl, err := client.Open(t.Context(), client.Config{
		Addrs: []string{c.nodes[2].addr, witness.addr}, TLS: &client.TLS{CA: ca}, User: "ada", Password: client.PasswordFile(password),
		Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	table, err := cl.Table(t.Context(), "survives")
	if err != nil {
		t.Fatal(err)
	}
	put := func(n int) {
		t.Helper()
		for i := range 8 {
			if _, err := table.Put(t.Context(), fmt.Appendf(nil, "k%d", i), fmt.Append(nil, n), client.PutOptions{Home: "frankfurt"}); err != nil {
				t.Fatalf("write %d of k%d: %v", n, i, err)
			}
		}
	}
	for n := range 10 {
		put(n)
	}
	for _, n := range c.nodes[:2] {
		must(n.Process.Kill())
		n.wait()
		n.process = nil
	}
	begin := time.Now()
	put(10)
	t.Logf("all keys of the lost region were written again after %v", time.Since(begin).Round(time.Millisecond))
	for i := range 8 {
		got, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{Home: "frankfurt"})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := got.Bytes(); err != nil || string(b) != "10" {
			t.Errorf("k%d holds %q: %v", i, b, err)
		}
	}
	ok(t, through(witness, "put", "survives", "last", "n=1")...)
	fails(t, exit.Auth, through(witness, "put", "secret", "last", "n=1")...)
	for _, r := range cl.Ranges() {
		if slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return fmt.Sprint(id) == witnessOf(cl) }) {
			t.Errorf("range %s has a copy on the witness: %v", r.ID, r.Replicas)
		}
	}
}

// witnessOf returns the node that is a witness, as text.
func witnessOf(c *client.Client) string {
	for _, n := range c.Nodes() {
		if n.Witness {
			return n.ID.String()
		}
	}
	return ""
}
