package raftmeta

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.etcd.io/raft/v3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// read waits for a state that includes all that was decided before it began.
type read struct {
	done chan struct{}
	err  error
}

// readBatch is the reads that one question to the leader answers: those that began before it was asked.
type readBatch struct {
	context []byte
	reads   []*read
	index   uint64 // the state to wait for, once confirmed
	ready   bool
	asked   uint64 // the tick of the last question
}

// readRetryTicks is after how many ticks without an answer the leader is asked again.
const readRetryTicks = 5

// Linearize gives a state that includes everything decided before the call (Raft's ReadIndex): one round trip to the
// leader and its majority, shared by all calls that wait.
func (g *Group) Linearize(ctx context.Context) (*catalog.State, error) {
	const op rhumb.Op = "raftmeta.Linearize"
	r := &read{done: make(chan struct{})}
	select {
	case g.reads <- r:
		g.wakeDriver()
	default:
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d reads wait already", ReadsMax)
	}
	if err := g.waitFor(ctx, op, r.done); err != nil {
		return nil, err
	}
	if r.err != nil {
		return nil, rhumb.Wrap(op, r.err)
	}
	return g.State(), nil
}

// queueRead takes a read in; it is asked about at once when no question is under way.
func (d *driver) queueRead(r *read) {
	if len(d.readQueue) >= ReadsMax {
		r.err = rhumb.Ef("raftmeta.Linearize", rhumb.Overloaded, "%d reads wait already", ReadsMax)
		close(r.done)
		return
	}
	d.readQueue = append(d.readQueue, r)
	if d.reading == nil {
		d.askReads()
	}
}

// askReads asks the leader on behalf of all reads that wait.
func (d *driver) askReads() {
	if len(d.readQueue) == 0 {
		return
	}
	d.nextID++
	b := binary.BigEndian.AppendUint32(nil, uint32(d.config.Node))
	b = binary.BigEndian.AppendUint64(b, d.nextID)
	d.reading = &readBatch{context: b, reads: d.readQueue, asked: d.ticks}
	d.readQueue = nil
	d.node.ReadIndex(b)
}

// retryReads asks again when an answer does not come: the question or its answer was lost, or there was no leader.
func (d *driver) retryReads() {
	if r := d.reading; r != nil && !r.ready && d.ticks-r.asked >= readRetryTicks {
		r.asked = d.ticks
		d.node.ReadIndex(r.context)
	}
}

// readConfirmed notes the leader's answer.
func (d *driver) readConfirmed(rs raft.ReadState) {
	if r := d.reading; r != nil && bytes.Equal(rs.RequestCtx, r.context) {
		r.index, r.ready = rs.Index, true
	}
}

// finishReads answers the reads whose state is applied.
func (d *driver) finishReads() {
	if r := d.reading; r != nil && r.ready && d.applied >= r.index {
		for _, waiting := range r.reads {
			close(waiting.done)
		}
		d.reading = nil
		d.askReads()
	}
}
