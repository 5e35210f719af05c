package sim

import "time"

// event is a function that runs at a time. seq orders events of the same time by their scheduling,
// so that runs repeat: the order of equal elements of a heap is otherwise arbitrary.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

// schedule is a binary heap of events, the earliest first.
type schedule struct {
	heap []event
	seq  uint64
}

// before reports whether a runs before b.
func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// add schedules an event.
func (s *schedule) add(at time.Duration, do func()) {
	s.seq++
	s.heap = append(s.heap, event{at, s.seq, do})
	h := s.heap
	i := len(h) - 1
	ev := h[i]
	for i > 0 {
		up := (i - 1) / 2
		if !ev.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = ev
}

// peek returns the time of the earliest event. It reports false if there is none.
func (s *schedule) peek() (at time.Duration, ok bool) {
	if len(s.heap) == 0 {
		return 0, false
	}
	return s.heap[0].at, true
}

// next removes and returns the earliest event. It reports false if there is none.
func (s *schedule) next() (ev event, ok bool) {
	h := s.heap
	if len(h) == 0 {
		return event{}, false
	}
	ev = h[0]
	last := h[len(h)-1]
	// The function keeps its world alive: drop the reference from the unused capacity.
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	s.heap = h
	if len(h) == 0 {
		return ev, true
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = last
	return ev, true
}
