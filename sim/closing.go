package sim

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
)

// unclosed names a replica in sync that does not know that its range is closed up to its last entry; "" for none.
func (w *world) unclosed() string {
	for i, id := range w.ranges {
		r, _ := w.state.Range(id)
		if w.awaitsPerson(r) {
			continue
		}
		for _, m := range r.InSync {
			n := w.nodes[m-1]
			c := n.disk.copies[i]
			if w.aheadOfTime(c) || r.IsQuarantined(m) {
				continue
			}
			if c == nil || c.commit == 0 || n.seen.closed[i] < c.entries[c.commit-1].LastHLC() {
				return fmt.Sprintf("range %s: %s does not learn that it is closed up to its last entry", id, m)
			}
		}
	}
	return ""
}

// aheadOfTime reports whether the last entry of a log is from a clock that was wrong: the range is closed up to it only once
// time has come there.
func (w *world) aheadOfTime(c *rangeCopy) bool {
	if c == nil || c.commit == 0 {
		return false
	}
	now := rhumb.MakeTimestamp(wallStart.Add(w.now).UnixMilli(), 0)
	return w.p.strict && c.entries[c.commit-1].LastHLC() > now.Add(rhumb.ClockAheadMax/2)
}

// closedAhead reports whether a primary whose clock was wrong has closed its range ahead of time, which it can do only where it
// needs nobody's agreement.
func (w *world) closedAhead(p *node, id rhumb.RangeID) bool {
	now := rhumb.MakeTimestamp(wallStart.Add(w.now).UnixMilli(), 0)
	return w.p.strict && w.p.settings.MinInSync == 1 && p.host.Closed(id, ^rhumb.Seq(0)) > now.Add(rhumb.ClockAheadMax/2)
}

// awaitClosed waits until every replica in sync knows that all there is is closed, at most LivenessMax.
func (w *world) awaitClosed() {
	why := ""
	for end := w.now + LivenessMax; w.err == nil && w.now < end; w.until(w.now + 250*time.Millisecond) {
		if why = w.unclosed(); why == "" {
			return
		}
	}
	if w.err == nil {
		w.failf("%s for %v after the load has ended", why, LivenessMax)
	}
}
