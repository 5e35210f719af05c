package reader

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Stats is the state of a client and of its image.
type Stats struct {
	// Image names the image, Life counts the starts of its publisher, State is one of format's
	// states.
	Image rhumb.UUID
	Life  uint64
	State uint32
	// Committed is the newest version, Base the oldest that a new view can have.
	Committed, Base uint64
	// Closed is the newest closed timestamp, 0 when none is known.
	Closed rhumb.Timestamp
	// Heartbeat is how long ago the publisher was last alive; negative if that is unknown, as for a
	// saved image.
	Heartbeat time.Duration
	// Generations and Bytes count the mapped generations and bytes; Pinned is the part of Bytes
	// that only views still hold.
	Generations   int
	Bytes, Pinned int64
	// Views is how many views are locked, and OldestView how long the oldest of them has been.
	// Expired is the number of views that ever expired.
	Views      int
	OldestView time.Duration
	Expired    uint64
	// Remaps is the number of changes of generations that the client followed, and Reopens how many
	// of them were to a rebuilt image.
	Remaps, Reopens uint64
}

// Stats returns the client's state, or the zero value if the client is closed.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.current.Load()
	if h == nil {
		return Stats{}
	}
	s := Stats{
		Image: h.root.head.Image, Life: atomic.LoadUint64(h.wordAt(format.RootLife)),
		State:     atomic.LoadUint32((*uint32)(unsafe.Add(h.root.base, format.RootState))),
		Committed: h.committed(), Base: h.base, Heartbeat: -1,
		Expired: c.counts.expired, Remaps: c.counts.remaps, Reopens: c.counts.reopens,
	}
	// 0 if none of the last commits has a closed timestamp.
	s.Closed, _ = h.closedAt(s.Committed)
	// CLOCK_MONOTONIC is the same for all processes of a machine and restarts with each boot.
	if age, ok := monotonicSince(atomic.LoadUint64(h.wordAt(format.RootHeartbeat))); ok {
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
		// Mapped but not current: a view still holds the file, or the next unmapUnused unmaps it.
		if !live[m] {
			s.Pinned += int64(len(m.bytes))
		}
	}
	// The slots are read without stopping Lock, so the count may be off by the views that are being
	// locked now.
	s.Views, s.OldestView = c.countViews()
	return s
}

// OldestView returns how long the oldest locked view has been locked, or 0 if none is locked.
func (c *Client) OldestView() time.Duration {
	_, age := c.countViews()
	return age
}

// countViews returns the number of locked views and the age of the oldest.
func (c *Client) countViews() (n int, oldest time.Duration) {
	now := c.sinceStart()
	for i := range c.slots {
		if s := &c.slots[i]; s.held.Load() != nil {
			n++
			oldest = max(oldest, time.Duration(now-s.since.Load()))
		}
	}
	return n, oldest
}
