//go:build linux

package hosts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUnits guards what the stand-in refuses: a unit must not seem to run as written if it does not.
func TestUnits(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[Service]\nExecStart=/bin/true\nExecSart=/bin/x", "ExecSart= is not known"},
		{"[Service]\nExecStart=relative", "absolute path"},
		{"[Service]\nType=dbus\nExecStart=/bin/true", "Type=dbus is not known"},
		{"[Service]\nType=simple", "0 ExecStart="},
		{"[Service]\nExecStart=/bin/true\nExecStart=/bin/false", "2 ExecStart="},
		{"[Service]\nExecStart=/bin/sh 'open", "has no end"},
		{"[Service]\nExecStart=/bin/true\nRestart=perhaps", "Restart=perhaps"},
		{"[Service]\nExecStart=/bin/true\nUser=no-such-user", "User=no-such-user"},
		{"[Service]\nExecStart=/bin/true\nProtectSystem=full", "ProtectSystem=full"},
		{"[Service]\nExecStart=/bin/true\nTimeoutStopSec=soon", "TimeoutStopSec=soon"},
		{"[Socket]\nListenStream=80", "section [Socket]"},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, unitPath[0])
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "x.service"), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		u, err := loadUnit(root, "x")
		if err == nil {
			_, err = u.resolve("eu-1")
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.text, err, c.want)
		}
	}
}

// TestDropIns guards that drop-ins change a unit and that an empty value clears a list.
func TestDropIns(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"usr/lib/systemd/system/x.service":        "[Service]\nExecStart=/bin/true\nEnvironment=A=1\nReadWritePaths=/a",
		"etc/systemd/system/x.service.d/one.conf": "[Service]\nExecStart=\nExecStart=/bin/echo %n $A ${A}b \\$A 'two words'\nReadWritePaths=/b\nEnvironment=A=2",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	u, err := loadUnit(root, "x.service")
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.resolve("eu-1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.box.ReadWrite, []string{"/a", "/b"}; !slices.Equal(got, want) {
		t.Errorf("ReadWritePaths %q, want %q", got, want)
	}
	if got, want := expand(p.start.argv, p.environment), []string{"/bin/echo", "x.service", "2", "2b", "2", "two words"}; !slices.Equal(got, want) {
		t.Errorf("command %q, want %q", got, want)
	}
}

// TestRules guards that nothing but networks and numbers reaches the script of the firewall.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string // or a part of the error, after "error: "
	}{
		{Rule{Protocol: "tcp", Ports: []uint16{7600, 7601}, Sources: []string{"10.77.1.5/16", "10.0.0.0/8"}}, "ip saddr { 10.77.0.0/16, 10.0.0.0/8 } tcp dport { 7600,7601 } accept"},
		{Rule{Protocol: "icmp", Ports: []uint16{1}, Sources: []string{"10.0.0.0/8"}}, "error: neither tcp nor udp"},
		{Rule{Protocol: "udp", Ports: []uint16{1}, Sources: []string{"10.0.0.0/8 } accept; #"}}, "error: is not a network"},
		{Rule{Protocol: "udp", Ports: []uint16{1}}, "error: has ports and sources"},
	} {
		got, err := c.rule.nft()
		if err != nil {
			got = "error: " + err.Error()
		}
		if part, fails := strings.CutPrefix(c.want, "error: "); fails && !(err != nil && strings.Contains(got, part)) || !fails && got != c.want {
			t.Errorf("%+v: %s, want %s", c.rule, got, c.want)
		}
	}
}

// FuzzUnit guards that no file of a unit and no file of an environment makes the stand-in panic.
func FuzzUnit(f *testing.F) {
	f.Add("[Service]\nExecStart=/bin/sh -c \"a b\" \\\n c\nEnvironment='A=1'\nTimeoutStopSec=1min 3s\nLimitNOFILE=1:2K")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		name := filepath.Join(dir, "x.service")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _ = readEnvironment(name)
		u := &unitFile{name: "x.service", unit: settings{}, service: settings{}}
		if err := u.read(name); err != nil {
			return
		}
		if p, err := u.resolve("eu-1"); err == nil {
			expand(p.start.argv, p.environment)
		}
	})
}
