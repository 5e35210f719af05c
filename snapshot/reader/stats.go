package reader

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Stats is the state of a client and of the image that it is attached to.
type Stats struct {
	// Image names the image, Life counts the starts of its publisher, State is one of format's states.
	Image rhumb.UUID
	Life  uint64
	State uint32
	// Committed is the newest version, Base the oldest that a new view can have.
	Committed, Base uint64
	// Closed is the newest closed timestamp, 0 when none is known.
	Closed rhumb.Timestamp
	// Heartbeat is how long ago the publisher was last alive, negative when that cannot be told: for a saved image.
	Heartbeat time.Duration
	// Generations and Bytes are what is mapped, Pinned the bytes of it that only views still hold.
	Generations   int
	Bytes, Pinned int64
	// Views is how many views are locked, OldestView how long the oldest has been; Expired how many ever grew too old.
	Views      int
	OldestView time.Duration
	Expired    uint64
	// Remaps counts the changes of generations followed, Reopens those to an image made anew.
	Remaps, Reopens uint64
}

// Stats gives the client's state; the zero value once it is closed.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.current.Load()
	if h == nil {
		return Stats{}
	}
	s := Stats{
		Image: h.root.head.Image, Life: atomic.LoadUint64(h.word(format.RootLife)),
		State:     atomic.LoadUint32((*uint32)(unsafe.Add(h.root.base, format.RootState))),
		Committed: h.committed(), Base: h.base, Heartbeat: -1,
		Expired: c.counts.expired, Remaps: c.counts.remaps, Reopens: c.counts.reopens,
	}
	s.Closed, _ = h.closedAt(s.Committed)
	if age, ok := monotonicSince(atomic.LoadUint64(h.word(format.RootHeartbeat))); ok {
		s.Heartbeat = age
	}
	live := map[*mapping]bool{h.root.mapping: true}
	for _, g := range h.shards {
		if g != nil {
			live[g.mapping] = true
			s.Generations++
		}
	}
	for m := range c.mapped {
		s.Bytes += int64(len(m.bytes))
		if !live[m] {
			s.Pinned += int64(len(m.bytes))
		}
	}
	s.Views, s.OldestView = c.views()
	return s
}

// OldestView gives how long the oldest locked view has been locked, 0 when none is.
func (c *Client) OldestView() time.Duration {
	_, age := c.views()
	return age
}

// views counts the locked views and gives the age of the oldest.
func (c *Client) views() (n int, oldest time.Duration) {
	now := c.now()
	for i := range c.slots {
		if s := &c.slots[i]; s.held.Load() != nil {
			n++
			oldest = max(oldest, time.Duration(now-s.since.Load()))
		}
	}
	return n, oldest
}
