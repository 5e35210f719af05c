package secret

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestFromFile guards which files are taken for a password.
func TestFromFile(t *testing.T) {
	dir := t.TempDir()
	for i, tt := range []struct {
		text string
		mode os.FileMode
		want string
		kind rhumb.Kind
	}{
		{"secret", 0o600, "secret", 0},
		{"secret\n", 0o400, "secret", 0},
		{" two words \r\n", 0o600, " two words ", 0},
		{"pässwörd", 0o600, "pässwörd", 0},
		{"", 0o600, "", rhumb.InvalidArgument},
		{"\n", 0o600, "", rhumb.InvalidArgument},
		{"a\nb", 0o600, "", rhumb.InvalidArgument},
		{"a\xff", 0o600, "", rhumb.InvalidArgument},
		{strings.Repeat("x", passwordMax+1), 0o600, "", rhumb.InvalidArgument},
		{"secret", 0o644, "", rhumb.PermissionDenied},
		{"secret", 0o640, "", rhumb.PermissionDenied},
	} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		got, err := FromFile(path)
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && rhumb.KindOf(err) != tt.kind {
			t.Errorf("%.20q with mode %o: %q, %v", tt.text, tt.mode, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") && tt.text == "secret" && !strings.Contains(err.Error(), "is a secret") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	if _, err := FromFile(filepath.Join(dir, "gone")); err == nil {
		t.Error("a file that does not exist is no error")
	}
}

// TestNoTerminal guards what a program without a terminal is told.
func TestNoTerminal(t *testing.T) {
	before := terminal
	terminal = filepath.Join(t.TempDir(), "none")
	defer func() { terminal = before }()
	if _, err := Ask("?"); rhumb.KindOf(err) != rhumb.Unauthenticated || !strings.Contains(err.Error(), "RHUMB_PASSWORD_FILE") {
		t.Errorf("%v", err)
	}
	// --password-file is the password of the command itself, not the new one.
	if _, err := AskTwice("ann"); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), "--new-password-file") {
		t.Errorf("%v", err)
	}
}
