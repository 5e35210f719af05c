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
)

const (
	// stopGrace is how long a child may take to drain and stop before it is killed.
	stopGrace = 10 * time.Second
	// restartPause is how long a child that died stays down.
	restartPause = 3 * time.Second
	// restartsMax bounds how often one child is started again without having lived for restartsForget in between.
	restartsMax    = 10
	restartsForget = time.Minute
	// logName is the file in a node's directory that holds what the node writes to its output.
	logName = "node.log"
)

// children starts the nodes' processes, starts again those that die, and stops all of them.
type children struct {
	binary  string
	restart bool
	notice  func(format string, args ...any) // tells the person in front of it
	starts  chan startRequest                // served by the one thread that starts children
	waits   sync.WaitGroup
	quit    chan struct{} // closed when all are to stop

	mu       sync.Mutex // guards all below
	all      []*child
	stopping bool
}

// child is one node's process.
type child struct {
	name     string
	args     []string
	log      string
	cmd      *exec.Cmd
	started  time.Time
	up       bool
	restarts int
}

type startRequest struct {
	cmd  *exec.Cmd
	done chan error
}

// newChildren prepares to run a binary's start command once for each node.
func newChildren(binary string, restart bool, notice func(string, ...any)) *children {
	c := &children{binary: binary, restart: restart, notice: notice, starts: make(chan startRequest), quit: make(chan struct{})}
	go func() {
		// The kernel sends a child its death signal when the thread that started it ends, so this thread must not.
		runtime.LockOSThread()
		for req := range c.starts {
			req.done <- req.cmd.Start()
		}
	}()
	return c
}

// add starts a process for a node.
func (c *children) add(name, dir string, args []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return rhumb.Wrap("demo.start", err)
	}
	ch := &child{name: name, args: args, log: filepath.Join(dir, logName)}
	c.mu.Lock()
	c.all = append(c.all, ch)
	c.mu.Unlock()
	return c.start(ch)
}

func (c *children) start(ch *child) error {
	const op rhumb.Op = "demo.start"
	out, err := os.OpenFile(ch.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer out.Close()
	cmd := exec.Command(c.binary, ch.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	req := startRequest{cmd, make(chan error, 1)}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil
	}
	c.starts <- req
	if err := <-req.done; err != nil {
		return rhumb.Ef(op, rhumb.Other, "%s: %v", c.binary, err)
	}
	ch.cmd, ch.up, ch.started = cmd, true, time.Now()
	c.waits.Go(func() { c.wait(ch, cmd) })
	return nil
}

// wait notices the end of a child, and starts it again after a pause.
func (c *children) wait(ch *child, cmd *exec.Cmd) {
	err := cmd.Wait()
	c.mu.Lock()
	ch.up = false
	if time.Since(ch.started) > restartsForget {
		ch.restarts = 0
	}
	ch.restarts++
	again := c.restart && !c.stopping && ch.restarts <= restartsMax
	stopping := c.stopping
	c.mu.Unlock()
	switch {
	case stopping:
	case again:
		c.notice("%s is down (%s); it is started again in %v\n%s", ch.name, exitText(err), restartPause, ch.lastWords(err))
		c.waits.Go(func() {
			select {
			case <-c.quit:
				return
			case <-time.After(restartPause):
			}
			if err := c.start(ch); err != nil {
				c.notice("%s cannot be started again: %v\n", ch.name, err)
			}
		})
	default:
		c.notice("%s is down (%s); start it again with:\n  %s\n%s", ch.name, exitText(err), c.command(ch), ch.lastWords(err))
	}
}

// lastWords gives what a child wrote last when it ended by itself and with a failure: a panic from its beginning, else the
// end of its log.
func (ch *child) lastWords(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return ""
	}
	text, err := os.ReadFile(ch.log)
	if err != nil {
		return ""
	}
	for _, word := range []string{"panic: ", "fatal error: "} {
		if at := bytes.LastIndex(text, []byte("\n"+word)); at >= 0 {
			return fmt.Sprintf("--- from %s\n%s\n", ch.log, text[at+1:min(len(text), at+logEndBytes)])
		}
	}
	return fmt.Sprintf("--- the end of %s\n%s\n", ch.log, text[max(0, len(text)-logEndBytes):])
}

func exitText(err error) string {
	if err == nil {
		return "it ended"
	}
	return err.Error()
}

// command gives the words that start a child by hand.
func (c *children) command(ch *child) string {
	text := c.binary
	for _, a := range ch.args {
		text += " " + a
	}
	return text
}

// state says whether each child is up, and its process.
func (c *children) state() (up []bool, pids []int) {
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

// stop lets all children drain and end, and kills those that take longer than stopGrace.
func (c *children) stop() {
	close(c.quit)
	c.signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		c.waits.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopGrace):
		c.signal(syscall.SIGKILL)
		<-ended
	}
	close(c.starts)
}

func (c *children) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for _, ch := range c.all {
		if ch.up {
			_ = ch.cmd.Process.Signal(sig)
		}
	}
}

// writeLogEnds shows the last lines that each dead child wrote.
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

// logEndBytes is how much of a dead child's log is shown.
const logEndBytes = 2_000
