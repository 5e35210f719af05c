package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// readmeWait bounds how long the commands of a section may take together.
const readmeWait = 2 * time.Minute

// TestReadme runs the commands with which a newcomer starts a cluster, as they are printed. Only prompts for passwords are
// replaced by a file.
//
// The commands name the default ports, so they run in a network of their own, beside whatever this machine runs.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for _, page := range []struct {
		file, heading string
		want          []string
	}{
		{"README.md", "## A secure cluster", []string{
			"context mine: cluster", "role reader, table notes: read granted", "user ann, role reader created", "you are      user ann", "version",
		}},
		{"docs/operations/README.md", "## First start on one machine", []string{"2 of 2 nodes live"}},
	} {
		t.Run(page.file, func(t *testing.T) {
			out := runSection(t, page.file, page.heading)
			for _, want := range page.want {
				if !strings.Contains(out, want) {
					t.Errorf("the output lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

// runSection runs the blocks of commands below a heading as one script, and returns what they wrote.
func runSection(t *testing.T, file, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", file))
	must(err)
	_, section, found := strings.Cut(string(text), heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	commands := ""
	for _, block := range strings.Split(section, "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		commands += block
	}
	dir := t.TempDir()
	password := filepath.Join(dir, "pw")
	must(os.WriteFile(password, []byte("correct horse battery"), 0o600))
	commands = strings.ReplaceAll(commands, "--user ann", "--user ann --password-file "+password)
	commands = strings.ReplaceAll(commands, "user create ann", "user create ann --new-password-file "+password)
	binary, err := os.Executable()
	must(err)
	occupyNames(t, dir)
	must(os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	must(os.Symlink(binary, filepath.Join(dir, "bin", "rhumb")))
	ctx, cancel := context.WithTimeout(t.Context(), readmeWait)
	defer cancel()
	// The shell is the first process of a namespace, so whatever it began ends with it.
	c := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\nip link set lo up\n"+commands)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "XDG_CONFIG_HOME="+filepath.Join(dir, "config"), "RHUMB_CONFIG=")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	begin := time.Now()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("took %v", time.Since(begin).Round(10*time.Millisecond))
	return string(out)
}

// occupyNames makes dir look like the root of the repository, where a reader runs the commands: each of its files and folders
// is there, and no folder is empty. A command that wants a folder for itself fails if its name is taken.
func occupyNames(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir("../..")
	must(err)
	for _, e := range entries {
		taken := filepath.Join(dir, e.Name())
		if e.IsDir() {
			must(os.Mkdir(taken, 0o755))
			taken = filepath.Join(taken, "taken")
		}
		must(os.WriteFile(taken, nil, 0o644))
	}
}
