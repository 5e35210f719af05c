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

// DialFunc dials an address. Its form is that of grpc.WithContextDialer and of net/http.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Network simulates the delays and cuts of a latency file, which may change while it is in use. A
// nil *Network delays nothing.
type Network struct {
	path string // read by Reload; "" if the file was passed as a value
	dial DialFunc

	withheld atomic.Uint64

	mu    sync.Mutex // guards file, nodes and links
	file  *File
	nodes map[string]string // the node of an address, if it belongs to one
	links map[pair]*link    // kept for the life of the network, because connections hold them
}

// place is one end of a connection or a packet.
type place struct {
	region string
	node   string // "" if the address belongs to no node of the file
}

// hasName reports whether a name in a list of cuts means this place.
func (p place) hasName(name string) bool { return name == p.region || name == p.node && p.node != "" }

// pair is one direction between two places.
type pair struct{ from, to place }

// isIn reports whether a list of cuts names the direction.
func (p pair) isIn(cuts [][]string) bool {
	return slices.ContainsFunc(cuts, func(c []string) bool { return p.from.hasName(c[0]) && p.to.hasName(c[1]) })
}

// isCuttable reports whether connections must be wrapped even without delay. Wrapping costs two
// goroutines and a copy of all data, so only connections between two nodes of the file are wrapped.
func (p pair) isCuttable() bool { return p.from.node != "" && p.to.node != "" }

// link is the state of one direction between two places. Connections and packets look at it
// whenever something is sent, so that a change of the file takes effect on open connections.
type link struct {
	withheld *atomic.Uint64 // counter of the network; nil counts nothing

	mu     sync.Mutex // guards the fields below
	oneWay time.Duration
	jitter time.Duration
	healed chan struct{} // not nil while the link is cut; closed when it heals
	// ages counts how often the open connections became half-open. Connections of an earlier age
	// are half-open.
	ages int
	// record is the folder of recordings, "" for none; from and to are regions.
	record, from, to string
	// packets records all packets of the link in one file: a packet is written whole.
	packets recorder
}

// Open returns a network for the latency file at path.
func Open(path string) (*Network, error) {
	f, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	n := New(f)
	n.path = path
	return n, nil
}

// New returns a network for a valid latency file. The file then belongs to the network.
func New(f *File) *Network {
	var d net.Dialer
	n := &Network{dial: d.DialContext, file: f, links: map[pair]*link{}}
	n.applyLocked()
	return n
}

// watchEvery is the interval at which Watch examines the latency file.
const watchEvery = 50 * time.Millisecond

// Watch reloads the latency file whenever it changes, until ctx ends. If the file cannot be read or
// is invalid, Watch calls fault, once for each change, and the network does not change.
func (n *Network) Watch(ctx context.Context, fault func(error)) {
	if n == nil || n.path == "" {
		return
	}
	// Polling also notices that Save replaced the file by renaming another.
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	seen := stampFile(n.path)
	// The stamp is taken before the file is read, so that a change in between is noticed. The file
	// may also have changed since Open.
	n.reloadOrReport(fault)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := stampFile(n.path); now != seen {
			seen = now
			n.reloadOrReport(fault)
		}
	}
}

// reloadOrReport reloads the file, or reports the error to fault.
func (n *Network) reloadOrReport(fault func(error)) {
	if err := n.Reload(); err != nil {
		fault(err)
	}
}

// fileStamp distinguishes two versions of a file.
type fileStamp struct {
	modified time.Time
	size     int64
}

// stampFile returns the stamp of a file, or the zero stamp if the file cannot be examined.
func stampFile(path string) fileStamp {
	s, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{s.ModTime(), s.Size()}
}

// Withheld returns the number of bytes that a cut held back, or that a half-open connection or a
// lost packet lost.
func (n *Network) Withheld() uint64 {
	if n == nil {
		return 0
	}
	return n.withheld.Load()
}

// Reload reads the latency file again. New delays apply to everything sent from now on, new cuts
// apply at once. After an error the network does not change.
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
	// Only a pair that is new in the list makes its connections half-open. Otherwise every reload
	// would break the connections that were opened since.
	for p, l := range n.links {
		if p.isIn(f.HalfOpen) && !p.isIn(old.HalfOpen) {
			l.breakOpen()
		}
	}
	return nil
}

// applyLocked updates all links from the file. The caller holds n.mu, or n is not shared yet.
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

// setLocked updates a link from the file. The caller holds n.mu.
func (n *Network) setLocked(p pair, l *link) {
	// The round trip is symmetric, so each direction has half of it.
	rtt, _ := n.file.RoundTrip(p.from.region, p.to.region)
	l.setDelay(rtt/2, milliseconds(n.file.Jitter))
	l.setRecord(n.file.Record, p.from.region, p.to.region)
	l.setCut(p.isIn(n.file.Cut) || pair{p.to, p.from}.isIn(n.file.Cut) || p.isIn(n.file.CutOneWay))
}

// linkLocked returns the link of a direction. The caller holds n.mu.
func (n *Network) linkLocked(p pair) *link {
	l := n.links[p]
	if l == nil {
		l = &link{withheld: &n.withheld}
		l.packets.link = l
		n.setLocked(p, l)
		n.links[p] = l
	}
	return l
}

// placeLocked returns the place of a Dialer or a Packets. The caller holds n.mu.
func (n *Network) placeLocked(from string) place {
	if region, ok := n.file.RegionOf(from); ok {
		return place{region, n.nodes[from]}
	}
	return place{region: from}
}

// route holds both directions between two places.
type route struct {
	there, back *link
	// plain reports that connections need no wrapping: they have no delay and cannot be cut.
	plain bool
}

// findRoute returns the links between a region or an address and an address.
func (n *Network) findRoute(op rhumb.Op, from, addr string) (route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A delay of 0 for an unknown address would be a mistake that nobody notices.
	region, ok := n.file.RegionOf(addr)
	if !ok {
		return route{}, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file does not name address %s; add it under addresses", addr)
	}
	p := pair{n.placeLocked(from), place{region, n.nodes[addr]}}
	if _, ok := n.file.RoundTrip(p.from.region, region); !ok {
		return route{}, rhumb.Ef(op, rhumb.InvalidArgument, "the latency file has no round trip between %s and %s", p.from.region, region)
	}
	// Links are created on first use: a file may name many more pairs than a program connects.
	r := route{there: n.linkLocked(p), back: n.linkLocked(pair{p.to, p.from})}
	r.plain = n.file.Record == "" && !p.isCuttable() && r.there.isDirect() && r.back.isDirect()
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

// RoundTrip returns the current round trip between two regions, or 0 if the file has none.
func (n *Network) RoundTrip(a, b string) time.Duration {
	if n == nil {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	d, _ := n.file.RoundTrip(a, b)
	return d
}

// Partition cuts both directions between two regions or nodes until Heal or Reload. Bytes do not
// arrive, new connections are not established, and packets are lost, but connections stay open, as
// in a real network. Open connections without delay can be cut only between nodes (see Dialer).
func (n *Network) Partition(a, b string) {
	n.Cut(a, b)
	n.Cut(b, a)
}

// Cut cuts one direction.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The cut becomes part of the file in memory, so that Reload replaces it.
	n.file.CutOneWay = append(n.file.CutOneWay, []string{from, to})
	n.applyLocked()
}

// Heal removes all cuts between two regions or nodes, including those in the file. Bytes that a cut
// held back arrive now.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	between := func(c []string) bool { return c[0] == a && c[1] == b || c[0] == b && c[1] == a }
	n.file.Cut = slices.DeleteFunc(n.file.Cut, between)
	n.file.CutOneWay = slices.DeleteFunc(n.file.CutOneWay, between)
	n.applyLocked()
}

// setDelay sets the delay of bytes and packets sent from now on.
func (l *link) setDelay(oneWay, jitter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oneWay, l.jitter = oneWay, jitter
}

// setCut cuts or heals the link.
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

// cutChan returns a channel that is closed when the link heals, or nil if the link is not cut.
func (l *link) cutChan() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.healed
}

// breakOpen makes all open connections half-open.
func (l *link) breakOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ages++
}

// currentAge returns the age of a connection that is opened now.
func (l *link) currentAge() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ages
}

// countWithheld counts bytes that did not arrive, or not yet.
func (l *link) countWithheld(n int) {
	if l.withheld != nil {
		l.withheld.Add(uint64(n))
	}
}

// sampleDelay returns the one-way delay of something sent now. Jitter has no seed: it is for demos
// and soak tests, and the simulator does not use this package.
func (l *link) sampleDelay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jitter == 0 {
		return l.oneWay
	}
	return l.oneWay + rand.N(l.jitter+1)
}

// isDirect reports whether the link has no delay.
func (l *link) isDirect() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oneWay == 0 && l.jitter == 0
}
