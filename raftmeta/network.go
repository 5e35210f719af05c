package raftmeta

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// The first byte of a message on the wire.
const (
	messageWhole = 1
	// messagePart is followed by number(4) part(2) parts(2) and a part of the bytes of a whole
	// message.
	messagePart = 2
	// A question or an answer of a replica that proves its log, in CBOR.
	messageQuestion = 3
	messageAnswer   = 4
)

const partHeader = 1 + 4 + 2 + 2

// transferTicks is the number of ticks after which a state transfer without progress counts as lost
// and is sent again.
const transferTicks = 50

// inbound is a received message. Exactly one of message, question and answer is set.
type inbound struct {
	from     rhumb.NodeID
	message  *raftpb.Message
	question *question
	answer   *answer
}

// sentTransfer is a state transfer that was sent and has not been acknowledged.
type sentTransfer struct {
	index uint64
	tick  uint64
}

// Step accepts a message that another node's Group passed to its transport. If the inbox is full,
// the message is dropped; Raft repeats what matters.
func (g *Group) Step(from rhumb.NodeID, b []byte) error {
	const op rhumb.Op = "raftmeta.Step"
	if len(b) > 0 && (b[0] == messageQuestion || b[0] == messageAnswer) {
		in, err := decodeInbound(from, b)
		if err != nil {
			return err
		}
		g.queueInbound(in)
		return nil
	}
	// Parts are joined here, in the caller's goroutine, so that a large state transfer does not
	// occupy the driver.
	whole, err := g.parts.addPart(from, b)
	if err != nil || whole == nil {
		return rhumb.Wrap(op, err)
	}
	m := new(raftpb.Message)
	if err := proto.Unmarshal(whole, m); err != nil {
		return rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	// A node that no longer leads forwards the read request of a follower to the leader, with the
	// sender unchanged. Refusing it would make the reader wait until it asks again
	// (TestPassedOnReads).
	passedOn := m.GetType() == raftpb.MsgReadIndex
	if m.GetFrom() != uint64(from) && !passedOn || m.GetTo() != uint64(g.config.Node) || raft.IsLocalMsg(m.GetType()) {
		return rhumb.Ef(op, rhumb.Corrupt, "a %s message from node %d to node %d arrived from %s at %s",
			m.GetType(), m.GetFrom(), m.GetTo(), from, g.config.Node)
	}
	// Questions and answers, above, do not count as contact.
	g.contacts.noteContact(from, g.rt.Now())
	g.queueInbound(inbound{from: from, message: m})
	return nil
}

// queueInbound hands a received message to the driver, or drops it if too many wait. It does not
// block the transport.
func (g *Group) queueInbound(in inbound) {
	select {
	case g.inbox <- in:
		g.wakeDriver()
	default:
		g.metrics.dropped.Inc()
	}
}

// sendMessages encodes messages and passes them to the transport, those for one node together.
func (d *driver) sendMessages(messages []*raftpb.Message) {
	// A map alone would send in random order, which a simulation could not repeat.
	var order []uint64
	byNode := make(map[uint64][][]byte)
	for _, m := range messages {
		// This filter is what makes a silent replica silent.
		if !d.maySend(m) {
			continue
		}
		to := m.GetTo()
		if _, ok := byNode[to]; !ok {
			order = append(order, to)
		}
		if m.GetType() == raftpb.MsgSnap {
			// Raft sends nothing else to the follower until the transfer is acknowledged or
			// reported as failed; see checkTransfers.
			d.transfers[to] = sentTransfer{m.GetSnapshot().GetMetadata().GetIndex(), d.ticks}
		}
		byNode[to] = append(byNode[to], splitMessage(uint32(d.ticks), mustMarshal(m))...)
	}
	for _, to := range order {
		d.config.Transport.Send(rhumb.NodeID(to), d.config.Group, byNode[to])
	}
}

// checkTransfers reports state transfers that were not acknowledged in time as failed, so that Raft
// sends them again. A transport may drop anything, and Raft alone would wait forever.
func (d *driver) checkTransfers() {
	if len(d.transfers) == 0 {
		return
	}
	waiting := make(map[uint64]bool)
	d.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		// A follower that acknowledged the transfer has left StateSnapshot.
		waiting[id] = pr.State == tracker.StateSnapshot
	})
	for _, id := range slices.Sorted(maps.Keys(d.transfers)) {
		t := d.transfers[id]
		switch {
		case !waiting[id]:
			delete(d.transfers, id)
		case d.ticks-t.tick >= transferTicks:
			delete(d.transfers, id)
			d.node.ReportSnapshot(id, raft.SnapshotFailure)
		}
	}
}

// splitMessage returns the wire form of a message: the whole message, or its parts if it exceeds
// FragmentSize.
func splitMessage(number uint32, message []byte) [][]byte {
	if len(message) <= FragmentSize {
		return [][]byte{append([]byte{messageWhole}, message...)}
	}
	parts := (len(message) + FragmentSize - 1) / FragmentSize
	out := make([][]byte, parts)
	for i := range parts {
		b := append(make([]byte, 0, partHeader+FragmentSize), messagePart)
		b = binary.BigEndian.AppendUint32(b, number)
		b = binary.BigEndian.AppendUint16(b, uint16(i))
		b = binary.BigEndian.AppendUint16(b, uint16(parts))
		out[i] = append(b, message[i*FragmentSize:min((i+1)*FragmentSize, len(message))]...)
	}
	return out
}

// assembler joins the parts of messages. It holds one unfinished message per sender, because a
// sender sends the parts of a message in order and without other parts between them. A gap drops
// the message; Raft sends it again.
type assembler struct {
	mu   sync.Mutex
	open map[rhumb.NodeID]*unfinished
}

type unfinished struct {
	number uint32
	parts  uint16
	next   uint16
	bytes  []byte
}

// addPart takes one message from the wire. It returns the whole message that this is or completes,
// or nil if parts are missing.
func (a *assembler) addPart(from rhumb.NodeID, b []byte) ([]byte, error) {
	const op rhumb.Op = "raftmeta.assemble"
	switch {
	case len(b) > 0 && b[0] == messageWhole:
		return b[1:], nil
	case len(b) <= partHeader || b[0] != messagePart:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "a message of %d bytes from %s has an unknown form", len(b), from)
	}
	// The bounds hold before anything is stored: a sender can make the receiver hold StateSizeMax
	// bytes at most.
	number, part, parts := binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint16(b[5:]), binary.BigEndian.Uint16(b[7:])
	if part >= parts || int(parts) > StateSizeMax/FragmentSize+1 || len(b)-partHeader > FragmentSize {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "part %d of %d with %d bytes from %s is out of bounds", part, parts, len(b), from)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.open[from]
	// A first part replaces whatever the sender left unfinished.
	if part == 0 {
		u = &unfinished{number: number, parts: parts}
		if a.open == nil {
			a.open = make(map[rhumb.NodeID]*unfinished)
		}
		a.open[from] = u
	}
	if u == nil || u.number != number || u.parts != parts || u.next != part {
		delete(a.open, from)
		return nil, nil
	}
	// The bytes are copied, so the transport may reuse its buffer.
	u.bytes = append(u.bytes, b[partHeader:]...)
	u.next++
	if u.next < u.parts {
		return nil, nil
	}
	delete(a.open, from)
	return u.bytes, nil
}

// contacts records when each node was heard last.
type contacts struct {
	mu   sync.Mutex
	last map[rhumb.NodeID]time.Duration
}

func (c *contacts) noteContact(id rhumb.NodeID, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[rhumb.NodeID]time.Duration)
	}
	c.last[id] = at
}

// silentFor returns how long nothing has been heard from a node, counted from start at the
// earliest.
func (c *contacts) silentFor(id rhumb.NodeID, start, now time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now - max(c.last[id], start)
}
