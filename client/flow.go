package client

import "time"

// Bounds of a flow.
const (
	// flowFirst is the window of a flow at its beginning, flowMost and flowLeast bound it later; one request always fits.
	flowFirst = 2 << 20
	flowMost  = queueBytesMax
	flowLeast = 256 << 10
	// flowEasy is how much longer than the quickest an answer may take for the window to grow, flowSlow how much longer before it
	// counts as a refusal: well below Config.AttemptTimeout, so that requests wait here, where it is known that they were not
	// applied.
	flowEasy = 200 * time.Millisecond
	flowSlow = 600 * time.Millisecond
	// flowPause is how long a flow that was cut is not cut again: refusals of what was on its way say nothing new.
	flowPause = 200 * time.Millisecond
)

// flow bounds the bytes of requests that a node is sent and has not answered, by what the node takes. It begins small and
// doubles with each window that is answered. When the node refuses as Overloaded, or is slow, the window is halved, and grows
// little by little from then on. So callers wait in their own process, and a node under overload spends its time on what it
// takes. It is plain data: the caller gives the time.
type flow struct {
	window, inflight int
	cut              time.Time     // when the window was halved last; zero when it never was
	quickest         time.Duration // the least that an answer took; 0 before the first
}

func newFlow() flow { return flow{window: flowFirst} }

// room reports whether a request of size bytes may be sent together with more bytes that are about to be sent.
func (f *flow) room(size, more int) bool {
	return f.inflight+more == 0 || f.inflight+more+size <= f.window
}

// narrow reports whether requests wait because the node refused some, or was slow.
func (f *flow) narrow() bool { return !f.cut.IsZero() && f.window < flowMost }

// refused takes a refusal as Overloaded, or that there was no answer in time. It is called before the request leaves inflight.
func (f *flow) refused(now time.Time) {
	if now.Sub(f.cut) < flowPause {
		return
	}
	f.cut = now
	f.window = max(min(f.window, f.inflight)/2, flowLeast)
}

// answered takes any other answer to a request of so many bytes that was sent a while ago. It is called before the request
// leaves inflight.
func (f *flow) answered(now time.Time, took time.Duration, size int) {
	if f.quickest == 0 || took < f.quickest {
		f.quickest = max(took, 1)
	}
	switch waited := took - f.quickest; {
	case waited > flowSlow:
		f.refused(now)
	case waited > flowEasy:
	case f.inflight <= f.window/2: // the window is not what limits
	case f.cut.IsZero():
		f.window = min(f.window+size, flowMost)
	default:
		f.window = min(f.window+max(flowLeast*size/f.window, 1), flowMost)
	}
}
