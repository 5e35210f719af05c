package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// readyMax bounds the time until a server is ready, readyPause is the pause between two attempts.
	readyMax   = 90 * time.Second
	readyPause = 50 * time.Millisecond
	// logTail is how much of the log of a server that failed becomes part of the error.
	logTail = 800
)

// server is a process with a log file.
type server struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when the process has ended
}

// startServer starts a program. Its output is in the file of a name in dir.
func startServer(cmd *exec.Cmd, dir, name string) (*server, error) {
	s := &server{cmd: cmd, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	// The process has a descriptor of its own.
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The server dies with this process, however it ends.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// Wait is called once, and everyone else waits for the channel.
	go func() {
		_ = cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// await calls ready until it succeeds. If the server ends or is too slow, await stops it, and returns
// the end of its log.
func (s *server) await(ctx context.Context, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		// A server that ended is reported at once, not after readyMax.
		select {
		case <-s.ended:
			err = errors.New("the server ended")
		case <-ctx.Done():
			err = fmt.Errorf("not ready within %v: %w", readyMax, err)
		case <-time.After(readyPause):
			continue
		}
		s.stop(syscall.SIGKILL)
		text, _ := os.ReadFile(s.log)
		return fmt.Errorf("%w; its log ends with %q", err, bytes.TrimSpace(text[max(0, len(text)-logTail):]))
	}
}

// stopMax bounds the time that a server takes to end.
const stopMax = 10 * time.Second

// stop sends a signal to the server and waits for its end.
func (s *server) stop(signal syscall.Signal) {
	// A process that has ended refuses the signal, and ended is closed.
	_ = s.cmd.Process.Signal(signal)
	select {
	case <-s.ended:
	case <-time.After(stopMax):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// pid returns the process of the server.
func (s *server) pid() int { return s.cmd.Process.Pid }

// portOf returns the port of an address of freeport.Take.
func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port) // freeport.Take made it from a number
	return n
}
