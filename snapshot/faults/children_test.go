// Package faults_test breaks the snapshot tier from outside: publishers and readers are processes that are killed, files
// that are cut, file systems that fill, and users that may not read. The packages' own tests cover what one process can do.
package faults_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// How much of each fault; the defaults suit a run of all tests.
var (
	kills    = flag.Int("kills", 40, "how often the publisher is killed")
	reads    = flag.Int("reads", 1_000_000, "how many locked reads are checked while commits and rolls run")
	attached = flag.Int("attached", 1000, "how many readers are attached at once")
	soak     = flag.Duration("soak", 0, "how long to torture an image; 0 skips that")
)

// The environment that makes the test binary a child: which one, and the directory of the image.
const childEnv, childDirEnv = "RHUMB_FAULTS_CHILD", "RHUMB_FAULTS_DIR"

func TestMain(m *testing.M) {
	run := map[string]func(dir string) error{
		"write": write, "read": read, "hold": hold, "linger": linger, "crowd": crowd, "full": fillFileSystem, "refused": refused, "allowed": allowed,
		"fault": touchTruncated, "recover": recoverTruncated,
	}[os.Getenv(childEnv)]
	if run == nil {
		os.Exit(m.Run())
	}
	if err := run(os.Getenv(childDirEnv)); err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(childEnv)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is a child with its output line by line and an input that tells it to end.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Reader
	input  io.Closer
	errors strings.Builder
}

func command(t testing.TB, what, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+what, childDirEnv+"="+dir)
	return cmd
}

func start(t testing.TB, what, dir string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, what, dir)}
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	check(t, err)
	p.lines = bufio.NewReaderSize(out, 64<<10)
	p.input, err = p.cmd.StdinPipe()
	check(t, err)
	check(t, p.cmd.Start())
	return p
}

// line returns the next line of output; ok is false at its end.
func (p *process) line() (string, bool) {
	text, err := p.lines.ReadString('\n')
	return strings.TrimSuffix(text, "\n"), err == nil
}

// kill ends the process with SIGKILL. It must not have ended by itself.
func (p *process) kill() {
	p.t.Helper()
	check(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // says "killed", which status says too
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		p.t.Fatalf("%v ended by itself: %v: %s", p.cmd.Env[len(p.cmd.Env)-2:], p.cmd.ProcessState, p.errors.String())
	}
}

// end tells the process to end, and returns the last line that it printed.
func (p *process) end() (last string) {
	p.t.Helper()
	check(p.t, p.input.Close())
	for text, ok := p.line(); ok; text, ok = p.line() {
		last = text
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %s", err, p.errors.String())
	}
	return last
}

// told is set once standard input has ended.
func told() *atomic.Bool {
	var done atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		done.Store(true)
	}()
	return &done
}

// read is the child that checks one view after the other until it is told to end.
func read(dir string) error {
	done := told()
	k, err := attachSoon(dir, os.Getpid())
	if err != nil {
		return err
	}
	fmt.Println("attached")
	for !done.Load() {
		if err := k.check(); err != nil {
			return err
		}
	}
	fmt.Println("reads", k.reads, "waits", k.waits)
	return k.client.Close()
}

// attachSoon attaches as soon as there is an image and its publisher is not dead in the middle of a change.
func attachSoon(dir string, turn int) (*checker, error) {
	for limit := time.Now().Add(time.Minute); ; {
		k, err := newChecker(dir, turn)
		if kind := rhumb.KindOf(err); err == nil || kind != rhumb.Unavailable && kind != rhumb.NotFound || time.Now().After(limit) {
			return k, err
		}
	}
}

// hold is the child that locks a view and keeps it.
func hold(dir string) error {
	k, err := newChecker(dir, 0)
	if err != nil {
		return err
	}
	v, err := k.client.Lock()
	if err != nil {
		return err
	}
	fmt.Println("locked", v.Version())
	_, err = io.Copy(io.Discard, os.Stdin)
	v.Unlock()
	return errors.Join(err, k.client.Close())
}

// linger is the child that holds a view for longer than it may: it says when its reads are refused, and holds on.
func linger(dir string) error {
	c, err := reader.Attach(dir, reader.Options{MaxLockAge: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	v, err := c.Lock()
	if err != nil {
		return err
	}
	fmt.Println("locked", v.Version())
	for limit := time.Now().Add(time.Minute); err == nil && time.Now().Before(limit); {
		_, err = v.Table(leftName)
	}
	if rhumb.KindOf(err) != rhumb.Expired {
		return fmt.Errorf("an old view is not refused: %w", err)
	}
	fmt.Println("refused")
	_, err = io.Copy(io.Discard, os.Stdin)
	v.Unlock()
	return errors.Join(err, c.Close())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, want rhumb.Kind) {
	t.Helper()
	if rhumb.KindOf(err) != want {
		t.Fatalf("error %v, want kind %v", err, want)
	}
}

// shmDir returns a directory in shared memory, where images lie in earnest, or else a temporary one.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "rhumb-faults-")
	if errors.Is(err, fs.ErrNotExist) {
		return t.TempDir()
	}
	check(t, err)
	check(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "image")
}
