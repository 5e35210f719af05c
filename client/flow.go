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
	// flowMargin times the usual wait within a node is left to a request for its flight, but one part in flowTurn of its time is
	// for its turn to be sent. One answer has one part in flowShare in what is usual.
	flowMargin = 3
	flowTurn   = 8
	flowShare  = 16
	// flowFresh is how long after an answer a node counts as one that works.
	flowFresh = time.Second
)

// flow bounds the bytes of requests that a node is sent and has not answered, by what the node takes. It begins small and
// doubles with each window that is answered. When the node refuses as Overloaded, or is slow, the window is halved, and grows
// little by little from then on. So callers wait in their own process, and a node under overload spends its time on what it
// takes. It is plain data: the caller gives the time.
type flow struct {
	window, inflight int
	cut              time.Time     // when the window was halved last; zero when it never was
	quickest         time.Duration // the least that an answer took; 0 before the first
	wait             time.Duration // what answers took longer than the quickest, smoothed
	heard            time.Time     // when the last answer came
}

func newFlow() flow { return flow{window: flowFirst} }

// room reports whether a request of size bytes may be sent together with more bytes that are about to be sent.
func (f *flow) room(size, more int) bool {
	return f.inflight+more == 0 || f.inflight+more+size <= f.window
}

// narrow reports whether requests wait because the node refused some, or was slow.
func (f *flow) narrow() bool { return !f.cut.IsZero() && f.window < flowMost }

// working reports whether the node answers, so that what was not sent in time waited for its turn.
func (f *flow) working(now time.Time) bool { return f.narrow() || now.Sub(f.heard) < flowFresh }

// flight returns how much of the time that a request may take is for the way to the node and back, and for its answer: half of
// it, or more when answers take long. A request that is not sent before that begins would be answered too late, and nobody would
// know what became of it.
func (f *flow) flight(most time.Duration) time.Duration {
	return min(max(most/2, f.quickest+flowMargin*f.wait), most-most/flowTurn)
}

// late takes that a request which was sent a while ago is given up. It is called before the request leaves inflight.
func (f *flow) late(now time.Time, took time.Duration) {
	f.observe(took)
	f.refused(now)
}

func (f *flow) observe(took time.Duration) {
	if f.quickest == 0 || took < f.quickest {
		f.quickest = max(took, 1)
	}
	f.wait += (took - f.quickest - f.wait) / flowShare
}

// refused takes a refusal as Overloaded. It is called before the request leaves inflight.
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
	f.heard = now
	f.observe(took)
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
