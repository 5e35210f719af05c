package peer

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rhumbdb/rhumb/wan"
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

// members holds what the living nodes say of themselves. memberlist's own list gives out nodes whose labels it changes
// meanwhile; its events come under its lock.
type members struct {
	mu     sync.Mutex // guards byName
	byName map[string]Member
}

// NotifyJoin notes a node.
func (m *members) NotifyJoin(n *memberlist.Node) { m.NotifyUpdate(n) }

// NotifyUpdate notes what a node says of itself now.
func (m *members) NotifyUpdate(n *memberlist.Node) {
	member, err := decodeLabels(n.Meta)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		delete(m.byName, n.Name)
		return
	}
	m.byName[n.Name] = member
}

// NotifyLeave forgets a node that went or died.
func (m *members) NotifyLeave(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, n.Name)
}

func (m *members) list() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byName))
}

// delayedTransport is memberlist's own transport with the distances of a demo.
type delayedTransport struct {
	*memberlist.NetTransport
	dial    wan.DialFunc
	packets *wan.Packets
}

var _ memberlist.NodeAwareTransport = (*delayedTransport)(nil)

func newDelayedTransport(inner *memberlist.NetTransport, w *wan.Network, from string) *delayedTransport {
	send := func(b []byte, addr string) error {
		_, err := inner.WriteTo(b, addr)
		return err
	}
	return &delayedTransport{NetTransport: inner, dial: w.Dialer(from), packets: w.Packets(from, send)}
}

func (t *delayedTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	return time.Now(), t.packets.Send(b, addr)
}

func (t *delayedTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

func (t *delayedTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return t.dial(ctx, "tcp", addr)
}

func (t *delayedTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

func (t *delayedTransport) Shutdown() error {
	t.packets.Close()
	return t.NetTransport.Shutdown()
}
