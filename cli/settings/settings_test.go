package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// loadFrom loads the settings of a configuration file with some text.
func loadFrom(t *testing.T, text string) *Settings {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rhumb.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Settings{File: path}
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLists guards that a list means the same in the file and in the environment. `rhumb config
// show` once divided the memory of a node with RHUMB_DIR=a,b as if it had one directory.
func TestLists(t *testing.T) {
	if got := loadFrom(t, "dir: [a, b]\n").List("dir"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("from the file: %q", got)
	}
	if got := loadFrom(t, "").List("dir"); len(got) != 0 {
		t.Errorf("from nowhere: %q", got)
	}
	t.Setenv("RHUMB_DIR", "a,b")
	if got := loadFrom(t, "dir: c\n").List("dir"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("from the environment: %q", got)
	}
}

// TestApply guards that settings do not replace what the command line sets, and that a flag which a
// setting sets counts as set.
func TestApply(t *testing.T) {
	s := loadFrom(t, "dir: [a, b]\ntimeout: 3s\n")
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	dirs := flags.StringSlice("dir", nil, "")
	timeout := flags.Duration("timeout", 0, "")
	if err := flags.Parse([]string{"--timeout", "1s"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(flags); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(*dirs, []string{"a", "b"}) || timeout.String() != "1s" || !flags.Lookup("dir").Changed {
		t.Errorf("dirs %q, timeout %v", *dirs, timeout)
	}
}

// connecting returns the flags of a command that connects to a cluster.
func connecting() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.StringSlice("addr", nil, "")
	set.Bool("insecure", false, "")
	for _, name := range []string{"from", "ca", "cert", "key", "user", "password-file", "cluster"} {
		set.String(name, "", "")
	}
	flags.Connection(set, "addr", "insecure", "from", "ca", "cert", "key", "user", "password-file", "cluster")
	return set
}

// TestPrecedence guards which source of a setting wins: the configuration file loses against the
// context, which loses against the environment, which loses against the command line. Settings that
// exclude each other are replaced as a whole.
func TestPrecedence(t *testing.T) {
	const prod = "contexts: {prod: {addr: ['c:1'], ca: /c/ca, cert: /c/crt, key: /c/key, from: basel}, other: {addr: ['o:1'], ca: /o/ca, user: ada}}\n"
	for _, tt := range []struct {
		name, file, contexts, context string
		env                           map[string]string
		args                          []string
		want                          string // the flags that are set
	}{
		{"nothing", "", "", "", nil, nil, ""},
		{"file", "addr: ['f:1']\ninsecure: true\n", "", "", nil, nil, "addr=[f:1] insecure=true"},
		{"no current context", "", prod, "", nil, nil, ""},
		{"current context", "addr: ['f:1']\n", prod + "current: prod\n", "", nil, nil, "addr=[c:1] ca=/c/ca cert=/c/crt from=basel key=/c/key"},
		{"a context replaces insecure of the file", "insecure: true\n", prod + "current: other\n", "", nil, nil, "addr=[o:1] ca=/o/ca user=ada"},
		{"environment names the context", "", prod + "current: prod\n", "", map[string]string{"RHUMB_CONTEXT": "other"}, nil, "addr=[o:1] ca=/o/ca user=ada"},
		{"flag names the context", "", prod, "prod", map[string]string{"RHUMB_CONTEXT": "other"}, nil, "addr=[c:1] ca=/c/ca cert=/c/crt from=basel key=/c/key"},
		{
			"environment over context", "", prod + "current: prod\n", "",
			map[string]string{"RHUMB_ADDR": "e:1,e:2", "RHUMB_FROM": "bern"},
			nil, "addr=[e:1,e:2] ca=/c/ca cert=/c/crt from=bern key=/c/key",
		},
		{
			"a user replaces the certificate of the context", "", prod + "current: prod\n", "",
			map[string]string{"RHUMB_USER": "ada", "RHUMB_PASSWORD_FILE": "/p"},
			nil, "addr=[c:1] ca=/c/ca from=basel password_file=/p user=ada",
		},
		{
			"flag over environment", "", prod + "current: prod\n", "",
			map[string]string{"RHUMB_FROM": "bern"},
			[]string{"--from", "zug", "--cert", "/a", "--key", "/b"},
			"addr=[c:1] ca=/c/ca cert=/a from=zug key=/b",
		},
		{"insecure on the command line", "", prod + "current: prod\n", "", nil, []string{"--insecure", "--addr", "a:1"}, "addr=[a:1] from=basel insecure=true"},
		{"not insecure", "insecure: true\n", "", "", nil, []string{"--insecure=false", "--ca", "/a"}, "ca=/a insecure=false"},
		{"the demo", "addr: ['f:1']\ninsecure: true\n", prod + "current: prod\n", "demo", map[string]string{"RHUMB_FROM": "bern"}, nil, "from=bern"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("XDG_CONFIG_HOME", dir)
			t.Setenv("RHUMB_CONTEXT", "")
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			path := filepath.Join(dir, "rhumb", "contexts.yaml")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(tt.contexts), 0o600)); err != nil {
				t.Fatal(err)
			}
			s := loadFrom(t, tt.file)
			s.Context = tt.context
			set := connecting()
			if err := set.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := s.Apply(set); err != nil {
				t.Fatal(err)
			}
			var got []string
			set.VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					got = append(got, strings.ReplaceAll(f.Name, "-", "_")+"="+f.Value.String())
				}
			})
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("%s, want %s", text, tt.want)
			}
		})
	}
}

// TestNodeHasNoContext guards that a context never configures a node, and that its file cannot stop
// one.
func TestNodeHasNoContext(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	path := filepath.Join(dir, "rhumb", "contexts.yaml")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("nonsense"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := loadFrom(t, "addr: 'f:1'\n")
	node := pflag.NewFlagSet("", pflag.ContinueOnError)
	addr := node.String("addr", "", "")
	if err := s.Apply(node); err != nil || *addr != "f:1" {
		t.Errorf("a node listens on %q, %v", *addr, err)
	}
	if err := s.Apply(connecting()); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a command that connects: %v", err)
	}
}

// TestLiteral guards that a flag which only shares its name with a setting is not configured.
func TestLiteral(t *testing.T) {
	s := loadFrom(t, "insecure: true\n")
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	insecure := set.Bool("insecure", false, "")
	flags.Literal(set, "insecure")
	if err := s.Apply(set); err != nil || *insecure {
		t.Errorf("insecure %v, %v", *insecure, err)
	}
}

// TestInsecureNodeIgnoresIdentity guards that a node with --insecure on its command line, such as
// those of a demo, starts although the environment holds the identity of other commands, and that
// an insecure setting does not disarm a certificate on the command line.
func TestInsecureNodeIgnoresIdentity(t *testing.T) {
	for _, tc := range []struct {
		env, line, want string // want: the value of --ca, then that of --insecure
	}{
		{"RHUMB_CA=/env", "--insecure", " true"},
		{"RHUMB_CA=/env", "", "/env false"},
		{"RHUMB_INSECURE=true", "--ca=/line", "/line false"},
		{"RHUMB_USER=ann", "--ca=/line", "/line false"},
	} {
		t.Run(tc.env+" "+tc.line, func(t *testing.T) {
			name, value, _ := strings.Cut(tc.env, "=")
			t.Setenv(name, value)
			set := pflag.NewFlagSet("", pflag.ContinueOnError)
			ca, insecure := set.String("ca", "", ""), set.Bool("insecure", false, "")
			if err := set.Parse(strings.Fields(tc.line)); err != nil {
				t.Fatal(err)
			}
			if err := loadFrom(t, "").Apply(set); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(*ca, " ", *insecure); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
