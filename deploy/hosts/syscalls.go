//go:build linux

package hosts

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
)

// syscallFilter is the meaning of SystemCallFilter= and SystemCallErrorNumber=: the system calls that a service may make.
type syscallFilter struct {
	Allowed []string
	Kill    bool // a call that is not allowed ends the process; otherwise it fails with EPERM
}

// newSyscallFilter resolves lists such as "@system-service" and "~@privileged". The first must list allowed calls.
func newSyscallFilter(lines []string, errorNumber string) (*syscallFilter, error) {
	f := &syscallFilter{Kill: errorNumber == ""}
	if errorNumber != "" && errorNumber != "EPERM" {
		return nil, fmt.Errorf("SystemCallErrorNumber=%s: want EPERM", errorNumber)
	}
	if strings.HasPrefix(lines[0], "~") {
		return nil, fmt.Errorf("SystemCallFilter=%s: the first list must say what is allowed", lines[0])
	}
	groups, err := callGroups()
	if err != nil {
		return nil, err
	}
	allowed := map[string]bool{}
	// systemd always allows the calls that start a program.
	for _, name := range []string{"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"} {
		allowed[name] = true
	}
	for _, line := range lines {
		line, denied := strings.CutPrefix(line, "~")
		for _, word := range strings.Fields(line) {
			names, err := callsOf(groups, word)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				allowed[name] = !denied
			}
		}
	}
	known, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	// Groups name calls of all architectures.
	for name, ok := range allowed {
		if _, exists := known.SyscallNames[name]; ok && exists {
			f.Allowed = append(f.Allowed, name)
		}
	}
	slices.Sort(f.Allowed)
	return f, nil
}

// callGroups returns the groups of calls that systemd knows, such as @system-service. The calls in them may be groups again.
//
// The groups are asked of systemd's own tool and not copied: they change with the version, and the
// filter has to be the one that the package will have on real machines of this distribution.
func callGroups() (map[string][]string, error) {
	out, err := exec.Command("systemd-analyze", "syscall-filter", "--no-pager").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("groups of system calls: systemd-analyze: %w: %s; install systemd, which need not run", err, bytes.TrimSpace(out))
	}
	groups := map[string][]string{}
	group := ""
	for line := range strings.Lines(string(out)) {
		word := strings.TrimSpace(line)
		switch {
		case word == "" || word[0] == '#':
		// A line without indentation begins a group.
		case !strings.HasPrefix(line, " "):
			group = word
			groups[group] = nil
		default:
			groups[group] = append(groups[group], word)
		}
	}
	return groups, nil
}

// callsOf returns the calls of a group, or the call itself.
func callsOf(groups map[string][]string, word string) ([]string, error) {
	if !strings.HasPrefix(word, "@") {
		return []string{word}, nil
	}
	members, ok := groups[word]
	if !ok {
		return nil, fmt.Errorf("SystemCallFilter=%s: systemd knows no such group", word)
	}
	var names []string
	// Groups contain groups, without cycles.
	for _, member := range members {
		more, err := callsOf(groups, member)
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	return names, nil
}

// load installs the filter, if there is one, for this thread and the program that it becomes.
func (f *syscallFilter) load() error {
	if f == nil {
		return nil
	}
	// Without SystemCallErrorNumber= a refused call is fatal, as with systemd.
	otherwise := seccomp.ActionErrno // EPERM
	if f.Kill {
		otherwise = seccomp.ActionKillProcess
	}
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Policy: seccomp.Policy{
			DefaultAction: otherwise,
			Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionAllow, Names: f.Allowed}},
		},
	})
}
