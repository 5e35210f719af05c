package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/cli/exit"
)

// TestAudit guards that an intact audit log passes and is listed, and that damage is reported with
// file and offset.
func TestAudit(t *testing.T) {
	dir := t.TempDir()
	l, err := audit.Open(audit.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []audit.Event{
		{Kind: audit.Start, Action: "insecure"},
		{Kind: audit.Admin, Caller: "operator anna", Action: "CreateTable", Object: "table flights", Outcome: audit.OutcomeOK},
		{Kind: audit.LoginFailed, Caller: "user app", Outcome: "unauthenticated"},
	} {
		if err := l.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	head := l.Head().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := ok(t, "audit", "verify", dir, "--head", head); !strings.Contains(got, head) {
		t.Errorf("an intact log: %s", got)
	}
	if got := ok(t, "audit", "ls", dir, "--caller", "operator anna"); !strings.Contains(got, "table flights") || strings.Contains(got, "login") {
		t.Errorf("entries of anna: %s", got)
	}
	if got := ok(t, "audit", "ls", dir, "--kind", "login_failed,start", "--last", "1", "-o", "json"); !strings.Contains(got, `"seq":3`) || strings.Contains(got, `"seq":1`) {
		t.Errorf("the newest of two entries: %s", got)
	}
	// The directory of a node is taken for that of its log, and one without a log is an error.
	node := t.TempDir()
	for _, verb := range []string{"ls", "verify"} {
		if _, stderr, code := runIn(t.Context(), "", "audit", verb, node); code != exit.NotFound || !strings.Contains(stderr, "first directory") {
			t.Errorf("audit %s without a log: exit %d, %s", verb, code, stderr)
		}
	}
	if err := os.Symlink(dir, filepath.Join(node, "audit")); err != nil {
		t.Fatal(err)
	}
	if got := ok(t, "audit", "ls", node); !strings.Contains(got, "operator anna") {
		t.Errorf("the directory of the node: %s", got)
	}
	ok(t, "audit", "verify", node, "--head", head)
	file := filepath.Join(dir, "00000000000000000001.audit")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), "anna", "otto", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := runIn(t.Context(), "", "audit", "verify", dir)
	if code != exit.Failure || !strings.Contains(stdout+stderr, file) {
		t.Errorf("a changed entry: exit %d\n%s%s", code, stdout, stderr)
	}
	// Without a head, an entry cut off is not noticed; with it, it is.
	lines := strings.SplitAfter(string(b), "\n")
	if err := os.WriteFile(file, []byte(strings.Join(lines[:len(lines)-2], "")), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, "audit", "verify", dir)
	if _, _, code := runIn(t.Context(), "", "audit", "verify", dir, "--head", head); code != exit.Failure {
		t.Errorf("a cut log: exit %d", code)
	}
}
