package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPrompt guards that a command asks for the password on its terminal, even if its standard
// input is something else, and does not show what is typed.
func TestPrompt(t *testing.T) {
	c := startSecureCluster(t, "frankfurt")
	ownConfig(t)
	password := filepath.Join(t.TempDir(), "password")
	must(os.WriteFile(password, []byte("correct horse\n"), 0o600))
	c.ok(t, "user", "create", "ada", "--new-password-file", password)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v; mount /dev/pts (mount -t devpts devpts /dev/pts)", err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(err)
	must(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	binary, err := os.Executable()
	must(err)
	cmd := exec.Command(binary, c.with([]string{"--ca", filepath.Join(c.operator, "ca.crt"), "--user", "ada"}, "whoami", "-o", "json")...)
	cmd.ExtraFiles = []*os.File{slave}
	// A session of its own, whose terminal is descriptor 3.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	done := make(chan string)
	go func() {
		out, err := cmd.CombinedOutput()
		done <- fmt.Sprintf("%s%v", out, err)
	}()
	shown := bufio.NewReader(master)
	question, err := shown.ReadString(':')
	if err != nil || question != "Password of ada:" {
		t.Fatalf("the terminal shows %q, %v", question, err)
	}
	await(t, "the terminal to hide what is typed", bootWait, func() bool {
		state, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
		return err == nil && state.Lflag&unix.ECHO == 0
	})
	_, err = master.WriteString("correct horse\n")
	must(err)
	rest, _ := shown.ReadString('\n')
	if strings.Contains(rest, "horse") {
		t.Errorf("the terminal shows %q", rest)
	}
	if text := <-done; !strings.Contains(text, `"ada"`) || !strings.HasSuffix(text, "<nil>") {
		t.Errorf("whoami: %s", text)
	}
	_ = slave.Close()
}
