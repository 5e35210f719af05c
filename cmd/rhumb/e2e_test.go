package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/demo"
)

// The tests of this file run real processes: a demo, its nodes, and the commands against it.

// TestEndToEnd runs three regions of three nodes and every command against them.
func TestEndToEnd(t *testing.T) {
	layout, p := startDemo(t, "--latency", "none", "--load", "none", "--no-restart")
	t.Run("data", testData)
	t.Run("refusals", testRefusals)
	t.Run("cluster", func(t *testing.T) { testCluster(t, layout) })
	t.Run("snapshot", func(t *testing.T) { testSnapshot(t, layout) })
	t.Run("contexts", func(t *testing.T) { testContexts(t, layout.Nodes[0].Addr) })
	t.Run("doctor", func(t *testing.T) { testDoctor(t, layout) })
	t.Run("ingest", testIngest)
	t.Run("kill", func(t *testing.T) { testKill(t, layout, p) })
	t.Run("stop", func(t *testing.T) { testStop(t, layout, p) })
}

// testData writes and reads records of each kind through the command line, and compares what is printed.
func testData(t *testing.T) {
	var w writeDoc
	okJSON(t, &w, "put", "flights", "SWR8", "ident=SWR8", "alt_ft=38000", "location=47.4,8.5", "--from", "frankfurt")
	if !w.Applied || w.Region != "frankfurt" || w.Version == "" {
		t.Errorf("put: %+v", w)
	}
	for _, from := range []string{"singapore", "frankfurt", "virginia"} {
		var r recordDoc
		okJSON(t, &r, "get", "flights", "SWR8", "--from", from)
		if r.Region != "frankfurt" || r.Fields["ident"] != "SWR8" || r.Version != w.Version || r.Receipt.Region != "frankfurt" {
			t.Errorf("get from %s: %+v", from, r)
		}
		if searched := r.Receipt.Searched; (searched == 0) != (from == "frankfurt") {
			t.Errorf("get from %s asked %d other regions", from, searched)
		}
	}
	okJSON(t, &w, "patch", "flights", "SWR8", "alt_ft=36000", "--from", "virginia", "--if-version", w.Version)
	if !w.Applied || !w.Existed || w.Region != "frankfurt" {
		t.Errorf("patch: %+v", w)
	}
	stale, current := "115964116992000001@3", w.Version
	_, stderr, code := runIn(t.Context(), "", "put", "flights", "SWR8", "alt_ft=1", "--if-version", stale, "-o", "json")
	var failed map[string]exit.Doc
	if err := json.Unmarshal([]byte(stderr), &failed); err != nil || code != 4 || failed["error"].CurrentVersion != current {
		t.Errorf("put --if-version of an old version: exit %d, %q, want version %s", code, stderr, current)
	}
	_, stderr, _ = runIn(t.Context(), "", "put", "flights", "SWR8", "alt_ft=1", "--if-version", stale)
	if !strings.Contains(stderr, current) {
		t.Errorf("%q does not tell version %s", stderr, current)
	}
	var r recordDoc
	okJSON(t, &r, "get", "flights", "SWR8")
	if r.Fields["alt_ft"] != 36000.0 || r.Fields["ident"] != "SWR8" {
		t.Errorf("a patch changed more than its fields: %+v", r.Fields)
	}
	// Fields printed as JSON and put again are the same, type by type.
	var printed struct{ Fields json.RawMessage }
	ok(t, "put", "flights", "TYPED", "t:timestamp=1700000000.5", "b:bytes=0x00ff", "f:float64=38000", "i=38000", "s:string=12", "location=1,2", "on=true")
	okJSON(t, &printed, "get", "flights", "TYPED")
	ok(t, "put", "flights", "AGAIN", "--json", string(printed.Fields))
	if first, again := ok(t, "get", "flights", "TYPED"), ok(t, "get", "flights", "AGAIN"); first != again || !strings.Contains(first, "timestamp") {
		t.Errorf("%s put again as JSON is\n%s, was\n%s", printed.Fields, again, first)
	}
	ok(t, "delete", "flights", "TYPED")
	ok(t, "delete", "flights", "AGAIN")
	stdout, stderr, code := runIn(t.Context(), "", "delete", "flights", "NOBODY")
	if code != exit.OK || strings.Contains(stdout, "n0") || !strings.Contains(stderr, "nothing was deleted") {
		t.Errorf("deleting nothing: exit %d\n%s%s", code, stdout, stderr)
	}
	// A patch that finds nothing creates the record where its location is.
	okJSON(t, &w, "patch", "flights", "JAL5", "location=40,-75", "--from", "singapore")
	if w.Region != "virginia" || w.Existed {
		t.Errorf("patch of a new record: %+v", w)
	}
	okJSON(t, &w, "insert", "events", "--text", "hello", "--region", "singapore")
	okJSON(t, &r, "get", "events", w.Name, "--home", w.Home, "--from", "virginia")
	if r.Text == nil || *r.Text != "hello" || w.Key == "" {
		t.Errorf("insert %+v reads back as %+v", w, r)
	}
	ok(t, "key", "explain", w.Key)
	testBatch(t)
	okJSON(t, &w, "delete", "flights", "JAL5")
	fails(t, exit.NotFound, "get", "flights", "JAL5")
	if got := countRows(t, "flights"); got != 2 {
		t.Errorf("%d flights, want SWR8 and the batch's", got)
	}
}

// testBatch writes several keys of a range at once, and checks that a batch that is refused changes nothing.
func testBatch(t *testing.T) {
	batch := `{"op":"patch","table":"flights","name":"KLM1","fields":{"location":{"lat":52,"lon":4.8},"n":1},"if":"newer","by":["n"]}
{"op":"put","table":"positions","name":"KLM1/1","fields":{"location":{"lat":52,"lon":4.8}}}
`
	var b batchDoc
	for _, applied := range []bool{true, false} {
		stdout, stderr, code := runIn(t.Context(), batch, "batch", "-", "-o", "json")
		if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != exit.OK {
			t.Fatalf("batch: exit %d, %v, %s", code, err, stderr)
		}
		if b.Applied != applied || b.Region != "frankfurt" {
			t.Errorf("batch: %+v, want applied %v in frankfurt", b, applied)
		}
	}
	_, stderr, code := runIn(t.Context(), strings.ReplaceAll(batch, "KLM1/1", "OTHER/1"), "batch", "-")
	if code != exit.Usage || !strings.Contains(stderr, "range") {
		t.Errorf("a batch over several ranges: exit %d, %s", code, stderr)
	}
}

// testRefusals gives wrong arguments, and checks the exit code and that the message names what is wrong.
func testRefusals(t *testing.T) {
	big := filepath.Join(t.TempDir(), "big")
	must(os.WriteFile(big, make([]byte, 2<<20+1), 0o600))
	fails(t, exit.NotFound, "get", "flights", "nobody")
	fails(t, exit.NotFound, "get", "no_such_table", "x")
	fails(t, exit.NotFound, "put", "flights", "x", "a=1", "--home", "atlantis")
	fails(t, exit.NotFound, "scan", "flights", "--region", "atlantis")
	fails(t, exit.NotFound, "range", "describe", "9/9")
	fails(t, exit.NotFound, "node", "drain", "n99")
	fails(t, exit.NotFound, "table", "describe", "no_such_table")
	fails(t, exit.Precondition, "put", "flights", "SWR8", "a=1", "--if-absent")
	fails(t, exit.Precondition, "patch", "flights", "nobody", "a=1", "--if-present")
	fails(t, exit.Precondition, "table", "create", "flights")
	fails(t, exit.Usage, "put", "flights", "x", "--file", big)
	fails(t, exit.Usage, "put", "flights", strings.Repeat("n", 5<<10), "a=1")
	fails(t, exit.Usage, "put", "flights", "x", "location=91,0")
	fails(t, exit.Usage, "put", "flights", "x", "location:point=NaN,0")
	fails(t, exit.Usage, "table", "create", "bad name")
	fails(t, exit.Usage, "table", "create", "t", "--replicas", "99")
	fails(t, exit.Usage, "scan", "flights", "--after", "garbage")
	fails(t, exit.Unavailable, "get", "flights", "x", "--addr", "127.0.0.1:1", "--insecure", "--timeout", "1s")
}

// testCluster checks what the commands about the cluster print, against the layout that was started.
func testCluster(t *testing.T, layout *demo.Layout) {
	var s statusDoc
	// A busy machine may have a node suspected while all of them start.
	await(t, "the cluster to be well", settleWait, func() bool {
		okJSON(t, &s, "status")
		return s.Healthy
	})
	if s.ClusterID != layout.ClusterID || len(s.Nodes) != 9 || len(s.Regions) != 3 || s.CanLose != 1 || s.Ranges.Total == 0 {
		t.Errorf("status: %+v", s)
	}
	ok(t, "status", "--check")
	var nodes []nodeDoc
	okJSON(t, &nodes, "node", "ls")
	leaders := 0
	for _, n := range nodes {
		if n.Leader {
			leaders++
		}
		if !n.Ready || len(n.Stores) != 1 || n.Ranges == 0 {
			t.Errorf("node: %+v", n)
		}
	}
	if leaders != 1 {
		t.Errorf("%d nodes lead the metadata group", leaders)
	}
	var regions []regionDoc
	okJSON(t, &regions, "region", "ls", "--from", "frankfurt")
	var ranges []rangeDoc
	okJSON(t, &ranges, "range", "ls", "--region", "frankfurt")
	if len(regions) != 3 || len(ranges) == 0 || ranges[0].Region != "frankfurt" || len(ranges[0].InSync) != 3 {
		t.Errorf("regions %+v, ranges %+v", regions, ranges)
	}
	var described rangeStatusDoc
	okJSON(t, &described, "range", "describe", ranges[0].ID)
	if len(described.Status) != 3 {
		t.Errorf("range describe: %+v", described)
	}
	var made, found tableDoc
	okJSON(t, &made, "table", "create", "notes", "--replicas", "1", "--hash-slots", "4", "--history", "1h", "--colocate", ":")
	okJSON(t, &found, "table", "describe", "notes", "--from", "virginia")
	if found.Replicas != 1 || found.HistorySecs != 3600 || found.Colocate != ":" || made.ID != found.ID {
		t.Errorf("table create %+v, describe %+v", made, found)
	}
	for _, args := range []string{"status", "node ls", "region ls", "range ls", "range describe " + ranges[0].ID, "table ls", "table describe notes", "scan flights", "get flights SWR8"} {
		if text := ok(t, strings.Fields(args)...); !strings.Contains(text, "\n") || strings.Contains(text, "%!") {
			t.Errorf("rhumb %s prints %q", args, text)
		}
		sameInAllForms(t, strings.Fields(args)...)
	}
}

// testIngest streams records from a file into tables, with lines that are refused among them.
func testIngest(t *testing.T) {
	reject := filepath.Join(t.TempDir(), "reject")
	var first, again ingestDoc
	args := []string{"ingest", "--table", "flights", "--format", "controlstream", "../../ingest/testdata/sample.controlstream.gz", "--reject", reject}
	before := countRows(t, "flights")
	okJSON(t, &first, args...)
	okJSON(t, &again, args...)
	if first.Applied != 600 || first.Rejected != 2 || first.Lines != 602 || again.AlreadyThere != 600 || again.Applied != 0 {
		t.Errorf("ingest %+v, again %+v", first, again)
	}
	if got := countRows(t, "flights") - before; got != 12 {
		t.Errorf("%d flights more, want 12", got)
	}
	lines, err := os.ReadFile(reject)
	reasons, err2 := os.ReadFile(reject + ".reasons")
	if err != nil || err2 != nil || bytes.Count(lines, []byte("\n")) != 4 || !bytes.Contains(reasons, []byte("line 101: ")) {
		t.Errorf("rejected lines %q (%v), reasons %q (%v)", lines, err, reasons, err2)
	}
	fails(t, exit.Usage, append(args, "--strict")...)
	fails(t, exit.NotFound, "ingest", "--table", "cars", "--mapping", "flights", "../../ingest/testdata/sample.controlstream.gz")

	// An ingest that waits for a silent pipe can be interrupted, and what it has written stays.
	in, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.WriteString(out, "_c 1 _s 1 id PIPE lat 1 lon 103\n")
		for {
			if _, _, code := runIn(t.Context(), "", "get", "flights", "PIPE"); code == exit.OK || t.Context().Err() != nil {
				break
			}
		}
		cancel()
	}()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"ingest", "--table", "flights", "-", "-o", "json"}, streams{in: in, out: &stdout, err: &stderr})
	if code != exit.Failure || !strings.Contains(stdout.String(), `"applied":1`) || !strings.Contains(stderr.String(), "canceled") {
		t.Errorf("interrupted: exit %d, %s, %s", code, stdout.String(), stderr.String())
	}
	_ = out.Close()
}

// testKill kills a node during an ingest: the ingest continues, and nothing that was acknowledged
// is missing.
func testKill(t *testing.T, layout *demo.Layout, p *process) {
	feed, flights, positions := killFeed(t)
	victim := layout.Nodes[4]
	in, out := io.Pipe()
	var stdout, stderr bytes.Buffer
	code := make(chan int, 1)
	flightsBefore, positionsBefore := countRows(t, "flights"), countRows(t, "positions")
	go func() {
		code <- run(t.Context(), []string{"ingest", "--table", "flights", "-", "-o", "json", "--merge", "4"}, streams{in: in, out: &stdout, err: &stderr})
	}()
	half := len(feed) / 2
	if _, err := out.Write(feed[:half]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(feed[half:]); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if got := <-code; got != exit.OK {
		t.Fatalf("ingest: exit %d, %s%s", got, stdout.String(), stderr.String())
	}
	if got := countRows(t, "flights") - flightsBefore; got != flights {
		t.Errorf("%d flights more, want %d: %s", got, flights, stdout.String())
	}
	if got := countRows(t, "positions") - positionsBefore; got != positions {
		t.Errorf("%d positions more, want %d: %s", got, positions, stdout.String())
	}
	var s statusDoc
	okJSON(t, &s, "status")
	if s.Healthy || !strings.Contains(strings.Join(s.Problems, " "), "not ready") {
		t.Errorf("a status with a dead node: %+v", s.Problems)
	}
	fails(t, exit.Unavailable, "status", "--check")
	if doc, code := diagnose(t); code != exit.Failure || !doc.found(doctor.Wrong, "of "+victim.ID.String()+" in "+victim.Region+" (clients, tcp)") {
		t.Errorf("doctor with a dead node: exit %d, %+v", code, doc.Findings)
	}
	await(t, "the demo to tell that a node is down", settleWait, func() bool { return strings.Contains(p.stderr.String(), "start it again with") })
	for _, n := range layout.Nodes {
		if up := syscall.Kill(n.PID, 0) == nil; up != (n.ID != victim.ID) {
			t.Errorf("node %s up: %v", n.ID, up)
		}
	}
}

// killFeed returns a feed and how many flights and positions it creates. It is a recorded feed if
// RHUMB_TESTDATA has one, else a generated one.
func killFeed(t *testing.T) (feed []byte, flights, positions int) {
	if dir := os.Getenv("RHUMB_TESTDATA"); dir != "" {
		feed, err := os.ReadFile(filepath.Join(dir, "flights-switzerland.controlstream.gz"))
		if err != nil {
			t.Fatal(err)
		}
		return feed, 1243, 139_098
	}
	t.Log("RHUMB_TESTDATA is not set: the feed is generated")
	var b bytes.Buffer
	for i := range 200 {
		for f := range 100 {
			fmt.Fprintf(&b, "_c %d _s %d type position id KILL%d lat %d lon %d\n", 1000+i, f, f, f-50, f)
		}
	}
	return b.Bytes(), 100, 20_000
}

// testStop guards that one interrupt ends a demo and all its processes, and removes the file by
// which commands find it.
func testStop(t *testing.T, layout *demo.Layout, p *process) {
	begin := time.Now()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != exit.OK {
		t.Errorf("the demo ended with %d\n%s", code, p.stderr.String())
	}
	t.Logf("it stopped in %v", time.Since(begin).Round(time.Millisecond))
	checkGone(t, layout)
	if _, err := os.Stat(os.Getenv("RHUMB_DEMO")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the context of the demo still exists: %v", err)
	}
}

// checkGone waits until all processes of the cluster have ended.
func checkGone(t *testing.T, layout *demo.Layout) {
	t.Helper()
	for _, n := range layout.Nodes {
		await(t, fmt.Sprintf("node %s to end", n.ID), settleWait, func() bool { return errors.Is(syscall.Kill(n.PID, 0), syscall.ESRCH) })
	}
}

// TestDemoKeepsItsData guards that a demo that restarts in its directory has the same data and
// addresses, that a dead demo leaves no processes, and that a demo restarts a node that dies.
func TestDemoKeepsItsData(t *testing.T) {
	layout, p := startDemo(t, "--latency", "none", "--load", "none", "--regions", "frankfurt,bern=46.9:7.4", "--nodes-per-region", "1")
	ok(t, "put", "flights", "KEPT", "a=1")
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	checkGone(t, layout)
	fails(t, exit.Usage, "get", "flights", "KEPT") // commands ignore a dead demo

	again := startProcess(t, nil, "demo", "--json", "--dir", layout.Dir, "--latency", "none", "--load", "flights", "--flights", "20",
		"--regions", "frankfurt,bern=46.9:7.4", "--nodes-per-region", "1")
	var back demo.Layout
	text, _ := again.line()
	if err := json.Unmarshal([]byte(text), &back); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if back.ClusterID != layout.ClusterID || back.Nodes[1].Addr != layout.Nodes[1].Addr || back.Nodes[1].ID != layout.Nodes[1].ID {
		t.Errorf("the demo came back as %+v, was %+v", back, layout)
	}
	var r recordDoc
	okJSON(t, &r, "get", "flights", "KEPT")
	if r.Fields["a"] != 1.0 {
		t.Errorf("the record came back as %+v", r)
	}
	if err := syscall.Kill(back.Nodes[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitSeconds(t, again, &back)
}

// awaitSeconds reads the figures of a demo whose second node was killed, until they have shown the
// node down, then up as another process, and then new writes.
func awaitSeconds(t *testing.T, p *process, layout *demo.Layout) {
	var down, up bool
	var acknowledged int64
	for deadline := time.Now().Add(settleWait); time.Now().Before(deadline); {
		text, more := p.line()
		var sec demo.Second
		if err := json.Unmarshal([]byte(text), &sec); err != nil || !more {
			t.Fatalf("%q: %v", text, err)
		}
		n := sec.Nodes[1]
		down = down || !n.Up
		if down && n.Up && n.PID != layout.Nodes[1].PID && !up {
			up, acknowledged = true, sec.Acknowledged
		}
		if up && sec.Acknowledged > acknowledged && sec.Regions[1].WritesPerSecond > 0 {
			return
		}
	}
	t.Errorf("down %v, up again %v, and no writes since", down, up)
}

// TestStartRefuses guards that a node rejects a directory that another node uses, and that SIGTERM
// ends a node cleanly.
func TestStartRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	dir := t.TempDir()
	args := []string{
		"start", "--region", "frankfurt", "--dir", dir, "--insecure", "--addr", "127.0.0.1:0", "--heartbeat-addr", "127.0.0.1:0",
		"--gossip-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
	}
	p := startProcess(t, nil, args...)
	await(t, "the node to open its directory", bootWait, func() bool {
		_, err := os.Stat(filepath.Join(dir, "data"))
		return err == nil
	})
	second := startProcess(t, nil, args...)
	if code := second.wait(); code != exit.Unavailable || !strings.Contains(second.stderr.String(), dir+" is in use") {
		t.Errorf("a second node: exit %d, %s", code, second.stderr.String())
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != exit.OK {
		t.Errorf("SIGTERM: exit %d\n%s", code, p.stderr.String())
	}
}
