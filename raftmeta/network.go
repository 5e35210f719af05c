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
	messagePart  = 2 // then number(4) part(2) parts(2), and a part of the bytes of a whole message
	// A question or an answer of a replica that proves its log, in CBOR.
	messageQuestion = 3
	messageAnswer   = 4
)

const partHeader = 1 + 4 + 2 + 2

// transferTicks is after how many ticks without progress a state transfer counts as lost and is sent again.
const transferTicks = 50

// inbound is a received message: one of the three.
type inbound struct {
	from     rhumb.NodeID
	message  *raftpb.Message
	question *question
	answer   *answer
}

// sentTransfer is a state transfer that was sent and not yet acknowledged.
type sentTransfer struct {
	index uint64
	tick  uint64
}

// Step takes a message that another node's Group gave to its transport. A message that finds the inbox full is dropped.
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
	whole, err := g.parts.addPart(from, b)
	if err != nil || whole == nil {
		return rhumb.Wrap(op, err)
	}
	m := new(raftpb.Message)
	if err := proto.Unmarshal(whole, m); err != nil {
		return rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	// A node that no longer leads passes the question of a reader on to the leader.
	passedOn := m.GetType() == raftpb.MsgReadIndex
	if m.GetFrom() != uint64(from) && !passedOn || m.GetTo() != uint64(g.config.Node) || raft.IsLocalMsg(m.GetType()) {
		return rhumb.Ef(op, rhumb.Corrupt, "a %s message from %d to %d came from %s to %s",
			m.GetType(), m.GetFrom(), m.GetTo(), from, g.config.Node)
	}
	g.contacts.noteContact(from, g.rt.Now())
	g.queueInbound(inbound{from: from, message: m})
	return nil
}

// queue hands a received message to the driver, unless too many wait.
func (g *Group) queueInbound(in inbound) {
	select {
	case g.inbox <- in:
		g.wakeDriver()
	default:
		g.metrics.dropped.Inc()
	}
}

// send encodes messages and hands them to the transport, those for one node together.
func (d *driver) sendMessages(messages []*raftpb.Message) {
	var order []uint64
	byNode := make(map[uint64][][]byte)
	for _, m := range messages {
		if !d.maySend(m) {
			continue
		}
		to := m.GetTo()
		if _, ok := byNode[to]; !ok {
			order = append(order, to)
		}
		if m.GetType() == raftpb.MsgSnap {
			d.transfers[to] = sentTransfer{m.GetSnapshot().GetMetadata().GetIndex(), d.ticks}
		}
		byNode[to] = append(byNode[to], splitMessage(uint32(d.ticks), mustMarshal(m))...)
	}
	for _, to := range order {
		d.config.Transport.Send(rhumb.NodeID(to), d.config.Group, byNode[to])
	}
}

// checkTransfers reports state transfers that were not acknowledged in time as failed, so that Raft sends them again: a
// transport may drop anything, and Raft itself waits for ever.
func (d *driver) checkTransfers() {
	if len(d.transfers) == 0 {
		return
	}
	waiting := make(map[uint64]bool)
	d.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
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

// split gives a message as it goes onto the wire: whole, or in parts.
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

// assembler puts the parts of messages together. It keeps one unfinished message per sender; parts come in order, and a
// gap drops the message.
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

// add takes one message from the wire, and gives the whole message that it is or completes, or nil.
func (a *assembler) addPart(from rhumb.NodeID, b []byte) ([]byte, error) {
	const op rhumb.Op = "raftmeta.assemble"
	switch {
	case len(b) > 0 && b[0] == messageWhole:
		return b[1:], nil
	case len(b) <= partHeader || b[0] != messagePart:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "a message of %d bytes of an unknown form from %s", len(b), from)
	}
	number, part, parts := binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint16(b[5:]), binary.BigEndian.Uint16(b[7:])
	if part >= parts || int(parts) > StateSizeMax/FragmentSize+1 || len(b)-partHeader > FragmentSize {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "part %d of %d with %d bytes from %s", part, parts, len(b), from)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.open[from]
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
	u.bytes = append(u.bytes, b[partHeader:]...)
	u.next++
	if u.next < u.parts {
		return nil, nil
	}
	delete(a.open, from)
	return u.bytes, nil
}

// contacts remembers when each node was last heard.
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

// silent gives how long nothing was heard of a node, counted from a start at the earliest.
func (c *contacts) silentFor(id rhumb.NodeID, start, now time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now - max(c.last[id], start)
}
