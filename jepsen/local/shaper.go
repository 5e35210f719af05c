package local

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The kernel hands the packets that a host receives from other nodes to this process, which holds them back and returns a verdict for
// each. Kernels have a queue discipline for this, netem, but not every kernel has netem; nearly all have queues (nfnetlink_queue).
//
// Packets are held at the receiver. The sender's TCP keeps few bytes in its own queues, so that packets held there would bound
// the throughput of a link of 40 ms to a megabit.

const (
	// queueNumber names the queue. Each host has a network of its own, and one queue.
	queueNumber = 77
	// queueMost bounds the packets that are held for a host. The kernel drops those beyond, as a router does whose queue is full.
	queueMost = 4096
	// queueBuffer is the receive buffer of the socket in bytes. A packet takes some hundred.
	queueBuffer = 4 << 20
)

// The messages of nfnetlink_queue (linux/netfilter/nfnetlink_queue.h).
const (
	queueSubsystem = unix.NFNL_SUBSYS_QUEUE << 8
	queuePacket    = queueSubsystem
	queueVerdict   = queueSubsystem | 1
	queueConfig    = queueSubsystem | 2

	attrPacketHeader  = 1
	attrVerdictHeader = 2
	attrPayload       = 10
	attrLength        = 13

	attrConfigCommand = 1
	attrConfigParams  = 2
	attrConfigMost    = 3
	attrConfigMask    = 4
	attrConfigFlags   = 5

	commandBind = 1
	// copyPacket hands out the packet up to a number of bytes. Only with it does the kernel tell the length.
	copyPacket = 2
	// flagSegments lets the kernel hand out the large packets that it has not cut into segments yet: one verdict for 64 KiB.
	flagSegments = 1 << 2

	verdictDrop   = 0
	verdictAccept = 1
)

// shaper shapes the packets that one host receives.
type shaper struct {
	conn  *netlink.Conn
	start time.Time

	mu   sync.Mutex // guards the fields below
	line line
	held heldPackets
	err  error // of the first verdict that failed

	wake chan struct{} // has one value if held has a new first packet
	done sync.WaitGroup
	end  context.CancelFunc
}

// heldPacket is a packet that waits for its time.
type heldPacket struct {
	at time.Duration
	id uint32
}

// heldPackets is a heap by time, and by arrival for packets of one time.
type heldPackets []heldPacket

func (h heldPackets) Len() int { return len(h) }
func (h heldPackets) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].id < h[j].id
}
func (h heldPackets) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heldPackets) Push(p any)   { *h = append(*h, p.(heldPacket)) }
func (h *heldPackets) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	*h = (*h)[:last]
	return p
}

// startShaper takes over the queue of a host whose network is the file namespace.
func startShaper(namespace string, s shape, random *rand.Rand) (*shaper, error) {
	f, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(f.Fd())})
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	q := &shaper{conn: conn, start: time.Now(), line: line{shape: s, random: random}, wake: make(chan struct{}, 1)}
	if err := q.bind(); err != nil {
		return nil, errors.Join(fmt.Errorf("queue of packets: %w", err), conn.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.end = cancel
	q.done.Go(q.receive)
	q.done.Go(func() { q.release(ctx) })
	return q, nil
}

// bind makes the queue.
func (q *shaper) bind() error {
	// A full buffer makes the kernel drop packets, as a full queue does. It must not make Receive fail.
	if err := errors.Join(q.conn.SetReadBuffer(queueBuffer), q.conn.SetOption(netlink.NoENOBUFS, true)); err != nil {
		return err
	}
	four := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	if err := q.configure(netlink.Attribute{Type: attrConfigCommand, Data: []byte{commandBind, 0, 0, 0}}); err != nil {
		return err
	}
	// One byte of each packet: the contents do not matter.
	return q.configure(
		netlink.Attribute{Type: attrConfigParams, Data: append(four(1), copyPacket)},
		netlink.Attribute{Type: attrConfigMost, Data: four(queueMost)},
		netlink.Attribute{Type: attrConfigMask, Data: four(flagSegments)},
		netlink.Attribute{Type: attrConfigFlags, Data: four(flagSegments)},
	)
}

// configure sends a message about the queue and waits for the answer.
func (q *shaper) configure(attrs ...netlink.Attribute) error {
	m, err := queueMessage(queueConfig, netlink.Request|netlink.Acknowledge, attrs...)
	if err == nil {
		_, err = q.conn.Execute(m)
	}
	return err
}

// queueMessage returns a message about the queue.
func queueMessage(kind netlink.HeaderType, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	text, err := netlink.MarshalAttributes(attrs)
	// The header: no protocol family, version 0, and the number of the queue.
	head := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, queueNumber)
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: flags}, Data: append(head, text...)}, err
}

// receive takes packets until the connection is closed.
func (q *shaper) receive() {
	for {
		messages, err := q.conn.Receive()
		if err != nil {
			return // closed; whatever else it is, the queue takes no more packets, and heal sees it in the counts
		}
		for _, m := range messages {
			if m.Header.Type == queuePacket && len(m.Data) >= 4 {
				q.take(m.Data[4:])
			}
		}
	}
}

// take decides about one packet.
func (q *shaper) take(attrs []byte) {
	d, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return
	}
	id, size, found := uint32(0), 0, false
	for d.Next() {
		switch b := d.Bytes(); d.Type() {
		case attrPacketHeader:
			if found = len(b) >= 4; found {
				id = binary.BigEndian.Uint32(b)
			}
		case attrLength:
			// Only given if the packet is longer than the part that the kernel copied.
			if len(b) == 4 {
				size = int(binary.BigEndian.Uint32(b))
			}
		case attrPayload:
			size = max(size, len(b))
		}
	}
	if !found {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	at, lost := q.line.admit(time.Since(q.start), size)
	if lost {
		q.decide(id, verdictDrop)
		return
	}
	heap.Push(&q.held, heldPacket{at, id})
	if q.held[0].id == id {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// release delivers packets when their time has come.
func (q *shaper) release(ctx context.Context) {
	for {
		q.mu.Lock()
		now := time.Since(q.start)
		for len(q.held) > 0 && q.held[0].at <= now {
			q.decide(heap.Pop(&q.held).(heldPacket).id, verdictAccept)
		}
		next := time.Hour // woken before, if a packet comes
		if len(q.held) > 0 {
			next = q.held[0].at - now
		}
		q.mu.Unlock()
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-q.wake:
			t.Stop()
		case <-t.C:
		}
	}
}

// decide gives the kernel the verdict about a packet. The caller must hold mu.
func (q *shaper) decide(id, verdict uint32) {
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, verdict), id)
	m, err := queueMessage(queueVerdict, netlink.Request, netlink.Attribute{Type: attrVerdictHeader, Data: head})
	if err == nil {
		_, err = q.conn.Send(m)
	}
	if q.err == nil {
		q.err = err
	}
}

// stop delivers what is held, gives the queue back and returns the line with its counts.
func (q *shaper) stop() (line, error) {
	q.end()
	q.mu.Lock()
	for len(q.held) > 0 {
		q.decide(heap.Pop(&q.held).(heldPacket).id, verdictAccept)
	}
	out, err := q.line, q.err
	q.mu.Unlock()
	// The kernel drops the packets of a queue that nobody has, and TCP sends them again.
	err = errors.Join(err, q.conn.Close())
	q.done.Wait()
	return out, err
}
