// Package contexts keeps named connections: the addresses of a cluster and the identity with which
// a person uses it, in one file of the user. The file holds the names of secret files and never a
// secret.
//
// One file serves all commands of a person, on purpose: a context per folder, as some tools have,
// makes it a matter of chance which cluster a command changes. The demo on this machine has a name
// but no entry, since it may stop at any time.
//
// # File
//
// The file is YAML, because people edit it. It is replaced as a whole under a lock, so a reader
// never sees half of a change, and an editor that saves at the same moment wins or loses as a
// whole. Nobody but its owner may write it: whoever does decides which authority a command trusts,
// and so to whom it proves a password.
//
// # Precedence
//
// A context is stronger than the configuration file of the machine and weaker than the environment
// and the command line; package settings applies them. Settings that exclude each other, such as a
// certificate and a user, are replaced together, so that no command ever connects with half of two
// identities.
package contexts

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
)

const op rhumb.Op = "rhumb.context"

// Demo is the name of the context of the demo on this machine. The file cannot hold a context of
// that name.
const Demo = "demo"

const (
	// fileMax bounds the file, in bytes.
	fileMax = 1 << 20
	// contextsMax bounds the number of contexts. Nobody has that many; the bound keeps a program
	// that adds one per run from making every command slow.
	contextsMax = 1_000
	// lockWait bounds the wait for another process that changes the file, and lockPause is the
	// pause between two attempts.
	lockWait  = 5 * time.Second
	lockPause = 20 * time.Millisecond
)

// Context is one connection. Its fields are settings of the same names.
//
// No field holds a password or a key itself. People copy this file between machines and show
// it to colleagues who ask for help.
type Context struct {
	Addr         []string `yaml:"addr,flow,omitempty" json:"addr"`
	CA           string   `yaml:"ca,omitempty" json:"ca,omitempty"`
	Cert         string   `yaml:"cert,omitempty" json:"cert,omitempty"`
	Key          string   `yaml:"key,omitempty" json:"key,omitempty"`
	User         string   `yaml:"user,omitempty" json:"user,omitempty"`
	PasswordFile string   `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	Cluster      string   `yaml:"cluster,omitempty" json:"cluster,omitempty"`
	From         string   `yaml:"from,omitempty" json:"from,omitempty"`
	Insecure     bool     `yaml:"insecure,omitempty" json:"insecure,omitempty"`
}

// File is the content of the file.
type File struct {
	// Current is the context of commands that name none. It may be empty.
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// nameRE describes names. They are typed after flags and in shells, so they need no quotes and do
// not look like flags.
var nameRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// Path returns the path of the file: rhumb/contexts.yaml in XDG_CONFIG_HOME or ~/.config.
func Path() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", rhumb.Ef(op, rhumb.NotFound, "the file of contexts lies in the home directory, and there is none (%v); set XDG_CONFIG_HOME", err)
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "rhumb", "contexts.yaml"), nil
}

// Load reads the file. A file that does not exist has no contexts.
func Load(path string) (File, error) {
	// Not blocking, so that a pipe under this name does not hold up every command for good.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return File{}, nil
	}
	if err != nil {
		return File{}, rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	if !info.Mode().IsRegular() {
		return File{}, rhumb.Ef(op, rhumb.InvalidArgument, "%s is not a regular file; move it away, and add the contexts again", path)
	}
	// Whoever can write the file decides to whom a password is proved.
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return File{}, rhumb.Ef(op, rhumb.PermissionDenied, "others may write %s (mode %04o), which says whom to trust; run: chmod 600 %s", path, mode, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err != nil {
		return File{}, rhumb.Ef(op, rhumb.Other, "%s: %v", path, err)
	}
	// Before decoding: YAML can describe more than it contains.
	if len(text) > fileMax {
		return File{}, rhumb.Ef(op, rhumb.TooLarge, "%s has more than %d bytes", path, fileMax)
	}
	file, err := Decode(text)
	if err != nil {
		return File{}, rhumb.Ef(op, rhumb.InvalidArgument, "%s: %s", path, rhumb.Message(err))
	}
	return file, nil
}

// Decode decodes and checks the content of a file. An unknown key is an error: a misspelt identity
// would silently not be used.
func Decode(text []byte) (File, error) {
	var file File
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); errors.Is(err, io.EOF) {
		return File{}, nil
	} else if err != nil {
		return File{}, rhumb.Ef(op, rhumb.InvalidArgument, "%s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return File{}, rhumb.E(op, rhumb.InvalidArgument, "more than one document")
	}
	return file, file.Validate()
}

// Validate returns an error if something in the file is wrong.
func (f *File) Validate() error {
	if len(f.Contexts) > contextsMax {
		return rhumb.Ef(op, rhumb.TooLarge, "%d contexts; at most %d are allowed", len(f.Contexts), contextsMax)
	}
	for _, name := range f.Names() {
		c := f.Contexts[name]
		if err := cmp.Or(CheckName(name), c.Validate()); err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "context %q: %s", name, rhumb.Message(err))
		}
	}
	if _, ok := f.Contexts[f.Current]; f.Current != "" && f.Current != Demo && !ok {
		return rhumb.Ef(op, rhumb.InvalidArgument, "the current context is %q, and there is no such context; `rhumb context use NAME` selects another", f.Current)
	}
	return nil
}

// CheckName returns an error if no context may have the name.
func CheckName(name string) error {
	if name == Demo {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%q stands for the demo on this machine; choose another name", name)
	}
	if !nameRE.MatchString(name) {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%q is not the name of a context; names have 1 to 63 letters, digits, dots, hyphens and underscores, and begin with a letter or digit", name)
	}
	return nil
}

// Validate returns an error that names the missing or contradictory settings.
//
// The rules are those of package target and are checked when the context is made, so that a mistake
// shows to the person who makes it and not to the one who uses it in an incident.
func (c *Context) Validate() error {
	fault := func(text string) error { return rhumb.E(op, rhumb.InvalidArgument, text) }
	if len(c.Addr) == 0 {
		return fault("no address; name at least one node with --addr HOST:PORT")
	}
	for _, addr := range c.Addr {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--addr %q is not HOST:PORT", addr)
		}
	}
	for _, path := range []string{c.CA, c.Cert, c.Key, c.PasswordFile} {
		if path != "" && !filepath.IsAbs(path) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is not an absolute path", path)
		}
	}
	if c.Cluster != "" {
		if _, err := rhumb.ParseUUID(c.Cluster); err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--cluster: %s", rhumb.Message(err))
		}
	}
	switch secure := c.CA + c.Cert + c.Key + c.User + c.PasswordFile; {
	case c.Insecure && secure != "":
		return fault("--insecure sends plain text, so it cannot be combined with a certificate, an authority or a user")
	case !c.Insecure && c.CA == "":
		return fault("no authority: name the cluster's with --ca FILE, which says whom to trust; for a cluster on this machine that was started with --insecure, add --insecure")
	case (c.Cert == "") != (c.Key == ""):
		return fault("--cert and --key belong together")
	case c.Cert != "" && c.User != "":
		return fault("--cert and --user are two identities; choose one")
	case c.PasswordFile != "" && c.User == "":
		return fault("--password-file needs --user NAME")
	}
	return nil
}

// Names returns the names of the contexts in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// Find returns a context by its name.
func (f *File) Find(name string) (Context, error) {
	c, ok := f.Contexts[name]
	if !ok {
		have := "there are none; `rhumb context add` makes one"
		if len(f.Contexts) > 0 {
			have = "there are " + strings.Join(f.Names(), ", ")
		}
		return c, rhumb.Ef(op, rhumb.NotFound, "there is no context %q; %s", name, have)
	}
	return c, nil
}

// Values returns the settings that the context has, by their keys.
func (c *Context) Values() map[string]any {
	values := map[string]any{}
	for key, value := range map[string]string{
		"ca": c.CA, "cert": c.Cert, "key": c.Key, "user": c.User, "password_file": c.PasswordFile, "cluster": c.Cluster, "from": c.From,
	} {
		if value != "" {
			values[key] = value
		}
	}
	var addrs []any
	for _, a := range c.Addr {
		addrs = append(addrs, a)
	}
	values["addr"] = addrs
	if c.Insecure {
		values["insecure"] = true
	}
	return values
}

// Update changes the file. Processes that change the file at the same time wait for each other, and
// a process that reads it sees the old or the new content, also after a loss of power.
//
// The lock spans reading and writing. Without it, two commands that add a context at the same time
// would each write a file without the other's.
func Update(path string, change func(f *File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	file, err := Load(path)
	if err != nil {
		return err
	}
	if file.Contexts == nil {
		file.Contexts = map[string]Context{}
	}
	if err := change(&file); err != nil {
		return err
	}
	if err := file.Validate(); err != nil {
		return err
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	return rhumb.Wrap(op, replaceFile(path, text))
}

// lock locks a file next to the one that changes, which is replaced and so cannot carry the lock.
// The lock ends with the process.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockPause) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			_ = f.Close()
			return nil, rhumb.Ef(op, rhumb.Unavailable, "%s is locked by another process: %v", path, err)
		}
	}
}

// replaceFile writes a new file and renames it over the old one.
func replaceFile(path string, text []byte) error {
	// A link stays a link: some people keep their configuration elsewhere.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = cmp.Or(err, f.Sync())
	err = cmp.Or(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
