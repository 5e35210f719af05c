package wan

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

// PacketsMax bounds the packets in flight from one Packets. More are lost, as in a full router.
const PacketsMax = 8_192

// SendFunc sends one packet to an address at once.
type SendFunc func(b []byte, addr string) error

// Packets delays packets: a packet sent from a region to an address is passed to a SendFunc half a
// round trip later. With jitter, packets may overtake each other. On a cut link they are lost.
type Packets struct {
	net  *Network
	from string
	send SendFunc

	dropped atomic.Uint64
	wake    chan struct{} // capacity 1; holds a token if the earliest packet changed
	stop    chan struct{}
	done    chan struct{}

	mu     sync.Mutex // guards queue, serial and closed
	queue  packetQueue
	serial uint64
	closed bool
}

// packet is a packet in flight.
type packet struct {
	due    time.Time
	serial uint64 // keeps packets with the same due time in order
	link   *link
	addr   string
	body   []byte
}

// Packets returns a queue for packets that are sent from a region, or from the region and node of
// an address. The caller must Close it. With a nil network, packets are sent at once.
func (n *Network) Packets(from string, send SendFunc) *Packets {
	p := &Packets{
		net: n, from: from, send: send,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go p.run()
	return p
}

// Send queues a packet. b may be reused when Send returns. Like a datagram socket, Send reports
// only errors that are known at once, and not a loss in flight.
func (p *Packets) Send(b []byte, addr string) error {
	const op rhumb.Op = "wan.Packets.Send"
	if p.net == nil {
		return p.send(b, addr)
	}
	r, err := p.net.findRoute(op, p.from, addr)
	if err != nil {
		return err
	}
	there := r.there
	there.packets.note(b)
	// The sender sees no error, as with a cable that was cut.
	if there.cutChan() != nil {
		p.countLost(there, len(b))
		return nil
	}
	// Without delay the order of sending is kept only if no packet waits in the queue for another
	// delay, as after a reload. Packets may be reordered anyway.
	if there.isDirect() {
		return p.send(b, addr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return rhumb.E(op, rhumb.Canceled, "the packet queue is closed")
	// A full queue loses the packet without an error, as UDP does.
	case len(p.queue) >= PacketsMax:
		p.dropped.Add(1)
		return nil
	}
	// Cloned, because the caller may reuse b.
	p.serial++
	heap.Push(&p.queue, packet{time.Now().Add(there.sampleDelay()), p.serial, there, addr, slices.Clone(b)})
	// Only a packet that becomes the earliest one changes how long run must wait.
	if p.queue[0].serial == p.serial {
		putToken(p.wake)
	}
	return nil
}

// Dropped returns the number of packets lost on cut links, in a full queue, or because sending
// failed.
func (p *Packets) Dropped() uint64 { return p.dropped.Load() }

// Close drops all packets in flight and waits until no packet is being sent.
func (p *Packets) Close() {
	p.mu.Lock()
	if !p.closed {
		// run ends without sending what is left in the queue.
		p.closed = true
		close(p.stop)
	}
	p.mu.Unlock()
	<-p.done
}

// run delivers packets when they are due.
func (p *Packets) run() {
	defer close(p.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// The packet is sent without the lock, because sending may block.
		next, wait, ok := p.nextDue()
		switch {
		case ok:
			p.deliverPacket(next)
			continue
		case wait > 0:
			timer.Reset(wait)
		default:
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.stop:
			return
		}
	}
}

// nextDue removes and returns the earliest packet if it is due. Otherwise wait is the time until it
// is due, or 0 if there is none.
func (p *Packets) nextDue() (next packet, wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 || p.closed {
		return packet{}, 0, false
	}
	if wait := time.Until(p.queue[0].due); wait > 0 {
		return packet{}, wait, false
	}
	return heap.Pop(&p.queue).(packet), 0, true
}

// deliverPacket sends a packet, unless the link was cut while the packet was in flight.
func (p *Packets) deliverPacket(next packet) {
	switch {
	// Checked again at delivery: a cut also loses what is in flight.
	case next.link.cutChan() != nil:
		p.countLost(next.link, len(next.body))
	case p.send(next.body, next.addr) != nil:
		p.dropped.Add(1)
	}
}

// countLost counts a packet that was lost on a cut link.
func (p *Packets) countLost(l *link, size int) {
	p.dropped.Add(1)
	l.countWithheld(size)
}

// packetQueue implements heap.Interface, with the earliest packet first.
type packetQueue []packet

func (q packetQueue) Len() int { return len(q) }

func (q packetQueue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].serial < q[j].serial
}

func (q packetQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *packetQueue) Push(x any) { *q = append(*q, x.(packet)) }

func (q *packetQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = packet{} // releases the body
	*q = (*q)[:last]
	return x
}
