package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/freeport"
)

const (
	// bootWait bounds how long a demo may take to be ready on a machine that is busy with other
	// tests.
	bootWait = 150 * time.Second
	// settleWait bounds how long a cluster may take to be healthy again. A node that stalls of the disk have fenced again
	// and again, which other tests on the same disk can cause, is held off from in-sync sets for up to a minute.
	settleWait = 2 * time.Minute
	awaitPoll  = 50 * time.Millisecond
)

// await waits until f is true.
func await(t *testing.T, what string, most time.Duration, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(most)
	tick := time.NewTicker(awaitPoll)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for %s", most, what)
		}
		<-tick.C
	}
}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addrs, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0]
}

// process is the program in a process of its own.
type process struct {
	*exec.Cmd
	out    *bufio.Scanner
	stderr lockedBuffer
	ended  chan struct{}
	err    error
}

// startProcess starts the program. It is killed when the test ends, if it still runs.
func startProcess(t *testing.T, stdin io.Reader, args ...string) *process {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, binary, stdin, args...)
}

// startProgram starts a program that is built elsewhere, as startProcess does.
func startProgram(t *testing.T, binary string, stdin io.Reader, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.Stdin = stdin
	p.Stderr = &p.stderr
	pipe, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(pipe)
	p.out.Buffer(nil, 1<<20)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		p.wait()
		if t.Failed() {
			t.Logf("rhumb %s wrote:\n%s", strings.Join(args, " "), p.stderr.String())
		}
	})
	return p
}

// line returns the next line of the output.
func (p *process) line() (string, bool) {
	ok := p.out.Scan()
	return p.out.Text(), ok
}

// wait drains the output, waits for the end and returns the exit code, or -1 after a signal.
func (p *process) wait() int {
	select {
	case <-p.ended:
	default:
		for p.out.Scan() {
		}
		p.err = p.Wait()
		close(p.ended)
	}
	return p.ProcessState.ExitCode()
}

// startDemo runs a demo until the test ends and returns its layout. RHUMB_DEMO names its context in
// the meantime.
func startDemo(t *testing.T, args ...string) (*demo.Layout, *process) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	dir := t.TempDir()
	t.Setenv("RHUMB_DEMO", filepath.Join(dir, "context.json"))
	begin := time.Now()
	p := startProcess(t, nil, append([]string{"demo", "--json", "--dir", filepath.Join(dir, "data")}, args...)...)
	ready := make(chan string, 1)
	go func() {
		text, _ := p.line()
		ready <- text
	}()
	var layout demo.Layout
	select {
	case text := <-ready:
		if err := json.Unmarshal([]byte(text), &layout); err != nil || !layout.Ready {
			t.Fatalf("the ready line is %q: %v\n%s", text, err, p.stderr.String())
		}
	case <-time.After(bootWait):
		t.Fatalf("not ready after %v\n%s", bootWait, p.stderr.String())
	}
	t.Logf("%d nodes were ready after %v", len(layout.Nodes), time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			logEnds(t, &layout)
		}
	})
	return &layout, p
}

// logEnds logs the last output of each node, or its panic.
func logEnds(t *testing.T, l *demo.Layout) {
	for _, n := range l.Nodes {
		text, err := os.ReadFile(filepath.Join(n.Dir, "node.log"))
		if err != nil {
			continue
		}
		if at := bytes.Index(text, []byte("panic: ")); at >= 0 {
			t.Logf("node %s:\n%.4000s", n.ID, text[at:])
			continue
		}
		t.Logf("node %s: …%s", n.ID, text[max(0, len(text)-1000):])
	}
}

// ok runs a command that must succeed and returns what it printed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := runIn(t.Context(), "", args...)
	if code != exit.OK {
		t.Fatalf("rhumb %s: exit %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// okJSON runs a command with -o json and decodes its document.
func okJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	text := ok(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("rhumb %s: %v in %s", strings.Join(args, " "), err, text)
	}
}

// fails runs a command that must fail with a code.
func fails(t *testing.T, code int, args ...string) {
	t.Helper()
	stdout, stderr, got := runIn(t.Context(), "", args...)
	if got != code {
		t.Errorf("rhumb %.200s: exit %d, want %d\n%.500s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
}

// countRows returns the number of records in a table.
func countRows(t *testing.T, table string) int {
	t.Helper()
	return strings.Count(ok(t, "scan", table, "--limit", "0", "-o", "json"), "\n")
}
