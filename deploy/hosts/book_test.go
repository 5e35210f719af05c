//go:build linux

package hosts

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var book = flag.Bool("book", false, "run the commands of docs/operations on nine hosts")

// bookPages lists the pages in the order in which a reader follows them.
var bookPages = []string{"install", "size", "secure", "first-cluster", "users", "join", "rotate", "upgrade"}

// bookAppendices are the pages that stand alone, with the hosts that each needs beside the computer of the operator. The package is
// installed on all of them.
var bookAppendices = map[string][]string{"authority": {"authority", "eu-1", "us-1"}, "secure-a-cluster": {"authority"}}

var shellRE = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// bookTime bounds each page.
const bookTime = 4 * time.Minute

// TestBook runs the commands of the pages of operations as they are printed: every block marked as shell of a page is part of one script,
// which runs on the computer of the operator. It prints how long it takes from nine empty hosts to the first answered write.
func TestBook(t *testing.T) {
	needBook(t)
	specs := []Spec{{Name: "laptop"}, {Name: "authority"}}
	for _, region := range []string{"eu", "us", "ap"} {
		for n := 1; n <= 3; n++ {
			specs = append(specs, Spec{Name: fmt.Sprintf("%s-%d", region, n), Region: region})
		}
	}
	f := newFleet(t, append(specs, Spec{Name: "eu-4", Region: "eu"})...)
	laptop := hostOf(t, f, "laptop")
	prepareShell(t, f, laptop)
	deb := buildPackage(t, "v1.0.0")
	if err := laptop.CopyIn(deb, "/root/book/"); err != nil {
		t.Fatal(err)
	}
	mustRun(t, laptop, "cd /root/book && sha256sum *.deb >SHA256SUMS")

	start := time.Now()
	for _, page := range bookPages {
		// The pages build on each other.
		if !t.Run(page, func(t *testing.T) { runPage(t, f, laptop, page) }) {
			return
		}
		if page == "first-cluster" {
			t.Logf("from nine empty hosts to the first answered write, all pages up to it: %v", time.Since(start).Round(100*time.Millisecond))
		}
	}
}

// needBook skips a test of the book that lacks something.
func needBook(t *testing.T) {
	t.Helper()
	if !*book {
		t.Skip("takes minutes; run with -book")
	}
	for _, tool := range []string{"sshd", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: install openssh-server and nftables", tool)
		}
	}
}

// TestBookAppendices runs the pages of operations that stand alone, each on hosts of its own.
func TestBookAppendices(t *testing.T) {
	needBook(t)
	deb := buildPackage(t, "v1.0.0")
	for page, names := range bookAppendices {
		t.Run(page, func(t *testing.T) {
			specs := []Spec{{Name: "laptop"}}
			for _, name := range names {
				specs = append(specs, Spec{Name: name})
			}
			f := newFleet(t, specs...)
			laptop := hostOf(t, f, "laptop")
			prepareShell(t, f, laptop)
			mustRun(t, laptop, "mkdir -p /root/book")
			for _, h := range f.Hosts() {
				if err := h.CopyIn(deb, "/tmp/rhumb.deb"); err != nil {
					t.Fatal(err)
				}
				mustRun(t, h, "dpkg -i /tmp/rhumb.deb")
			}
			runPage(t, f, laptop, page)
		})
	}
}

// runPage runs the blocks of a page as one script.
func runPage(t *testing.T, f *Fleet, laptop *Host, page string) {
	text, err := os.ReadFile(filepath.Join("../../docs/operations", page+".md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := shellRE.FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatal("no commands")
	}
	// A page that fails leaves none of the processes that it began, which would hold the pipe of the output and the test.
	script := "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\ncd /root/book\n"
	for _, b := range blocks {
		script += b[1]
	}
	file := filepath.Join(t.TempDir(), page+".sh")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := laptop.CopyIn(file, "/root/pages/"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bookTime)
	defer cancel()
	begin := time.Now()
	c := laptop.Command(ctx, "bash", "-x", "/root/pages/"+page+".sh")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		for _, h := range f.Hosts() {
			for _, unit := range []string{"rhumb", "rhumb-authority"} {
				b, err := os.ReadFile(h.LogFile(unit))
				if err == nil {
					t.Logf("%s: %s\n%s", h.Name(), unit, b[max(0, len(b)-4000):])
				}
			}
		}
		return
	}
	if log, err := laptop.Command(ctx, "tail", "-n", "1", "/root/book/writes.log").Output(); err == nil && page == "upgrade" {
		t.Logf("writes during the upgrade: %s", log)
	}
	t.Logf("%d blocks in %v", len(blocks), time.Since(begin).Round(10*time.Millisecond))
	if testing.Verbose() {
		t.Logf("%s", out[max(0, len(out)-3000):])
	}
}

// prepareShell makes the hosts what a provider hands over: the laptop reaches all others by ssh as root.
func prepareShell(t *testing.T, f *Fleet, laptop *Host) {
	t.Helper()
	mustRun(t, laptop, "mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && printf 'StrictHostKeyChecking accept-new\\nLogLevel ERROR\\n' >/root/.ssh/config")
	key := strings.TrimSpace(mustRun(t, laptop, "cat /root/.ssh/id_ed25519.pub"))
	for _, h := range f.Hosts() {
		if h.Name() == "laptop" {
			continue
		}
		mustRun(t, h, "mkdir -p -m 700 /root/.ssh && echo '"+key+"' >/root/.ssh/authorized_keys && chown -R root: /root && chmod 700 /root && rm -f /etc/ssh/ssh_host_* && ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key && systemctl start ssh")
		// A server has no index of manual pages to update; this machine may have a large one.
		mustRun(t, h, "rm -f /var/lib/man-db/auto-update")
	}
}
