//go:build linux

package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// installUnit writes a unit with the [Service] section text to the host.
func installUnit(t *testing.T, h *Host, name, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".service")
	if err := os.WriteFile(file, []byte("[Unit]\nDescription=test\n[Service]\n"+text+"\n[Install]\nWantedBy=multi-user.target\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.Install(t.Context(), "", []string{file}); err != nil {
		t.Fatal(err)
	}
}

// awaitOutput repeats a command on the host until it prints want.
func awaitOutput(t *testing.T, h *Host, want string, command ...string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		got, _ = h.Run(t.Context(), command[0], command[1:]...)
		if strings.TrimSpace(got) == want {
			return
		}
		select {
		case <-t.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatalf("%q prints %q, want %q", command, got, want)
}

// TestSettings guards that a service gets what its unit says: each case prints one thing from inside of the service.
func TestSettings(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	mustRun(t, h, `mkdir -p /etc/rhumb; printf 'A=from file\n# note\nB="quoted value"\n' >/etc/rhumb/env; mkdir /srv/open; chmod 777 /srv/open`)
	for _, c := range []struct{ name, settings, script, want string }{
		{"user", "User=rhumb", "id -un", "rhumb"},
		{"environment", "Environment=A=one \"B=two words\"\nEnvironmentFile=/etc/rhumb/env\nEnvironmentFile=-/etc/none", "echo $$A,$$B", "from file,quoted value"},
		{"files", "LimitNOFILE=1234", "ulimit -n", "1234"},
		{"core", "LimitCORE=0", "ulimit -Hc", "0"},
		{"umask", "UMask=0027", "umask", "0027"},
		{"state", "User=rhumb\nStateDirectory=rhumb/x\nStateDirectoryMode=0750", "stat -c %%U,%%a /var/lib/rhumb/x; echo $$STATE_DIRECTORY", "rhumb,750\n/var/lib/rhumb/x"},
		{"strict", "ProtectSystem=strict\nReadWritePaths=/srv/open", "touch /etc/x /usr/x 2>/dev/null || echo refused; touch /srv/open/x /dev/shm/x && echo written", "refused\nwritten"},
		{"hidden", "User=rhumb\nInaccessiblePaths=-/none /srv/open\nProtectHome=yes", "ls /srv/open /root 2>/dev/null || echo hidden", "hidden"},
		{"tmp", "PrivateTmp=yes", "ls -A /tmp | wc -l", "0"},
		{"rights", "CapabilityBoundingSet=\nNoNewPrivileges=yes", "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status", "CapBnd:\t0000000000000000\nNoNewPrivs:\t1"},
		{"calls", "SystemCallFilter=@system-service\nSystemCallFilter=~@chown\nSystemCallErrorNumber=EPERM", "touch /srv/open/y; chown 1 /srv/open/y 2>/dev/null || echo refused", "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := "/srv/open/" + c.name + ".out"
			// The output goes to the log of the service, which the sandbox does not restrict.
			installUnit(t, h, c.name, "Type=oneshot\nExecStart=/bin/sh -c '"+strings.ReplaceAll(c.script, "'", "\"")+"'\n"+c.settings)
			if _, err := h.Run(t.Context(), "systemctl", "start", c.name); err != nil {
				t.Error(err)
			}
			b, err := os.ReadFile(h.LogFile(c.name))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(b)); got != c.want {
				t.Errorf("%s: %q, want %q", out, got, c.want)
			}
		})
	}
}

// TestLifeOfServices guards start, stop, restarts and notifications.
func TestLifeOfServices(t *testing.T) {
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	t.Run("restart on failure", func(t *testing.T) {
		installUnit(t, h, "failing", "ExecStart=/bin/sh -c 'echo run; exit 3'\nRestart=on-failure\nRestartSec=10ms")
		_, _ = h.Run(t.Context(), "systemctl", "start", "failing")
		awaitOutput(t, h, "failed", "systemctl", "is-failed", "failing")
		if got := mustRun(t, h, "journalctl -u failing | grep -c ^run"); got != "5" {
			t.Errorf("started %s times, want 5", got)
		}
	})
	t.Run("no restart", func(t *testing.T) {
		installUnit(t, h, "wrong", "ExecStart=/bin/sh -c 'exit 2'\nRestart=on-failure\nRestartPreventExitStatus=2\nRestartSec=10ms")
		_, _ = h.Run(t.Context(), "systemctl", "start", "wrong")
		awaitOutput(t, h, "NRestarts=0", "systemctl", "show", "wrong", "-p", "NRestarts")
		awaitOutput(t, h, "failed", "systemctl", "is-failed", "wrong")
	})
	t.Run("crash", func(t *testing.T) {
		installUnit(t, h, "crash", "ExecStart=/bin/sleep 1000\nRestart=on-failure\nRestartSec=10ms")
		mustRun(t, h, "systemctl enable --now crash && systemctl kill -s KILL crash")
		awaitOutput(t, h, "NRestarts=1", "systemctl", "show", "crash", "-p", "NRestarts")
		mustRun(t, h, "systemctl stop crash")
		awaitOutput(t, h, "inactive", "systemctl", "is-active", "crash")
	})
	t.Run("environment of a restart", func(t *testing.T) {
		mustRun(t, h, "mkdir -p /etc/rhumb && echo A=before >/etc/rhumb/restarted")
		installUnit(t, h, "restarted", "EnvironmentFile=/etc/rhumb/restarted\nExecStart=/bin/sh -c 'echo with $$A; exec sleep 1000'\nRestart=on-failure\nRestartSec=10ms")
		mustRun(t, h, "systemctl start restarted")
		count := func(word string) []string {
			return []string{"sh", "-c", "journalctl -u restarted | grep -c '^with " + word + "'"}
		}
		awaitOutput(t, h, "1", count("before")...)
		mustRun(t, h, "echo A=after >/etc/rhumb/restarted && systemctl kill -s KILL restarted")
		awaitOutput(t, h, "1", count("after")...)
		mustRun(t, h, "systemctl stop restarted")
	})
	t.Run("notify", func(t *testing.T) {
		const say = `import os,socket,time
s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.connect(os.environ["NOTIFY_SOCKET"])
if os.fork()==0:
  s.send(b"STATUS=from a child"); os._exit(0)
os.wait(); s.send(b"READY=1\nSTATUS=well"); time.sleep(1000)`
		mustRun(t, h, "cat >/srv/say.py <<'END'\n"+say+"\nEND")
		installUnit(t, h, "say", "Type=notify\nExecStart=/usr/bin/python3 /srv/say.py")
		mustRun(t, h, "systemctl start say")
		awaitOutput(t, h, "StatusText=well", "systemctl", "show", "say", "-p", "StatusText")
	})
	t.Run("never ready", func(t *testing.T) {
		installUnit(t, h, "silent", "Type=notify\nExecStart=/bin/sleep 1000\nTimeoutStartSec=1")
		if _, err := h.Run(t.Context(), "systemctl", "start", "silent"); err == nil {
			t.Error("a service that was never ready counts as started")
		}
	})
	t.Run("killed when stop takes too long", func(t *testing.T) {
		installUnit(t, h, "deaf", "ExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 1; done'\nTimeoutStopSec=1")
		mustRun(t, h, "systemctl start deaf && systemctl stop deaf")
		awaitOutput(t, h, "inactive", "systemctl", "is-active", "deaf")
	})
	t.Run("enabled units start with the host", func(t *testing.T) {
		if err := h.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		awaitOutput(t, h, "active", "systemctl", "is-active", "crash")
	})
}
