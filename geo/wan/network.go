package wan

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
)

// DialFunc dials an address; grpc.WithContextDialer and net/http take one.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Network is a latency file in force. A nil *Network delays nothing.
type Network struct {
	path string // where Reload reads; "" when the file was given as a value
	dial DialFunc

	mu    sync.Mutex // guards all below
	file  *File
	links map[pair]*link
}

// pair is one direction between two regions.
type pair struct{ from, to string }

// link is the state of one direction between two regions.
type link struct {
	mu     sync.Mutex // guards all below
	oneWay time.Duration
	jitter time.Duration
	healed chan struct{} // not nil while the link is cut; closed when it heals
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
	n.file = f
	n.applyLocked()
	return nil
}

// applyLocked makes the links say what the file says. n.mu must be held, or n not be shared yet.
func (n *Network) applyLocked() {
	regions := n.file.Regions()
	for _, a := range regions {
		for _, b := range regions {
			rtt, _ := n.file.RoundTrip(a, b)
			n.linkLocked(a, b).set(rtt/2, milliseconds(n.file.Jitter))
		}
	}
	cut := map[pair]bool{}
	for _, p := range n.file.Cut {
		cut[pair{p[0], p[1]}], cut[pair{p[1], p[0]}] = true, true
	}
	for p, l := range n.links {
		l.setCut(cut[p])
	}
}

// linkLocked gives the one direction from a to b. n.mu must be held.
func (n *Network) linkLocked(a, b string) *link {
	l := n.links[pair{a, b}]
	if l == nil {
		l = &link{}
		n.links[pair{a, b}] = l
	}
	return l
}

func (n *Network) link(a, b string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(a, b)
}

// route gives both directions between a region and an address.
func (n *Network) route(op rhumb.Op, from, addr string) (there, back *link, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to, ok := n.file.RegionOf(addr)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file does not name address %s; add it under addresses", addr)
	}
	if _, ok := n.file.RoundTrip(from, to); !ok {
		return nil, nil, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file has no round trip between %s and %s", from, to)
	}
	return n.linkLocked(from, to), n.linkLocked(to, from), nil
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

// Partition cuts both directions between two regions until Heal: no byte arrives, no connection comes about and packets
// are lost, while connections stay open, as with a real network. Connections without delay cannot be cut once they are
// open: see Dialer.
func (n *Network) Partition(a, b string) {
	n.Cut(a, b)
	n.Cut(b, a)
}

// Cut cuts one direction only.
func (n *Network) Cut(from, to string) { n.link(from, to).setCut(true) }

// Heal undoes Partition and Cut between two regions. What was held back arrives now.
func (n *Network) Heal(a, b string) {
	n.link(a, b).setCut(false)
	n.link(b, a).setCut(false)
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
