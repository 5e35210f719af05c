package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node"
)

const (
	// stopGrace is the time in which a child must drain and stop before it is killed.
	stopGrace = 10 * time.Second
	// restartPause is the time between the death and the restart of a child.
	restartPause = 3 * time.Second
	// restartsMax bounds the restarts of one child that did not live for restartsForget in between.
	restartsMax    = 10
	restartsForget = time.Minute
	// logName is the file in the directory of a node that receives the output of the node.
	logName = "node.log"
)

// children starts the processes of the nodes, restarts those that die, and stops them all.
type children struct {
	binary  string
	restart bool
	notice  func(format string, args ...any) // prints a message for the user
	starts  chan startRequest                // received by the only thread that starts children
	waits   sync.WaitGroup
	quit    chan struct{} // closed when all children are to stop

	mu       sync.Mutex // guards all, stopping, and the fields of the children
	all      []*child
	stopping bool
}

// child is the process of one node.
type child struct {
	name     string
	args     []string
	log      string
	cmd      *exec.Cmd
	started  time.Time
	up       bool
	restarts int
}

// startRequest asks the starting thread to start a process.
type startRequest struct {
	cmd  *exec.Cmd
	done chan error
}

// newChildren returns a set of processes of a binary. Its goroutine ends after stop.
func newChildren(binary string, restart bool, notice func(string, ...any)) *children {
	c := &children{binary: binary, restart: restart, notice: notice, starts: make(chan startRequest), quit: make(chan struct{})}
	go func() {
		// The kernel sends a child its death signal when the thread that started it ends. The
		// thread must therefore live as long as the demo.
		runtime.LockOSThread()
		for req := range c.starts {
			req.done <- req.cmd.Start()
		}
	}()
	return c
}

// add adds a node and starts its process.
func (c *children) add(name, dir string, args []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return rhumb.Wrap("demo.start", err)
	}
	ch := &child{name: name, args: args, log: filepath.Join(dir, logName)}
	c.mu.Lock()
	c.all = append(c.all, ch)
	c.mu.Unlock()
	return c.startChild(ch)
}

// startChild starts the process of a child, for the first time or again.
func (c *children) startChild(ch *child) error {
	const op rhumb.Op = "demo.start"
	out, err := os.OpenFile(ch.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer out.Close()
	cmd := exec.Command(c.binary, ch.args...)
	// A file, whose end lastWords shows when the child has died.
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	req := startRequest{cmd, make(chan error, 1)}

	c.mu.Lock()
	defer c.mu.Unlock()
	// Checked under the lock that signalAll takes, so that no child starts after the signal.
	if c.stopping {
		return nil
	}
	c.starts <- req
	if err := <-req.done; err != nil {
		return rhumb.Ef(op, rhumb.Other, "%s: %v", c.binary, err)
	}
	ch.cmd, ch.up, ch.started = cmd, true, time.Now()
	c.waits.Go(func() { c.waitFor(ch, cmd) })
	return nil
}

// waitFor waits for the end of a child and starts the child again after a pause.
func (c *children) waitFor(ch *child, cmd *exec.Cmd) {
	err := cmd.Wait()
	c.mu.Lock()
	ch.up = false
	if time.Since(ch.started) > restartsForget {
		ch.restarts = 0
	}
	ch.restarts++
	// A child that dies at once, for example because its port is taken, must not restart forever.
	again := c.restart && !c.stopping && ch.restarts <= restartsMax && !isFinal(err)
	stopping := c.stopping
	c.mu.Unlock()
	switch {
	// Every child ends during stop, so this is nothing to report.
	case stopping:
	case again:
		c.notice("%s (pid %d) is down (%s); it is restarted in %v\n%s", ch.name, cmd.Process.Pid, exitText(err), restartPause, ch.lastWords(err))
		// The pause ends early when the demo stops, which waits for this goroutine.
		c.waits.Go(func() {
			select {
			case <-c.quit:
				return
			case <-time.After(restartPause):
			}
			if err := c.startChild(ch); err != nil {
				c.notice("cannot restart %s: %v\n", ch.name, err)
				return
			}
			c.mu.Lock()
			now := ch.cmd
			c.mu.Unlock()
			// It is the old process if the demo began to stop meanwhile.
			if now != cmd {
				c.notice("%s runs again (pid %d)\n", ch.name, now.Process.Pid)
			}
		})
	default:
		c.notice("%s is down (%s); start it again with:\n  %s\n%s", ch.name, exitText(err), c.commandLine(ch), ch.lastWords(err))
	}
}

// lastWords returns the last output of a child that exited with a failure: its panic if there was
// one, or the end of its log. It returns nothing for a child that was killed, which is not a
// failure of the child.
func (ch *child) lastWords(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return ""
	}
	text, err := os.ReadFile(ch.log)
	if err != nil {
		return ""
	}
	// The last panic in the log: the log may contain those of earlier processes.
	for _, word := range []string{"panic: ", "fatal error: "} {
		if at := bytes.LastIndex(text, []byte("\n"+word)); at >= 0 {
			return fmt.Sprintf("--- from %s\n%s\n", ch.log, text[at+1:min(len(text), at+logEndBytes)])
		}
	}
	return fmt.Sprintf("--- the end of %s\n%s\n", ch.log, text[max(0, len(text)-logEndBytes):])
}

// isFinal reports whether a child would fail in the same way if it were started again, as a node that was removed from the cluster.
func isFinal(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == node.ExitNoRestart
}

// exitText describes how a process ended.
func exitText(err error) string {
	if err == nil {
		return "exited without an error"
	}
	return err.Error()
}

// commandLine returns the command that starts a child by hand.
func (c *children) commandLine(ch *child) string {
	text := c.binary
	for _, a := range ch.args {
		text += " " + a
	}
	return text
}

// childStates returns, for each child in the order of add, whether it runs, and its process.
func (c *children) childStates() (up []bool, pids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.all {
		pid := 0
		if ch.cmd != nil {
			pid = ch.cmd.Process.Pid
		}
		up, pids = append(up, ch.up), append(pids, pid)
	}
	return up, pids
}

// stop drains and stops all children, and kills those that take longer than stopGrace.
func (c *children) stop() {
	close(c.quit)
	c.signalAll(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		// Includes the goroutines that restart children, so that starts is not used after it is
		// closed.
		c.waits.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopGrace):
		c.signalAll(syscall.SIGKILL)
		<-ended
	}
	close(c.starts)
}

// signalAll sends a signal to all running children and prevents further starts.
func (c *children) signalAll(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for _, ch := range c.all {
		if ch.up {
			_ = ch.cmd.Process.Signal(sig)
		}
	}
}

// writeLogEnds prints the end of the log of each dead child.
func (c *children) writeLogEnds(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.all {
		if ch.up {
			continue
		}
		text, err := os.ReadFile(ch.log)
		if err != nil {
			continue
		}
		fmt.Fprintf(w, "--- the end of %s\n%s\n", ch.log, text[max(0, len(text)-logEndBytes):])
	}
}

// logEndBytes is the size of the part of a dead child's log that is printed.
const logEndBytes = 2_000
