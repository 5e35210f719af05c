//go:build linux

package hosts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// buildRhumb builds the program once for all tests of this package and returns its path. RHUMB_BINARY names a program that
// was built already.
var buildRhumb = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("RHUMB_BINARY"); given != "" {
		return filepath.Abs(given)
	}
	dir, err := os.MkdirTemp("", "rhumb-hosts-test-")
	if err != nil {
		return "", err
	}
	made = append(made, dir)
	out := filepath.Join(dir, "rhumb")
	c := exec.Command("go", "build", "-o", out, "../../cmd/rhumb")
	c.Stderr = os.Stderr
	return out, c.Run()
})

// made lists folders to remove after all tests.
var made []string

// buildPackage builds a package of the program with that version.
func buildPackage(t *testing.T, version string) string {
	t.Helper()
	for _, tool := range []string{"dpkg-deb", "objdump", "git"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: install the Debian packages dpkg, binutils and git", tool)
		}
	}
	binary, err := buildRhumb()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := exec.Command("../deb/build.sh", binary, version, dir)
	// xz takes half a minute.
	c.Env = append(os.Environ(), "COMPRESSION=none")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("packages %q, %v", files, err)
	}
	return files[0]
}

// TestPackageVersion guards that each version of the program becomes one that dpkg accepts, and that a build without a tag is older
// than every release, whatever its hash begins with.
func TestPackageVersion(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "objdump"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: install the Debian packages dpkg, binutils and git", tool)
		}
	}
	// The script asks the program for its manual pages and completions. Their text does not matter here, and the real
	// program takes a minute to build.
	program := filepath.Join(t.TempDir(), "rhumb")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" != man ] || echo .TH >\"$3/rhumb.1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-4-gabc1234": "1.2.3+4.gabc1234", "v1.2.3-dirty": "1.2.3+dirty", "v2": "2",
		"f119d15": "0+f119d15", "9f3c2ab": "0+9f3c2ab", "1234567": "0+1234567", "9f3c2ab-dirty": "0+9f3c2ab+dirty", "dev": "0+dev",
	} {
		out := t.TempDir()
		c := exec.Command("../deb/build.sh", program, version, out)
		c.Env = append(os.Environ(), "COMPRESSION=none", "SOURCE_DATE_EPOCH=1700000000")
		if text, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", version, err, text)
			continue
		}
		files, _ := filepath.Glob(filepath.Join(out, "*.deb"))
		if len(files) != 1 {
			t.Errorf("%s: files %q", version, files)
			continue
		}
		got, err := exec.Command("dpkg-deb", "-f", files[0], "Version").Output()
		if v := strings.TrimSpace(string(got)); err != nil || v != want {
			t.Errorf("%s becomes %s, want %s (%v)", version, v, want, err)
		}
		if strings.HasPrefix(want, "0+") && exec.Command("dpkg", "--compare-versions", want, "lt", "0.1").Run() != nil {
			t.Errorf("%s is not older than a release", want)
		}
	}
}

// TestPackage guards that the package builds the same bytes from the same input, installs, upgrades, and goes without the data.
func TestPackage(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	first := buildPackage(t, "v1.0.0")
	a, errA := os.ReadFile(first)
	b, errB := os.ReadFile(buildPackage(t, "v1.0.0"))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("two packages of the same input differ: %v %v", errA, errB)
	}
	install := func(file string) string {
		t.Helper()
		if err := h.CopyIn(file, "/root/rhumb.deb"); err != nil {
			t.Fatal(err)
		}
		return mustRun(t, h, "DEBIAN_FRONTEND=noninteractive dpkg -i /root/rhumb.deb 2>&1")
	}
	install(first)
	for _, c := range []struct{ command, want string }{
		{"stat -c '%U:%G %a' /", "root:root 755"},
		{"stat -c '%U:%G %a' /usr/bin/rhumb", "root:root 755"},
		{"stat -c '%U:%G %a' /etc/rhumb/rhumb.yaml", "root:root 644"},
		{"stat -c '%U:%G %a' /etc/default/rhumb", "root:root 640"},
		{"stat -c '%U:%G %a' /var/lib/rhumb", "rhumb:rhumb 750"},
		{"stat -c '%U:%G %a' /var/lib/rhumb-authority", "rhumb-authority:rhumb-authority 700"},
		{"stat -c '%U:%G %a' /dev/shm/rhumb", "rhumb:rhumb 755"},
		{"getent passwd rhumb | cut -d: -f6,7", "/var/lib/rhumb:/usr/sbin/nologin"},
		{"dpkg-query -W -f '${Status} ${Version}' rhumb", "install ok installed 1.0.0"},
		{"dpkg --verify rhumb", ""},
		{"dpkg-query -W -f '${Conffiles}' rhumb | awk '{print $1}' | sort", "/etc/default/rhumb\n/etc/rhumb/rhumb.yaml"},
		{"find / -xdev -newer /root/rhumb.deb -perm /6000 -type f 2>/dev/null", ""},
		{"systemctl is-enabled rhumb; systemctl is-active rhumb; true", "disabled\ninactive"},
		{"gzip -dc /usr/share/man/man1/rhumb.1.gz | grep -c '^\\.TH'", "1"},
	} {
		if got := mustRun(t, h, c.command); got != c.want {
			t.Errorf("%s: %q, want %q", c.command, got, c.want)
		}
	}

	// A node that knows no region says so and is not restarted.
	if _, err := h.Run(t.Context(), "systemctl", "start", "rhumb"); err == nil {
		t.Error("a node without settings started")
	}
	if got := mustRun(t, h, "systemctl show rhumb -p NRestarts; journalctl -u rhumb | tail -3"); !strings.Contains(got, "NRestarts=0") || !strings.Contains(got, "region") {
		t.Errorf("a node without settings: %s", got)
	}
	mustRun(t, h, "printf 'region: frankfurt\\ninsecure: true\\ndir: [/var/lib/rhumb]\\n' >/etc/rhumb/rhumb.yaml && systemctl enable --now rhumb && rhumb init --insecure")
	awaitOutput(t, h, "StatusText=ready", "systemctl", "show", "rhumb", "-p", "StatusText")
	before := mustRun(t, h, "systemctl show rhumb -p MainPID")

	// The upgrade keeps changed settings and leaves the node running.
	if out := install(buildPackage(t, "v1.1.0")); !strings.Contains(out, "systemctl restart rhumb") {
		t.Errorf("the upgrade does not mention the restart: %s", out)
	}
	if got := mustRun(t, h, "systemctl show rhumb -p MainPID"); got != before {
		t.Error("the upgrade restarted the node")
	}
	mustRun(t, h, "grep -q frankfurt /etc/rhumb/rhumb.yaml && systemctl restart rhumb")
	awaitOutput(t, h, "StatusText=ready", "systemctl", "show", "rhumb", "-p", "StatusText")

	mustRun(t, h, "dpkg -r rhumb")
	for _, gone := range []string{"/usr/bin/rhumb", "/lib/systemd/system/rhumb.service"} {
		if _, err := h.Run(t.Context(), "test", "!", "-e", gone); err != nil {
			t.Errorf("%s is left after the removal", gone)
		}
	}
	mustRun(t, h, "test -e /etc/rhumb/rhumb.yaml && test -n \"$(ls /var/lib/rhumb)\"")
	if got := mustRun(t, h, "ps -e -o comm= | grep -cx rhumb || true"); got != "0" {
		t.Errorf("%s nodes run after the removal", got)
	}
	if out := mustRun(t, h, "dpkg -P rhumb"); !strings.Contains(out, "/var/lib/rhumb is kept") {
		t.Errorf("the purge does not say that data stay: %s", out)
	}
	mustRun(t, h, "test ! -e /etc/rhumb/rhumb.yaml && test -n \"$(ls /var/lib/rhumb)\"")
}
