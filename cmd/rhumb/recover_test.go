package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/cli/exit"
)

// soloNode is a node that the test starts without a demo.
type soloNode struct {
	*process
	dir, addr, gossip string
	admin             string // "" for any
	region            string // "" for frankfurt
	flags             []string
}

// start starts the node on its directory.
func (n *soloNode) start(t *testing.T, zone, join string) {
	t.Helper()
	args := []string{
		"start", "--region", cmp.Or(n.region, "frankfurt"), "--zone", zone, "--dir", n.dir, "--insecure", "--addr", n.addr, "--gossip-addr", n.gossip,
		"--heartbeat-addr", "127.0.0.1:0", "--admin-addr", cmp.Or(n.admin, "127.0.0.1:0"), "--snapshot-dir", n.dir + "-images",
	}
	if join != "" {
		args = append(args, "--join", join)
	}
	args = append(args, n.flags...)
	n.process = startProcess(t, nil, args...)
}

// end kills the node and waits until it has ended.
func (n *soloNode) end(t *testing.T) {
	t.Helper()
	if err := n.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	n.wait()
}

// startSolo starts a cluster of three nodes, which all vote. They join one after another, so that
// nodes[0] is n1.
func startSolo(t *testing.T, base string) (nodes []*soloNode) {
	t.Helper()
	for i := range 3 {
		n := &soloNode{dir: filepath.Join(base, fmt.Sprint(i)), addr: freeAddr(t), gossip: freeAddr(t)}
		join := ""
		if i > 0 {
			join = nodes[0].addr
		}
		n.start(t, string(rune('a'+i)), join)
		nodes = append(nodes, n)
		if i == 0 {
			await(t, "the cluster to be made", bootWait, func() bool {
				_, _, code := runIn(t.Context(), "", "init", "--addr", n.addr, "--insecure")
				return code == exit.OK
			})
		}
		await(t, "the node to join", bootWait, func() bool {
			stdout, _, _ := runIn(t.Context(), "", "node", "ls", "--addr", nodes[0].addr, "--insecure", "-o", "json")
			return strings.Count(stdout, `"voter":`) == i+1
		})
	}
	await(t, "three voters", bootWait, func() bool {
		stdout, _, _ := runIn(t.Context(), "", "node", "ls", "--addr", nodes[0].addr, "--insecure", "-o", "json")
		return strings.Count(stdout, `"voter":true`) == 3
	})
	return nodes
}

// TestUnsafeRecoverMetadata loses two of three nodes for good. The third one can create a table
// only after `unsafe-recover metadata`. The records of which it holds copies can be read and
// written.
func TestUnsafeRecoverMetadata(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	base := t.TempDir()
	nodes := startSolo(t, base)
	last := nodes[2]
	ok(t, "table", "create", "notes", "--replicas", "1", "--addr", nodes[0].addr, "--insecure")
	const keys = 24
	for i := range keys {
		name := fmt.Sprint("k", i)
		await(t, name+" to be written", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", "put", "notes", name, "text=before", "--addr", nodes[i%3].addr, "--insecure")
			return code == exit.OK
		})
	}
	for _, n := range nodes {
		n.end(t)
	}
	for _, n := range nodes[:2] {
		if err := os.RemoveAll(n.dir); err != nil {
			t.Fatal(err)
		}
	}
	fails(t, exit.NotFound, "unsafe-recover", "metadata", "--dir", filepath.Join(base, "none"), "--show")
	if got := ok(t, "unsafe-recover", "metadata", "--dir", last.dir, "--show"); !strings.Contains(got, "n1, n2, n3") {
		t.Errorf("the survivor shows\n%s", got)
	}
	// The document names nodes as all other documents do.
	var shown struct {
		Node   string   `json:"node"`
		Voters []string `json:"voters"`
	}
	okJSON(t, &shown, "unsafe-recover", "metadata", "--dir", last.dir, "--show")
	if !slices.Contains(shown.Voters, shown.Node) || !slices.Contains(shown.Voters, "n1") {
		t.Errorf("%+v", shown)
	}
	if _, _, code := runIn(t.Context(), "no\n", "unsafe-recover", "metadata", "--dir", last.dir); code == exit.OK {
		t.Error("recovered without consent")
	}
	var doc recoverDoc
	okJSON(t, &doc, "unsafe-recover", "metadata", "--dir", last.dir, "--yes")
	if !doc.Recover || doc.Recovered == nil || len(doc.Recovered.Lost) != 2 || slices.Contains(doc.Recovered.Lost, doc.Node) {
		t.Errorf("%+v", doc)
	}
	last.start(t, "c", "")
	await(t, "a table to be created", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", "table", "create", "new", "--replicas", "1", "--addr", last.addr, "--insecure")
		return code == exit.OK
	})
	read := 0
	for i := range keys {
		name := fmt.Sprint("k", i)
		stdout, _, code := runIn(t.Context(), "", "get", "notes", name, "--addr", last.addr, "--insecure", "--timeout", "2s")
		if code != exit.OK {
			continue // its only copy was on a lost node
		}
		if !strings.Contains(stdout, "before") {
			t.Errorf("%s reads\n%s", name, stdout)
		}
		read++
		ok(t, "put", "notes", name, "text=after", "--addr", last.addr, "--insecure")
	}
	if read == 0 {
		t.Error("the survivor serves none of the records")
	}
	t.Logf("%d of %d records, kept in one copy each, were on the survivor", read, keys)
}

// TestUnsafeRecoverRange loses one of two in-sync nodes for good while the other one restarts, so
// that nothing proves that its copies are complete. The ranges are not served until `unsafe-recover
// range` accepts what may be lost.
func TestUnsafeRecoverRange(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	base := t.TempDir()
	nodes := startSolo(t, base)
	kept, lost, away := nodes[0], nodes[1], nodes[2]
	at := func(args ...string) []string {
		return append(args, "--addr", kept.addr, "--insecure", "--timeout", "5s")
	}
	ranges := func() (docs []rangeDoc) {
		okJSON(t, &docs, at("range", "ls")...)
		return docs
	}
	inSync := func(want int) bool {
		return !slices.ContainsFunc(ranges(), func(d rangeDoc) bool { return len(d.InSync) != want })
	}
	ok(t, at("table", "create", "notes", "--replicas", "3")...)
	await(t, "three in sync", bootWait, func() bool { return inSync(3) })
	// Nothing is lost, so nobody is asked to accept a loss.
	whole := at("unsafe-recover", "range", ranges()[0].ID, "--node", "n1")
	if stdout, stderr, code := runIn(t.Context(), "yes\n", whole...); code != exit.Precondition || strings.Contains(stdout+stderr, "Accept this loss") || !strings.Contains(stderr, "no data has to be given up") {
		t.Errorf("the recovery of a whole range ended with %d:\n%s", code, stderr)
	}
	away.end(t)
	await(t, "two in sync", bootWait, func() bool { return inSync(2) })
	const keys = 8
	for i := range keys {
		ok(t, at("put", "notes", fmt.Sprint("k", i), "text=before")...)
	}
	lost.end(t)
	kept.end(t)
	if err := os.RemoveAll(lost.dir); err != nil {
		t.Fatal(err)
	}
	kept.start(t, "a", "")
	away.start(t, "c", kept.addr)
	var doc rangeDoc
	await(t, "the loss to be known", bootWait, func() bool {
		var docs []nodeDoc
		stdout, _, code := runIn(t.Context(), "", at("node", "ls", "-o", "json")...)
		if code != exit.OK || json.Unmarshal([]byte(stdout), &docs) != nil {
			return false
		}
		return len(docs) == 3 && docs[0].Ready && docs[1].State == "fenced" && docs[2].Ready
	})
	stuck := ranges()
	fails(t, exit.Precondition, at("unsafe-recover", "range", stuck[0].ID, "--node", "n3", "--yes")...)
	if _, stderr, code := runIn(t.Context(), "no\n", at("unsafe-recover", "range", stuck[0].ID, "--node", "n1")...); code == exit.OK || !strings.Contains(stderr, "may be lost") {
		t.Errorf("recovered without consent (%d), shown was\n%s", code, stderr)
	}
	for _, r := range stuck {
		okJSON(t, &doc, at("unsafe-recover", "range", r.ID, "--node", "n1", "--yes")...)
		if doc.Recovery == nil || doc.Recovery.Node != "n1" || !slices.Equal(doc.Recovery.Gone, []string{"n2"}) || doc.Recovery.Epoch != doc.Epoch {
			t.Fatalf("the record says %+v", doc.Recovery)
		}
	}
	for i := range keys {
		name := fmt.Sprint("k", i)
		await(t, name+" to be written", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", at("put", "notes", name, "other=after")...)
			return code == exit.OK
		})
		if got := ok(t, at("get", "notes", name)...); !strings.Contains(got, "after") {
			t.Errorf("%s reads\n%s", name, got)
		}
	}
	if got := ok(t, at("range", "describe", stuck[0].ID)...); !strings.Contains(got, "a loss was accepted") {
		t.Errorf("describe says\n%s", got)
	}
	if got, _, _ := runIn(t.Context(), "", at("status")...); !strings.Contains(got, "an operator has accepted a loss") {
		t.Errorf("status says\n%s", got)
	}
}
