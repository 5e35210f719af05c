package node

import "time"

const (
	// rebirthPauseMin and rebirthPauseMax bound the pause of a fenced node before its next life, if
	// the last one was short.
	rebirthPauseMin = time.Second
	rebirthPauseMax = time.Minute
	// lifeLong is the duration of a life after which the next one begins without a pause.
	lifeLong = time.Minute
)

// rebirths spaces out the lives of a node. Without pauses, a node that is fenced repeatedly,
// because its disk stalls or its link fails every few seconds, would disturb its ranges in each
// short life and cost more than a node that stays away.
type rebirths struct{ pause time.Duration }

// nextPause returns the pause after a life of the given duration.
func (r *rebirths) nextPause(lasted time.Duration) time.Duration {
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
