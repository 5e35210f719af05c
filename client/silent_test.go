package client

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// deaf swallows what is written to one address once it is told to, as the kernel of a stopped
// process does.
type deaf struct {
	net.Conn
	off *atomic.Bool
}

func (d deaf) Write(b []byte) (int, error) {
	if d.off.Load() {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// TestStoppedNode guards that a client which follows the metadata at a node that stops,
// and writes through it, notices and goes on with another one, although neither TCP nor
// gRPC reports an error.
func TestStoppedNode(t *testing.T) {
	w := newWorld(t, 1, 2)
	var off atomic.Bool
	c := w.open("", func(cfg *Config) {
		cfg.Addrs = []string{w.node(1).addr}
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil && addr == w.node(1).addr {
				return deaf{conn, &off}, nil
			}
			return conn, err
		}
	})
	tab := w.table(c, "plain")
	var key []byte
	for i := byte(0); ; i++ { // one whose primary is the node that stops
		key = []byte{'k', 'a' + i}
		put, err := tab.Put(t.Context(), key, nil, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if put.Receipt.Node == 1 {
			break
		}
	}
	off.Store(true)
	await(t, "the watch to begin at another node", func() bool {
		m := c.Metrics()
		return m.Silent > 0 && m.Watches > 1
	})
	w.fence(1, 2)
	if put, err := tab.Put(t.Context(), key, nil, PutOptions{}); err != nil || put.Receipt.Node != 2 {
		t.Fatalf("%+v: %v", put, err)
	}
}

// TestPrimaryWithoutAnswer guards that a request which waits at a node that answers
// nothing and has lost its place goes to the new primary long before its attempt is over,
// also if the client follows the metadata at that node.
func TestPrimaryWithoutAnswer(t *testing.T) {
	for _, watched := range []rhumb.NodeID{1, 2} {
		t.Run(fmt.Sprintf("watch at n%d", watched), func(t *testing.T) {
			w := newWorld(t, 1, 2)
			c := w.open("", func(cfg *Config) {
				cfg.Addrs = []string{w.node(watched).addr}
				cfg.Timeout, cfg.AttemptTimeout = 30*time.Second, 30*time.Second // only news of the metadata ends an attempt
			})
			tab := w.table(c, "plain")
			name := "a"
			for w.rangeOf(homeOf(1, name)).Primary != 1 {
				name += "a"
			}
			must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{}))
			w.stall(1, 2)
			if put := must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{})); put.Receipt.Node != 2 {
				t.Errorf("n%d answered", put.Receipt.Node)
			}
		})
	}
}

// TestOneNodeAfterTheOther guards that a client leaves the metadata of a node that answers
// nothing also if it has just left those of another one.
func TestOneNodeAfterTheOther(t *testing.T) {
	w := newWorld(t, 1, 3)
	c := w.open("", func(cfg *Config) {
		cfg.Addrs = []string{w.node(1).addr}
		cfg.Timeout, cfg.AttemptTimeout = 30*time.Second, 30*time.Second // only news of the metadata ends an attempt
	})
	tab := w.table(c, "plain")
	watchAt := func() rhumb.NodeID {
		at := c.meta.watchedAt()
		for id := rhumb.NodeID(1); id <= 3; id++ {
			if w.node(id).addr == at {
				return id
			}
		}
		return rhumb.NoNode
	}
	stalled := rhumb.NoNode
	for range 2 {
		at := watchAt()
		heir := at%3 + 1
		if heir == stalled {
			heir = heir%3 + 1
		}
		name := "a"
		for w.rangeOf(homeOf(1, name)).Primary != at {
			name += "a"
		}
		must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{}))
		w.stall(at, heir)
		if put := must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{})); put.Receipt.Node != heir {
			t.Errorf("n%d answered, want n%d", put.Receipt.Node, heir)
		}
		stalled = at
	}
}

// TestManyLateCallers guards that a watch at a silent node ends although many callers wait for that node and each of them asks others for
// news again and again.
func TestManyLateCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetadata()
		left := make(chan struct{})
		m.watched("silent", sync.OnceFunc(func() { close(left) }))
		callers, late := time.NewTicker(silentPatience/10), time.After(watchPatience)
		defer callers.Stop()
		for {
			select {
			case <-left:
				return
			case <-late:
				t.Fatalf("the watch lasts for longer than %v", watchPatience)
			case <-callers.C:
				m.noteRevision(1, "silent")
			}
		}
	})
}

// TestLatePrimaryKeepsWatch guards that a node which answers late, and has no successor,
// keeps the watch of a client: each client of a busy cluster would fetch all metadata again.
func TestLatePrimaryKeepsWatch(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("", func(cfg *Config) { cfg.AttemptTimeout = 3 * stream.LateAfter })
	tab := w.table(c, "plain")
	name := "a"
	for w.node(w.rangeOf(homeOf(1, name)).Primary).addr != c.meta.watchedAt() {
		name += "a"
	}
	before := c.Metrics().Watches
	w.node(1).set(first(1, isWrite, fault{drop: true}))
	w.node(2).set(first(1, isWrite, fault{drop: true}))
	must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{}))
	if n := c.Metrics().Watches; n != before {
		t.Errorf("%d watches after the write, and %d before", n, before)
	}
}

// TestSilentPrimaryIsPassedBy guards that the attempt after one without an answer goes to
// another node, which may know the primary better or reach it on another way.
func TestSilentPrimaryIsPassedBy(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("", func(cfg *Config) { cfg.AttemptTimeout = 200 * time.Millisecond })
	tab := w.table(c, "plain")
	name := "a"
	for w.rangeOf(homeOf(1, name)).Primary != 1 {
		name += "a"
	}
	w.node(1).set(first(1, isWrite, fault{drop: true}))
	put := must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{}))
	if put.Receipt.Hops != 2 {
		t.Errorf("the write took %d hops, want 2: through the other node", put.Receipt.Hops)
	}
}
