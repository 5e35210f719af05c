package main

import (
	"fmt"
	"os"
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
	for _, want := range []string{"n1 in frankfurt serves", "the clock of n1", "the clock of the authority", "node n1 runs there", "this command", "node in " + c.nodes[0].dir, "node frankfurt-1: serial"} {
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

// TestPasswordContext guards that a context with a user logs in with a
// password from its file: for data, and on the admin port; that the user is
// limited to its rights; and that nobody is asked where no terminal is.
func TestPasswordContext(t *testing.T) {
	c := startSecureCluster(t, "frankfurt")
	ownConfig(t)
	c.ok(t, "table", "create", "notes", "--replicas", "1", "--min-in-sync", "1", "--snapshot=plain")
	c.ok(t, "role", "create", "editor")
	c.ok(t, "grant", "editor", "--table", "notes", "--rights", "read,write")
	password := filepath.Join(t.TempDir(), "password")
	must(os.WriteFile(password, []byte("correct horse\n"), 0o600))
	c.ok(t, "user", "create", "ada", "--new-password-file", password, "--role", "editor")
	ca := filepath.Join(c.operator, "ca.crt")
	add := []string{"context", "add", "notes", "--addr", c.nodes[0].addr, "--ca", ca, "--user", "ada", "--replace", "--use", "--check"}
	ok(t, append(add, "--password-file", password)...)
	ok(t, "put", "notes", "a", "n=1")
	ok(t, "get", "notes", "a")
	// The user may not administer the cluster, on no port.
	fails(t, exit.Auth, "table", "create", "mine", "--replicas", "1")
	fails(t, exit.Auth, "delete", "notes", "a")
	if _, stderr, code := runIn(t.Context(), "", "snapshot", "publish", "n1"); code != exit.Auth || !strings.Contains(stderr, "rhumb grant") {
		t.Errorf("publish without the right: exit %d, %s", code, stderr)
	}
	c.ok(t, "grant", "editor", "--cluster-wide", "--rights", "admin")
	await(t, "the right to arrive", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", "snapshot", "publish", "n1")
		return code == exit.OK
	})
	wrong := filepath.Join(t.TempDir(), "wrong")
	must(os.WriteFile(wrong, []byte("battery staple"), 0o600))
	t.Setenv("RHUMB_PASSWORD_FILE", wrong)
	fails(t, exit.Auth, "get", "notes", "a", "--timeout", "2s")
	ok(t, "get", "notes", "a", "--password-file", password)
	must(os.Chmod(wrong, 0o644))
	if _, stderr, code := runIn(t.Context(), "", "get", "notes", "a", "--timeout", "2s"); code != exit.Auth || !strings.Contains(stderr, "chmod 600") {
		t.Errorf("a password that others can read: exit %d, %s", code, stderr)
	}
}
