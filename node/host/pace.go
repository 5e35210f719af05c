package host

import "time"

// Bounds of a pace.
const (
	// paceMin is the least that a node admits at a time, however slow it is.
	paceMin = 1 << 20
	// paceSlow is the time to answer a batch above which a node admits less at a time. It is well
	// below the time that clients wait for an answer, and above a commit in a distant region.
	paceSlow = 500 * time.Millisecond
)

// pace decides how many bytes of client batches a node admits at a time, from the time that batches
// take to be answered. More than the node answers within paceSlow would only wait, and clients
// would abandon batches that are applied nevertheless. The limit grows by paceMin for each time
// that the full limit was answered, but only while it is what limits the node. It shrinks to seven
// tenths, at most once per paceSlow. pace is plain data: the caller passes the time.
type pace struct {
	limitMax, limit int64
	// lastCut is when the limit last shrank.
	lastCut time.Duration
}

func newPace(most int64) pace { return pace{limitMax: most, limit: most} }

// recordAnswer adjusts the limit to a batch of size bytes that was answered at the given time after
// it took that long. inUse is the number of admitted bytes just before the answer.
func (p *pace) recordAnswer(at, took time.Duration, size, inUse int64) {
	switch {
	case took > paceSlow:
		// Batches that were admitted together are slow together, so one cut is enough for all of
		// them.
		if at-p.lastCut >= paceSlow {
			p.limit, p.lastCut = max(p.limit*7/10, paceMin), at
		}
	// A node that is mostly idle says nothing about how much more it could answer.
	case inUse > p.limit/2:
		p.limit = min(p.limit+max(paceMin*size/p.limit, 1), p.limitMax)
	}
}
