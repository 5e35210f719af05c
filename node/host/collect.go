package host

import (
	"math"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// collector removes, away from the passes, what ranges no longer need. Each range waits at most once, so the bound of
// the queue is the number of ranges.
type collector struct {
	mu    sync.Mutex // guards the two below
	queue []*slot
	waits map[*slot]rhumb.Timestamp // the newest timestamp below which no read begins any more

	worker sched.Worker
}

func newCollector(rt sched.Runtime, work func()) *collector {
	return &collector{waits: map[*slot]rhumb.Timestamp{}, worker: rt.Worker(work)}
}

// add notes that a range's log was trimmed.
func (c *collector) add(s *slot, before rhumb.Timestamp) {
	c.mu.Lock()
	if _, ok := c.waits[s]; !ok {
		c.queue = append(c.queue, s)
	}
	c.waits[s] = max(c.waits[s], before)
	c.mu.Unlock()
	c.worker.Wake()
}

func (c *collector) take() (*slot, rhumb.Timestamp, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, 0, false
	}
	s := c.queue[0]
	c.queue = c.queue[1:]
	before := c.waits[s]
	delete(c.waits, s)
	return s, before, true
}

// collect works until no range waits, or the host closes.
func (h *Host) collect() {
	for h.ctx.Err() == nil {
		s, before, ok := h.collector.take()
		if !ok {
			return
		}
		more, err := h.collectRange(s, before)
		if err != nil {
			h.m.collectFailed.Inc()
			h.log.Warn("collection failed", "range", s.id.String(), "err", err)
			continue
		}
		if more {
			h.collector.add(s, before)
		}
	}
}

// collectRange does a bounded piece of work on one range, at log time before. more says that there is more to do at once.
func (h *Host) collectRange(s *slot, before rhumb.Timestamp) (more bool, err error) {
	done, err := s.store.Collect(s.id, storage.CollectLimits{Before: before, History: func(t rhumb.TableID) time.Duration {
		keep := h.history(t)
		if _, known := s.histories[t]; keep > 0 && !known {
			if s.histories == nil {
				s.histories = map[rhumb.TableID]*historyWalk{}
			}
			s.histories[t] = &historyWalk{}
		}
		return keep
	}})
	if err != nil || done.More {
		return done.More, err
	}
	for t, w := range s.histories {
		keep := h.history(t)
		again, err := w.step(s, t, keep, before)
		if err != nil {
			return false, err
		}
		if keep == 0 && !again { // metadata knows it by now, as one without history: Collect sees to the rest
			delete(s.histories, t)
		}
		more = more || again
	}
	return more, nil
}

// historyUnknown keeps what a table that metadata does not know (yet) has superseded.
const historyUnknown = math.MaxInt64

func (h *Host) history(t rhumb.TableID) time.Duration {
	if h.cfg.History == nil {
		return 0
	}
	keep, ok := h.cfg.History(t)
	if !ok {
		return historyUnknown
	}
	return keep
}

// historyWalk is where the collection of one table with history stands in one range. Each walk looks at every name of the
// table, so a walk begins only when log time has moved on by a quarter of what is kept, and at least by historyWalkMin.
type historyWalk struct {
	begun rhumb.Timestamp // log time at the begin of the last walk; 0 before the first
	after []byte          // the last name looked at; nil between walks
}

const historyWalkMin = time.Minute

// step goes on with a walk, or begins one when it is due. more says that the walk is not at its end.
func (w *historyWalk) step(s *slot, t rhumb.TableID, keep time.Duration, now rhumb.Timestamp) (more bool, err error) {
	if w.after == nil {
		if w.begun != 0 && now.Sub(w.begun) < max(keep/4, historyWalkMin) {
			return false, nil
		}
		w.begun = now
	}
	if keep >= w.begun.Sub(0) { // longer than there is time to count back, as of a table that is not known
		return false, nil
	}
	w.after, _, err = s.store.CollectHistory(s.id, t, w.begun.Add(-keep), w.after)
	return w.after != nil, err
}
