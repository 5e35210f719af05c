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
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// controlSocket is the path, inside the host, at which the first process of the host takes orders.
const controlSocket = "/run/rhumb-hosts.sock"

// order is one request to the first process of a host; answer is its answer.
//
// JSON over a socket of the host's root: the caller is the same program in another role, so the
// protocol has one version.
type order struct {
	Verb   string // start, stop, restart, reload, kill, show
	Unit   string
	Signal int
}

// answer is the reply of the first process: the units after the order, and the error.
type answer struct {
	Error string
	Units []unitState
}

// unitState describes one unit.
type unitState struct {
	Name, Description, Path string
	State                   string // inactive, activating, active, reloading, deactivating, failed
	PID                     int
	Status                  string // the last STATUS= of the service
	Since                   string
	Restarts                int
	Result                  string
}

// manager is the part of a host's first process that runs services.
//
// The locks are taken in this order: mu of the manager, then mu of a service. acting of a service
// is held for the whole of a start or reload and is never taken while either mu is held.
type manager struct {
	// mu protects the map. A service has locks of its own, taken after this one.
	mu sync.Mutex
	// By name with suffix. Services stay after their end, with its result.
	services map[string]*service

	// spawning is held while a child is started and entered into waiting, so that the reaper never meets a child that is
	// not there yet.
	spawning sync.Mutex
	waiting  map[int]chan syscall.WaitStatus
}

// newManager returns a manager without services.
func newManager() *manager {
	return &manager{services: map[string]*service{}, waiting: map[int]chan syscall.WaitStatus{}}
}

// spawn starts a program and returns its PID and where its status arrives.
func (m *manager) spawn(argv []string, attr *os.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	m.spawning.Lock()
	defer m.spawning.Unlock()
	p, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	// With room for the status, so that the reaper never waits for a reader.
	ch := make(chan syscall.WaitStatus, 1)
	pid := p.Pid // Release forgets it
	m.waiting[pid] = ch
	return pid, ch, p.Release()
}

// reap takes the status of every child that has ended, orphans of services included.
//
// The first process of a PID namespace inherits every orphan, and os/exec cannot share Wait4(-1)
// with a reaper. All children of this process are therefore started by spawn, which knows where
// their status has to go.
func (m *manager) reap() {
	for {
		m.spawning.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		// Orphans have no entry, and nobody asks for their status.
		if ch := m.waiting[pid]; err == nil && pid > 0 && ch != nil {
			ch <- status
			delete(m.waiting, pid)
		}
		m.spawning.Unlock()
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// unit returns the service of that name, with its files as they are now if it does not run.
func (m *manager) unit(name string) (*service, error) {
	// Read outside of the lock, because it needs the disk.
	u, err := loadUnit("/", name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if u != nil {
		name = u.name
	} else if !strings.Contains(name, ".") {
		name += ".service"
	}
	s := m.services[name]
	// A running service keeps the files with which it was started, and can be stopped when they are gone.
	if s != nil && (s.running() || err != nil) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &service{m: m, name: u.name, state: "inactive"}
		m.services[u.name] = s
	}
	s.setUnit(u)
	return s, nil
}

// all returns the services that were named so far, by name.
func (m *manager) all() (all []*service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.services {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *service) int { return strings.Compare(a.name, b.name) })
	return all
}

// wantsDir holds the links of enabled units.
const wantsDir = "/etc/systemd/system/multi-user.target.wants"

// startEnabled starts the enabled units. The log of a unit that fails has the reason.
func (m *manager) startEnabled() {
	// The pattern is well formed, which is the only error.
	links, _ := filepath.Glob(wantsDir + "/*.service")
	for _, link := range links {
		name := filepath.Base(link)
		if _, err := os.Stat(link); err != nil {
			continue // the unit was removed, or masked
		}
		// Not awaited: a node is ready only when it has met others, which may start after this host.
		s, err := m.unit(name)
		if err == nil {
			go func() {
				if err := s.start(); err != nil {
					fmt.Fprintf(os.Stderr, "start %s: %v\n", name, err)
				}
			}()
			continue
		}
		// Units of the machine's own image are not for this stand-in.
		fmt.Fprintf(os.Stderr, "passed over %s: %v\n", name, err)
	}
}

// stopAll stops all services at the same time, as a shutdown does.
func (m *manager) stopAll() {
	var stopped sync.WaitGroup
	for _, s := range m.all() {
		stopped.Go(s.stop)
	}
	stopped.Wait()
}

// listener is the socket that takes orders.
type listener struct{ *net.UnixListener }

// listen opens the socket for orders, which only root of the host may use.
func listen(path string) (*listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &listener{l}, os.Chmod(path, 0o600)
}

// serve answers orders, one per connection.
func (m *manager) serve(l *listener) {
	for {
		// One order per connection keeps the protocol free of state. A slow order, such as a start, must not delay others.
		conn, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "orders:", err)
			return
		}
		go func() {
			defer conn.Close()
			var o order
			// Only root can connect. What cannot be decoded was interrupted, and nobody waits for an answer.
			if err := json.NewDecoder(conn).Decode(&o); err != nil {
				return
			}
			var a answer
			if err := m.obey(o, &a); err != nil {
				a.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(a) // the other side may be gone
		}()
	}
}

// obey carries out one order.
func (m *manager) obey(o order, a *answer) error {
	// Without a unit, show lists all.
	if o.Verb == "show" && o.Unit == "" {
		for _, s := range m.all() {
			a.Units = append(a.Units, s.show())
		}
		return nil
	}
	s, err := m.unit(o.Unit)
	if err != nil {
		return err
	}
	switch o.Verb {
	case "start":
		err = s.start()
	case "stop":
		s.stop()
	case "restart":
		s.stop()
		// Stopped, the service takes up changes of its files.
		if s, err = m.unit(o.Unit); err == nil {
			err = s.start()
		}
	case "reload":
		err = s.reload()
	case "kill":
		err = s.signal(unix.Signal(o.Signal))
	case "show":
	default:
		err = fmt.Errorf("order %q is not known", o.Verb)
	}
	a.Units = append(a.Units, s.show())
	return err
}
