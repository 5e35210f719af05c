package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// place is the address of a sender or receiver: nodes first, then clients.
type place int

// network carries messages between places. Per-pair state is directed and indexed by pairIndex: a
// cut pair (a, b) loses messages from a to b.
type network struct {
	w      *world
	places int
	site   []int
	cut    []bool
	// slow is added to the delay of everything that a place sends and receives.
	slow   []time.Duration
	loss   float64
	repeat float64
	jitter float64
	// mute loses replication messages to and from a node, by index. Heartbeats and metadata get
	// through.
	mute []bool
	// vanish loses replication messages of a directed pair.
	vanish []bool
	// deaf loses messages of the metadata group to and from a node, by index.
	deaf []bool
	// strays are the last acknowledgements sent over the previous stream of a pair, which may still
	// arrive.
	strays [][]replica.Message
	// late are the last tallies sent over it.
	late [][]byte
	// streams holds the number of the stream of each pair as each side knows it, or 0. The sides
	// may differ for a while, as they do when one side has not noticed a break.
	streams []uint64
	// dialed is until when a dial in progress is waited for, by pair.
	dialed []time.Duration
	// last is when the newest message of a stream arrives, by pair.
	last   []time.Duration
	lastID uint64
}

// newNetwork returns a network without faults between the given number of places.
func newNetwork(w *world, places int) *network {
	return &network{
		w: w, places: places, site: make([]int, places), cut: make([]bool, places*places),
		slow: make([]time.Duration, places), deaf: make([]bool, w.p.nodes), mute: make([]bool, w.p.nodes), vanish: make([]bool, places*places), loss: w.p.loss, repeat: w.p.repeat, jitter: w.p.jitter,
		strays:  make([][]replica.Message, places*places),
		late:    make([][]byte, places*places),
		streams: make([]uint64, places*places), dialed: make([]time.Duration, places*places), last: make([]time.Duration, places*places),
	}
}

// pairIndex returns the index of the directed pair (a, b).
func (n *network) pairIndex(a, b place) int { return int(a)*n.places + int(b) }

// isCut reports whether messages from a to b are lost.
func (n *network) isCut(a, b place) bool { return n.cut[n.pairIndex(a, b)] }

// baseDelay returns the one-way delay without jitter.
func (n *network) baseDelay(a, b place) time.Duration {
	if n.site[a] == n.site[b] {
		return n.w.p.regionDelay
	}
	return n.w.p.wanDelay
}

// wanJitterMax bounds the jitter of long links while no fault is active. More would look like a
// dead node, and dead nodes are what faults are for.
const wanJitterMax = 0.2

// drawDelay draws the delay of a message. Jitter is exponential, so messages can overtake each
// other.
func (n *network) drawDelay(a, b place) time.Duration {
	base, jitter := n.baseDelay(a, b), n.jitter
	// A jitter other than that of the profile belongs to a fault and is not bounded.
	if n.site[a] != n.site[b] && jitter == n.w.p.jitter {
		jitter = min(jitter, wanJitterMax)
	}
	return base + time.Duration(float64(base)*jitter*n.w.rnd.ExpFloat64()) + n.slow[a] + n.slow[b]
}

// send delivers a message never, once or twice. It reports whether the message was repeated.
func (n *network) send(from, to place, deliver func()) (repeated bool) {
	r := n.w.rnd
	if n.isCut(from, to) || n.loss > 0 && r.Float64() < n.loss {
		return false
	}
	n.w.after(n.drawDelay(from, to), deliver)
	if n.repeat > 0 && r.Float64() < n.repeat {
		// The copy arrives up to fifty delays later, when the receiver may have moved on.
		n.w.after(n.drawDelay(from, to)*time.Duration(1+r.IntN(50)), deliver)
		return true
	}
	return false
}

// sendStream is send for streams, which keep messages in order. Only on short links of seeds with
// reorder, and during faults that change the jitter, may messages overtake each other. The protocol
// must tolerate that everywhere, but a long link under load would do nothing but retransmit.
func (n *network) sendStream(from, to place, deliver func()) {
	if n.w.p.reorder && n.site[from] == n.site[to] || n.jitter != n.w.p.jitter {
		n.send(from, to, deliver)
		return
	}
	r := n.w.rnd
	if n.isCut(from, to) || n.loss > 0 && r.Float64() < n.loss {
		return
	}
	at := n.pairIndex(from, to)
	// A message cannot arrive before its predecessor.
	n.last[at] = max(n.last[at], n.w.now+n.drawDelay(from, to))
	n.w.after(n.last[at]-n.w.now, deliver)
	if n.repeat > 0 && r.Float64() < n.repeat {
		n.w.after(n.drawDelay(from, to)*time.Duration(1+r.IntN(50)), deliver)
	}
}

// losesData reports whether replication messages of any node are lost.
func (n *network) losesData() bool {
	return slices.Contains(n.mute, true) || slices.Contains(n.vanish, true)
}

// heal ends all cuts and delays and restores the loss of the profile.
func (n *network) heal() {
	clear(n.cut)
	clear(n.slow)
	clear(n.deaf)
	clear(n.mute)
	clear(n.vanish)
	n.loss, n.repeat, n.jitter = n.w.p.loss, n.w.p.repeat, n.w.p.jitter
}

// Times of streams between nodes. A stream connects two lives. Each side forgets it when it notices
// the break, and accepts nothing from it afterwards.
const (
	// streamRetry is how often a node dials the peers to which it has no stream.
	streamRetry = 200 * time.Millisecond
	// streamSilence is how long a cut must last before a side notices that the stream is dead.
	// Noticing may take up to twice as long.
	streamSilence = 1500 * time.Millisecond
)

// openStreams opens the missing streams of a node if both directions work. It runs every
// streamRetry at every node. Of each pair the node with the lower index dials: two simultaneous
// dials would replace each other's streams.
func (n *network) openStreams(a *node) {
	for _, b := range n.w.nodes[a.index+1:] {
		// A handshake needs both directions.
		if b.down || b.group == nil || a.group == nil || n.w.now < n.dialed[n.pairIndex(a.at, b.at)] || n.isCut(a.at, b.at) || n.isCut(b.at, a.at) {
			continue
		}
		// Both sides know the same stream.
		if id := n.streams[n.pairIndex(a.at, b.at)]; id != 0 && id == n.streams[n.pairIndex(b.at, a.at)] {
			continue
		}
		// Two round trips without jitter: a dial that takes longer is abandoned and repeated.
		n.dialed[n.pairIndex(a.at, b.at)] = n.w.now + 4*(n.baseDelay(a.at, b.at)+n.slow[a.at]+n.slow[b.at])
		n.lastID++
		id, aLife, bLife := n.lastID, a.life, b.life
		self := a.identity()
		n.w.after(2*n.drawDelay(a.at, b.at), func() {
			b.run(bLife, func() {
				if !b.connect(a, self, id) {
					// b has not seen the registration of this life of a yet.
					return
				}
				other := b.identity()
				n.w.after(n.drawDelay(b.at, a.at), func() {
					a.run(aLife, func() { a.connect(b, other, id) })
				})
			})
		})
	}
}

// breakStreams makes both sides of the cut pairs notice, each at its own time.
func (n *network) breakStreams() {
	for _, a := range n.w.nodes {
		for _, b := range n.w.nodes {
			if a == b || !n.isCut(a.at, b.at) && !n.isCut(b.at, a.at) {
				continue
			}
			id, life := n.streams[n.pairIndex(a.at, b.at)], a.life
			if id == 0 {
				continue
			}
			wait := streamSilence + time.Duration(n.w.rnd.Int64N(int64(streamSilence)))
			n.w.after(wait, func() {
				// The cut may have healed meanwhile, and then the stream survives.
				if n.isCut(a.at, b.at) || n.isCut(b.at, a.at) {
					a.run(life, func() { a.disconnect(b, id) })
				}
			})
		}
	}
}

// breakStreamsOf lets the peers notice the crash of a node, each at its own time.
func (n *network) breakStreamsOf(dead *node) {
	var boot rhumb.BootSeq // 0 for a node that has not registered yet
	if dead.member != nil {
		boot = dead.member.self.Boot
	}
	for _, a := range n.w.nodes {
		id, life := n.streams[n.pairIndex(a.at, dead.at)], a.life
		if a == dead || id == 0 {
			continue
		}
		n.w.after(time.Duration(n.w.rnd.Int64N(int64(streamSilence))), func() {
			a.run(life, func() { a.disconnect(dead, id) })
			n.refuse(a, life, dead, dead.life, boot)
		})
	}
}

// redialPause is the time between two attempts to connect to a node that is down.
const redialPause = 100 * time.Millisecond

// refuse lets the host of a node that is down refuse the connections of another node until either is in another life. Every second end of a
// process takes its host along, which then refuses nothing.
func (n *network) refuse(a *node, life int, dead *node, deadLife int, boot rhumb.BootSeq) {
	if deadLife%2 == 0 || boot == 0 || !dead.down || dead.life != deadLife || a.life != life {
		return
	}
	if !n.isCut(a.at, dead.at) && !n.isCut(dead.at, a.at) {
		a.run(life, func() {
			if a.host != nil {
				a.host.Refused(dead.id, boot)
			}
		})
	}
	n.w.after(redialPause, func() { n.refuse(a, life, dead, deadLife, boot) })
}

// Bounds of stray messages: a broken connection may have delivered messages that the receiver
// processes only after the next connection is established.
const (
	// strayShare is the share of connections with strays.
	strayShare = 0.3
	// straysMax is the number of messages kept per connection.
	straysMax = 4
	strayLate = 100 * time.Millisecond
)

// keepStray keeps the last acknowledgements that a node sent to another.
func (n *network) keepStray(from, to *node, msgs []replica.Message) {
	kept := &n.strays[n.pairIndex(from.at, to.at)]
	for i := range msgs {
		// Only acknowledgements do harm when they arrive late: they could count for a later
		// connection.
		if msgs[i].Kind == replica.Ack {
			*kept = append((*kept)[max(0, len(*kept)-straysMax+1):], msgs[i])
		}
	}
}

// deliverStray delivers acknowledgements of the previous connection late. They must not count
// towards the present one: a new stream clears earlier acknowledgements
// (docs/replication.md#rule-life-ack).
func (n *network) deliverStray(from, to *node) {
	pair := n.pairIndex(from.at, to.at)
	msgs, late := n.strays[pair], n.late[pair]
	n.strays[pair], n.late[pair] = nil, nil
	if len(msgs) == 0 || n.w.rnd.Float64() > strayShare {
		return
	}
	// The messages arrive in the new connection, although they were sent over the old one.
	to.later(time.Duration(n.w.rnd.Int64N(int64(strayLate))), func() {
		if to.host != nil {
			to.receiveMessages(from, append(msgs, to.expandLate(from, late)...))
		}
	})
}
