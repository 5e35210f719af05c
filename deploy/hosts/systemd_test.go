//go:build linux

package hosts

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// exposureMost bounds the exposure that `systemd-analyze security` computes, in tenths: 0 is a service without any rights, and 100 one
// without any restriction. What is left are the network, which a database needs, and the stay of its user.
const exposureMost = 13

// TestSystemd guards that systemd accepts the units without a warning, and that they stay confined.
func TestSystemd(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze: install the Debian package systemd")
	}
	units, err := filepath.Glob("../systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("units %q, %v", units, err)
	}
	f := newFleet(t, Spec{"eu-1", "eu"})
	h := hostOf(t, f, "eu-1")
	// Verification looks for the program, and for nothing in it.
	mustRun(t, h, "ln -s /bin/true /usr/bin/rhumb")
	if err := h.Install(t.Context(), "", units); err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		unit = "/etc/systemd/system/" + filepath.Base(unit)
		if out := mustRun(t, h, "systemd-analyze verify --recursive-errors=yes "+unit+" 2>&1"); out != "" {
			t.Errorf("%s: %s", unit, out)
		}
		out := mustRun(t, h, "systemd-analyze security --offline=true --no-pager --threshold="+strconv.Itoa(exposureMost)+" "+unit)
		t.Log(out[strings.LastIndex(out, "\n")+1:])
	}
	// The check above can fail.
	mustRun(t, h, "printf '[Service]\\nExecStart=/usr/bin/rhumb\\nRestart=perhaps\\nNoSuch=1\\n' >/etc/systemd/system/bad.service")
	if _, err := h.Run(t.Context(), "systemd-analyze", "verify", "--recursive-errors=yes", "/etc/systemd/system/bad.service"); err == nil {
		t.Error("a wrong unit was accepted")
	}
}
