package sim

import (
	"fmt"
	"time"
)

// unclosed names a replica in sync that does not know that its range is closed up to its last entry; "" for none.
func (w *world) unclosed() string {
	for i, id := range w.ranges {
		r, _ := w.state.Range(id)
		for _, m := range r.InSync {
			n := w.nodes[m-1]
			c := n.disk.copies[i]
			if c == nil || c.commit == 0 || n.seen.closed[i] < c.entries[c.commit-1].LastHLC() {
				return fmt.Sprintf("range %s: %s does not learn that it is closed up to its last entry", id, m)
			}
		}
	}
	return ""
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
