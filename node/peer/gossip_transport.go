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

// labels implements memberlist.Delegate. It provides this node's label and receives nothing.
type labels struct{ meta atomic.Pointer[[]byte] }

// set replaces the label.
func (l *labels) set(m Member) {
	b := encodeLabels(m)
	// memberlist calls NodeMeta from goroutines of its own.
	l.meta.Store(&b)
}

// NodeMeta returns the label, or nothing if it exceeds the limit: memberlist panics on a longer
// one.
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

// members holds the labels of live nodes. memberlist.Members returns nodes whose labels it changes
// concurrently; its events are delivered under its lock, so the labels are copied from events.
type members struct {
	mu     sync.Mutex // guards byName
	byName map[string]Member
}

// NotifyJoin records the label of a new node.
func (m *members) NotifyJoin(n *memberlist.Node) { m.NotifyUpdate(n) }

// NotifyUpdate records a changed label.
func (m *members) NotifyUpdate(n *memberlist.Node) {
	member, err := decodeLabels(n.Meta)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		// A stale label is worse than none: it may name the address of an earlier life.
		delete(m.byName, n.Name)
		return
	}
	m.byName[n.Name] = member
}

// NotifyLeave forgets a node that left or died.
func (m *members) NotifyLeave(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, n.Name)
}

// list returns all labels in no particular order.
func (m *members) list() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byName))
}

// delayedTransport is memberlist's transport with the latency of a wan.Network. It overrides every
// method that sends; a method of the embedded transport would bypass the latency.
type delayedTransport struct {
	*memberlist.NetTransport
	dial    wan.DialFunc
	packets *wan.Packets
}

var _ memberlist.NodeAwareTransport = (*delayedTransport)(nil)

// newDelayedTransport returns a transport that sends from a place in the network w.
func newDelayedTransport(inner *memberlist.NetTransport, w *wan.Network, from string) *delayedTransport {
	send := func(b []byte, addr string) error {
		_, err := inner.WriteTo(b, addr)
		return err
	}
	// Packets have latency but no connection, hence a queue of their own; streams are dialed
	// through the network.
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
