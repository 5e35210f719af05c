package wan

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

// PacketsMax bounds the packets on their way from one Packets; more are lost, as in a full router.
const PacketsMax = 8_192

// SendFunc sends one packet to an address now.
type SendFunc func(b []byte, addr string) error

// Packets delays packets: what is sent from one region to an address is handed to a SendFunc half a round trip later.
// With jitter packets may overtake each other; on a cut link they are lost.
type Packets struct {
	net  *Network
	from string
	send SendFunc

	dropped atomic.Uint64
	wake    chan struct{} // capacity 1: the earliest packet changed
	stop    chan struct{}
	done    chan struct{}

	mu     sync.Mutex // guards all below
	queue  packetQueue
	serial uint64
	closed bool
}

// packet is on its way.
type packet struct {
	due    time.Time
	serial uint64 // keeps packets of one due in order
	link   *link
	addr   string
	body   []byte
}

// Packets starts to delay packets that are sent from a region, or from the region and node of an address. Close it. A nil
// network sends at once.
func (n *Network) Packets(from string, send SendFunc) *Packets {
	p := &Packets{
		net: n, from: from, send: send,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go p.run()
	return p
}

// Send sends a packet on its way; b may be used again when it returns. Like a datagram socket it reports only what is
// known now: nothing of loss on the way.
func (p *Packets) Send(b []byte, addr string) error {
	const op rhumb.Op = "wan.Packets.Send"
	if p.net == nil {
		return p.send(b, addr)
	}
	r, err := p.net.route(op, p.from, addr)
	if err != nil {
		return err
	}
	there := r.there
	if there.cut() != nil {
		p.lose(there, len(b))
		return nil
	}
	if there.direct() {
		return p.send(b, addr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return rhumb.E(op, rhumb.Canceled, "the packet queue is closed")
	case len(p.queue) >= PacketsMax:
		p.dropped.Add(1)
		return nil
	}
	p.serial++
	heap.Push(&p.queue, packet{time.Now().Add(there.delay()), p.serial, there, addr, slices.Clone(b)})
	if p.queue[0].serial == p.serial {
		signal(p.wake)
	}
	return nil
}

// Dropped counts the packets that were lost on cut links, in a full queue, or because sending them failed.
func (p *Packets) Dropped() uint64 { return p.dropped.Load() }

// Close loses what is still on its way and waits until nothing is sent any more.
func (p *Packets) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
	p.mu.Unlock()
	<-p.done
}

func (p *Packets) run() {
	defer close(p.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, wait, ok := p.next()
		switch {
		case ok:
			p.deliver(next)
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

// next takes the earliest packet when it is due, or else says how long until it is: 0 when there is none.
func (p *Packets) next() (next packet, wait time.Duration, ok bool) {
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

func (p *Packets) deliver(next packet) {
	switch {
	case next.link.cut() != nil:
		p.lose(next.link, len(next.body))
	case p.send(next.body, next.addr) != nil:
		p.dropped.Add(1)
	}
}

// lose counts a packet that met a cut.
func (p *Packets) lose(l *link, size int) {
	p.dropped.Add(1)
	l.withhold(size)
}

// packetQueue is a heap with the earliest packet first.
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
	(*q)[last] = packet{} // let go of the body
	*q = (*q)[:last]
	return x
}
