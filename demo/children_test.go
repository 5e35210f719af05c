package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A node that exits shows the reason: its panic, or the end of its log. A node that was killed
// shows nothing.
func TestLastWords(t *testing.T) {
	long := strings.Repeat("{\"msg\":\"all is well\"}\n", 1_000)
	for _, tc := range []struct {
		name, log, how, want string
	}{
		{"panic", long + "panic: broken invariant\ngoroutine 1\n" + long, "exit 2", "\npanic: broken invariant\ngoroutine 1\n"},
		{"error", long + "rhumb: the disk is gone\n", "exit 1", "rhumb: the disk is gone\n"},
		{"killed", long, "kill -9 $$", ""},
		{"ended", long, "exit 0", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "node.log")
			if err := os.WriteFile(log, []byte(tc.log), 0o600); err != nil {
				t.Fatal(err)
			}
			got := (&child{log: log}).lastWords(exec.Command("sh", "-c", tc.how).Run())
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) || len(got) > 2*logEndBytes {
				t.Fatalf("its last words are %q, want %q", got, tc.want)
			}
		})
	}
}

// A user who kills a node again needs the ID of its new process.
func TestRestartNamesProcess(t *testing.T) {
	notices := make(chan string, 4)
	c := newChildren("/bin/sh", true, func(format string, args ...any) { notices <- fmt.Sprintf(format, args...) })
	t.Cleanup(c.stop)
	if err := c.add("node earth/a", t.TempDir(), []string{"-c", "exec sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	_, pids := c.childStates()
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got, want := <-notices, fmt.Sprintf("node earth/a (pid %d) is down (signal: killed)", pids[0]); !strings.HasPrefix(got, want) {
		t.Errorf("after the kill: %q, want %q", got, want)
	}
	got := <-notices
	_, pids = c.childStates()
	if want := fmt.Sprintf("node earth/a runs again (pid %d)\n", pids[0]); got != want {
		t.Errorf("after the restart: %q, want %q", got, want)
	}
}

// TestFinalExit guards that a node which was removed from the cluster is not started again.
func TestFinalExit(t *testing.T) {
	notices := make(chan string, 4)
	c := newChildren("/bin/sh", true, func(format string, args ...any) { notices <- fmt.Sprintf(format, args...) })
	t.Cleanup(c.stop)
	if err := c.add("node earth/a", t.TempDir(), []string{"-c", "exit 2"}); err != nil {
		t.Fatal(err)
	}
	if got := <-notices; !strings.HasPrefix(got, "node earth/a is down (exit status 2); start it again with:") {
		t.Errorf("after the exit: %q", got)
	}
}
