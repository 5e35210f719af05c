package catalog

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// RecordRelapse records how often a node failed, or had to be relieved of a range, soon after it had become healthy. The planner of
// the metadata leader decides what counts (place.Planner.Relapses); the record is its memory across leaders. At is the time of day of
// the last failure. A count of 0 is refused: nobody looks at old failures any more.
type RecordRelapse struct {
	Node     rhumb.NodeID
	Relapses uint32
	At       time.Time
}

func (RecordRelapse) wireCode() commandCode { return codeRecordRelapse }

func (RecordRelapse) needs() rhumb.Feature { return rhumb.FeatureFailover }

func (c RecordRelapse) fillWire(w *wireCommand) {
	w.Node, w.Relapses, w.At = c.Node, c.Relapses, toWireTime(c.At)
}

// relapseDecoders is the part of commandDecoders for the command of this file.
var relapseDecoders = map[commandCode]func(w *wireCommand) Command{
	codeRecordRelapse: func(w *wireCommand) Command { return RecordRelapse{w.Node, w.Relapses, fromWireTime(w.At)} },
}

// applyTo stores the count. No version is compared: the last leader's count wins, and a wrong one costs a wait and nothing else.
func (c RecordRelapse) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RecordRelapse"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	case c.Relapses == 0:
		return refuse(op, rhumb.InvalidArgument, "no failure of %s to record", c.Node)
	case n.Relapses == c.Relapses && n.FailedAt.Equal(c.At):
		return Result{Node: c.Node}
	}
	// The record of the node is shared with readers of earlier states, so a copy is changed. Nothing else about the node changes: its
	// life, its state and its roles are those that it had.
	next := *n
	next.Relapses, next.FailedAt = c.Relapses, c.At
	t.putNode(&next)
	return Result{Node: c.Node}
}
