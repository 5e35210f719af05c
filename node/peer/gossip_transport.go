package peer

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/node/gate"
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

// Bounds of the streams that others open to gossip. memberlist reads up to 20 MiB of a stream into memory before it
// knows whether the sender has a key.
const (
	// gossipStreams bounds the streams of clients at once, and those from addresses of nodes. They last for a
	// fraction of a second.
	gossipStreams = 16
	// gossipStreamBytes bounds a stream. The state of rhumb.NodesMax nodes takes about a third of it.
	gossipStreamBytes = 1 << 20
)

// streamListener passes on the streams that a NetTransport accepted.
type streamListener struct {
	streams <-chan net.Conn
	addr    net.Addr
	done    chan struct{}
	end     sync.Once
}

// Accept implements net.Listener.
func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The NetTransport closes its own listener.
func (l *streamListener) Close() error {
	l.end.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *streamListener) Addr() net.Addr { return l.addr }

// sealedStream ends a stream whose encryption has another form than that of members (checkPacket says why). The state of members follows a
// byte for the type and four for the size.
type sealedStream struct {
	net.Conn
	seen int
}

// gossipStreamHead is the length of the head of an encrypted stream, before the version of the encryption.
const gossipStreamHead = 5

func (s *sealedStream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if at := gossipStreamHead - s.seen; at >= 0 && at < n && b[at] != gossipSealVersion {
		return 0, errPacketSealed
	}
	// Only the first bytes count, so the sum cannot overflow.
	s.seen = min(s.seen+n, gossipStreamHead+1)
	return n, err
}

// delayedTransport is memberlist's transport with the latency of a wan.Network, bounds for the streams that
// others open, and a check of packets. It overrides every method that sends; a method of the embedded transport would bypass the latency.
type delayedTransport struct {
	*memberlist.NetTransport
	dial    wan.DialFunc
	packets *wan.Packets
	gate    *gate.Gate
	door    *streamListener
	streams chan net.Conn
	keys    *gossipKeys // nil without encryption
	checked chan *memberlist.Packet
	refused *prometheus.CounterVec
	work    sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*delayedTransport)(nil)

// newDelayedTransport returns a transport that sends from a place in the network w. isNode may be nil, and so may keys.
func newDelayedTransport(inner *memberlist.NetTransport, w *wan.Network, from string, keys *gossipKeys, isNode func(netip.Addr) bool) *delayedTransport {
	send := func(b []byte, addr string) error {
		_, err := inner.WriteTo(b, addr)
		return err
	}
	// Packets have latency but no connection, hence a queue of their own; streams are dialed
	// through the network.
	t := &delayedTransport{NetTransport: inner, dial: w.Dialer(from), packets: w.Packets(from, send), streams: make(chan net.Conn), keys: keys, checked: make(chan *memberlist.Packet)}
	t.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "gossip", Name: "packets_refused_total", Help: "Packets of gossip that were refused, by reason: key, form or size.",
	}, []string{"reason"})
	t.door = &streamListener{streams: inner.StreamCh(), addr: &net.TCPAddr{Port: inner.GetAutoBindPort()}, done: make(chan struct{})}
	// Nobody is ever authenticated here, so all bounds of early connections hold.
	t.gate = gate.New(t.door, gate.Config{Port: "gossip", Early: gossipStreams, EarlyBytes: gossipStreamBytes, IsNode: isNode})
	t.work.Go(t.passStreams)
	t.work.Go(t.passPackets)
	return t
}

// passPackets passes the packets that members could have sent to memberlist until the transport is shut down.
func (t *delayedTransport) passPackets() {
	for {
		select {
		case p := <-t.NetTransport.PacketCh():
			if err := t.checkPacket(p.Buf); err != nil {
				t.refused.WithLabelValues(packetReasons[err]).Inc()
				continue
			}
			select {
			case t.checked <- p:
			case <-t.door.done:
				return
			}
		case <-t.door.done:
			return
		}
	}
}

// packetReasons are the values of the label "reason".
var packetReasons = map[error]string{errPacketSealed: "key", errPacketForm: "form", errPacketSize: "size"}

// checkPacket returns one of the errors in packetReasons unless the packet can be passed to memberlist.
func (t *delayedTransport) checkPacket(packet []byte) error {
	if t.keys == nil {
		return checkPacket(packet)
	}
	plain, err := openPacket(packet, t.keys.ring.GetKeys())
	if err != nil {
		return err
	}
	return checkPacket(plain)
}

// PacketCh returns the packets that arrived and were checked.
func (t *delayedTransport) PacketCh() <-chan *memberlist.Packet { return t.checked }

// passStreams passes admitted streams to memberlist until the transport is shut down.
func (t *delayedTransport) passStreams() {
	for {
		c, err := t.gate.Accept()
		if err != nil {
			return
		}
		if t.keys != nil {
			c = &sealedStream{Conn: c}
		}
		select {
		case t.streams <- c:
		case <-t.door.done:
			_ = c.Close()
		}
	}
}

// StreamCh returns the streams that others opened.
func (t *delayedTransport) StreamCh() <-chan net.Conn { return t.streams }

// collectors returns the metrics of the gate and of packets.
func (t *delayedTransport) collectors() []prometheus.Collector {
	return append(t.gate.Collectors(), t.refused)
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
	// First, because it waits until its last stream was taken.
	err := t.NetTransport.Shutdown()
	_ = t.gate.Close()
	t.work.Wait()
	return err
}
