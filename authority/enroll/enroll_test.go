package enroll

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
)

// asNode makes the test binary enrol in the folder that the variable names and kill itself at the
// step in killAt.
const (
	asNode = "GO_TEST_ENROLS_IN"
	killAt = "GO_TEST_KILL_AT"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(asNode)
	if dir == "" {
		os.Exit(m.Run())
	}
	stepHook = func(step string) {
		if step == os.Getenv(killAt) {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {} // SIGKILL arrives
		}
	}
	err := Ensure(context.Background(), Config{Dir: dir}, dir+".token")
	if err != nil {
		os.Stderr.WriteString(rhumb.Message(err))
		os.Exit(1)
	}
	os.Exit(0)
}

// world is an authority that serves, and a clock that both sides use.
type world struct {
	t    *testing.T
	dir  string
	addr string

	mu   sync.Mutex
	now  time.Time
	stop func()
}

func (w *world) wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

var quietly = slog.New(slog.DiscardHandler)

func (w *world) config() authority.Config {
	return authority.Config{Wall: w.wall, Logger: quietly}
}

// newWorld makes an authority whose server runs.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "authority"), now: time.Now()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	w.addr = l.Addr().String()
	check(t, l.Close())
	check(t, authority.Create(w.dir, rhumb.ClusterID{1, 2, 3}, []string{w.addr}, w.config()))
	w.serve()
	t.Cleanup(func() { w.stop() })
	return w
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts the server of the authority.
func (w *world) serve() {
	w.t.Helper()
	a, err := authority.Open(w.dir, w.config())
	check(w.t, err)
	s, err := authority.NewServer(a)
	check(w.t, err)
	l, err := net.Listen("tcp", w.addr)
	check(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		_ = a.Close()
	})
}

// authority opens the directory, as commands do beside the server.
func (w *world) authority() *authority.Authority {
	a, err := authority.Open(w.dir, w.config())
	check(w.t, err)
	w.t.Cleanup(func() { _ = a.Close() })
	return a
}

// token makes a token for a node and writes it next to the node's folder.
func (w *world) token(name string, change func(*token.Token)) (dir, file string) {
	w.t.Helper()
	tok, err := w.authority().CreateToken(authority.TokenRequest{Node: name})
	check(w.t, err)
	if change != nil {
		change(&tok)
	}
	dir = filepath.Join(w.t.TempDir(), "identity")
	file = dir + ".token"
	check(w.t, os.WriteFile(file, []byte(tok.Encode()+"\n"), 0o600))
	return dir, file
}

func (w *world) ensure(dir, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return Ensure(ctx, Config{Dir: dir, Wall: w.wall, Logger: quietly}, file)
}

func wants(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(rhumb.Message(err), text) {
		t.Errorf("%v, want %q", err, text)
	}
}

// TestEnrol guards the whole way: a token becomes files that package identity loads, and the token is
// not needed again.
func TestEnrol(t *testing.T) {
	w := newWorld(t)
	dir, file := w.token("eu-1", nil)
	check(t, w.ensure(dir, file))
	check(t, os.Remove(file))
	check(t, w.ensure(dir, file))
	src, err := identity.OpenSource(identity.SourceConfig{Files: Files(dir), Wall: w.wall, Logger: quietly})
	check(t, err)
	defer src.Close()
	if name, _ := src.Name(); name.Name != "eu-1" || name.Role != identity.RoleNode {
		t.Errorf("the certificate names %v", name)
	}
	for _, name := range []string{keyFile, certFile, stateFile, caFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for _, name := range []string{pendingFile, nextDir, partDir} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// TestRefusedTokens guards that each bad token has a clear error, that nothing is sent to a server
// without the pinned key, and that a wrong clock is called a wrong clock.
func TestRefusedTokens(t *testing.T) {
	w := newWorld(t)
	used, usedFile := w.token("eu-1", nil)
	check(t, w.ensure(used, usedFile))
	wants(t, w.ensure(filepath.Join(t.TempDir(), "other"), usedFile), "already used")

	dir, file := w.token("eu-2", func(tok *token.Token) { tok.Pin[0]++ })
	wants(t, w.ensure(dir, file), "not the authority that made the token")
	dir, file = w.token("eu-3", func(tok *token.Token) { tok.Cluster[0]++ })
	wants(t, w.ensure(dir, file), "cluster")
	dir, file = w.token("eu-4", nil)
	text, err := os.ReadFile(file)
	check(t, err)
	check(t, os.WriteFile(file, bytes.ToLower(text), 0o600))
	wants(t, w.ensure(dir, file), "garbled")
	check(t, os.Chmod(file, 0o644))
	wants(t, w.ensure(dir, file), "chmod 600")
	wants(t, w.ensure(dir, file+".none"), "does not exist")

	dir, file = w.token("eu-5", nil)
	for _, wrong := range []time.Duration{24 * time.Hour, -24 * time.Hour, 30 * 24 * time.Hour, -6 * time.Minute} {
		err := Ensure(t.Context(), Config{Dir: dir, Logger: quietly, Wall: func() time.Time { return w.wall().Add(wrong) }}, file)
		wants(t, err, "the clock of this host is wrong")
		wants(t, err, wrong.Abs().String())
	}
	// None of these attempts has used the token.
	check(t, w.ensure(dir, file))

	dir, file = w.token("eu-6", nil)
	w.advance(2 * time.Hour)
	wants(t, w.ensure(dir, file), "expired at")
	w.stop()
	wants(t, w.ensure(dir, file), "expired at")
	dir, file = w.token("eu-7", nil)
	wants(t, w.ensure(dir, file), "does not answer")
}

// TestKill guards that a node that is killed at any step of its enrolment gets its certificate with
// the same token later, although the authority may be killed too.
func TestKill(t *testing.T) {
	steps := []string{"key made", "clock checked", "answered", "files written", "files complete"}
	for _, name := range order {
		steps = append(steps, "moved "+name)
	}
	w := newWorld(t)
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			w.t = t
			dir, _ := w.token("eu-1", nil)
			run := func(kill string) (string, error) {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), asNode+"="+dir, killAt+"="+kill)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := run(step)
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Exited() {
				t.Fatalf("not killed: %v, %s", err, out)
			}
			if i%2 == 0 { // the authority restarts too
				w.stop()
				w.serve()
			}
			if out, err := run(""); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			src, err := identity.OpenSource(identity.SourceConfig{Files: Files(dir), Wall: w.wall, Logger: quietly})
			check(t, err)
			src.Close()
			if _, err := os.Stat(filepath.Join(dir, pendingFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the pending key is left")
			}
		})
	}
	w.t = t
}

// enrolled returns a keeper of a node that has its certificate.
func enrolled(t *testing.T, w *world) *Keeper {
	t.Helper()
	dir, file := w.token("eu-1", nil)
	check(t, w.ensure(dir, file))
	k := NewKeeper(Config{Dir: dir, Wall: w.wall, Logger: quietly})
	if k == nil {
		t.Fatal("no keeper")
	}
	return k
}

func leafOf(t *testing.T, k *Keeper) *x509.Certificate {
	t.Helper()
	leaf, err := readLeaf(k.cfg.Dir)
	check(t, err)
	return leaf
}

// TestKeeper guards that a certificate is renewed at two thirds of its life, that the absence of the
// authority for a day changes nothing, and that a node whose certificate has expired says so.
func TestKeeper(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	ctx := t.Context()
	first := leafOf(t, k)
	for day := range 4 {
		if wait := k.step(ctx); wait > checkInterval {
			t.Errorf("day %d: the next step is in %v", day, wait)
		}
		if got := leafOf(t, k); got.SerialNumber.Cmp(first.SerialNumber) != 0 {
			t.Fatalf("renewed on day %d", day)
		}
		w.advance(24 * time.Hour)
	}
	// Day 4 to 5: the authority is away when the renewal is due.
	w.stop()
	w.advance(24 * time.Hour)
	last := time.Duration(0)
	for range 12 {
		last = k.step(ctx)
	}
	if got := leafOf(t, k); got.SerialNumber.Cmp(first.SerialNumber) != 0 || last < retryMost/2 || last > 2*retryMost || k.failures != 12 {
		t.Errorf("without the authority: %d failures, the next attempt in %v", k.failures, last)
	}
	w.serve()
	k.step(ctx)
	second := leafOf(t, k)
	if second.SerialNumber.Cmp(first.SerialNumber) == 0 || k.failures != 0 || bytes.Equal(second.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
		t.Error("not renewed, or with the same key")
	}
	// Down for two weeks: the start renews, or says what to do.
	w.advance(14 * 24 * time.Hour)
	w.stop()
	err := w.ensure(k.cfg.Dir, "")
	wants(t, err, "cannot be renewed")
	wants(t, err, "start the authority (rhumb authority serve)")
	// A node that starts before its authority waits for it.
	waits := make(chan struct{})
	waiting := Config{Dir: k.cfg.Dir, Wall: w.wall, Logger: slog.New(onWarn{slog.DiscardHandler, sync.OnceFunc(func() { close(waits) })})}
	renewed := make(chan error)
	go func() { renewed <- Ensure(t.Context(), waiting, "") }()
	<-waits
	w.serve()
	check(t, <-renewed)
	if third := leafOf(t, k); !third.NotAfter.After(w.wall()) {
		t.Error("not renewed at the start")
	}
	// Too late even for that, a new token helps.
	w.advance(60 * 24 * time.Hour)
	wants(t, w.ensure(k.cfg.Dir, ""), "cannot be renewed")
	tok, err := w.authority().CreateToken(authority.TokenRequest{Node: "eu-1"})
	check(t, err)
	file := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(file, []byte(tok.Encode()), 0o600))
	check(t, w.ensure(k.cfg.Dir, file))
}

// TestKeeperAfterWrongClock guards that a node whose clock was ahead for a while asks its authority again when the clock is
// right, and not when that time comes: it would miss every rotation until then.
func TestKeeperAfterWrongClock(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	w.advance(48 * time.Hour)
	k.step(t.Context())
	w.advance(-48 * time.Hour)
	_, err := w.authority().Rotate()
	check(t, err)
	k.step(t.Context())
	if !k.renewNow {
		t.Errorf("after the clock was set back, the node asks its authority in %v", k.nextCheck.Sub(w.wall()))
	}
}

// TestKeeperRotates guards that a running node follows a rotation: it trusts both keys, and renews
// with the new one.
func TestKeeperRotates(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	a := w.authority()
	old := identity.AuthorityOf(mustCA(t, k)[0])
	hash, err := a.Rotate()
	check(t, err)
	check(t, a.SetAddresses([]string{"127.0.0.1:1", w.addr}))
	if wait := k.step(t.Context()); wait != 0 {
		t.Errorf("the renewal is due now, not in %v", wait)
	}
	k.step(t.Context())
	roots := mustCA(t, k)
	if len(roots) != 2 || identity.AuthorityOf(roots[0]) != hash {
		t.Errorf("%d authorities", len(roots))
	}
	if _, err := a.Retire(old[:16], false); err != nil {
		t.Fatal(err)
	}
	w.advance(2 * checkInterval)
	// The first address does not answer; the second does.
	k.step(t.Context())
	if roots := mustCA(t, k); len(roots) != 1 {
		t.Errorf("%d authorities after the old one retired", len(roots))
	}
	if state, err := ReadState(k.cfg.Dir); err != nil || len(state.Addresses) != 2 {
		t.Errorf("%+v, %v", state, err)
	}
}

func mustCA(t *testing.T, k *Keeper) []*x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(k.cfg.Dir, caFile))
	check(t, err)
	roots, err := identity.ParseCertificates(text)
	check(t, err)
	return roots
}

// TestRolledBackAuthority guards that nodes notice an authority that was restored from a backup.
func TestRolledBackAuthority(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	dir, file := w.token("eu-2", nil)
	backup := filepath.Join(t.TempDir(), "backup")
	check(t, os.CopyFS(backup, os.DirFS(w.dir)))
	check(t, w.ensure(dir, file))
	w.advance(2 * checkInterval)
	k.step(t.Context()) // the node learns the head
	w.stop()
	check(t, os.RemoveAll(w.dir))
	check(t, os.CopyFS(w.dir, os.DirFS(backup)))
	check(t, os.Chmod(filepath.Join(w.dir, "authority.key"), 0o600))
	w.serve()
	w.advance(2 * checkInterval)
	k.step(t.Context())
	wants(t, w.ensure(filepath.Join(t.TempDir(), "thief"), file), "void")
}

// onWarn calls a function for each warning.
type onWarn struct {
	slog.Handler
	f func()
}

func (onWarn) Enabled(context.Context, slog.Level) bool { return true }

func (h onWarn) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		h.f()
	}
	return nil
}

// TestRenewalAfterHalfRenewal guards that a renewal that failed half-way, with the new files complete and some of them moved, is
// finished by the next step of the keeper and blocks no later one.
func TestRenewalAfterHalfRenewal(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	defer func() { stepHook = func(string) {} }()
	for _, at := range []string{"files complete", "moved " + caFile, "moved " + keyFile, "moved " + certFile} {
		before := leafOf(t, k)
		w.advance(6 * 24 * time.Hour)
		// A goroutine of its own, which ends where a full disk or a kill would end the renewal.
		stepHook = func(step string) {
			if step == at {
				runtime.Goexit()
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.step(t.Context())
		}()
		<-done
		stepHook = func(string) {}
		k.step(t.Context())
		src, err := identity.OpenSource(identity.SourceConfig{Files: Files(k.cfg.Dir), Wall: w.wall, Logger: quietly})
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		src.Close()
		if after := leafOf(t, k); after.SerialNumber.Cmp(before.SerialNumber) == 0 || k.failures != 0 {
			t.Errorf("%s: not renewed, %d failures", at, k.failures)
		}
		if _, err := os.Stat(filepath.Join(k.cfg.Dir, nextDir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left", at, nextDir)
		}
	}
}

// TestMarkFounded guards the mark of a founder: it outlives renewals, and another token of a founder removes it.
func TestMarkFounded(t *testing.T) {
	w := newWorld(t)
	k := enrolled(t, w)
	for range 2 {
		check(t, MarkFounded(k.cfg.Dir))
	}
	w.advance(6 * 24 * time.Hour)
	k.step(t.Context())
	if !HasFounded(k.cfg.Dir) {
		t.Error("a renewal has removed the mark")
	}
	w.advance(60 * 24 * time.Hour)
	tok, err := w.authority().CreateToken(authority.TokenRequest{Node: "eu-1", Founder: true})
	check(t, err)
	file := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(file, []byte(tok.Encode()), 0o600))
	check(t, w.ensure(k.cfg.Dir, file))
	if HasFounded(k.cfg.Dir) {
		t.Error("the mark is left")
	}
}
