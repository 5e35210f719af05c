package wan

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

const twoNodes = "addresses: {'a:1': here, 'a:2': here, 'b:1': here}\nnodes: {a: ['a:1', 'a:2'], b: ['b:1']}\n"

// nodesDialled returns a network of two nodes in one region with a latency file. dial returns both
// ends of a new connection from node a to node b.
func nodesDialled(t *testing.T) (n *Network, dial func() (near, far net.Conn)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "latency.yaml")
	writeFile(t, path, twoNodes)
	n, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	peers := make(chan net.Conn, 1)
	n.dial = func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		peers <- b
		return a, nil
	}
	return n, func() (near, far net.Conn) {
		t.Helper()
		if near, err = n.Dialer("a:2")(t.Context(), "tcp", "b:1"); err != nil {
			t.Fatal(err)
		}
		return near, <-peers
	}
}

// writeFile replaces the file atomically: Watch may read it at the same instant of the bubble's
// time.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// change replaces the latency file and reloads it.
func change(t *testing.T, n *Network, text string) {
	t.Helper()
	writeFile(t, n.path, text)
	if err := n.Reload(); err != nil {
		t.Fatal(err)
	}
}

// mustWait checks that nothing arrives for a minute.
func mustWait(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(lingerLost / 2)) // before the end of a half-open connection
	if n, err := c.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want none", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

// TestNodesOfOneRegionAreCut guards that a link between two nodes can be cut even without delay.
func TestNodesOfOneRegionAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, dial := nodesDialled(t)
		near, far := dial()
		change(t, n, twoNodes+"cut_one_way: [[b, a]]")
		mustWrite(t, near, "heard")
		mustRead(t, far, "heard")
		mustWrite(t, far, "late")
		mustWait(t, near)
		if n.Withheld() == 0 {
			t.Error("nothing was withheld")
		}
		change(t, n, twoNodes)
		mustRead(t, near, "late")
		hangUp(near, far)
	})
}

// TestCutKeepsTheEndBack guards that the other side does not see the end of a connection over a cut
// link.
func TestCutKeepsTheEndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, dial := nodesDialled(t)
		near, far := dial()
		change(t, n, twoNodes+"cut: [[a, b]]")
		_ = near.Close()
		mustWait(t, far)
		change(t, n, twoNodes)
		advance(lingerMax)
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the end did not arrive: %v", err)
		}
		hangUp(near, far)
	})
}

// TestHalfOpen guards that a half-open connection remains so when the file no longer lists it, and
// that a connection that is opened later works at once.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, dial := nodesDialled(t)
		near, far := dial()
		change(t, n, twoNodes+"half_open: [[a, b]]")
		mustWrite(t, near, "lost")
		mustWait(t, far)
		mustWrite(t, far, "heard")
		mustRead(t, near, "heard")

		newNear, newFar := dial()
		mustWrite(t, newNear, "new")
		mustRead(t, newFar, "new")
		hangUp(newNear, newFar)
		change(t, n, twoNodes)
		mustWrite(t, near, "lost too")
		_ = near.Close()
		mustWait(t, far)
		advance(lingerLost)
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("a read after the end")
		}
		hangUp(near, far)
	})
}

// TestWatch guards that a change of the file takes effect, and that an invalid file is reported and
// changes nothing.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := nodesDialled(t)
		ctx, cancel := context.WithCancel(t.Context())
		faults := make(chan error, 8)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			n.Watch(ctx, func(err error) { faults <- err })
		}()
		synctest.Wait()
		cut := func() bool {
			r, err := n.findRoute("test", "a:1", "b:1")
			return err == nil && r.there.cutChan() != nil
		}
		writeFile(t, n.path, twoNodes+"cut_one_way: [[a, b]]")
		advance(2 * watchEvery)
		if !cut() {
			t.Error("the link is not cut after the change")
		}
		writeFile(t, n.path, "nonsense: 1")
		advance(10 * watchEvery)
		if len(faults) != 1 || !cut() {
			t.Errorf("a wrong file was told %d times, want 1; cut: %v", len(faults), cut())
		}
		writeFile(t, n.path, twoNodes)
		advance(2 * watchEvery)
		if cut() {
			t.Error("the link did not heal")
		}
		cancel()
		<-watched
	})
}
