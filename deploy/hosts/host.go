//go:build linux

package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is one host of a fleet.
//
// It is a view of the record and holds no state of its own, so two values of one host cannot
// disagree.
type Host struct {
	fleet *Fleet
	rec   *hostRecord
}

// Name returns the name of the host, which is also its host name.
func (h *Host) Name() string { return h.rec.Name }

// Region returns the region of the host; "" if it is in none.
func (h *Host) Region() string { return h.rec.Region }

// Address returns the address of the host.
func (h *Host) Address() netip.Addr { return h.rec.Address }

// dir holds the host's data and logs.
func (h *Host) dir() string { return h.fleet.path("hosts", h.rec.Name) }

// layer holds the changes to the host's root file system.
func (h *Host) layer() string { return h.fleet.path("roots", h.rec.Name) }

// Up reports whether the host's first process runs.
//
// The start time is compared because the kernel reuses process IDs: without it, a foreign process
// could be taken for the host, and killed.
func (h *Host) Up() bool { return h.rec.PID != 0 && startOf(h.rec.PID) == h.rec.Start }

// Start starts the host: its first process, which starts the enabled units.
func (h *Host) Start() error {
	// Starting is repeatable, which makes Up repeatable.
	if h.Up() {
		return nil
	}
	if err := h.makeNetwork(); err != nil {
		return err
	}
	// An overlay needs upper and work on one file system.
	for _, dir := range []string{
		filepath.Join(h.layer(), "upper"), filepath.Join(h.layer(), "work"), filepath.Join(h.dir(), "root"),
		filepath.Join(h.dir(), "log"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Appended to, so that the log covers all starts of the host.
	log, err := os.OpenFile(filepath.Join(h.dir(), "log", "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// Through the pipe the first process reports that its units were started, or what failed.
	ready, done, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	c := exec.Command(h.fleet.path("hostctl"), roleInit, h.fleet.dir, h.rec.Name, h.fleet.rec.Network.String(),
		h.rec.Address.String(), strconv.Itoa(h.firstUID()))
	c.Env = []string{"PATH=" + hostPath}
	// Without a shared terminal and with a session of its own, the host outlives this process.
	c.Stdout, c.Stderr, c.ExtraFiles = log, log, []*os.File{done}
	c.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	err = startInNetwork(c, h.Namespace())
	done.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", h.rec.Name, err)
	}
	// Until this is saved, a crash leaves a process without a record. It ends with its pipe: see runInit.
	h.rec.PID, h.rec.Start = c.Process.Pid, startOf(c.Process.Pid)
	if err := h.fleet.save(); err != nil {
		return errors.Join(err, c.Process.Kill())
	}
	go c.Wait() // so that no zombie stays if this process does
	return h.awaitReady(ready)
}

// awaitReady waits for the word of the host's first process, which is "ok" or an error.
func (h *Host) awaitReady(ready *os.File) error {
	// A first process that hangs must not hang the caller.
	if err := ready.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	word, err := io.ReadAll(io.LimitReader(ready, 64<<10))
	switch {
	case err != nil:
		return fmt.Errorf("start %s: not ready: %w; see %s", h.rec.Name, err, h.LogFile("init"))
	case string(word) != "ok":
		return fmt.Errorf("start %s: %s; see %s", h.rec.Name, word, h.LogFile("init"))
	}
	return nil
}

// startInNetwork starts a command in a network namespace.
//
// A namespace of the network belongs to a thread and not to the process, and Go moves goroutines
// between threads. The thread is never unlocked: the runtime then ends it together with the
// goroutine instead of reusing it.
func startInNetwork(c *exec.Cmd, namespace string) error {
	errs := make(chan error)
	go func() {
		// The thread has changed its namespace and must not run other goroutines: it ends with this one, which is locked to it.
		runtime.LockOSThread()
		file, err := os.Open(namespace)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			file.Close()
		}
		if err == nil {
			err = c.Start()
		}
		errs <- err
	}()
	return <-errs
}

// firstUID returns the first of the host's own eight system users' IDs, so that a process of one host has no rights in another.
func (h *Host) firstUID() int { return 100000 + int(h.fleet.octet())*1024 + h.rec.Seq*8 }

// Kill ends all processes of the host at once, as a power cut does. Files stay.
//
// It is the closest imitation of a power cut that processes allow. Data that was written and not
// synced survives it, though, because it is in the page cache of the machine; tests of disks use
// other means.
func (h *Host) Kill() error {
	// The kernel kills a PID namespace with its first process.
	return h.end("kill", unix.SIGKILL)
}

// Stop stops the units of the host and then the host, as a shutdown does.
func (h *Host) Stop() error { return h.end("stop", unix.SIGTERM) }

// end sends a signal to the first process of the host and waits until the host is down. verb names the action in errors.
func (h *Host) end(verb string, sig unix.Signal) error {
	if h.Up() {
		// A process that has died already needs no signal.
		if err := unix.Kill(h.rec.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("%s %s: %w", verb, h.rec.Name, err)
		}
		if err := h.awaitEnd(); err != nil {
			return err
		}
	}
	// A host without a process is down, and Start may be called.
	h.rec.PID, h.rec.Start = 0, ""
	return h.fleet.save()
}

// stopMost bounds the wait for a host to end; units have 90 s by default.
const stopMost = 3 * time.Minute

// awaitEnd waits until the first process is gone, and with it all others.
func (h *Host) awaitEnd() error {
	// A file descriptor of the process, so that the wait needs no polling and cannot meet a reused PID.
	fd, err := unix.PidfdOpen(h.rec.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(stopMost)
	// Poll returns when the process has ended, or early for a signal to this one.
	for h.Up() {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("host %s has not ended after %v", h.rec.Name, stopMost)
		}
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		// A process that has ended stays until its parent has asked for its state.
		if _, dead := stateOf(h.rec.PID); dead {
			return nil
		}
	}
	return nil
}

// waitDelay is how long a command that was ended may keep its pipes open.
const waitDelay = 2 * time.Second

// hostPath is the PATH of commands on hosts.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command returns a command that runs on the host as root.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// Every namespace of the host except for users, which it shares with this machine.
	all := append([]string{
		"--target", strconv.Itoa(h.rec.PID), "--mount", "--uts", "--ipc", "--net", "--pid", "--wdns=/root", "--", name,
	}, args...)
	c := exec.CommandContext(ctx, "nsenter", all...)
	c.Env = []string{"PATH=" + hostPath, "HOME=/root", "USER=root", "LANG=C.UTF-8"}
	if term := os.Getenv("TERM"); term != "" {
		c.Env = append(c.Env, "TERM="+term)
	}
	// The command then fails when it is started, and the caller has one place to look at.
	if ctx.Done() != nil {
		// nsenter waits for a child in the host's PID namespace, which would outlive it and keep pipes open. A group of their own would
		// take a terminal from commands of people, who pass a context that never ends.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
		c.WaitDelay = waitDelay
	}
	if !h.Up() {
		c.Err = fmt.Errorf("host %s is down", h.rec.Name)
	}
	return c
}

// Run runs a command on the host and returns its output. The error contains the standard error of the command.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	// The caller gets the output as text and the exit code through the error.
	c := h.Command(ctx, name, args...)
	// Both outputs belong to the error: programs differ in where they complain.
	var problem strings.Builder
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%s: %s %s: %w: %s", h.rec.Name, name, strings.Join(args, " "), err, strings.TrimSpace(problem.String()+string(out)))
	}
	return string(out), err
}

// CopyIn copies a file or folder of this machine to an absolute path on the host. If the path is a folder or ends with a slash,
// the copy is put into it under its own name.
func (h *Host) CopyIn(from, to string) error {
	if !h.Up() {
		return fmt.Errorf("host %s is down", h.rec.Name)
	}
	if !filepath.IsAbs(to) {
		return fmt.Errorf("%s is not an absolute path", to)
	}
	// os.Root keeps links of the host from leading to files of this machine.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", h.rec.PID))
	if err != nil {
		return err
	}
	defer root.Close()
	// Paths within the root of the host are relative.
	dest := strings.TrimPrefix(filepath.Clean(to), "/")
	if info, err := root.Stat(dest); strings.HasSuffix(to, "/") || err == nil && info.IsDir() {
		dest = filepath.Join(dest, filepath.Base(from))
	}
	// A file is a tree of one.
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return root.MkdirAll(filepath.Join(dest, rel), 0o755)
		}
		return copyInto(root, name, filepath.Join(dest, rel))
	})
}

// copyInto copies one file with its permissions.
func copyInto(root *os.Root, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// The permissions of the file are kept, its owner becomes root.
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := root.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	// A program that runs cannot be written to, but can be replaced.
	if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close())
}

// CopyOut copies a file of the host to this machine.
func (h *Host) CopyOut(from, to string) error {
	if !h.Up() {
		return fmt.Errorf("host %s is down", h.rec.Name)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", h.rec.PID))
	if err != nil {
		return err
	}
	defer root.Close()
	in, err := root.Open(strings.TrimPrefix(filepath.Clean(from), "/"))
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	// Like cp.
	if at, err := os.Stat(to); err == nil && at.IsDir() {
		to = filepath.Join(to, filepath.Base(from))
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// DataDir returns the folder of this machine with one of the host's folders that survive Kill: "/var/lib/rhumb" or
// "/var/lib/rhumb-authority". Tests damage disks there while the host is down.
func (h *Host) DataDir(path string) string {
	return dataDir(h.dir(), path)
}

// dataDir returns where the state of a host, a folder of this machine, keeps a folder of the host.
func dataDir(state, path string) string {
	return filepath.Join(state, "data", strings.ReplaceAll(strings.Trim(path, "/"), "/", "-"))
}

// LogFile returns the file on this machine with the output of a unit. The unit "init" is the host itself.
func (h *Host) LogFile(unit string) string {
	return filepath.Join(h.dir(), "log", strings.TrimSuffix(unit, ".service")+".log")
}

// startOf returns when a process was started, in ticks since the boot; "" if there is none.
func startOf(pid int) string {
	start, dead := stateOf(pid)
	if dead {
		return ""
	}
	return start
}

// stateOf returns when a process was started and whether it is gone or a zombie.
func stateOf(pid int) (start string, dead bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", true
	}
	// The name of the program is in parentheses and may contain anything.
	// The last closing parenthesis ends the name.
	_, rest, _ := strings.Cut(string(b), ") ")
	for {
		_, after, found := strings.Cut(rest, ") ")
		if !found {
			break
		}
		rest = after
	}
	// Field 3 of the file, the state, is the first after the name; field 22 is the start time.
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", true
	}
	return fields[19], false
}

// Install puts a program into /usr/bin of the host under the name rhumb, unless it is "", and units into /etc/systemd/system, and adds
// the users that the units name. It replaces the package where none was built.
func (h *Host) Install(ctx context.Context, binary string, units []string) error {
	if binary != "" {
		if err := h.CopyIn(binary, "/usr/bin/rhumb"); err != nil {
			return err
		}
	}
	for _, path := range units {
		if err := h.CopyIn(path, "/etc/systemd/system/"); err != nil {
			return err
		}
		u := &unitFile{unit: settings{}, service: settings{}}
		if err := u.read(path); err != nil {
			return err
		}
		// The package adds these users otherwise, see deploy/deb.
		name := u.service.last("User", "root")
		if _, err := h.Run(ctx, "getent", "passwd", name); err == nil {
			continue
		}
		if _, err := h.Run(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/"+name,
			"--shell", "/usr/sbin/nologin", name); err != nil {
			return err
		}
	}
	return nil
}
