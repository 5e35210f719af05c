package host

import "time"

// Bounds of a pace.
const (
	// paceLeast is the least that a node takes in at a time, however slow it is.
	paceLeast = 1 << 20
	// paceSlow is the time to answer a batch above which a node takes in less at a time: well below the time that clients wait
	// for an answer, and above a commit in a far region.
	paceSlow = 500 * time.Millisecond
)

// pace decides how many bytes of client batches a node takes in at a time, from how long they take to be answered: more than it
// answers within paceSlow would only wait, and clients would give up on batches that are applied all the same. It grows
// while the bound is what limits, by paceLeast for each time that the bound was answered, and shrinks to seven tenths at most
// once in paceSlow. It is plain data: the caller gives the time.
type pace struct {
	most, now int64
	cut       time.Duration // when it shrank last
}

func newPace(most int64) pace { return pace{most: most, now: most} }

// answered adjusts the pace to a batch of size bytes that was answered at a time, after it took that long. inUse is what was
// taken in just before the answer.
func (p *pace) answered(at, took time.Duration, size, inUse int64) {
	switch {
	case took > paceSlow:
		if at-p.cut >= paceSlow {
			p.now, p.cut = max(p.now*7/10, paceLeast), at
		}
	case inUse > p.now/2:
		p.now = min(p.now+max(paceLeast*size/p.now, 1), p.most)
	}
}
