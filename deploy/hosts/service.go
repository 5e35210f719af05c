//go:build linux

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// service runs one unit.
//
// The states are those of systemd. A run goes from activating over active to inactive or failed; a
// restart goes back to activating, and over closes only when none follows.
type service struct {
	m    *manager
	name string

	// Two orders for one service, such as two starts, take turns. mu protects the fields below and is never held while
	// the service starts or stops.
	acting sync.Mutex // one order at a time

	mu sync.Mutex
	// The files with which the service was started, or will be.
	u     *unitFile
	state string
	// 0 while the service does not run. Its process group has the same number.
	pid int
	// STATUS= of the last message, and why the last run ended.
	status   string
	result   string
	since    time.Time
	restarts int
	starts   []time.Time
	// An end is expected: it is neither a failure nor a reason to start again.
	stopping bool
	over     chan struct{} // closed when the run has ended and no restart follows
}

// running reports whether the service runs or is about to.
func (s *service) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state != "inactive" && s.state != "failed"
}

// setUnit replaces the files of a service that does not run.
func (s *service) setUnit(u *unitFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.u = u
}

// set changes the state.
func (s *service) set(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.since = state, time.Now()
}

// show describes the service for systemctl.
func (s *service) show() unitState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return unitState{
		Name: s.name, Description: s.u.unit.last("Description", ""), Path: s.u.path, State: s.state, PID: s.pid, Status: s.status,
		Since: s.since.UTC().Format(time.RFC3339), Restarts: s.restarts, Result: s.result,
	}
}

// start starts the service and waits until it is ready, as `systemctl start` does.
func (s *service) start() error {
	s.acting.Lock()
	defer s.acting.Unlock()
	if s.running() {
		return nil
	}
	if unmet := s.u.condition(); unmet != "" {
		// Not a failure, as with systemd.
		s.logf("not started: %s is not met", unmet)
		return nil
	}
	p, err := s.resolve()
	if err != nil {
		s.fail(err.Error())
		return err
	}
	s.mu.Lock()
	s.stopping, s.restarts, s.starts, s.over = false, 0, nil, make(chan struct{})
	over := s.over
	s.mu.Unlock()
	s.set("activating")
	// With room for one word: the first of ready, failed and ended counts, and later ones find the channel full or nobody
	// reading.
	ready := make(chan error, 1)
	go s.run(p, ready, over)
	return <-ready
}

// resolve plans from the current files, so that a changed environment file counts at the next start.
func (s *service) resolve() (*plan, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.u.resolve(host)
}

// fail marks the service as failed.
func (s *service) fail(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.since, s.result, s.pid = "failed", time.Now(), why, 0
}

// run runs the service until it has ended for good.
//
// A restart after a crash makes a new plan. As with systemd, a changed file of the environment
// counts then, and a changed unit after a daemon-reload only.
func (s *service) run(p *plan, ready chan<- error, over chan struct{}) {
	defer close(over)
	for {
		err := s.once(p, ready)
		s.mu.Lock()
		s.pid = 0
		// A clean end does not count as a failure: Restart=on-failure leaves the service down.
		again := !s.stopping && (p.restart == "always" || p.restart != "no" && err != nil)
		// An exit status is an answer of the program; a signal is not, and never prevents a restart.
		var code exitError
		if errors.As(err, &code) && (slices.Contains(p.preventRestart, int(code)) || p.restart == "on-abnormal") {
			again = false
		}
		// Only recent starts count, so that a service may fail once a day.
		now := time.Now()
		s.starts = append(slices.DeleteFunc(s.starts, func(t time.Time) bool { return now.Sub(t) > p.startsWithin }), now)
		if again && len(s.starts) >= p.startsMost {
			again, err = false, fmt.Errorf("started %d times within %v: %w", len(s.starts), p.startsWithin, err)
		}
		stopping := s.stopping
		s.mu.Unlock()
		switch {
		case again:
			s.logf("ended (%v), starts again in %v", err, p.restartAfter)
		case err != nil && !stopping:
			s.logf("failed: %v", err)
			s.fail(err.Error())
		default:
			s.set("inactive")
		}
		// A start that failed and will be repeated has failed for systemctl too.
		// The caller that started it learns of the first failure.
		select {
		case ready <- err:
		default:
		}
		if !again {
			return
		}
		s.set("activating")
		// A stop during the pause is seen after it.
		time.Sleep(p.restartAfter)
		s.mu.Lock()
		s.restarts++
		stop := s.stopping
		s.mu.Unlock()
		if stop {
			s.set("inactive")
			return
		}
		if p, err = s.resolve(); err != nil {
			s.logf("failed: %v", err)
			s.fail(err.Error())
			return
		}
	}
}

// exitError is the exit status of a service that is not 0.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// statusError returns nil for exit status 0.
func statusError(w syscall.WaitStatus) error {
	switch {
	case w.Signaled():
		return fmt.Errorf("signal %s", unix.SignalName(w.Signal()))
	case w.ExitStatus() != 0:
		return exitError(w.ExitStatus())
	}
	return nil
}

// once runs the service once.
//
// The order of the steps is part of the imitation: folders exist before ExecStartPre=, which runs
// before the socket for messages is open, and the runtime folder is removed only after the group
// was killed.
func (s *service) once(p *plan, ready chan<- error) error {
	if err := p.makeFolders(); err != nil {
		return err
	}
	// One after the other: later commands may need the effects of earlier ones.
	for _, c := range p.before {
		_, ended, err := s.spawn(p, c, nil)
		if err == nil {
			err = statusError(<-ended)
		}
		if err != nil && !c.mayBad {
			return fmt.Errorf("%s: %w", c.argv[0], err)
		}
	}
	// A socket for each run: a late message of the previous process cannot be taken for one of the next.
	n, err := openNotify(s.name)
	if err != nil {
		return err
	}
	defer n.close()
	pid, ended, err := s.spawn(p, p.start, []string{"NOTIFY_SOCKET=" + n.path})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.pid, s.status = pid, ""
	stopping := s.stopping
	s.mu.Unlock()
	// A stop that came before the process existed had nobody to ask.
	if stopping {
		_ = unix.Kill(pid, p.kill)
	}
	// Nothing more is known about these than that the program was started.
	if p.kind == "simple" || p.kind == "exec" {
		s.becomeActive(ready)
	}
	// Reading ends when the socket is closed, at the end of this run.
	go n.read(func(words map[string]string, from int) {
		if from == pid || p.notifyFromAll {
			s.heard(p, words, ready)
		}
	})
	late := time.NewTimer(p.startMost)
	defer late.Stop()
	for {
		select {
		case w := <-ended:
			// A last STATUS= may still be in the socket.
			n.drain()
			// Children that the service has not ended.
			_ = unix.Kill(-pid, unix.SIGKILL)
			// The folder must not be taken for that of the next run.
			p.removeRuntime()
			if p.kind == "oneshot" && statusError(w) == nil {
				s.becomeActive(ready)
			}
			return statusError(w)
		case <-late.C:
			// The timer runs out during a healthy service, too.
			if !s.activating() {
				continue
			}
			s.logf("not ready after %v", p.startMost)
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
	}
}

// activating reports whether the service has not reported yet that it is ready.
func (s *service) activating() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == "activating"
}

// becomeActive marks the service as ready and releases the caller that waits for it.
func (s *service) becomeActive(ready chan<- error) {
	s.set("active")
	select {
	case ready <- nil:
	default:
	}
}

// heard handles a message of the service.
func (s *service) heard(p *plan, words map[string]string, ready chan<- error) {
	s.mu.Lock()
	if text, ok := words["STATUS"]; ok {
		s.status = text
	}
	state := s.state
	s.mu.Unlock()
	switch {
	case words["STOPPING"] == "1":
		s.set("deactivating")
	case words["RELOADING"] == "1":
		s.set("reloading")
	case words["READY"] == "1" && p.kind == "notify" && state != "active":
		s.becomeActive(ready)
	}
}

// spawn starts a command of the unit in its sandbox.
func (s *service) spawn(p *plan, c command, more []string) (int, <-chan syscall.WaitStatus, error) {
	box := p.box
	if c.root {
		box = sandbox{Dir: "/", Umask: 0o022}
	}
	// The launcher sets the sandbox up in the child: a mount namespace and rights belong to a process.
	spec, err := json.Marshal(box)
	if err != nil {
		return 0, nil, err
	}
	log, err := s.openLog()
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	// Services have no input.
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	env := slices.Concat(p.environment, more)
	// Variables are replaced last, with the folders and the socket that this start has made.
	argv := append([]string{toolPath, roleLaunch, string(spec)}, expand(c.argv, env)...)
	return s.m.spawn(argv, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{null, log, log},
		Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS},
	})
}

// openLog opens the file that replaces the journal of the unit.
func (s *service) openLog() (*os.File, error) {
	name := filepath.Join("/var/log/rhumb-hosts", strings.TrimSuffix(s.name, ".service")+".log")
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
}

// logf writes a line of the stand-in into the log of the service.
func (s *service) logf(format string, args ...any) {
	log, err := s.openLog()
	if err != nil {
		return
	}
	defer log.Close()
	fmt.Fprintf(log, "systemd stand-in: %s: %s\n", s.name, fmt.Sprintf(format, args...))
}

// stop ends the service: a signal to its first process, and SIGKILL to all if it takes too long.
//
// It does not take acting: a stop must be possible while a start waits for a service that never
// becomes ready.
func (s *service) stop() {
	s.mu.Lock()
	s.stopping = true
	pid, over := s.pid, s.over
	if s.state == "active" || s.state == "reloading" {
		s.state, s.since = "deactivating", time.Now()
	}
	u := s.u
	s.mu.Unlock()
	// It was never started.
	if over == nil {
		return
	}
	// A unit file that was broken since the start must not keep the service from being stopped.
	stopMost, kill := 90*time.Second, unix.SIGTERM
	if host, err := os.Hostname(); err == nil {
		if p, err := u.resolve(host); err == nil {
			stopMost, kill = p.stopMost, p.kill
		}
	}
	if pid != 0 {
		// Only the first process is asked, as with KillMode=mixed: it knows how to end its children.
		_ = unix.Kill(pid, kill)
	}
	select {
	case <-over:
	case <-time.After(stopMost):
		s.logf("did not end within %v, is killed", stopMost)
		// The process may be another one by now. Group 0 would be that of the stand-in itself.
		s.mu.Lock()
		pid = s.pid
		s.mu.Unlock()
		if pid != 0 {
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
		<-over
	}
	s.set("inactive")
}

// signal sends a signal to the first process of the service.
func (s *service) signal(sig unix.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid == 0 {
		return fmt.Errorf("%s does not run", s.name)
	}
	return unix.Kill(s.pid, sig)
}

// reload runs ExecReload=.
func (s *service) reload() error {
	s.acting.Lock()
	defer s.acting.Unlock()
	p, err := s.resolve()
	if err != nil {
		return err
	}
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	if pid == 0 {
		return fmt.Errorf("%s does not run and cannot be reloaded", s.name)
	}
	// As with systemd, reloading is a mistake where the unit does not say how.
	if len(p.reload) == 0 {
		return fmt.Errorf("%s has no ExecReload=", s.name)
	}
	for _, c := range p.reload {
		// ExecReload= names the process by this variable.
		_, ended, err := s.spawn(p, c, []string{"MAINPID=" + strconv.Itoa(pid)})
		if err == nil {
			err = statusError(<-ended)
		}
		if err != nil && !c.mayBad {
			return err
		}
	}
	return nil
}

// makeFolders makes the folders that belong to the service. Folders in /etc stay root's, as with systemd.
func (p *plan) makeFolders() error {
	for _, d := range p.ownedDirs {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return err
		}
		// Readable for the service and written by root only.
		if strings.HasPrefix(d.path, "/etc/") {
			continue
		}
		if err := errors.Join(os.Chmod(d.path, d.mode), os.Chown(d.path, p.box.UID, p.box.GID)); err != nil {
			return err
		}
	}
	return nil
}

// removeRuntime removes RuntimeDirectory= after the service has ended.
func (p *plan) removeRuntime() {
	for _, dir := range p.runtimeDir {
		_ = os.RemoveAll(dir)
	}
}

// notify is the socket on which a service says that it is ready.
//
// A file in /run rather than an abstract socket: services with a network namespace of their own
// would not reach an abstract one.
type notify struct {
	path string
	conn *net.UnixConn
	done chan struct{}
}

// openNotify opens the socket that NOTIFY_SOCKET names.
func openNotify(name string) (*notify, error) {
	n := &notify{path: "/run/notify-" + name, done: make(chan struct{})}
	// A socket of a host that was killed is in the way.
	_ = os.Remove(n.path)
	var err error
	if n.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"}); err != nil {
		return nil, err
	}
	raw, err := n.conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	// The kernel then says who has sent a message.
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	return n, errors.Join(err, failed, os.Chmod(n.path, 0o777))
}

// read calls heard for every message, with the PID of its sender, until the socket is closed.
func (n *notify) read(heard func(words map[string]string, from int)) {
	defer close(n.done)
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		// A datagram is one message of several lines.
		size, oobSize, _, _, err := n.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		// A message without a sender cannot be trusted and is ignored.
		messages, err := unix.ParseSocketControlMessage(oob[:oobSize])
		if err != nil || len(messages) == 0 {
			continue
		}
		sender, err := unix.ParseUnixCredentials(&messages[0])
		if err != nil {
			continue
		}
		words := map[string]string{}
		for _, line := range strings.Split(string(buf[:size]), "\n") {
			if k, v, ok := strings.Cut(line, "="); ok {
				words[k] = v
			}
		}
		heard(words, int(sender.Pid))
	}
}

// drain handles the messages that have arrived already.
func (n *notify) drain() {
	_ = n.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	<-n.done
}

// close ends reading and removes the socket.
func (n *notify) close() {
	n.conn.Close()
	_ = os.Remove(n.path)
}
