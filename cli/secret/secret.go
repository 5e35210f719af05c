// Package secret reads passwords of people: from a file that only its owner can read, or from the
// terminal without showing them. Passwords are never in a flag or in the environment, where
// other processes see them.
//
// The terminal is opened by its own name instead of the standard input, so that a command that
// reads records from a pipe can still ask for a password.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
)

const op rhumb.Op = "rhumb.password"

// passwordMax bounds a password in bytes.
const passwordMax = 1 << 10

// terminal is the terminal of the process, whatever its standard input is. Tests replace it.
var terminal = "/dev/tty"

// Password returns a function that reads the password of a user: from a file, or, without one, from
// the terminal. A client calls it before each login. The file is read each time, because the
// password may have been changed; a person is asked once.
func Password(file, user string) func() (string, error) {
	if file != "" {
		return func() (string, error) { return FromFile(file) }
	}
	ask := sync.OnceValues(func() (string, error) {
		return Ask(fmt.Sprintf("Password of %s: ", user))
	})
	first, _ := asked.LoadOrStore(user, ask)
	return first.(func() (string, error))
}

// asked holds, for each user, the function that asks for the password. A command may open several
// connections, and asks once for all of them.
var asked sync.Map

// FromFile reads a password from a file. One line break at the end does not belong to the password.
func FromFile(path string) (string, error) {
	text, err := identity.ReadSecret(path)
	if err != nil {
		return "", err
	}
	text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	return check(text, path)
}

// Ask prints a question on the terminal and reads a line that the terminal does not show.
func Ask(question string) (string, error) {
	tty, err := os.OpenFile(terminal, os.O_RDWR, 0)
	if err != nil {
		return "", errNoTerminal
	}
	defer tty.Close()
	if _, err := io.WriteString(tty, question); err != nil {
		return "", rhumb.Wrap(op, err)
	}
	text, err := term.ReadPassword(int(tty.Fd()))
	_, _ = io.WriteString(tty, "\n") // the one that was typed is not shown
	if err != nil {
		return "", rhumb.Ef(op, rhumb.Unauthenticated, "no password was given: %v", err)
	}
	return check(text, "the terminal")
}

// errNoTerminal is the error of Ask in a process without a terminal.
var errNoTerminal = rhumb.E(op, rhumb.Unauthenticated, "the password is missing: there is no terminal to ask on; name a file with --password-file, or set RHUMB_PASSWORD_FILE")

// AskTwice asks for a new password and then for the same again.
func AskTwice(user string) (string, error) {
	first, err := Ask(fmt.Sprintf("New password of %s: ", user))
	if errors.Is(err, errNoTerminal) {
		// --password-file holds the password with which the command logs in.
		return "", rhumb.Ef(op, rhumb.InvalidArgument, "the new password of %s is missing: there is no terminal to ask on; name a file with --new-password-file, or choose --no-password", user)
	}
	if err != nil {
		return "", err
	}
	again, err := Ask("The same again: ")
	if err == nil && again != first {
		err = rhumb.E(op, rhumb.InvalidArgument, "the two passwords differ; nothing was changed")
	}
	return first, err
}

// check rejects what cannot be a password. A file with several lines is most likely not the file
// that was meant; its first line must not become a password silently. Errors never show the text.
func check(text []byte, from string) (string, error) {
	fault := ""
	switch {
	case len(text) == 0:
		fault = "is empty"
	case len(text) > passwordMax:
		fault = fmt.Sprintf("has more than %d bytes", passwordMax)
	case !utf8.Valid(text):
		fault = "is not UTF-8"
	case bytes.ContainsAny(text, "\r\n\x00"):
		fault = "has several lines or a zero byte"
	}
	if fault != "" {
		return "", rhumb.Ef(op, rhumb.InvalidArgument, "the password from %s %s", from, fault)
	}
	return string(text), nil
}
