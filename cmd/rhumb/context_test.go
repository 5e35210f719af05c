package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// ownConfig gives a test a folder for contexts of its own.
func ownConfig(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	return filepath.Join(dir, "rhumb", "contexts.yaml")
}

// TestContexts guards the life of a context: relative paths become absolute, nothing is overwritten
// unasked, and the current one is forgotten with its context.
func TestContexts(t *testing.T) {
	file, dir := ownConfig(t), t.TempDir()
	t.Chdir(dir)
	must(os.Rename(identitytest.New(t).User(t, "ada").Files(t, t.TempDir()).CA, "ca.crt"))
	ok(t, "context", "add", "local", "--addr", "127.0.0.1:7600,127.0.0.1:7610", "--insecure", "--from", "bern")
	add := []string{"context", "add", "prod", "--addr", "eu-1.example.net:7600", "--ca", "ca.crt", "--user", "ada", "--password-file", "pw"}
	fails(t, exit.Usage, add...) // there is no password file
	must(os.WriteFile("pw", []byte("secret"), 0o600))
	ok(t, add...)
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("the file holds a secret, or %v:\n%s", err, text)
	}
	fails(t, exit.Precondition, add...)
	var doc contextDoc
	okJSON(t, &doc, append(add, "--replace", "--use")...)
	okJSON(t, &doc, "context", "show")
	if doc.Name != "prod" || !doc.Current || doc.CA != filepath.Join(dir, "ca.crt") || doc.PasswordFile != filepath.Join(dir, "pw") {
		t.Errorf("%+v", doc)
	}
	var docs []contextDoc
	okJSON(t, &docs, "context", "ls")
	if len(docs) != 2 || docs[0].Name != "local" || docs[0].Current || len(docs[0].Addr) != 2 || docs[1].Name != "prod" || !docs[1].Current {
		t.Errorf("%+v", docs)
	}
	for _, args := range []string{"context ls", "context show local", "config show"} {
		sameInAllForms(t, strings.Fields(args)...)
	}
	if got := originOf(t, "user"); got != "ada from context prod" {
		t.Errorf("config show: user is %s", got)
	}
	if got := originOf(t, "user", "--context", "local"); got != " from default" {
		t.Errorf("config show --context local: user is %s", got)
	}
	t.Setenv("RHUMB_USER", "bob")
	if got := originOf(t, "user"); got != "bob from environment RHUMB_USER" {
		t.Errorf("config show: user is %s", got)
	}
	_, stderr, code := runIn(t.Context(), "", "context", "rm", "prod")
	if code != exit.OK || !strings.Contains(stderr, "was the current context") {
		t.Errorf("rm: exit %d, %s", code, stderr)
	}
	fails(t, exit.NotFound, "context", "show")
	fails(t, exit.NotFound, "context", "rm", "prod")
	fails(t, exit.NotFound, "context", "use", "prod")
	fails(t, exit.NotFound, "status", "--context", "prod")
	fails(t, exit.Usage, "context", "use")
	ok(t, "context", "use", "local")
	ok(t, "context", "use", "--none")
}

// originOf returns the value of a setting and its origin.
func originOf(t *testing.T, key string, args ...string) string {
	t.Helper()
	var docs []settingDoc
	okJSON(t, &docs, append([]string{"config", "show"}, args...)...)
	for _, d := range docs {
		if d.Key == key {
			return d.Value + " from " + d.Origin
		}
	}
	return "missing"
}

// TestContextsThatCannotWork guards that a context which cannot work is refused when it is made,
// with words that say what to do.
func TestContextsThatCannotWork(t *testing.T) {
	file := ownConfig(t)
	t.Chdir(t.TempDir())
	for args, want := range map[string]string{
		"demo --addr h:1 --insecure": "stands for the demo",
		"-x --addr h:1":              "unknown shorthand flag",
		"a":                          "no address",
		"a --addr h --ca ca":         "not HOST:PORT",
		"a --addr h:1":               "--ca FILE",
		"a --addr h:1 --insecure":    "not a loopback address",
		"a --addr 127.0.0.1:1 --insecure --user u":             "plain text",
		"a --addr h:1 --ca no-such-file":                       "no-such-file",
		"a --addr h:1 --ca ca --cert c":                        "belong together",
		"a --addr h:1 --ca ca --cert c --key k --user u":       "choose one",
		"a --addr h:1 --ca ca --password-file p":               "needs --user",
		"a --addr 127.0.0.1:1 --insecure --cluster x":          "--cluster",
		"a --addr 127.0.0.1:1 --insecure --check --timeout 1s": "127.0.0.1:1",
	} {
		_, stderr, code := runIn(t.Context(), "", append([]string{"context", "add"}, strings.Fields(args)...)...)
		if code == exit.OK || !strings.Contains(stderr, want) {
			t.Errorf("context add %s: exit %d, %s", args, code, stderr)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a refused context left a file")
	}
}

// TestCheckWaitsForTheCluster guards that `context add --check` waits for nodes that were started a moment ago, as the
// README does it. The node starts only after the command has found nobody.
func TestCheckWaitsForTheCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process; left out by -short")
	}
	ownConfig(t)
	n := &soloNode{dir: filepath.Join(t.TempDir(), "a"), addr: freeAddr(t), gossip: freeAddr(t)}
	p := startProcess(t, nil, "context", "add", "early", "--addr", n.addr, "--insecure", "--check", "--timeout", bootWait.String())
	await(t, "the first attempt", bootWait, func() bool { return strings.Contains(p.stderr.String(), "trying again") })
	n.start(t, "a", "")
	await(t, "the cluster to be made", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", "init", "--addr", n.addr, "--insecure")
		return code == exit.OK
	})
	if code := p.wait(); code != exit.OK || !strings.Contains(p.stderr.String(), "1 node in 1 region") {
		t.Errorf("exit %d, %s", code, p.stderr.String())
	}
}

// TestNothingToTrust guards that a command which is told no identity says what to do next.
func TestNothingToTrust(t *testing.T) {
	ownConfig(t)
	for args, wants := range map[string][]string{
		"status":                                        {"no demo runs here", "--ca FILE", "rhumb context add", "--insecure", "rhumb demo"},
		"status --addr eu-1.example.net:7600":           {"--ca FILE", "--cert", "--user", "rhumb context add"},
		"status --context demo":                         {"no demo runs", "rhumb demo"},
		"status --addr h:1 --user ada":                  {"--ca is missing"},
		"status --addr 127.0.0.1:1 --insecure --user u": {"cannot be combined"},
	} {
		_, stderr, code := runIn(t.Context(), "", strings.Fields(args)...)
		for _, want := range wants {
			if code == exit.OK || !strings.Contains(stderr, want) {
				t.Errorf("%s: exit %d, %s lacks %q", args, code, stderr, want)
			}
		}
	}
}

// testContexts guards that a context is used instead of the demo that runs, and that the demo can
// still be named.
func testContexts(t *testing.T, addr string) {
	ownConfig(t)
	ok(t, "context", "add", "gone", "--addr", "127.0.0.1:1", "--insecure", "--use")
	fails(t, exit.Unavailable, "status", "--timeout", "1s")
	ok(t, "status", "--context", "demo")
	_, stderr, code := runIn(t.Context(), "", "context", "add", "here", "--addr", addr, "--insecure", "--from", "virginia", "--check", "--use")
	if code != exit.OK || !strings.Contains(stderr, "9 nodes in 3 regions") {
		t.Errorf("context add --check: exit %d, %s", code, stderr)
	}
	var w writeDoc
	okJSON(t, &w, "put", "flights", "CTX", "a=1")
	if w.Region != "virginia" {
		t.Errorf("the region of the context was not used: %+v", w)
	}
	ok(t, "delete", "flights", "CTX")
	text := ok(t, "context", "use", "demo", "-o", "json")
	if !json.Valid([]byte(text)) {
		t.Errorf("%q", text)
	}
	ok(t, "status")
}
