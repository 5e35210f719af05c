package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/cli/exit"
)

// TestSecureContext guards that one context is enough to administer and use a secured cluster:
// data, ingest, the state of nodes, the admin ports and the doctor all take the same identity.
func TestSecureContext(t *testing.T) {
	c := startSecureCluster(t, "frankfurt")
	ownConfig(t)
	addr := c.nodes[0].addr
	operator := func(name string) string { return filepath.Join(c.operator, name) }
	_, stderr, code := runIn(t.Context(), "", "context", "add", "prod", "--addr", addr, "--ca", operator("ca.crt"),
		"--cert", operator("operator.crt"), "--key", operator("operator.key"), "--check", "--use")
	if code != exit.OK || !strings.Contains(stderr, "1 node in 1 region") {
		t.Fatalf("context add: exit %d, %s", code, stderr)
	}
	ok(t, "status")
	ok(t, "table", "create", "flights", "--replicas", "1", "--min-in-sync", "1", "--colocate", "/", "--location-field", "location", "--snapshot=plain")
	ok(t, "put", "flights", "SWR8", "ident=SWR8", "location=47,8")
	ok(t, "get", "flights", "SWR8")
	stdout, stderr, code := runIn(t.Context(), "_c 1 _s 1 id PIPE lat 50 lon 8\n", "ingest", "--table", "flights", "--create-tables", "--replicas", "1", "-", "-o", "json")
	if code != exit.OK || !strings.Contains(stdout, `"applied":1`) {
		t.Errorf("ingest: exit %d, %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = runIn(t.Context(), "", "snapshot", "publish", "n1")
	if code != exit.OK || !strings.Contains(stdout, "n1") {
		t.Errorf("snapshot publish: exit %d, %s%s", code, stdout, stderr)
	}
	doc, _ := diagnose(t, "--authority", c.authorityAddr, "--listen", addr, "--dir", c.nodes[0].dir)
	for _, want := range []string{"n1 in frankfurt serves", "the clock of n1", "the clock of the authority", "node n1 runs there", "this command", "node in " + c.nodes[0].dir} {
		if !doc.found(doctor.Good, want) {
			t.Errorf("doctor does not say %q: %+v", want, doc.Findings)
		}
	}
	// The identity can be given in each of the other ways.
	t.Setenv("RHUMB_ADDR", addr)
	t.Setenv("RHUMB_CA", operator("ca.crt"))
	ok(t, "context", "use", "--none")
	if _, stderr, code := runIn(t.Context(), "", "get", "flights", "SWR8", "--timeout", "1s"); code == exit.OK {
		t.Errorf("without a certificate: exit %d, %s", code, stderr)
	}
	t.Setenv("RHUMB_CERT", operator("operator.crt"))
	t.Setenv("RHUMB_KEY", operator("operator.key"))
	ok(t, "get", "flights", "SWR8")
	// A pinned cluster is the only one that is accepted.
	_, stderr, code = runIn(t.Context(), "", "status", "--timeout", "2s", "--cluster", fmt.Sprintf("%032x", 1))
	if code == exit.OK || !strings.Contains(stderr, "cluster") {
		t.Errorf("another cluster: exit %d, %s", code, stderr)
	}
}
