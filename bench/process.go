package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
)

// nodeProcesses stops the processes of nodes and starts them again at its own
// time. The demo that started them first must have been started with
type nodeProcesses struct {
	cluster  *Cluster
	commands map[rhumb.NodeID]*nodeCommand
	// started are the processes that this program has started and must end.
	started []*exec.Cmd
	// ended is closed when the process that was started last has ended.
	ended chan struct{}
}

// nodeCommand starts a node as the demo did.
type nodeCommand struct {
	exe       string
	args, env []string
	log       string
}

// findCommands notes how the present process of each node was started.
func (c *Cluster) findCommands() (*nodeProcesses, error) {
	p := &nodeProcesses{cluster: c, commands: map[rhumb.NodeID]*nodeCommand{}}
	for _, n := range c.Nodes {
		pid, err := pidOf(n.Addr)
		if err != nil {
			return nil, err
		}
		// The kernel shows both lists as they were at the start of the process,
		// which is what another start needs.
		proc := fmt.Sprintf("/proc/%d/", pid)
		exe, err := os.Readlink(proc + "exe")
		if err != nil {
			return nil, err
		}
		args, err := readList(proc + "cmdline")
		if err != nil {
			return nil, err
		}
		env, err := readList(proc + "environ")
		if err != nil {
			return nil, err
		}
		// Outside of the node's directory: that may be a disk that does not
		// answer, which must not hold up the log.
		p.commands[n.ID] = &nodeCommand{exe, args, env, filepath.Join(c.Dir, fmt.Sprintf("node-%s.log", n.ID))}
	}
	return p, nil
}

// readList reads a file of strings that each end with a zero byte.
func readList(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), err
}

// dirsOf returns the directories in which the process of a node keeps its data, as its arguments name them.
func dirsOf(pid int) (out []string, err error) {
	args, err := readList(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	for i := range len(args) - 1 {
		if args[i] != "--dir" {
			continue
		}
		// The flag takes a list, in which a name with a comma is quoted.
		names, err := csv.NewReader(strings.NewReader(args[i+1])).Read()
		if err != nil {
			return nil, fmt.Errorf("process %d has --dir %q: %w", pid, args[i+1], err)
		}
		out = append(out, names...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("process %d was not started with --dir", pid)
	}
	return out, nil
}

// signal sends a signal to the present process of a node.
func (p *nodeProcesses) signal(n rhumb.NodeID, s syscall.Signal) (pid int, err error) {
	for _, m := range p.cluster.Nodes {
		if m.ID != n {
			continue
		}
		if pid, err = pidOf(m.Addr); err != nil {
			return 0, err
		}
		return pid, os.NewSyscallError("kill", syscall.Kill(pid, s))
	}
	return 0, fmt.Errorf("the cluster has no node %s", n)
}

// stopNode lets a node drain and end, and waits until its process is gone.
func (p *nodeProcesses) stopNode(ctx context.Context, n rhumb.NodeID) error {
	pid, err := p.signal(n, syscall.SIGTERM)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(clusterStop); ; {
		if hasEnded(pid) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s did not stop within %v", n, clusterStop)
		}
		if err := pauseFor(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// hasEnded reports whether a process is gone, or only waits for its parent. Before that, a process that
// was killed can hold its files and locks for a while, although it has no memory and no arguments any
// more: another process in its place would find the directory in use. Its first thread may be dead
// long before the others, so no other thread may be left either.
func hasEnded(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none if the process is gone by now
	// The state follows the name of the command in parentheses.
	_, after, _ := strings.Cut(string(text), ") ")
	return len(threads) <= 1 && (strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X"))
}

// startNode starts a node whose process has ended.
func (p *nodeProcesses) startNode(n rhumb.NodeID) error {
	c := p.commands[n]
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// The process has a descriptor of its own.
	defer func() { _ = log.Close() }()
	cmd := &exec.Cmd{Path: c.exe, Args: c.args, Env: c.env, Stdout: log, Stderr: log, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.started = append(p.started, cmd)
	// Its exit code is nobody's business, and without Wait it would stay in the
	// table of processes.
	ended := make(chan struct{})
	p.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// stopAll ends the processes that startNode has started.
func (p *nodeProcesses) stopAll() {
	for _, cmd := range p.started {
		// Killed and not drained: the whole cluster ends, and its data is
		// removed or left unchanged.
		_ = cmd.Process.Kill()
	}
}
