package peer

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// labels is memberlist's delegate: it gives out this node's labels and takes nothing else.
type labels struct{ meta atomic.Pointer[[]byte] }

func (l *labels) set(m Member) {
	b := encodeLabels(m)
	l.meta.Store(&b)
}

// NodeMeta gives the labels; what is over the limit would be cut by memberlist, so it is left out instead.
func (l *labels) NodeMeta(limit int) []byte {
	b := *l.meta.Load()
	if len(b) > limit {
		return nil
	}
	return b
}

func (l *labels) NotifyMsg([]byte)                {}
func (l *labels) GetBroadcasts(_, _ int) [][]byte { return nil }
func (l *labels) LocalState(bool) []byte          { return nil }
func (l *labels) MergeRemoteState([]byte, bool)   {}

// delayedTransport is memberlist's own transport with a distance to each address.
type delayedTransport struct {
	*memberlist.NetTransport
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	delay func(addr string) time.Duration
	held  atomic.Int64
}

// heldPacketsMax bounds the packets that are on their way; more are lost, as a network loses them.
const heldPacketsMax = 4_096

var _ memberlist.NodeAwareTransport = (*delayedTransport)(nil)

func (t *delayedTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *delayedTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	var d time.Duration
	if t.delay != nil {
		d = t.delay(a.Addr)
	}
	if d <= 0 {
		return t.NetTransport.WriteToAddress(b, a)
	}
	if t.held.Add(1) > heldPacketsMax {
		t.held.Add(-1)
		return time.Now(), nil
	}
	held := append([]byte(nil), b...)
	time.AfterFunc(d, func() {
		defer t.held.Add(-1)
		_, _ = t.NetTransport.WriteToAddress(held, a)
	})
	return time.Now(), nil
}

func (t *delayedTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *delayedTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.dial == nil {
		return t.NetTransport.DialAddressTimeout(a, timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return t.dial(ctx, "tcp", a.Addr)
}
