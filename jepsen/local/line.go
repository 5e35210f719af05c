package local

import (
	"math/rand/v2"
	"time"
)

// shape is what a link does to packets. The zero shape does nothing.
type shape struct {
	// delay is added to every packet, and a random part of jitter. Packets keep their order.
	delay, jitter time.Duration
	// loss and overtake are probabilities: that a packet is lost, and that it passes all those that are still delayed.
	loss, overtake float64
	// bytesPerSecond bounds the throughput; 0 is no bound.
	bytesPerSecond int
}

// line decides what happens to the packets of a link, one after the other. It has no clock and does no I/O.
type line struct {
	shape
	random *rand.Rand
	// last is when the last packet that keeps its order is delivered, and free when the link has sent all bytes before.
	last, free time.Duration
	// passed, lost and overtaken count packets. Those that overtake count in passed too.
	passed, lost, overtaken int
}

// admit returns when a packet is delivered that arrives now, or that it is lost.
func (l *line) admit(now time.Duration, size int) (at time.Duration, lost bool) {
	if l.random.Float64() < l.loss {
		l.lost++
		return 0, true
	}
	l.passed++
	if l.random.Float64() < l.overtake {
		l.overtaken++
		return now, false
	}
	at = now + l.delay
	if l.jitter > 0 {
		at += time.Duration(l.random.Int64N(int64(l.jitter)))
	}
	if l.bytesPerSecond > 0 {
		// Bytes are sent one after the other, and travel afterwards.
		l.free = max(l.free, now) + time.Duration(size)*time.Second/time.Duration(l.bytesPerSecond)
		at = max(at, l.free+l.delay)
	}
	// TCP takes a packet out of order for a loss. Jitter alone must not look like reordering, which is a shape of its own.
	l.last = max(l.last, at)
	return l.last, false
}
