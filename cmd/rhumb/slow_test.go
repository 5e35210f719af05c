package main

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestSlowNode makes one of three processes ten times slower, by stopping it for nine tenths of the time, in pieces that no
// rule about silence notices. Ranges must stop waiting for it, move their primaries elsewhere, keep their minimum of copies, and
// have it in sync again when it is fast (docs/replication.md#rule-slow). One of its two neighbours has no primaries, as after a drain, so
// that nothing is acknowledged to it: its opinion comes from heartbeats.
func TestSlowNode(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	h := holdLoad(t, l, 16)
	h.awaitProgress()
	slow, idle := l.Nodes[1], l.Nodes[2]
	h.awaitWhole(settleWait)
	ok(t, "setting", "set", "failback", "manual")
	ok(t, "node", "drain", idle.ID.String())
	await(t, "the drained node to be primary of nothing", settleWait, func() bool { return h.primariesOf(idle.ID) == 0 })
	ok(t, "node", "drain", idle.ID.String(), "--undo")
	h.awaitWhole(settleWait)
	stop := makeSlow(t, slow.PID, 90*time.Millisecond, 10*time.Millisecond)
	begin := time.Now()
	await(t, "ranges to go on without the slow node", settleWait, func() bool {
		without := 0
		for _, r := range h.c.Ranges() {
			if len(r.InSync) < 2 {
				t.Fatalf("range %s has the in-sync set %v", r.ID, r.InSync)
			}
			if !slices.Contains(r.InSync, slow.ID) {
				without++
			}
		}
		return without > 0
	})
	await(t, "primaries to leave the slow node", settleWait, func() bool {
		return !slices.ContainsFunc(h.c.Ranges(), func(r *rhumb.Range) bool { return r.Primary == slow.ID })
	})
	t.Logf("ranges go on without it after %v", time.Since(begin).Round(time.Millisecond))
	if slices.ContainsFunc(h.c.Nodes(), func(n rhumb.Node) bool { return n.ID == slow.ID && n.State != rhumb.NodeLive }) {
		t.Errorf("%s was fenced, which this test does not want", slow.ID)
	}
	h.awaitProgress()
	stop()
	h.awaitWhole(settleWait)
	h.end()
	h.audit()
	h.noneFailed()
}

// makeSlow stops and continues a process by turns, until the returned function is called.
func makeSlow(t *testing.T, pid int, stopped, running time.Duration) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.Sleep(stopped)
			_ = syscall.Kill(pid, syscall.SIGCONT)
			select {
			case <-done:
				return
			case <-time.After(running):
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(done)
		<-ended
	})
	t.Cleanup(stop)
	return stop
}
