package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// diagnose runs `rhumb doctor` and returns its findings and exit code.
func diagnose(t *testing.T, args ...string) (doctorDoc, int) {
	t.Helper()
	stdout, stderr, code := runIn(t.Context(), "", append([]string{"doctor", "-o", "json"}, args...)...)
	var doc doctorDoc
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("doctor %q: exit %d, %v\n%s%s", args, code, err, stdout, stderr)
	}
	return doc, code
}

// found reports whether there is a finding of a level that contains a text.
func (d *doctorDoc) found(level doctor.Level, text string) bool {
	for _, f := range d.Findings {
		if f.Level == level && strings.Contains(f.What, text) {
			return true
		}
	}
	return false
}

// TestDoctor guards the examination of a machine without a cluster, and that a certificate that has
// expired is wrong.
func TestDoctor(t *testing.T) {
	ownConfig(t)
	dir := t.TempDir()
	must(os.Chmod(dir, 0o700))
	doc, code := diagnose(t, "--local", "--dir", dir, "--listen", "127.0.0.1:0", "--memory", "64MiB", "--snapshot-dir", filepath.Join(dir, "images"), "--snapshot-budget", "1")
	for _, area := range []string{doctor.AreaMachine, doctor.AreaShm, doctor.AreaDisk, doctor.AreaClock, doctor.AreaPorts} {
		if !slices.ContainsFunc(doc.Findings, func(f doctor.Finding) bool { return f.Area == area }) {
			t.Errorf("nothing about the %s", area)
		}
	}
	if (code == exit.OK) != (doc.Wrong == 0) {
		t.Errorf("exit %d with %d wrong", code, doc.Wrong)
	}
	now := time.Now()
	must(os.MkdirAll(filepath.Join(dir, "identity"), 0o700))
	// What a node refuses must not be well here: it does not start with the certificate of a user.
	person := identitytest.New(t).User(t, "ann").Files(t, t.TempDir())
	for from, to := range map[string]string{person.Cert: "node.crt", person.Key: "node.key", person.CA: "ca.crt"} {
		must(os.Rename(from, filepath.Join(dir, "identity", to)))
	}
	if doc, code := diagnose(t, "--local", "--dir", dir); code != exit.Failure || !doc.found(doctor.Wrong, "wanted a certificate of a node") {
		t.Errorf("exit %d: %+v", code, doc.Findings)
	}
	files := identitytest.New(t).Node(t, "eu-1", identitytest.Valid(now.Add(-48*time.Hour), now.Add(-time.Hour))).Files(t, t.TempDir())
	for from, to := range map[string]string{files.Cert: "node.crt", files.Key: "node.key", files.CA: "ca.crt"} {
		must(os.Rename(from, filepath.Join(dir, "identity", to)))
	}
	if doc, code := diagnose(t, "--local", "--dir", dir); code != exit.Failure || !doc.found(doctor.Wrong, "expired") {
		t.Errorf("an expired certificate: exit %d, %+v", code, doc.Findings)
	}
	_, stderr, code := runIn(t.Context(), "", "doctor", "--local", "--dir", dir)
	if code != exit.Failure || !strings.Contains(stderr, "wrong") {
		t.Errorf("the table of something wrong: exit %d, %s", code, stderr)
	}
}

// testDoctor examines a demo.
func testDoctor(t *testing.T, layout *demo.Layout) {
	doc, _ := diagnose(t)
	for _, want := range []string{"n1 in singapore serves", "ports of virginia answer", "the clock of n9 at "} {
		if !doc.found(doctor.Good, want) {
			t.Errorf("nothing says %q: %+v", want, doc.Findings)
		}
	}
	if !doc.found(doctor.Good, layout.Nodes[0].HeartbeatAddr+" (heartbeats, tcp): node n1 runs there") || doc.found(doctor.Good, ":7600") {
		t.Errorf("the ports are not those of the demo: %+v", doc.Findings)
	}
	doc, code := diagnose(t, "--addr", layout.Nodes[0].Addr, "--insecure", "--join", "127.0.0.1:1", "--listen", layout.Nodes[0].Addr)
	if code != exit.Failure || !doc.found(doctor.Wrong, "127.0.0.1:1 of a node") || !doc.found(doctor.Good, "node n1 runs there") {
		t.Errorf("a closed port: exit %d, %+v", code, doc.Findings)
	}
	doc, code = diagnose(t, "--addr", "127.0.0.1:1", "--insecure", "--timeout", "1s")
	if code != exit.Failure || !doc.found(doctor.Wrong, "the cluster does not answer") {
		t.Errorf("no cluster: exit %d, %+v", code, doc.Findings)
	}
}
