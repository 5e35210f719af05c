package host

import (
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// collector removes, away from the passes, what ranges no longer need. Each range waits at most once, so the bound of
// the queue is the number of ranges.
type collector struct {
	mu    sync.Mutex // guards the two below
	queue []*slot
	waits map[*slot]rhumb.Timestamp // the newest timestamp below which no read begins any more

	wake chan struct{}
}

func newCollector() *collector {
	return &collector{waits: map[*slot]rhumb.Timestamp{}, wake: make(chan struct{}, 1)}
}

// add notes that a range's log was trimmed.
func (c *collector) add(s *slot, before rhumb.Timestamp) {
	c.mu.Lock()
	if _, ok := c.waits[s]; !ok {
		c.queue = append(c.queue, s)
	}
	c.waits[s] = max(c.waits[s], before)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
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

// collect works until the host closes.
func (h *Host) collect() {
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.collector.wake:
		}
		for h.ctx.Err() == nil {
			s, before, ok := h.collector.take()
			if !ok {
				break
			}
			done, err := s.store.Collect(s.id, storage.CollectLimits{Before: before})
			if err != nil {
				h.m.collectFailed.Inc()
				h.log.Warn("collection failed", "range", s.id, "err", err)
				continue
			}
			if done.More {
				h.collector.add(s, before)
			}
		}
	}
}
