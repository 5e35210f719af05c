package stream

import "time"

// Bounds of a flow.
const (
	// framesMax bounds the unanswered frames: those without an answer to any of their requests. While answers usually take
	// less than fastAnswer, the bound is one frame: a second one would make smaller frames and smaller commits, and
	// requests gather for a short time only. With slow answers, one frame at a time would leave the node idle.
	framesMax  = 4
	fastAnswer = 2 * time.Millisecond
	// windowFirst is the window of a new flow. windowMin and windowMax bound it later.
	windowFirst = 2 << 20
	windowMax   = queueBytesMax
	windowMin   = 256 << 10
	// easyWait is how much longer than the fastest answer an answer may take for the window to
	// grow.
	easyWait = 200 * time.Millisecond
	// SlowWait is how much longer than the fastest answer an answer may take before it counts as a
	// refusal. It is well below the timeout of one attempt, so requests wait in the client, where
	// they are known not to be applied.
	SlowWait = 600 * time.Millisecond
	// cutPause is how long the window is not halved again after it was halved: the refusals of
	// requests that were already on their way say nothing new.
	cutPause = 200 * time.Millisecond
	// flightWaits times the usual wait in the node is reserved for the flight of a request. At
	// least 1/turnShare of the timeout remains for its turn to be sent.
	flightWaits = 3
	turnShare   = 8
	// smoothing is the weight of the past: a new wait counts 1/smoothing of the smoothed wait.
	smoothing = 16
	// freshFor is how long after an answer a node counts as working.
	freshFor = time.Second
	// fullRetryMin and fullRetryMax bound the pause that a full queue suggests.
	fullRetryMin = 50 * time.Millisecond
	fullRetryMax = time.Second
)

// flow bounds the bytes of unanswered requests by the capacity of the node, as TCP does. The window
// begins small and doubles with each window of answers. When the node refuses a request as
// Overloaded, or is slow, the window is halved and grows linearly from then on. Callers then wait
// in their own process, and an overloaded node spends its time on the requests that it takes.
//
// A flow is plain data without a lock or clock.
type flow struct {
	window   int           // most bytes in flight
	inflight int           // bytes of unanswered requests; the Conn maintains it
	cut      time.Time     // when the window was last halved, zero if never
	fastest  time.Duration // of all answers, 0 before the first
	wait     time.Duration // by how much answers take longer than the fastest, smoothed
	heard    time.Time     // when the last answer or refusal arrived
}

// newFlow returns the limit of a connection that has measured nothing yet.
func newFlow() flow { return flow{window: windowFirst} }

// hasRoom reports whether a request of size bytes may be sent in the same frame as more bytes. A
// request always has room while nothing is in flight, since a request may be larger than the
// window.
func (f *flow) hasRoom(size, more int) bool {
	return f.inflight+more == 0 || f.inflight+more+size <= f.window
}

// frames returns how many frames may be unanswered.
func (f *flow) frames() int {
	if f.fastest+f.wait < fastAnswer {
		return 1
	}
	return framesMax
}

// isNarrow reports whether the window is smaller than its maximum because the node refused requests
// or was slow.
func (f *flow) isNarrow() bool { return !f.cut.IsZero() && f.window < windowMax }

// isWorking reports whether the node answers, so that a request that was not sent in time was
// waiting for its turn and not for the network.
func (f *flow) isWorking(now time.Time) bool { return f.isNarrow() || now.Sub(f.heard) < freshFor }

// flight returns how much of a request's timeout is reserved for the way to the node, its work, and
// the way back: half of it, or more while answers are slow.
func (f *flow) flight(timeout time.Duration) time.Duration {
	return min(max(timeout/2, f.fastest+flightWaits*f.wait), timeout-timeout/turnShare)
}

// turn returns for how long a request that is not sent may wait for its turn until somebody has to
// look again. 0 means that it must not wait any longer: it would be answered after its deadline, or
// the node does not answer, so that another attempt may do better. The time that is left includes
// the flight.
//
// A request keeps its place while the node works. To queue it again would put it after everything
// that came later, and would cost as much processor time as a refusal by the node
// (docs/decisions/0022-overload.md).
func (f *flow) turn(now time.Time, timeout, left time.Duration) time.Duration {
	if now.Sub(f.heard) >= freshFor {
		return 0
	}
	flight := f.flight(timeout)
	return max(min(timeout-flight, left-flight), 0)
}

// fullRetry returns after what time a full queue of so many bytes probably has room for many
// requests: the time in which the node answers half of it, at a window per usual answer.
func (f *flow) fullRetry(queued int) time.Duration {
	answers := float64(queued) / 2 / float64(f.window)
	return min(max(time.Duration(answers*float64(f.fastest+f.wait)), fullRetryMin), fullRetryMax)
}

// onAnswer records an answer, other than a refusal as Overloaded, to a request of size bytes. The
// caller removes the request from inflight afterwards.
func (f *flow) onAnswer(now time.Time, took time.Duration, size int) {
	f.heard = now
	f.observeWait(took)
	switch waited := took - f.fastest; {
	case waited > SlowWait:
		f.cutWindow(now)
	case waited > easyWait: // neither fast nor slow
	case f.inflight <= f.window/2: // the window is not what limits the requests, so its size is not tested
	case f.cut.IsZero():
		f.window = min(f.window+size, windowMax)
	default:
		f.window = min(f.window+max(windowMin*size/f.window, 1), windowMax)
	}
}

// onRefusal records a refusal as Overloaded. The caller removes the request from inflight
// afterwards.
func (f *flow) onRefusal(now time.Time) {
	f.heard = now
	f.cutWindow(now)
}

// cutWindow halves the window.
func (f *flow) cutWindow(now time.Time) {
	if now.Sub(f.cut) < cutPause {
		return
	}
	f.cut = now
	// Half of the bytes that were in flight: the node did not refuse the unused part of the window.
	f.window = max(min(f.window, f.inflight)/2, windowMin)
}

// onTimeout records that the caller of a sent request stopped waiting. The caller removes the
// request from inflight afterwards.
func (f *flow) onTimeout(now time.Time, took time.Duration) {
	f.observeWait(took)
	f.cutWindow(now)
}

// observeWait updates the smoothed time that a request waits at the node: what its answer took beyond the fastest answer.
func (f *flow) observeWait(took time.Duration) {
	if f.fastest == 0 || took < f.fastest {
		f.fastest = max(took, 1) // 0 means that there was no answer yet
	}
	f.wait += (took - f.fastest - f.wait) / smoothing
}
