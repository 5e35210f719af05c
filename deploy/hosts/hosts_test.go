//go:build linux

package hosts

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the hosts run this program as their first process and as their systemctl.
func TestMain(m *testing.M) {
	TakeRole()
	code := m.Run()
	for _, dir := range made {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// newFleet returns a fleet of its own and destroys it at the end of the test, or skips the test where hosts cannot be had.
func newFleet(t *testing.T, specs ...Spec) *Fleet {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	f, release, err := Open(filepath.Join(t.TempDir(), "fleet"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(); err != nil {
			t.Error(err)
		}
		release()
	})
	if err := f.Up(netip.Prefix{}, specs...); err != nil {
		t.Fatal(err)
	}
	return f
}

func hostOf(t *testing.T, f *Fleet, name string) *Host {
	t.Helper()
	h, err := f.Host(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustRun(t *testing.T, h *Host, script string) string {
	t.Helper()
	out, err := h.Run(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestHostsAreApart guards that hosts have names, users, files, memory and processes of their own, and reach each other.
func TestHostsAreApart(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"}, Spec{"us-1", "us"}, Spec{Name: "laptop"})
	eu, us := hostOf(t, f, "eu-1"), hostOf(t, f, "us-1")
	for _, h := range f.Hosts() {
		if got := mustRun(t, h, "hostname"); got != h.Name() {
			t.Errorf("host name %q, want %q", got, h.Name())
		}
		mustRun(t, h, "echo "+h.Name()+" | tee /var/lib/rhumb/who /dev/shm/who /etc/who /root/who >/dev/null")
		mustRun(t, h, "useradd --system --user-group rhumb")
	}
	for _, h := range f.Hosts() {
		if got := mustRun(t, h, "cat /var/lib/rhumb/who /dev/shm/who /etc/who /root/who | sort -u"); got != h.Name() {
			t.Errorf("files of %s are those of %q", h.Name(), got)
		}
	}
	if a, b := mustRun(t, eu, "id -u rhumb"), mustRun(t, us, "id -u rhumb"); a == b {
		t.Errorf("two hosts have users with the ID %s", a)
	}
	// Two processes: the first one and ps.
	if got := mustRun(t, eu, "ps -e --no-headers | wc -l"); got > "5" {
		t.Errorf("the host sees %s processes", got)
	}
	if _, err := os.Stat("/dev/fuse"); err == nil {
		// Opening it shows that it is the device and not a file of that name.
		mustRun(t, eu, "test -c /dev/fuse && exec 3<>/dev/fuse")
	}
	if _, err := os.Stat("/etc/who"); err == nil {
		t.Error("a host has written to this machine")
	}
	listener := eu.Command(t.Context(), "python3", "-c", "import socket;s=socket.create_server(('0.0.0.0',7600));print('on',flush=True)\nwhile 1: s.accept()[0].close()")
	out, err := listener.StdoutPipe()
	if err == nil {
		err = listener.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Process.Kill() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	const connect = "import socket,sys;socket.create_connection((sys.argv[1],7600),2)"
	if _, err := us.Run(t.Context(), "python3", "-c", connect, "eu-1"); err != nil {
		t.Errorf("hosts do not reach each other: %v", err)
	}
	if conn, err := net.DialTimeout("tcp", net.JoinHostPort(eu.Address().String(), "7600"), 2*time.Second); err != nil {
		t.Errorf("this machine does not reach the host: %v", err)
	} else {
		conn.Close()
	}
	t.Run("firewall", func(t *testing.T) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("needs nft: install the Debian package nftables")
		}
		laptop := hostOf(t, f, "laptop")
		rules := []Rule{{Protocol: "tcp", Ports: []uint16{7600, 7601}, Sources: []string{us.Address().String() + "/32"}}}
		if err := eu.Firewall(rules); err != nil {
			t.Fatal(err)
		}
		if _, err := us.Run(t.Context(), "python3", "-c", connect, "eu-1"); err != nil {
			t.Errorf("a host that a rule admits: %v", err)
		}
		if _, err := laptop.Run(t.Context(), "python3", "-c", connect, "eu-1"); err == nil {
			t.Error("a host that no rule admits got through")
		}
		if err := eu.NoFirewall(); err != nil {
			t.Fatal(err)
		}
		if _, err := laptop.Run(t.Context(), "python3", "-c", connect, "eu-1"); err != nil {
			t.Errorf("without a firewall: %v", err)
		}
	})
}

// TestFleetsSideBySide guards that fleets have different networks, that a second process finds what a crashed one has left, and that
// Destroy removes a fleet and leaves the other one.
func TestFleetsSideBySide(t *testing.T) {
	a, b := newFleet(t, Spec{"eu-1", "eu"}), newFleet(t, Spec{"eu-1", "eu"})
	if a.Network() == b.Network() {
		t.Fatalf("two fleets have the network %s", a.Network())
	}
	// As after a crash: only the record is left.
	c := &Fleet{dir: a.dir}
	if _, err := (&Fleet{dir: filepath.Join(t.TempDir(), "other")}).Host("eu-1"); err == nil {
		t.Error("an empty fleet has a host")
	}
	again, release, err := reopen(t, c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	h := hostOf(t, again, "eu-1")
	mustRun(t, h, "true")
	pid, bridge := h.rec.PID, again.bridge()
	if err := again.Destroy(); err != nil {
		t.Fatal(err)
	}
	a.rec = record{}
	if _, dead := stateOf(pid); !dead {
		t.Error("the host's first process is still alive")
	}
	if _, err := net.InterfaceByName(bridge); err == nil {
		t.Errorf("the bridge %s is still there", bridge)
	}
	if _, err := os.Stat(a.dir); err == nil {
		t.Errorf("the directory %s is still there", a.dir)
	}
	mustRun(t, hostOf(t, b, "eu-1"), "true")
	// Again, as after an interruption.
	if err := again.Destroy(); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// reopen opens a fleet whose lock this process holds already.
func reopen(t *testing.T, dir string) (*Fleet, func(), error) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	return Open(dir)
}

// TestPowerCut guards what outlives the processes of a host.
func TestPowerCut(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	mustRun(t, h, "echo kept >/var/lib/rhumb/file; echo kept >/etc/file; echo lost >/dev/shm/file")
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Run(t.Context(), "true"); err == nil {
		t.Error("a command ran on a host that is down")
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, h, "cat /var/lib/rhumb/file /etc/file | sort -u; ls /dev/shm"); got != "kept" {
		t.Errorf("after a power cut: %q", got)
	}
	if err := h.Stop(); err != nil {
		t.Fatal(err)
	}
}

// TestCopyAndExitCodes guards cp in both directions and the exit code of commands.
func TestCopyAndExitCodes(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	dir := t.TempDir()
	from := filepath.Join(dir, "tool")
	if err := os.WriteFile(from, []byte("#!/bin/sh\nexit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.CopyIn(from, "/opt/tools/"); err != nil {
		t.Fatal(err)
	}
	_, err := h.Run(t.Context(), "/opt/tools/tool")
	var code *exec.ExitError
	if !errors.As(err, &code) || code.ExitCode() != 7 {
		t.Errorf("the command returned %v, want exit status 7", err)
	}
	if err := h.CopyIn(dir, "/opt/folder"); err != nil {
		t.Fatal(err)
	}
	if err := h.CopyOut("/opt/folder/tool", filepath.Join(dir, "back")); err != nil {
		t.Fatal(err)
	}
	// A link on the host must not lead to this machine's files.
	mustRun(t, h, "ln -s ../../../../../../../../../../etc/hostname /opt/escape")
	if err := h.CopyOut("/opt/escape", filepath.Join(dir, "escaped")); err == nil {
		t.Error("a link out of the host was followed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := h.Run(ctx, "sleep", "60"); err == nil {
		t.Error("a command outlived its context")
	}
}
