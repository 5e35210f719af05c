package node

import "time"

const (
	// rebirthPauseMin and rebirthPauseMax bound how long a node that was fenced waits before it begins a new life, if the last
	// one was short.
	rebirthPauseMin = time.Second
	rebirthPauseMax = time.Minute
	// lifeLong is how long a life must last for the next rebirth to be immediate again.
	lifeLong = time.Minute
)

// rebirths spaces out the lives of a node. Without a pause, a node that is fenced again and again, because its disk stalls or
// its link fails every few seconds, would disturb its ranges in each short life, and cost more than a node that is away.
type rebirths struct{ pause time.Duration }

// next returns how long to wait after a life of that length.
func (r *rebirths) next(lasted time.Duration) time.Duration {
	switch {
	case lasted >= lifeLong:
		r.pause = 0
	case r.pause == 0:
		r.pause = rebirthPauseMin
	default:
		r.pause = min(2*r.pause, rebirthPauseMax)
	}
	return r.pause
}
