package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/ingest"
)

// TestRejectIsNoInput guards that an ingest never writes malformed lines to a file that it reads,
// under whatever name and for either of the two files, and reports it before it looks for a
// cluster.
func TestRejectIsNoInput(t *testing.T) {
	t.Chdir(t.TempDir())
	const content = "_c 1 _s 1 id A lat 1 lon 2\nbad\n"
	for _, name := range []string{"feed", "feed2.reasons"} {
		must(os.WriteFile(name, []byte(content), 0o600))
	}
	must(os.Link("feed", "hard"))
	must(os.Symlink("feed", "soft"))
	must(os.Symlink("soft", "softer.reasons"))
	must(os.WriteFile("one", nil, 0o600))
	must(os.Link("one", "one.reasons"))
	must(os.WriteFile("mapping", []byte("rows: [{table: flights, name: '{id}', write: patch}]\n"), 0o600))
	for _, c := range []struct{ input, reject, want string }{
		{"feed", "feed", "feed is a file that this ingest reads"},
		{"feed", "./../" + lastOf(t) + "/feed", "is a file that this ingest reads"},
		{"feed", "soft", "soft is a file that this ingest reads"},
		{"feed", "hard", "hard is a file that this ingest reads"},
		{"hard", "softer", "softer.reasons is a file that this ingest reads"},
		{"feed2.reasons", "feed2", "feed2.reasons is a file that this ingest reads"},
		{"feed", "mapping", "mapping is a file that this ingest reads"},
		{"feed", "one", "one and one.reasons are one file"},
	} {
		_, stderr, code := runIn(t.Context(), "", "ingest", "--mapping", "mapping", "--format", "controlstream", "--reject", c.reject, c.input)
		if code != exit.Usage || !strings.Contains(stderr, c.want) {
			t.Errorf("ingest --reject %s %s: exit %d, %q, want %q in it", c.reject, c.input, code, stderr, c.want)
		}
		if got, err := os.ReadFile(c.input); err != nil || string(got) != content {
			t.Fatalf("ingest --reject %s %s leaves %q, %v in the input", c.reject, c.input, got, err)
		}
	}
	stdin, err := os.Open("feed")
	must(err)
	defer stdin.Close()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"ingest", "--table", "flights", "--reject", "hard", "-"}, streams{in: stdin, out: &stdout, err: &stderr})
	if code != exit.Usage || !strings.Contains(stderr.String(), "hard is a file that this ingest reads") {
		t.Errorf("with the input redirected: exit %d, %q", code, stderr.String())
	}
}

func lastOf(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	must(err)
	return dir[strings.LastIndexByte(dir, '/')+1:]
}

// TestRejectAppends guards that the rejected lines of an earlier run are kept, and that a note says
// so.
func TestRejectAppends(t *testing.T) {
	t.Chdir(t.TempDir())
	var stderr bytes.Buffer
	notes := &output.Printer{Err: &stderr}
	for range 2 {
		r, err := openRejects(notes, "bad")
		must(err)
		must(r.addRejection(ingest.Rejection{Line: 7, Raw: []byte("raw line"), Err: rhumb.E("test", rhumb.InvalidArgument, "it is malformed")}))
		must(r.close())
	}
	for name, want := range map[string]string{"bad": "raw line\nraw line\n", "bad.reasons": "line 7: it is malformed\nline 7: it is malformed\n"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v, want %q", name, got, err, want)
		}
	}
	if !strings.Contains(stderr.String(), "bad already holds 9 bytes") {
		t.Errorf("told %q", stderr.String())
	}
}
