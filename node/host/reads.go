package host

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb/storage"
)

// Bounds of the judgement of disks that refuse reads. A disk that refuses every read, or always the same place, is judged within
// readLeaves+1 steps, because the store reads refused places again in each step (storage.Store.ProbeReads).
const (
	// readStep is the time between two probes of a store.
	readStep = 500 * time.Millisecond
	// readSteps is the number of steps that a judgement looks back. Reads of a store fail if some were refused in readLeaves of them,
	// and no longer fail once none was in any. One refused read, which its caller repeats, is not enough.
	readSteps, readLeaves = 10, 4
)

// readHealth judges whether the reads of a store fail. It is plain data: the caller passes the time.
type readHealth struct {
	refused [readSteps]bool
	next    int
	failing bool
	hold    holdOff
}

// endStep records whether reads were refused in the step that ends now.
func (r *readHealth) endStep(now time.Duration, refused bool) {
	r.refused[r.next] = refused
	r.next = (r.next + 1) % readSteps
	n := 0
	for _, is := range r.refused {
		if is {
			n++
		}
	}
	switch {
	case n >= readLeaves && !r.failing:
		r.failing = true
		r.hold.begin(now)
	case n == 0:
		r.failing = false
	}
}

// isBad reports whether reads fail, or did a short while ago.
func (r *readHealth) isBad(now time.Duration) bool { return r.failing || now < r.hold.until }

// holdOff keeps primaries away from a disk for a while after it was bad, for longer each time.
type holdOff struct {
	// until is the end of the hold, and length its length.
	until, length time.Duration
}

// begin begins a hold. It is twice as long as the one before if that ended less than ownHoldMax ago.
func (h *holdOff) begin(now time.Duration) {
	if h.length > 0 && now-h.until >= ownHoldMax {
		h.length = 0
	}
	h.length = min(max(ownHoldMin, 2*h.length), ownHoldMax)
	h.until = now + h.length
}

// probeReads ends a step of each store. It may wait for a disk, so it runs in a worker, which owns h.disks.
func (h *Host) probeReads() {
	now := h.rt.Now()
	bad := make(map[*storage.Store]bool)
	for _, s := range h.cfg.Engine.Stores() {
		r := h.disks[s]
		if r == nil {
			r = new(readHealth)
			h.disks[s] = r
		}
		// While the disk is bad there may be nobody else who reads from it.
		refused := s.ProbeReads(now, r.isBad(now))
		if h.cfg.Probe != nil && h.cfg.Probe.Refused != nil {
			refused = h.cfg.Probe.Refused(refused)
		}
		if r.endStep(now, refused); r.isBad(now) {
			bad[s] = true
		}
	}
	h.m.unreadableStores.Set(float64(len(bad)))
	h.unreadable.Store(&bad)
}

// readFault returns the reason why a store whose reads fail keeps primaries away.
func readFault(s *storage.Store) string {
	return fmt.Sprintf("disk_unreadable: the disk of %s refuses reads; see the messages of the kernel, and replace the disk if that lasts", s.Dir())
}
