package demo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
