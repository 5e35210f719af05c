package sim

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
)

// findUnclosed returns a description of an in-sync replica that does not know its range to be
// closed up to the last entry, or "".
func (w *world) findUnclosed() string {
	for i, id := range w.ranges {
		if !w.isServed(id) {
			continue
		}
		r, _ := w.state.Range(id)
		// Without min_in_sync intact members nothing can be committed, so nothing is closed.
		if w.awaitsPerson(r) || w.awaitsTransfer(r) {
			continue
		}
		for _, m := range r.InSync {
			n := w.nodes[m-1]
			c := n.disk.copies[i]
			// The closed timestamp waits for the clocks of all members
			// (docs/replication.md#closed).
			if w.aheadOfTime(c) || r.IsQuarantined(m) || w.nodes[m-1].lost {
				continue
			}
			if c == nil || c.commit == 0 || n.seen.closed[i] < c.entries[c.commit-1].LastHLC() {
				return fmt.Sprintf("range %s: %s does not know its range to be closed up to the last entry", id, m)
			}
		}
	}
	return ""
}

// aheadOfTime reports whether the last entry of a log has a timestamp from a wrong clock. Its range
// is closed up to there only once true time has reached that timestamp.
func (w *world) aheadOfTime(c *rangeCopy) bool {
	if c == nil || c.commit == 0 {
		return false
	}
	now := rhumb.MakeTimestamp(wallStart.Add(w.now).UnixMilli(), 0)
	return w.p.strict && c.entries[c.commit-1].LastHLC() > now.Add(rhumb.ClockAheadMax/2)
}

// closedAhead reports whether a primary with a wrong clock has closed its range ahead of true time.
// With min_in_sync 1 the primary may be alone in sync and then needs no agreement of a correct
// clock.
func (w *world) closedAhead(p *node, id rhumb.RangeID) bool {
	now := rhumb.MakeTimestamp(wallStart.Add(w.now).UnixMilli(), 0)
	return w.p.strict && w.p.settings.MinInSync == 1 && p.host.Closed(id, ^rhumb.Seq(0)) > now.Add(rhumb.ClockAheadMax/2)
}

// awaitClosed waits until every in-sync replica knows that all entries are closed, at most
// LivenessMax.
func (w *world) awaitClosed() {
	why := ""
	for end := w.now + LivenessMax; w.err == nil && w.now < end; w.until(w.now + 250*time.Millisecond) {
		if why = w.findUnclosed(); why == "" {
			return
		}
	}
	if w.err == nil {
		w.failf("%s, %v after the end of the load", why, LivenessMax)
	}
}
