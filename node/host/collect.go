package host

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// collector removes old log entries, versions and request results outside the passes. Each range
// waits at most once, so the number of ranges bounds the queue.
type collector struct {
	// mu guards the two fields below.
	mu    sync.Mutex
	queue []*slot
	// waits holds, per waiting range, the newest timestamp below which no read begins any more.
	waits map[*slot]rhumb.Timestamp
	// sweeps are searches for dropped tables that wait. A range has at most one that is not out of date.
	sweeps []pendingSweep

	worker sched.Worker
}

func newCollector(rt sched.Runtime, work func()) *collector {
	return &collector{waits: map[*slot]rhumb.Timestamp{}, worker: rt.Worker(work)}
}

// addRange queues a range whose log was trimmed.
func (c *collector) addRange(s *slot, before rhumb.Timestamp) {
	c.mu.Lock()
	if _, ok := c.waits[s]; !ok {
		c.queue = append(c.queue, s)
	}
	c.waits[s] = max(c.waits[s], before)
	c.mu.Unlock()
	c.worker.Wake()
}

// pendingSweep is a search of a range for dropped tables.
type pendingSweep struct {
	s *slot
	w *sweep
}

// addSweep queues a search of a range for dropped tables. It takes the place of an earlier one.
func (c *collector) addSweep(s *slot, w *sweep) {
	c.mu.Lock()
	i := slices.IndexFunc(c.sweeps, func(p pendingSweep) bool { return p.s == s })
	if i >= 0 {
		c.sweeps[i].w = w
	} else {
		c.sweeps = append(c.sweeps, pendingSweep{s, w})
	}
	c.mu.Unlock()
	c.worker.Wake()
}

// takeSweep returns the search that waits longest.
func (c *collector) takeSweep() (p pendingSweep, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sweeps) == 0 {
		return p, false
	}
	p = c.sweeps[0]
	c.sweeps = c.sweeps[1:]
	return p, true
}

// takeRange returns the range that waits longest.
func (c *collector) takeRange() (*slot, rhumb.Timestamp, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, 0, false
	}
	s := c.queue[0]
	c.queue = c.queue[1:]
	before := c.waits[s]
	// Deleted before the work begins: a trim during the work queues the range again.
	delete(c.waits, s)
	return s, before, true
}

// runCollector works until no range waits or the host closes.
func (h *Host) runCollector() {
	for h.ctx.Err() == nil {
		// Collection comes first: it keeps ranges in use small, and nobody waits for a sweep.
		s, before, ok := h.collector.takeRange()
		if !ok {
			p, ok := h.collector.takeSweep()
			if !ok {
				return
			}
			if err := h.sweepRange(p.s, p.w); err != nil {
				h.m.clearFailed.Inc()
				h.log.Warn("searching a range for dropped tables failed", "range", p.s.id.String(), "err", err)
			}
			continue
		}
		more, err := h.collectRange(s, before)
		if err != nil {
			// Collection is not needed for correctness. The next trim of the range tries again.
			h.m.collectFailed.Inc()
			h.log.Warn("removing old versions failed", "range", s.id.String(), "err", err)
			continue
		}
		// The range goes to the end of the queue, so that a large range does not delay the others.
		if more {
			h.collector.addRange(s, before)
		}
	}
}

// collectRange does a bounded amount of work on one range. No read of the range begins below before,
// which also serves as the log time. more is true if there is more to do at once.
func (h *Host) collectRange(s *slot, before rhumb.Timestamp) (more bool, err error) {
	done, err := s.store.Collect(s.id, storage.CollectLimits{Before: before, History: func(t rhumb.TableID) time.Duration {
		keep := h.tableHistory(t)
		// Collect reports every table that it meets. It removes nothing from tables with history,
		// which are walked below.
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
		keep := h.tableHistory(t)
		again, err := w.step(s, t, keep, before)
		if err != nil {
			return false, err
		}
		// Metadata knows the table by now, as one without history, so Collect alone suffices.
		if keep == 0 && !again {
			delete(s.histories, t)
		}
		more = more || again
	}
	return more, nil
}

// historyUnknown keeps all superseded versions of a table that metadata does not know (yet).
const historyUnknown = math.MaxInt64

// tableHistory returns how long a table keeps superseded versions.
func (h *Host) tableHistory(t rhumb.TableID) time.Duration {
	if h.cfg.History == nil {
		return 0
	}
	keep, ok := h.cfg.History(t)
	if !ok {
		return historyUnknown
	}
	return keep
}

// historyWalk is the state of the collection of one table with history in one range. Each walk
// visits every name of the table, so a walk begins only after log time has advanced by a quarter of
// the kept time, and by at least historyWalkMin.
type historyWalk struct {
	// begun is the log time at which the last walk began; 0 before the first.
	begun rhumb.Timestamp
	// after is the last name visited; nil between walks.
	after []byte
}

// historyWalkMin is the least log time between the beginnings of two walks.
const historyWalkMin = time.Minute

// step continues a walk, or begins one that is due. more is true if the walk has not ended.
func (w *historyWalk) step(s *slot, t rhumb.TableID, keep time.Duration, now rhumb.Timestamp) (more bool, err error) {
	if w.after == nil {
		if w.begun != 0 && now.Sub(w.begun) < max(keep/4, historyWalkMin) {
			return false, nil
		}
		w.begun = now
	}
	// The kept time reaches back beyond the first timestamp, as for a table that metadata does not
	// know.
	if keep >= w.begun.Sub(0) {
		return false, nil
	}
	w.after, _, err = s.store.CollectHistory(s.id, t, w.begun.Add(-keep), w.after)
	return w.after != nil, err
}
