package wan

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

// DialFunc dials an address; grpc.WithContextDialer and net/http take one.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Network is a latency file in force. A nil *Network delays nothing.
type Network struct {
	path string // where Reload reads; "" when the file was given as a value
	dial DialFunc

	withheld atomic.Uint64

	mu    sync.Mutex // guards all below
	file  *File
	nodes map[string]string // the node of each address that belongs to one
	links map[pair]*link
}

// place is where a connection or a packet begins or ends.
type place struct {
	region string
	node   string // "" for an end that belongs to no node of the file
}

// is reports whether a name in a list of cuts means the place.
func (p place) is(name string) bool { return name == p.region || name == p.node && p.node != "" }

// pair is one direction between two places.
type pair struct{ from, to place }

// in reports whether a list of cuts names the direction.
func (p pair) in(cuts [][]string) bool {
	return slices.ContainsFunc(cuts, func(c []string) bool { return p.from.is(c[0]) && p.to.is(c[1]) })
}

// cuttable reports whether connections have to be wrapped although nothing delays them.
func (p pair) cuttable() bool { return p.from.node != "" && p.to.node != "" }

// link is the state of one direction between two places.
type link struct {
	withheld *atomic.Uint64 // of the network; nil counts nothing

	mu     sync.Mutex // guards all below
	oneWay time.Duration
	jitter time.Duration
	healed chan struct{} // not nil while the link is cut; closed when it heals
	// ages counts how often the connections that were open became half-open: those of an earlier age are.
	ages int
}

// Open reads the latency file at path and puts it in force.
func Open(path string) (*Network, error) {
	f, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	n := New(f)
	n.path = path
	return n, nil
}

// New puts a valid latency file in force. The file belongs to the network afterwards.
func New(f *File) *Network {
	var d net.Dialer
	n := &Network{dial: d.DialContext, file: f, links: map[pair]*link{}}
	n.applyLocked()
	return n
}

// watchEvery is how often Watch looks at the latency file.
const watchEvery = 50 * time.Millisecond

// Watch reloads the latency file whenever it changes, until ctx ends. A file that cannot be read or is wrong is told to
// fault, once for each change; the old one stays in force.
func (n *Network) Watch(ctx context.Context, fault func(error)) {
	if n == nil || n.path == "" {
		return
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	seen := stamp(n.path)
	n.reload(fault) // it may have changed since Open
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := stamp(n.path); now != seen {
			seen = now
			n.reload(fault)
		}
	}
}

func (n *Network) reload(fault func(error)) {
	if err := n.Reload(); err != nil {
		fault(err)
	}
}

// fileStamp tells two versions of a file apart.
type fileStamp struct {
	modified time.Time
	size     int64
}

func stamp(path string) fileStamp {
	s, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{s.ModTime(), s.Size()}
}

// Withheld returns how many bytes a cut held back or a half-open connection lost so far, packets included.
func (n *Network) Withheld() uint64 {
	if n == nil {
		return 0
	}
	if n == nil {
		return 0
	}
	return n.withheld.Load()
}

// Reload reads the latency file again: new round trips hold for what is sent from now on, new cuts at once. On an error
// the old file stays in force.
func (n *Network) Reload() error {
	const op rhumb.Op = "wan.Network.Reload"
	if n == nil || n.path == "" {
		return nil
	}
	f, err := ReadFile(n.path)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.file
	n.file = f
	n.applyLocked()
	for p, l := range n.links {
		if p.in(f.HalfOpen) && !p.in(old.HalfOpen) {
			l.age()
		}
	}
	return nil
}

// applyLocked makes the links say what the file says. n.mu must be held, or n not be shared yet.
func (n *Network) applyLocked() {
	n.nodes = map[string]string{}
	for name, addrs := range n.file.Nodes {
		for _, addr := range addrs {
			n.nodes[addr] = name
		}
	}
	for p, l := range n.links {
		n.setLocked(p, l)
	}
}

// setLocked makes a link say what the file says. n.mu must be held.
func (n *Network) setLocked(p pair, l *link) {
	rtt, _ := n.file.RoundTrip(p.from.region, p.to.region)
	l.set(rtt/2, milliseconds(n.file.Jitter))
	l.setCut(p.in(n.file.Cut) || pair{p.to, p.from}.in(n.file.Cut) || p.in(n.file.CutOneWay))
}

// linkLocked returns the state of a direction. n.mu must be held.
func (n *Network) linkLocked(p pair) *link {
	l := n.links[p]
	if l == nil {
		l = &link{withheld: &n.withheld}
		n.setLocked(p, l)
		n.links[p] = l
	}
	return l
}

// fromLocked returns the place that a Dialer or Packets stands at. n.mu must be held.
func (n *Network) fromLocked(from string) place {
	if region, ok := n.file.RegionOf(from); ok {
		return place{region, n.nodes[from]}
	}
	return place{region: from}
}

// route is both directions between two places.
type route struct {
	there, back *link
	// plain says that connections need no wrapping: nothing delays them, and they cannot be cut.
	plain bool
}

// route returns the way from a region or an address to an address.
func (n *Network) route(op rhumb.Op, from, addr string) (route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	region, ok := n.file.RegionOf(addr)
	if !ok {
		return route{}, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file does not name address %s; add it under addresses", addr)
	}
	p := pair{n.fromLocked(from), place{region, n.nodes[addr]}}
	if _, ok := n.file.RoundTrip(p.from.region, region); !ok {
		return route{}, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file has no round trip between %s and %s", p.from.region, region)
	}
	r := route{there: n.linkLocked(p), back: n.linkLocked(pair{p.to, p.from})}
	r.plain = !p.cuttable() && r.there.direct() && r.back.direct()
	return r, nil
}

// Names reports whether the latency file names an address.
func (n *Network) Names(addr string) bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.file.RegionOf(addr)
	return ok
}

// RoundTrip gives the round trip between two regions in force, 0 when there is none.
func (n *Network) RoundTrip(a, b string) time.Duration {
	if n == nil {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	d, _ := n.file.RoundTrip(a, b)
	return d
}

// Partition cuts both directions between two regions or nodes until Heal or Reload: no byte arrives, no connection comes
// about and packets are lost, while connections stay open, as with a real network. Connections without delay between
// regions cannot be cut once they are open: see Dialer.
func (n *Network) Partition(a, b string) {
	n.Cut(a, b)
	n.Cut(b, a)
}

// Cut cuts one direction only.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.file.CutOneWay = append(n.file.CutOneWay, []string{from, to})
	n.applyLocked()
}

// Heal undoes Partition, Cut, and what the file says of cuts between two regions or nodes. What was held back arrives now.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	between := func(c []string) bool { return c[0] == a && c[1] == b || c[0] == b && c[1] == a }
	n.file.Cut = slices.DeleteFunc(n.file.Cut, between)
	n.file.CutOneWay = slices.DeleteFunc(n.file.CutOneWay, between)
	n.applyLocked()
}

func (l *link) set(oneWay, jitter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oneWay, l.jitter = oneWay, jitter
}

func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case cut && l.healed == nil:
		l.healed = make(chan struct{})
	case !cut && l.healed != nil:
		close(l.healed)
		l.healed = nil
	}
}

// cut gives a channel that is closed when the link heals, nil when the link is whole.
func (l *link) cut() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.healed
}

// age makes the connections that are open half-open.
func (l *link) age() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ages++
}

// now returns the age of a connection that is made now.
func (l *link) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ages
}

// withhold counts bytes that did not get through.
func (l *link) withhold(n int) {
	if l.withheld != nil {
		l.withheld.Add(uint64(n))
	}
}

// delay gives the one-way delay of something sent now. Jitter needs no seed: it is for demos and soak tests; what must be
// replayed runs in the simulator.
func (l *link) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jitter == 0 {
		return l.oneWay
	}
	return l.oneWay + rand.N(l.jitter+1)
}

// direct reports whether the link delays nothing.
func (l *link) direct() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oneWay == 0 && l.jitter == 0
}
