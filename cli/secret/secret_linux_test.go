package secret

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal makes a pseudo terminal the terminal of this process, and returns its other side.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v; mount /dev/pts (mount -t devpts devpts /dev/pts)", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := terminal
	terminal = fmt.Sprintf("/dev/pts/%d", n)
	t.Cleanup(func() { terminal = before })
	return master
}

// isEchoing reports whether a terminal shows what is typed.
func isEchoing(t *testing.T, tty *os.File) bool {
	state, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Error(err)
		return false
	}
	return state.Lflag&unix.ECHO != 0
}

// TestAsk guards that the terminal asks, does not show what is typed, and asks only once however
// often a client logs in.
func TestAsk(t *testing.T) {
	master := openTerminal(t)
	shown := make(chan string)
	go func() {
		r := bufio.NewReader(master)
		question, _ := r.ReadString(':')
		for isEchoing(t, master) && t.Context().Err() == nil {
			runtime.Gosched()
		}
		if _, err := master.WriteString("hunter2\n"); err != nil {
			t.Error(err)
		}
		line, _ := r.ReadString('\n')
		shown <- question + line
	}()
	ask := Password("", "ada")
	for range 3 {
		if got, err := ask(); got != "hunter2" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if text := <-shown; text != "Password of ada: \r\n" {
		t.Errorf("the terminal showed %q", text)
	}
}
