package contexts

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

func valid() Context {
	return Context{Addr: []string{"eu-1.example.net:7600"}, CA: "/pki/ca.crt", User: "ada"}
}

// TestDecode guards what a file of contexts may hold. Unknown keys are errors, because a misspelt
// identity would silently not be used.
func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"":              "",
		"current: demo": "",
		"contexts: {a: {addr: ['h:1'], ca: /ca, user: ada}}":                     "",
		"contexts: {a: {addr: ['h:1'], ca: /ca, cert: /c, key: /k}}\ncurrent: a": "",
		"contexts: {a: {addr: ['127.0.0.1:1'], insecure: true}}":                 "",
		"contexts: {a: {addr: ['h:1'], ca: /ca, user: ada, pasword_file: /p}}":   "pasword_file",
		"contexts: {a: {addr: ['h:1'], ca: /ca, password: secret, user: ada}}":   "password",
		"contexts: {a: {addr: ['h:1'], ca: ca.crt}}":                             "not an absolute path",
		"contexts: {a: {addr: ['h'], ca: /ca}}":                                  "not HOST:PORT",
		"contexts: {a: {ca: /ca}}":                                               "no address",
		"contexts: {a: {addr: ['h:1']}}":                                         "no authority",
		"contexts: {a: {addr: ['h:1'], ca: /ca, cert: /c}}":                      "belong together",
		"contexts: {a: {addr: ['h:1'], ca: /ca, cert: /c, key: /k, user: u}}":    "two identities",
		"contexts: {a: {addr: ['h:1'], ca: /ca, password_file: /p}}":             "needs --user",
		"contexts: {a: {addr: ['h:1'], ca: /ca, insecure: true}}":                "plain text",
		"contexts: {a: {addr: ['h:1'], ca: /ca, cluster: abc}}":                  "--cluster",
		"contexts: {demo: {addr: ['h:1'], ca: /ca}}":                             "stands for the demo",
		"contexts: {'a/b': {addr: ['h:1'], ca: /ca}}":                            "not the name",
		"current: gone":                     "no such context",
		"contexts: [1]":                     "cannot unmarshal",
		"current: demo\n---\ncurrent: demo": "more than one document",
		"contexts: {a: {addr: ['h:1'], ca: /ca, cluster: 0123456789abcdef0123456789abcdef, from: frankfurt}}": "",
	} {
		_, err := Decode([]byte(text))
		if want == "" && err != nil || want != "" && (rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestFile guards who may use the file, that a change survives, and that a change that fails leaves
// the file as it was.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rhumb", "contexts.yaml")
	if f, err := Load(path); err != nil || len(f.Contexts) != 0 {
		t.Errorf("no file: %+v, %v", f, err)
	}
	add := func(f *File) error { f.Contexts["prod"], f.Current = valid(), "prod"; return nil }
	if err := Update(path, add); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	failure := errors.New("no")
	if err := Update(path, func(f *File) error { clear(f.Contexts); return failure }); !errors.Is(err, failure) {
		t.Errorf("a change that fails: %v", err)
	}
	if err := Update(path, func(f *File) error { f.Current = "gone"; return nil }); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a change that makes the file invalid: %v", err)
	}
	f, err := Load(path)
	if err != nil || f.Current != "prod" || !reflect.DeepEqual(f.Contexts["prod"], valid()) {
		t.Errorf("%+v, %v", f, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".contexts-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files %q, %v", left, err)
	}
	for _, mode := range []os.FileMode{0o620, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); rhumb.KindOf(err) != rhumb.PermissionDenied || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// TestAtTheSameTime guards that no change is lost when many are made at once.
func TestAtTheSameTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.yaml")
	const writers = 16
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if err := Update(path, func(f *File) error { f.Contexts["c"+strconv.Itoa(i)] = valid(); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if f, err := Load(path); err != nil || len(f.Contexts) != writers {
		t.Errorf("%d contexts, %v; want %d", len(f.Contexts), err, writers)
	}
}

// TestLinkStays guards that a file which is a symbolic link is changed where it lies.
func TestLinkStays(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.yaml"), filepath.Join(dir, "contexts.yaml")
	if err := errors.Join(os.WriteFile(real, nil, 0o600), os.Symlink(real, link)); err != nil {
		t.Fatal(err)
	}
	if err := Update(link, func(f *File) error { f.Contexts["a"] = valid(); return nil }); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != real {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if f, err := Load(real); err != nil || len(f.Contexts) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

// FuzzDecode guards that no file crashes the program, and that a file which is accepted is written
// and read back as it is.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("current: a\ncontexts:\n  a: {addr: ['h:1'], ca: /ca, user: ada}\n"))
	f.Add([]byte("contexts: &a {b: *a}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Decode(text)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "contexts.yaml")
		if err := Update(path, func(f *File) error {
			for name, c := range file.Contexts {
				f.Contexts[name] = c
			}
			f.Current = file.Current
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		again, err := Load(path)
		if err != nil || again.Current != file.Current || len(again.Contexts) != len(file.Contexts) {
			t.Fatalf("%+v became %+v, %v", file, again, err)
		}
		for name, c := range file.Contexts {
			if got := again.Contexts[name]; !reflect.DeepEqual(got, c) {
				t.Fatalf("%s: %+v became %+v", name, c, got)
			}
		}
	})
}

// TestPipe guards that a pipe under the name of the file is an error at once. Nobody may ever write to it, and each command reads
// the file before it does anything else.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Load(path)
		done <- err
	}()
	select {
	case err := <-done:
		if rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("still waiting for a writer")
	}
}
