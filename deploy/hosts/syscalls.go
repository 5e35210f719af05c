package hosts

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
)

// syscallFilter is what SystemCallFilter= and SystemCallErrorNumber= mean: the calls that a service may make.
type syscallFilter struct {
	Allowed []string
	Kill    bool // a call that is not allowed ends the process; otherwise it fails with EPERM
}

// newSyscallFilter resolves lists such as "@system-service" and "~@privileged". The first must be a list of what is allowed.
func newSyscallFilter(lines []string, errorNumber string) (*syscallFilter, error) {
	f := &syscallFilter{Kill: errorNumber == ""}
	if errorNumber != "" && errorNumber != "EPERM" {
		return nil, fmt.Errorf("SystemCallErrorNumber=%s: want EPERM", errorNumber)
	}
	if strings.HasPrefix(lines[0], "~") {
		return nil, fmt.Errorf("SystemCallFilter=%s: the first list must say what is allowed", lines[0])
	}
	allowed := map[string]bool{}
	// systemd always allows what it needs to start the program.
	for _, name := range []string{"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"} {
		allowed[name] = true
	}
	for _, line := range lines {
		line, denied := strings.CutPrefix(line, "~")
		for _, word := range strings.Fields(line) {
			names, err := callsOf(word)
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
	for name, ok := range allowed {
		if _, exists := known.SyscallNames[name]; ok && exists {
			f.Allowed = append(f.Allowed, name)
		}
	}
	slices.Sort(f.Allowed)
	return f, nil
}

// callsOf returns the calls of a group of systemd, or the call itself.
func callsOf(word string) ([]string, error) {
	if !strings.HasPrefix(word, "@") {
		return []string{word}, nil
	}
	out, err := exec.Command("systemd-analyze", "syscall-filter", word).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the calls of %s: systemd-analyze: %w: %s; install systemd, which need not run", word, err, bytes.TrimSpace(out))
	}
	var names []string
	for i, line := range strings.Split(string(out), "\n") {
		line = strings.TrimSpace(line)
		if i == 0 || line == "" || line[0] == '#' {
			continue
		}
		more, err := callsOf(line)
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	return names, nil
}

// load installs the filter for this thread and what it becomes.
func (f *syscallFilter) load() error {
	otherwise := seccomp.ActionErrno | seccomp.Action(syscall.EPERM)
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
