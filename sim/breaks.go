package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sim/check"
)

// An operator may let a range continue without acknowledged writes: from a copy
// that lacks some, or empty. The judges divide its log and the history of its
// root there. Each part must be right on its own: the first with the log up to
// the break, the second with the entries that the range continues from as its
// beginning.

// logBreak is the moment at which the log of a range continued without some of
// its entries.
type logBreak struct {
	root int
	at   time.Duration
	// before is the log up to there, kept the number of its entries that
	// stayed.
	before check.Log
	kept   int
}

// judgeRecovery follows a range that an operator lets continue: the monitor
// forgets the entries that the copy lacks. Acknowledged writes may be missing
// only if no member of the in-sync set was left that has them.
func (w *world) judgeRecovery(old *catalog.State, r *rhumb.Range) {
	before, ok := old.Range(r.ID)
	if !ok || r.Recovery == nil || before.Recovery != nil && before.Recovery.Epoch == r.Recovery.Epoch {
		return
	}
	i := w.rangeIndex(r.ID)
	var log []*entry.Entry
	restarted := !slices.ContainsFunc(r.Replicas, before.IsReplica)
	if c := w.nodes[r.Recovery.Node-1].disk.copies[i]; c != nil && !restarted {
		log = c.entries
	}
	// A range that begins again is on other nodes. A recovery keeps the
	// replicas.
	was, kept, lost := w.monitor.Accept(r.ID, log)
	left := func(n rhumb.NodeID) bool { return !w.nodes[n-1].lost && !before.IsQuarantined(n) }
	if lost && !restarted && (w.survivesRegion(old, before) || slices.ContainsFunc(before.InSync, left)) {
		w.failf("LOST: range %s continues from %s without acknowledged writes, although %v were in sync", r.ID, r.Recovery.Node, before.InSync)
	}
	w.tracef("world", "range %s continues with %d of %d entries", r.ID, kept, len(was.Entries))
	if lost {
		w.stats.Accepted++
	}
	if kept < len(was.Entries) {
		w.breaks = append(w.breaks, logBreak{w.origin[i].root, w.now, was, kept})
	}
	// The recovery takes all copies on live nodes into the in-sync set, so that
	// the best of them is found, also such that lack something.
	acked, _ := w.monitor.Acknowledged(r.ID)
	for _, id := range r.InSync {
		if _, holds := w.diskOf(r.ID)(id).Durable(acked); !holds && acked > 0 {
			w.monitor.Lost(r.ID, id, acked)
		}
	}
	// The copies that were given up, and whose nodes return, are quarantined
	// and discarded.
	for _, id := range r.Quarantined {
		if n := w.nodes[id-1]; !n.lost && n.spoiled[i] == 0 {
			n.spoiled[i] = w.now
		}
	}
}

// historyPart is a part of the history with the logs that it is judged by.
type historyPart struct {
	ops  []*check.Op
	logs []check.Log
}

// divideHistory divides the history where logs continued without some of their
// entries.
func (w *world) divideHistory(logs []check.Log) (parts []historyPart) {
	last := w.history
	for _, b := range w.breaks {
		root := w.ranges[b.root]
		log := b.before
		log.Root = root
		kept := map[rhumb.RequestID]bool{}
		for _, e := range log.Entries[:b.kept] {
			for i := range e.Requests {
				kept[e.Requests[i].ID] = true
			}
		}
		// An operation that was open at the break may have taken effect before
		// it, after it, or in both parts: the range forgot the request. Each
		// part asks its own log.
		var before, after []*check.Op
		for _, op := range last {
			if op.Range != root {
				after = append(after, op)
				continue
			}
			open := op.Return > b.at
			if op.Call < b.at {
				before = append(before, w.openOp(op, open))
			}
			// A read that has ended saw the log that was given up.
			if op.Call >= b.at || open || op.IsWrite() && kept[op.Request] {
				after = append(after, op)
			}
		}
		parts = append(parts, historyPart{before, []check.Log{log}})
		last = after
	}
	return append(parts, historyPart{last, logs})
}

// openOp returns an operation as it was while it had no answer, if it is to be
// open.
func (w *world) openOp(op *check.Op, open bool) *check.Op {
	if !open {
		return op
	}
	o := *op
	o.Result, o.Return, o.Outcome, o.Items, o.At = check.Unknown, check.Forever, rhumb.Outcome{}, nil, 0
	return &o
}
