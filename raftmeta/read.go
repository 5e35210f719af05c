package raftmeta

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.etcd.io/raft/v3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// read waits for a state that includes everything decided before the read began. err may be read
// after done closes.
type read struct {
	done chan struct{}
	err  error
}

// readBatch holds the reads that one question to the leader answers: those that began before the
// question was asked.
type readBatch struct {
	context []byte
	reads   []*read
	index   uint64 // the index to apply first, if ready
	ready   bool
	asked   uint64 // the tick at which the leader was asked last
}

// readRetryTicks is the number of ticks without an answer after which the leader is asked again.
const readRetryTicks = 5

// Linearize returns a state that includes everything decided before the call (Raft's ReadIndex). It
// costs one round trip to the leader and its majority, which all waiting calls share.
func (g *Group) Linearize(ctx context.Context) (*catalog.State, error) {
	const op rhumb.Op = "raftmeta.Linearize"
	r := &read{done: make(chan struct{})}
	select {
	case g.reads <- r:
		g.wakeDriver()
	default:
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d metadata reads already wait, which is the limit; try again later", ReadsMax)
	}
	if err := g.waitFor(ctx, op, r.done); err != nil {
		return nil, err
	}
	if r.err != nil {
		return nil, rhumb.Wrap(op, r.err)
	}
	return g.State(), nil
}

// queueRead accepts a read. The leader is asked at once unless a question is in flight. In that
// case the read waits for the next question: the answer in flight may be older than the read.
func (d *driver) queueRead(r *read) {
	if len(d.readQueue) >= ReadsMax {
		r.err = rhumb.Ef("raftmeta.Linearize", rhumb.Overloaded, "%d metadata reads already wait, which is the limit; try again later", ReadsMax)
		close(r.done)
		return
	}
	d.readQueue = append(d.readQueue, r)
	if d.reading == nil {
		d.askReads()
	}
}

// askReads asks the leader on behalf of all waiting reads.
func (d *driver) askReads() {
	if len(d.readQueue) == 0 {
		return
	}
	d.nextID++
	// The context identifies the question among those of all nodes, so that a late answer to
	// another one is ignored.
	b := binary.BigEndian.AppendUint32(nil, uint32(d.config.Node))
	b = binary.BigEndian.AppendUint64(b, d.nextID)
	d.reading = &readBatch{context: b, reads: d.readQueue, asked: d.ticks}
	d.readQueue = nil
	d.node.ReadIndex(b)
}

// retryReads asks again if the question or its answer was lost, or if there was no leader. The same
// context may be used: a later answer is newer and therefore valid as well.
func (d *driver) retryReads() {
	if r := d.reading; r != nil && !r.ready && d.ticks-r.asked >= readRetryTicks {
		r.asked = d.ticks
		d.node.ReadIndex(r.context)
	}
}

// readConfirmed records the leader's answer.
func (d *driver) readConfirmed(rs raft.ReadState) {
	if r := d.reading; r != nil && bytes.Equal(rs.RequestCtx, r.context) {
		r.index, r.ready = rs.Index, true
	}
}

// finishReads completes the reads whose index is applied, and asks for those that arrived since.
func (d *driver) finishReads() {
	// A confirmed read waits until this replica has applied the confirmed index: only then does
	// State include everything decided before the read.
	if r := d.reading; r != nil && r.ready && d.applied >= r.index {
		for _, waiting := range r.reads {
			close(waiting.done)
		}
		d.reading = nil
		// Reads that arrived while the question was in flight share the next one.
		d.askReads()
	}
}
