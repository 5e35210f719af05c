//go:build linux

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit codes of systemctl.
const (
	exitFailed   = 1
	exitInactive = 3
	exitNoUnit   = 5
)

// ask sends an order to the first process of this host.
func ask(o order) (answer, error) {
	var a answer
	// The socket is missing if the host was not started by this package, as on the machine itself.
	conn, err := net.Dial("unix", controlSocket)
	if err != nil {
		return a, fmt.Errorf("the host does not answer: %w", err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		return a, err
	}
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return a, err
	}
	if a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// systemctl is the `systemctl` of a host.
func systemctl(args []string, out, errs io.Writer) int {
	// The default of `systemctl kill`.
	c := systemctlCall{out: out, signal: unix.SIGTERM}
	if err := c.parse(args); err != nil {
		fmt.Fprintln(errs, "systemctl:", err)
		return exitFailed
	}
	code, err := c.run()
	if err != nil && !c.quiet {
		fmt.Fprintln(errs, "systemctl:", err)
	}
	return code
}

// systemctlCall is one call of systemctl.
//
// Packages call systemctl in their maintainer scripts and people copy commands from documents, so
// the exit codes and the words are those of the original; the layout of the output is not.
type systemctlCall struct {
	out        io.Writer
	verb       string
	units      []string
	now, quiet bool
	property   string
	signal     unix.Signal
}

// parse accepts the flags that people and packages use most.
func (c *systemctlCall) parse(args []string) error {
	// Unknown flags are errors: a script must not run with a flag that has no effect.
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, value, has := strings.Cut(a, "=")
		switch {
		case a == "--now":
			c.now = true
		case a == "--quiet" || a == "-q":
			c.quiet = true
		case name == "--signal" && has, a == "-s" && i+1 < len(args):
			if !has {
				i++
				value = args[i]
			}
			if c.signal = unix.SignalNum("SIG" + strings.TrimPrefix(value, "SIG")); c.signal == 0 {
				return fmt.Errorf("no signal %q", value)
			}
		case name == "--property" && has, a == "-p" && i+1 < len(args):
			if !has {
				i++
				value = args[i]
			}
			c.property = value
		case slices.Contains([]string{"--no-pager", "--system", "--no-block", "--no-ask-password", "-l", "--full", "--value", "--no-reload"}, name):
		case strings.HasPrefix(a, "-"):
			return fmt.Errorf("flag %s is not known to this stand-in", a)
		case c.verb == "":
			c.verb = a
		default:
			c.units = append(c.units, a)
		}
	}
	if c.verb == "" {
		c.verb = "list-units"
	}
	return nil
}

// run runs the verb for all units and returns the worst exit code.
func (c *systemctlCall) run() (code int, err error) {
	switch c.verb {
	case "daemon-reload", "reset-failed", "preset", "daemon-reexec":
		return 0, nil // unit files are read at every start
	case "list-units":
		a, err := ask(order{Verb: "show"})
		for _, u := range a.Units {
			fmt.Fprintf(c.out, "%-30s %-12s %s\n", u.Name, u.State, u.Description)
		}
		return fails(err), err
	case "is-system-running":
		fmt.Fprintln(c.out, "running")
		return 0, nil
	}
	if len(c.units) == 0 {
		return exitFailed, fmt.Errorf("%s: name a unit", c.verb)
	}
	for _, unit := range c.units {
		one, failed := c.runUnit(unit)
		code, err = max(code, one), errors.Join(err, failed)
	}
	return code, err
}

// runUnit runs the verb for one unit.
func (c *systemctlCall) runUnit(name string) (int, error) {
	switch c.verb {
	case "start", "stop", "restart", "reload", "kill":
		_, err := ask(order{Verb: c.verb, Unit: name, Signal: int(c.signal)})
		return fails(err), err
	case "try-restart", "reload-or-restart", "reload-or-try-restart", "condrestart":
		// These verbs are for packages that were updated: what does not run stays down.
		a, err := ask(order{Verb: "show", Unit: name})
		if err != nil || a.Units[0].State != "active" {
			return fails(err), err
		}
		_, err = ask(order{Verb: "restart", Unit: name})
		return fails(err), err
	case "enable", "disable", "is-enabled":
		return c.enable(name)
	case "status", "is-active", "is-failed", "show":
		return c.show(name)
	case "cat":
		u, err := loadUnit("/", name)
		if err != nil {
			return exitNoUnit, err
		}
		b, err := os.ReadFile(u.path)
		fmt.Fprintf(c.out, "# %s\n%s", u.path, b)
		return fails(err), err
	}
	return exitFailed, fmt.Errorf("%s is not known to this stand-in", c.verb)
}

// fails returns the exit code for an error.
func fails(err error) int {
	if err != nil {
		return exitFailed
	}
	return 0
}

// enable links the unit so that it starts with the host, or unlinks it.
func (c *systemctlCall) enable(name string) (int, error) {
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	// The link is all that there is: the host looks at it when it starts.
	link := filepath.Join(wantsDir, name)
	switch c.verb {
	case "is-enabled":
		if _, err := os.Lstat(link); err != nil {
			fmt.Fprintln(c.out, "disabled")
			return exitFailed, nil
		}
		fmt.Fprintln(c.out, "enabled")
		return 0, nil
	case "disable":
		err := os.Remove(link)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err == nil && c.now {
			_, err = ask(order{Verb: "stop", Unit: name})
		}
		return fails(err), err
	}
	// Only one target exists on a host, which is the end of its start.
	u, err := loadUnit("/", name)
	if err != nil {
		return exitNoUnit, err
	}
	if !slices.Contains(u.wantedBy, "multi-user.target") {
		return exitFailed, fmt.Errorf("%s is not WantedBy=multi-user.target", name)
	}
	if err := os.MkdirAll(wantsDir, 0o755); err != nil {
		return exitFailed, err
	}
	if err := os.Symlink(u.path, link); err != nil && !errors.Is(err, os.ErrExist) {
		return exitFailed, err
	}
	if !c.now {
		return 0, nil
	}
	_, err = ask(order{Verb: "start", Unit: name})
	return fails(err), err
}

// show prints the state of a unit.
func (c *systemctlCall) show(name string) (int, error) {
	a, err := ask(order{Verb: "show", Unit: name})
	if err != nil {
		if c.verb == "is-active" {
			fmt.Fprintln(c.out, "inactive")
			return exitInactive, nil
		}
		return exitNoUnit, err
	}
	u := a.Units[0]
	// The exit code says the same as the text, for scripts.
	code := 0
	if u.State != "active" && u.State != "reloading" {
		code = exitInactive
	}
	// People read status, and scripts the others.
	switch c.verb {
	case "is-active":
		if !c.quiet {
			fmt.Fprintln(c.out, u.State)
		}
	case "is-failed":
		fmt.Fprintln(c.out, u.State)
		code = 1
		if u.State == "failed" {
			code = 0
		}
	case "show":
		c.properties(u)
		code = 0
	default:
		fmt.Fprintf(c.out, "%s - %s\n     Loaded: loaded (%s)\n     Active: %s since %s\n", u.Name, u.Description, u.Path, u.State, u.Since)
		if u.PID != 0 {
			fmt.Fprintf(c.out, "   Main PID: %d\n", u.PID)
		}
		if u.Status != "" {
			fmt.Fprintf(c.out, "     Status: %q\n", u.Status)
		}
		if u.Result != "" && u.State == "failed" {
			fmt.Fprintf(c.out, "     Result: %s\n", u.Result)
		}
	}
	return code, nil
}

// properties prints the properties that scripts ask for most, or the one of -p.
func (c *systemctlCall) properties(u unitState) {
	for _, p := range [][2]string{
		{"Id", u.Name},
		{"ActiveState", u.State},
		{"MainPID", strconv.Itoa(u.PID)},
		{"StatusText", u.Status},
		{"NRestarts", strconv.Itoa(u.Restarts)},
		{"Result", u.Result},
		{"FragmentPath", u.Path},
	} {
		if c.property == "" || c.property == p[0] {
			fmt.Fprintf(c.out, "%s=%s\n", p[0], p[1])
		}
	}
}

// journalctl prints the log of a unit: -u UNIT [-n LINES] [-f].
func journalctl(args []string, out, errs io.Writer) int {
	unit, lines, follow := "", "+1", false
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-u" && i+1 < len(args):
			i++
			unit = args[i]
		case strings.HasPrefix(a, "--unit="):
			unit = strings.TrimPrefix(a, "--unit=")
		case a == "-n" && i+1 < len(args):
			i++
			lines = args[i]
		case a == "-f":
			follow = true
		case a == "--no-pager" || a == "-o" || a == "cat":
		default:
			fmt.Fprintf(errs, "journalctl: flag %s is not known to this stand-in\n", a)
			return exitFailed
		}
	}
	if unit == "" || strings.Contains(unit, "/") {
		fmt.Fprintln(errs, "journalctl: name a unit: -u UNIT")
		return exitFailed
	}
	// All lines by default, as from a pipe.
	tail := []string{"-n", lines}
	if follow {
		tail = append(tail, "-F")
	}
	c := exec.Command("tail", append(tail, filepath.Join("/var/log/rhumb-hosts", strings.TrimSuffix(unit, ".service")+".log"))...)
	c.Stdout, c.Stderr = out, errs
	return fails(c.Run())
}
