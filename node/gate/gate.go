package gate

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Defaults of Config.
const (
	ConnectionsDefault = 4_096
	EarlyDefault       = 256
	EarlyTimeout       = 10 * time.Second
	// HandshakeTimeout bounds the handshakes of TLS and HTTP/2, which servers enforce.
	HandshakeTimeout = 5 * time.Second
)

const (
	// patience is how long a silent connection keeps its place at least, even if another one needs it. A
	// connection that has begun its handshake keeps its place for HandshakeTimeout: when a thousand clients
	// return at once, handshakes take seconds, and if those in progress were displaced, none would finish.
	patience = time.Second
	// earlyBytesMax is the default of Config.EarlyBytes: the largest chain of certificates that is
	// accepted, a login and the first bytes of a request.
	earlyBytesMax = 128 << 10
	// waitingMax bounds the connections that wait for a place. They take a file descriptor each.
	waitingMax = 1_024
	// sweepInterval is the interval at which late connections are closed and waiting ones admitted.
	// A waiting connection is thus admitted at most that much later than a place is free, without a
	// channel from every end of a connection to every waiter.
	sweepInterval = 100 * time.Millisecond
	// addressShare is the share of the early places that connections from one address may take.
	// Half, so that the callers of one address, perhaps all clients of one proxy, have many places,
	// and strangers at another address still find some.
	addressShare = 2
)

// Config configures a Gate.
type Config struct {
	// Port names the listener in metrics.
	Port string
	// Connections bounds the authenticated connections, Early the others. Connections from nodes of
	// the cluster are not counted in either; they have Early places of their own.
	Connections, Early int
	// EarlyTimeout is how long a connection may be early.
	EarlyTimeout time.Duration
	// EarlyBytes bounds the bytes that an early connection may send.
	EarlyBytes int64
	// IsNode reports whether an address is that of a node of the cluster. It must not block. Nil means
	// that none is known.
	IsNode func(netip.Addr) bool
}

// Gate is a listener that bounds its connections.
//
// A gate looks at connections and not at their contents. TLS, HTTP/2 and logins are above it and
// report to it by Conn.Authenticated; so the same gate serves the gRPC ports and the HTTP port.
type Gate struct {
	cfg Config
	l   net.Listener

	ready chan *Conn
	done  chan struct{}
	end   sync.Once
	work  sync.WaitGroup

	mu      sync.Mutex // guards the fields below and the unexported fields of all Conns that it says
	conns   map[pair]*Conn
	open    int       // authenticated connections
	clients earlyList // early connections of clients
	nodes   earlyList // early connections from addresses of nodes
	waiting list.List // of *Conn, oldest first

	// turns has a lock of its own. It may be taken with mu held, and not the other way round.
	turns turns

	refused map[string]prometheus.Counter
	early   prometheus.GaugeFunc
	total   prometheus.GaugeFunc
	behind  prometheus.GaugeFunc
	vec     *prometheus.CounterVec
}

// pair identifies an open connection.
//
// Layers above see only the addresses of a connection, because TLS and gRPC wrap it. Two open
// connections of one listener never share both addresses.
type pair struct{ remote, local string }

// earlyList holds early connections, oldest first, with their number for each address.
type earlyList struct {
	list.List
	from map[netip.Addr]int
}

// The reasons of refusals, as labels of the metric.
const (
	refusedEarly  = "unauthenticated" // no place for another early connection
	refusedTotal  = "connections"     // too many authenticated connections
	refusedLate   = "timeout"         // early for too long
	refusedTaken  = "displaced"       // another connection needed the place
	refusedTalker = "bytes"           // sent too much before it was authenticated
)

var reasons = []string{refusedEarly, refusedTotal, refusedLate, refusedTaken, refusedTalker}

// New returns a gate over a listener, which the gate closes.
func New(l net.Listener, cfg Config) *Gate {
	if cfg.Connections == 0 {
		cfg.Connections = ConnectionsDefault
	}
	if cfg.Early == 0 {
		cfg.Early = EarlyDefault
	}
	if cfg.EarlyTimeout == 0 {
		cfg.EarlyTimeout = EarlyTimeout
	}
	if cfg.EarlyBytes == 0 {
		cfg.EarlyBytes = earlyBytesMax
	}
	g := &Gate{cfg: cfg, l: l, ready: make(chan *Conn), done: make(chan struct{}), conns: map[pair]*Conn{}, refused: map[string]prometheus.Counter{}, turns: newTurns()}
	g.clients.from, g.nodes.from = map[netip.Addr]int{}, map[netip.Addr]int{}
	g.newMetrics()
	g.work.Go(g.acceptLoop)
	g.work.Go(g.sweepLoop)
	return g
}

func (g *Gate) newMetrics() {
	labels := prometheus.Labels{"port": g.cfg.Port}
	// Gauges read the lists when they are asked, so that the lists need no second count.
	gauge := func(name, help string, value func() int) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "rhumb", Subsystem: "gate", Name: name, Help: help, ConstLabels: labels}, func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(value())
		})
	}
	g.total = gauge("connections", "Open connections, by port.", func() int { return len(g.conns) })
	g.early = gauge("unauthenticated", "Open connections that are not authenticated yet, by port.", func() int { return g.clients.Len() + g.nodes.Len() })
	g.behind = gauge("waiting_turns", "Unauthenticated connections that have sent something and wait for a processor, by port.", g.turns.count)
	g.vec = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "gate", Name: "refused_total", Help: "Connections that were refused or closed early, by port and reason.", ConstLabels: labels,
	}, []string{"reason"})
	for _, r := range reasons {
		g.refused[r] = g.vec.WithLabelValues(r)
	}
}

// Collectors returns the metrics of the gate.
func (g *Gate) Collectors() []prometheus.Collector {
	return []prometheus.Collector{g.total, g.early, g.behind, g.vec}
}

// Accept returns the next connection that has a place.
func (g *Gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.ready:
		return c, nil
	case <-g.done:
		return nil, net.ErrClosed
	}
}

// Addr returns the address of the listener.
func (g *Gate) Addr() net.Addr { return g.l.Addr() }

// Close closes the listener and the connections that nobody has accepted. Accepted connections stay
// open: their server closes them.
func (g *Gate) Close() error {
	var err error
	g.end.Do(func() {
		close(g.done)
		err = g.l.Close()
		g.work.Wait()
		g.mu.Lock()
		var parked []*Conn
		for e := g.waiting.Front(); e != nil; e = e.Next() {
			parked = append(parked, e.Value.(*Conn))
		}
		g.mu.Unlock()
		for _, c := range parked {
			_ = c.Close()
		}
	})
	return err
}

// acceptLoop takes connections from the listener. It never waits for a place, because a connection
// of a node may be next.
func (g *Gate) acceptLoop() {
	for number := uint64(1); ; number++ {
		raw, err := g.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				_ = g.l.Close()
				return
			}
			// The process may be out of file descriptors, which others will release.
			select {
			case <-time.After(sweepInterval):
				continue
			case <-g.done:
				return
			}
		}
		// Before it is delivered: the server may ask for it by its addresses at once.
		c := newConn(g, raw)
		c.number = number
		g.mu.Lock()
		g.conns[c.key] = c
		admitted := g.admitLocked(c)
		if !admitted {
			admitted = !g.parkLocked(c)
		}
		g.mu.Unlock()
		if admitted {
			g.deliver(c)
		}
	}
}

// deliver passes a connection to Accept. A connection that was refused is closed by then.
func (g *Gate) deliver(c *Conn) {
	if c.ended.Load() {
		return
	}
	// Unbuffered, so that a connection nobody accepts is noticed by Close.
	select {
	case g.ready <- c:
	case <-g.done:
		_ = c.Close()
	}
}

// admitLocked assigns an early place to a connection and reports whether one was free.
func (g *Gate) admitLocked(c *Conn) bool {
	now := time.Now()
	l := &g.clients
	if c.node {
		l = &g.nodes
	}
	// One address may take a share only; for nodes the whole, since a machine may run many.
	most := g.cfg.Early
	if !c.node {
		most = max(g.cfg.Early/addressShare, 1)
	}
	// An address at its share displaces its own connections, never those of others.
	if l.from[c.from] >= most {
		g.displaceLocked(l, now, func(o *Conn) bool { return o.from == c.from })
	} else if l.Len() >= g.cfg.Early {
		g.displaceLocked(l, now, func(*Conn) bool { return true })
	}
	// No place was taken: all early connections are younger than a handshake takes, and closing
	// those would let an attacker keep honest callers out by connecting quickly.
	if l.from[c.from] >= most || l.Len() >= g.cfg.Early {
		return false
	}
	c.began = now
	c.early = l.PushBack(c)
	c.list = l
	l.from[c.from]++
	return true
}

// displaceLocked closes the oldest early connection that matches, if it has been early for longer than its
// handshake may take.
func (g *Gate) displaceLocked(l *earlyList, now time.Time, match func(*Conn) bool) {
	for e := l.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		if now.Sub(c.began) < patience {
			return // all others are younger
		}
		busy := c.read.Load() > 0 && now.Sub(c.began) < HandshakeTimeout
		if !busy && match(c) {
			g.refuseLocked(c, refusedTaken)
			return
		}
	}
}

// parkLocked makes a connection wait for a place, or refuses it if too many wait. It reports whether the
// connection waits.
func (g *Gate) parkLocked(c *Conn) bool {
	// In a longer queue, callers would give up before their turn.
	if g.waiting.Len() >= waitingMax {
		g.refuseLocked(c, refusedEarly)
		return false
	}
	c.began = time.Now()
	c.parked = g.waiting.PushBack(c)
	return true
}

// refuseLocked closes a connection and counts the reason. It sends nothing: the other side may not read, and TLS has not
// begun.
func (g *Gate) refuseLocked(c *Conn, reason string) {
	g.refused[reason].Inc()
	g.forgetLocked(c)
	c.ended.Store(true)
	g.turns.yield(c)
	_ = c.Conn.Close()
}

// forgetLocked removes a connection from all lists. It may be called twice.
func (g *Gate) forgetLocked(c *Conn) {
	g.leaveLocked(c)
	if c.counted {
		g.open--
		c.counted = false
	}
	// The addresses may already belong to a new connection: the kernel reuses them as soon as this
	// one is closed.
	if g.conns[c.key] == c {
		delete(g.conns, c.key)
		if c.above != nil {
			// Without the lock, which the layer above takes in the other order.
			go c.above.ConnClosed()
		}
	}
}

// leaveLocked removes a connection from the lists of early and waiting ones.
func (g *Gate) leaveLocked(c *Conn) {
	// Counts by address are removed at zero, so that the map never exceeds the list.
	if c.early != nil {
		c.list.Remove(c.early)
		if c.list.from[c.from]--; c.list.from[c.from] == 0 {
			delete(c.list.from, c.from)
		}
		c.early = nil
	}
	if c.parked != nil {
		g.waiting.Remove(c.parked)
		c.parked = nil
	}
}

// sweepLoop closes early connections that are late, and admits waiting ones.
func (g *Gate) sweepLoop() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-tick.C:
		}
		for _, c := range g.sweep(time.Now()) {
			g.deliver(c)
		}
	}
}

// sweep closes late connections and returns the waiting ones that have a place now.
func (g *Gate) sweep(now time.Time) (admitted []*Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	late := func(l *list.List, most time.Duration) {
		for e := l.Front(); e != nil && now.Sub(e.Value.(*Conn).began) >= most; e = l.Front() {
			g.refuseLocked(e.Value.(*Conn), refusedLate)
		}
	}
	late(&g.clients.List, g.cfg.EarlyTimeout)
	late(&g.nodes.List, g.cfg.EarlyTimeout)
	// Callers abandon handshakes that take longer than HandshakeTimeout.
	late(&g.waiting, min(g.cfg.EarlyTimeout, HandshakeTimeout))
	// All of them, not only the first: it may be from an address that has its share. The youngest is
	// first, because its caller is still there (see nextTurn).
	for e := g.waiting.Back(); e != nil; {
		c := e.Value.(*Conn)
		e = e.Prev()
		if g.admitLocked(c) {
			g.waiting.Remove(c.parked)
			c.parked = nil
			admitted = append(admitted, c)
		}
	}
	return admitted
}

// Find returns the open connection between two addresses, as a server sees them, or nil.
func (g *Gate) Find(remote, local net.Addr) *Conn {
	if remote == nil || local == nil {
		return nil
	}
	return g.FindText(remote.String(), local.String())
}

// FindText is Find for addresses in text form.
func (g *Gate) FindText(remote, local string) *Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.conns[pair{remote, local}]
}

// Conn is a connection that a Gate accepted.
type Conn struct {
	net.Conn
	g    *Gate
	key  pair
	from netip.Addr
	node bool // from the address of a node
	// number is larger for younger connections.
	number uint64

	known    atomic.Bool  // authenticated
	ended    atomic.Bool  // closed
	read     atomic.Int64 // bytes read while early
	answered atomic.Bool  // the node has written something
	// Bucket bounds the requests of the connection.
	Bucket Bucket

	// The fields below are guarded by g.mu.
	began   time.Time     // when it became early, or began to wait
	early   *list.Element // in list, nil if it is not early
	list    *earlyList
	parked  *list.Element // in g.waiting
	counted bool          // in g.open
	above   Attachment

	// The fields below are guarded by g.turns.mu.
	turn  bool          // may compute
	given chan struct{} // closed with the turn, or with the end of the wait; nil if it does not wait
}

// Attachment holds the state of a connection in a layer above the gate.
type Attachment interface {
	// ConnClosed is called once, after the connection was closed.
	ConnClosed()
}

// Attach returns the attachment of the connection, which create makes if there is none. It returns nil if
// the connection is closed.
//
// create runs with the lock held and must not call the gate. Attaching under the lock makes sure
// that ConnClosed is called for every attachment: a connection that ends at this moment either is
// closed already, or finds the attachment.
func (c *Conn) Attach(create func() Attachment) Attachment {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if c.above == nil && c.g.conns[c.key] == c {
		c.above = create()
	}
	return c.above
}

func newConn(g *Gate, raw net.Conn) *Conn {
	c := &Conn{Conn: raw, g: g, key: pair{raw.RemoteAddr().String(), raw.LocalAddr().String()}}
	c.from = AddressOf(raw.RemoteAddr())
	// Asked once: an address that becomes that of a node later matters for later connections.
	c.node = c.from.IsValid() && g.cfg.IsNode != nil && g.cfg.IsNode(c.from)
	return c
}

// AddressOf returns the source of a connection for limits and back-off: the address, or the network of
// 64 bits of an IPv6 address, since each customer has at least that.
func AddressOf(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	if addr.Is6() && !addr.IsLoopback() {
		if p, err := addr.Prefix(64); err == nil {
			return p.Masked().Addr()
		}
	}
	return addr
}

// From returns the source of the connection, as AddressOf describes.
func (c *Conn) From() netip.Addr { return c.from }

// Read implements net.Conn. It fails if an early connection sends too much. Bytes of an early connection
// are returned once the connection has a turn to compute.
func (c *Conn) Read(b []byte) (int, error) {
	if c.known.Load() {
		return c.Conn.Read(b)
	}
	c.g.turns.yield(c)
	n, err := c.Conn.Read(b)
	if n == 0 || c.known.Load() {
		return n, err
	}
	if c.read.Add(int64(n)) > c.g.cfg.EarlyBytes && !c.known.Load() {
		c.g.mu.Lock()
		c.g.refuseLocked(c, refusedTalker)
		c.g.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.g.turns.take(c)
	return n, err
}

// Write implements net.Conn. An early connection ends its turn: its caller computes next, and a caller
// who does not read must not keep a turn.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.known.Load() {
		c.answered.Store(true)
		c.g.turns.yield(c)
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	if !c.ended.CompareAndSwap(false, true) {
		return nil
	}
	c.g.turns.yield(c)
	c.g.mu.Lock()
	c.g.forgetLocked(c)
	c.g.mu.Unlock()
	return c.Conn.Close()
}

// Authenticated says that the caller of the connection is known. It reports false if there are too many
// connections already; then the caller must refuse its request. It is cheap after the
// first time.
func (c *Conn) Authenticated() bool {
	if c.known.Load() {
		return true
	}
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.ended.Load() {
		return false
	}
	// Replication must get through however many clients there are.
	if !c.node && !c.counted {
		if g.open >= g.cfg.Connections {
			g.refused[refusedTotal].Inc()
			return false
		}
		g.open++
		c.counted = true
	}
	g.leaveLocked(c)
	c.known.Store(true)
	g.turns.yield(c)
	return true
}

// Anonymous says that the caller of the connection is no longer known, because its session ended. The
// connection has the time of a new one to log in again.
func (c *Conn) Anonymous() {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.known.Load() || c.ended.Load() {
		return
	}
	if c.counted {
		g.open--
		c.counted = false
	}
	c.read.Store(0)
	c.known.Store(false)
	// Its client learns that it has to log in again, and knows the password or does not. Among the
	// early ones, whatever their number: refusing it a place would cut it off before it could log
	// in again.
	l := &g.clients
	c.began, c.list = time.Now(), l
	c.early = l.PushBack(c)
	l.from[c.from]++
}
