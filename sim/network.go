package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb/node/replica"
)

// place numbers what sends and receives: nodes first, then clients.
type place int

// network carries messages between places. Cuts are directed: cut[a][b] loses what a sends to b.
type network struct {
	w      *world
	places int
	site   []int
	cut    []bool
	slow   []time.Duration // added to what a place sends and receives
	loss   float64
	repeat float64
	jitter float64
	// mute loses what replicas send to and from a node, by index, while heartbeats and metadata get through.
	mute []bool
	// vanish loses what replicas send from one place to another, by pair.
	vanish []bool
	// deaf loses what the metadata group sends to and from a node, by index.
	deaf []bool
	// strays are the last acknowledgements that went over the stream of a pair before its present one: they may still come.
	strays [][]replica.Message
	// streams numbers the connection of each pair of nodes as each side knows it; 0 is none.
	streams []uint64
	dialed  []time.Duration // by pair: until when a dial under way is waited for
	last    []time.Duration // by pair: when the last message of a stream arrives
	lastID  uint64
}

func newNetwork(w *world, places int) *network {
	return &network{
		w: w, places: places, site: make([]int, places), cut: make([]bool, places*places),
		slow: make([]time.Duration, places), deaf: make([]bool, w.p.nodes), mute: make([]bool, w.p.nodes), vanish: make([]bool, places*places), loss: w.p.loss, repeat: w.p.repeat, jitter: w.p.jitter,
		strays:  make([][]replica.Message, places*places),
		streams: make([]uint64, places*places), dialed: make([]time.Duration, places*places), last: make([]time.Duration, places*places),
	}
}

func (n *network) pair(a, b place) int { return int(a)*n.places + int(b) }

// isCut reports whether what a sends never reaches b.
func (n *network) isCut(a, b place) bool { return n.cut[n.pair(a, b)] }

// base is the one-way delay without jitter.
func (n *network) base(a, b place) time.Duration {
	if n.site[a] == n.site[b] {
		return n.w.p.regionDelay
	}
	return n.w.p.wanDelay
}

// wanJitterMax bounds the jitter of long links while no fault is under way: more would look like a dead node, which is
// what faults are for.
const wanJitterMax = 0.2

// delay draws how long a message takes. Jitter is exponential, so messages overtake each other.
func (n *network) delay(a, b place) time.Duration {
	base, jitter := n.base(a, b), n.jitter
	if n.site[a] != n.site[b] && jitter == n.w.p.jitter {
		jitter = min(jitter, wanJitterMax)
	}
	return base + time.Duration(float64(base)*jitter*n.w.rnd.ExpFloat64()) + n.slow[a] + n.slow[b]
}

// send delivers a message, maybe never, maybe twice. It reports whether it was repeated.
func (n *network) send(from, to place, deliver func()) (repeated bool) {
	r := n.w.rnd
	if n.isCut(from, to) || n.loss > 0 && r.Float64() < n.loss {
		return false
	}
	n.w.after(n.delay(from, to), deliver)
	if n.repeat > 0 && r.Float64() < n.repeat {
		n.w.after(n.delay(from, to)*time.Duration(1+r.IntN(50)), deliver)
		return true
	}
	return false
}

// sendStream is send for streams. They keep messages in order, but for short links of seeds with reordering and for
// faults of that kind: the protocol must bear it, but a long link under load would do nothing but repeat itself.
func (n *network) sendStream(from, to place, deliver func()) {
	if n.w.p.reorder && n.site[from] == n.site[to] || n.jitter != n.w.p.jitter {
		n.send(from, to, deliver)
		return
	}
	r := n.w.rnd
	if n.isCut(from, to) || n.loss > 0 && r.Float64() < n.loss {
		return
	}
	at := n.pair(from, to)
	n.last[at] = max(n.last[at], n.w.now+n.delay(from, to))
	n.w.after(n.last[at]-n.w.now, deliver)
	if n.repeat > 0 && r.Float64() < n.repeat {
		n.w.after(n.delay(from, to)*time.Duration(1+r.IntN(50)), deliver)
	}
}

// loses reports whether the data path of a node is broken.
func (n *network) loses() bool {
	return slices.Contains(n.mute, true) || slices.Contains(n.vanish, true)
}

// heal ends all cuts and slowness and takes the loss of the profile again.
func (n *network) heal() {
	clear(n.cut)
	clear(n.slow)
	clear(n.deaf)
	clear(n.mute)
	clear(n.vanish)
	n.loss, n.repeat, n.jitter = n.w.p.loss, n.w.p.repeat, n.w.p.jitter
}

// Streams between nodes: a stream stands between two lives. Each side forgets it when it breaks, and takes nothing from
// it afterwards.
const (
	// streamRetry is how often a node tries to open the streams that it lacks.
	streamRetry = 200 * time.Millisecond
	// streamSilence is how long a cut lasts before a side notices that the stream is dead; it may take up to twice that.
	streamSilence = 1500 * time.Millisecond
)

// openStreams opens the streams that a node lacks, if both directions work. It runs every streamRetry at every node; of
// a pair, the first one dials.
func (n *network) openStreams(a *node) {
	for _, b := range n.w.nodes[a.index+1:] {
		if b.down || b.group == nil || a.group == nil || n.w.now < n.dialed[n.pair(a.at, b.at)] || n.isCut(a.at, b.at) || n.isCut(b.at, a.at) {
			continue
		}
		if id := n.streams[n.pair(a.at, b.at)]; id != 0 && id == n.streams[n.pair(b.at, a.at)] {
			continue
		}
		n.dialed[n.pair(a.at, b.at)] = n.w.now + 4*(n.base(a.at, b.at)+n.slow[a.at]+n.slow[b.at])
		n.lastID++
		id, aLife, bLife := n.lastID, a.life, b.life
		self := a.identity()
		n.w.after(2*n.delay(a.at, b.at), func() {
			b.run(bLife, func() {
				if !b.connect(a, self, id) {
					return // a is not registered in this life, as far as b has heard
				}
				other := b.identity()
				n.w.after(n.delay(b.at, a.at), func() {
					a.run(aLife, func() { a.connect(b, other, id) })
				})
			})
		})
	}
}

// breakStreams makes both sides of cut pairs notice, each at its own time.
func (n *network) breakStreams() {
	for _, a := range n.w.nodes {
		for _, b := range n.w.nodes {
			if a == b || !n.isCut(a.at, b.at) && !n.isCut(b.at, a.at) {
				continue
			}
			id, life := n.streams[n.pair(a.at, b.at)], a.life
			if id == 0 {
				continue
			}
			wait := streamSilence + time.Duration(n.w.rnd.Int64N(int64(streamSilence)))
			n.w.after(wait, func() {
				if n.isCut(a.at, b.at) || n.isCut(b.at, a.at) {
					a.run(life, func() { a.disconnect(b, id) })
				}
			})
		}
	}
}

// lose makes the peers of a crashed node notice that its streams are dead, sooner or later.
func (n *network) lose(dead *node) {
	for _, a := range n.w.nodes {
		id, life := n.streams[n.pair(a.at, dead.at)], a.life
		if a == dead || id == 0 {
			continue
		}
		n.w.after(time.Duration(n.w.rnd.Int64N(int64(streamSilence))), func() {
			a.run(life, func() { a.disconnect(dead, id) })
		})
	}
}

// A connection that broke may have delivered messages that its receiver takes in only after the next one stands.
const (
	strayShare = 0.3 // of the connections
	straysMax  = 4   // messages of a connection
	strayLate  = 100 * time.Millisecond
)

// keepStray remembers the last acknowledgements that a node sent to another.
func (n *network) keepStray(from, to *node, msgs []replica.Message) {
	kept := &n.strays[n.pair(from.at, to.at)]
	for i := range msgs {
		if msgs[i].Kind == replica.Ack {
			*kept = append((*kept)[max(0, len(*kept)-straysMax+1):], msgs[i])
		}
	}
}

// deliverStray lets acknowledgements of the connection before the present one come late.
func (n *network) deliverStray(from, to *node) {
	kept := &n.strays[n.pair(from.at, to.at)]
	msgs := *kept
	*kept = nil
	if len(msgs) == 0 || n.w.rnd.Float64() > strayShare {
		return
	}
	to.later(time.Duration(n.w.rnd.Int64N(int64(strayLate))), func() {
		if to.host != nil {
			to.receive(from, msgs)
		}
	})
}
