package peer

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TestForwardToNobody guards that a request that certainly was not received has another error than
// one with an unknown outcome: only the first may be sent elsewhere as if it were new.
func TestForwardToNobody(t *testing.T) {
	a := startSide(t, 1, rhumb.UUID{9})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := &rhumb.Node{ID: 2, Boot: 1, Addr: l.Addr().String(), HeartbeatAddr: l.Addr().String()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a.network.SetPeers([]*rhumb.Node{gone})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = a.network.Forward(ctx, 2, &rhumbpb.Request{})
	if rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("a node that refuses the connection: %v, want unavailable", err)
	}
	// Operators see the reason, for example in `rhumb range describe` and `rhumb unsafe-recover range`.
	if text := rhumb.Message(err); strings.Contains(text, "rpc error") || !strings.Contains(text, "connection refused") {
		t.Errorf("the reason is %q", text)
	}
	if _, err := a.network.Metadata(ctx, 2, 0, nil); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("metadata of a node that refuses the connection: %v, want unavailable", err)
	}
}

// TestForwardThatBreaks guards the other half: once the request may have been received, its outcome
// is unknown.
func TestForwardThatBreaks(t *testing.T) {
	cluster := rhumb.UUID{9}
	a, b := startSide(t, 1, cluster), startSide(t, 2, cluster)
	a.network.SetPeers([]*rhumb.Node{b.node()})
	a.await(t, "connected", func() bool { return a.connected[2] })
	got, hold := make(chan struct{}), make(chan struct{})
	b.mu.Lock()
	b.forwarded = func() { close(got); <-hold }
	b.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := a.network.Forward(t.Context(), 2, &rhumbpb.Request{})
		failed <- err
	}()
	<-got
	p, _ := a.network.lookUpPeer(2)
	p.conn.Close()
	if err := <-failed; rhumb.KindOf(err) != rhumb.Unknown {
		t.Errorf("a connection that broke behind the request: %v, want unknown", err)
	}
	close(hold)
}
