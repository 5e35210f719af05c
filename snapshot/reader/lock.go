package reader

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Locking a view must be cheap, since programs lock one per request, and it must keep every mapping
// that the view may read. A mutex around both would be a cache line that all cores write. Instead a
// view claims one of thousands of slots and publishes its holding there; a goroutine that wants to
// unmap files scans the slots. Lock therefore costs a compare-and-swap and a few stores to a line
// of its own, and unmapping, which is rare, pays for the rest.
//
//	slot.word   count | leaving | expired | taken
//
// The count rises each time a slot is returned, so a view is valid exactly while the word is the
// one that it received.

// slot is where a locked view is registered. The word says whether the slot is taken and counts how
// often it was, so that a copy of an unlocked view is never mistaken for the slot's next view.
//
// A slot fills two cache lines of its own. Two views never write to one line, so that locking
// scales with the number of cores.
type slot struct {
	word  atomic.Uint64
	held  atomic.Pointer[holding]
	since atomic.Int64 // when the view was locked, in ns of Client.sinceStart
	_     [40]byte
	ring  [format.RingEntrySize / 8]uint64 // the ring entry of the version, as it was when the view was locked
}

// Bits of a slot's word; the remaining bits are the count.
const (
	slotTaken   = 1
	slotExpired = 2
	slotLeaving = 4 // the slot is being returned
	slotCount   = 8
)

// hotSlots returns the mask of the slots that are tried first. They are few, so that their lines
// stay in the caches, and enough that goroutines locking at the same time rarely collide.
func hotSlots(n int) uint32 {
	hot := 1
	for hot < 8*runtime.GOMAXPROCS(0) && hot*2 <= n {
		hot *= 2
	}
	return uint32(hot - 1)
}

// claimSlot takes a free slot. word is the value of the slot's word for as long as the view may be
// read. It returns nil if all slots are taken.
func (c *Client) claimSlot() (s *slot, word uint64) {
	// A random start separates goroutines that lock at the same time. A shared counter would be a
	// cache line that all of them write.
	first := rand.Uint32() & c.hot
	for i := range uint32(len(c.slots)) {
		s = &c.slots[(first+i)%uint32(len(c.slots))]
		free := s.word.Load()
		if free&slotTaken == 0 && s.word.CompareAndSwap(free, free|slotTaken) {
			return s, free | slotTaken
		}
	}
	return nil, 0
}

// giveBack frees a slot, even if the watch marked it as expired meanwhile. It reports false if the
// slot was already returned.
//
// The slot passes through slotLeaving, so that the watch does not mark it, and so that held is nil
// before another view can claim the slot: otherwise that view could publish its holding and have it
// erased here.
func (s *slot) giveBack(word uint64) bool {
	for {
		now := s.word.Load()
		// The count has moved on, or another call is returning the slot right now.
		if now&^slotExpired != word {
			return false
		}
		// The swap fails if the watch marks the view as expired at this moment. The loop then reads
		// the word again.
		if s.word.CompareAndSwap(now, now|slotLeaving) {
			// held becomes nil before the slot is free: the next view stores its own holding there.
			s.held.Store(nil)
			s.word.Store(word - slotTaken + slotCount)
			return true
		}
	}
}

// Lock returns a view of the newest version. It makes no system call unless a generation was
// replaced since the last call; then it maps the new one. It fails with kind Overloaded if ViewsMax
// views are locked, with ConditionFailed if the client is closed, and as Attach does if a new
// generation cannot be mapped.
func (c *Client) Lock() (View, error) { return c.lockView(newest, 0) }

// LockClosed returns a view that is a consistent cut across all ranges: a view of the newest
// version that shows only versions up to the newest closed timestamp. It fails with kind
// Unavailable if no closed timestamp is known, or if a generation was built at a later one.
func (c *Client) LockClosed() (View, error) { return c.lockView(closedCut, 0) }

// LockVersion returns a view of an earlier version, so that several processes can answer from the
// same one. It fails with kind Unavailable if the version is not committed yet, or if a generation
// has a later base, which means that the version is gone.
func (c *Client) LockVersion(version uint64) (View, error) { return c.lockView(given, version) }

// lockMode selects the version that a view shows.
type lockMode uint8

const (
	newest lockMode = iota
	closedCut
	given
)

const opLock rhumb.Op = "reader.Client.Lock"

var (
	errClosed   = rhumb.E(opLock, rhumb.ConditionFailed, "the client is closed")
	errViewsMax = rhumb.E(opLock, rhumb.Overloaded, "as many views are locked as Options.ViewsMax allows; unlock views, or raise it")
)

// lockView locks a view. A slot that could not be filled is given back.
func (c *Client) lockView(mode lockMode, version uint64) (View, error) {
	s, word := c.claimSlot()
	if s == nil {
		return View{}, errViewsMax
	}
	v, err := c.fillSlot(s, word, mode, version)
	if err != nil {
		// The slot may have held generations for a moment, which kept another goroutine from
		// unmapping them.
		s.giveBack(word)
		c.unmapAfter(nil)
	}
	return v, err
}

// fillSlot publishes the view's holding in the slot and determines the version.
//
// Four steps in this order make it safe without a mutex:
//
//  1. The holding is stored in the slot.
//  2. current is read again. If it is unchanged, unmapUnused will find the holding, because it
//     scans the slots after current was replaced. If current changed, the files may already be
//     unmapped, and the view starts over (M. Michael, Hazard Pointers).
//  3. The newest version is read.
//  4. table_seq is read. If it has not changed, no later generation had taken a commit when the
//     version was read, so these generations can show that version.
func (c *Client) fillSlot(s *slot, word uint64, mode lockMode, version uint64) (View, error) {
	now := c.sinceStart()
	// since is stored before held: the watch considers only slots with a holding, and must not see
	// the age of the previous view.
	s.since.Store(now)
	// A holding that was in the slot for a moment may have kept another goroutine from unmapping
	// it. So this goroutine checks again after it drops a holding.
	var dropped *holding
	defer func() {
		if dropped != nil {
			c.unmapAfter(dropped)
		}
	}()
	for tries := 0; ; tries++ {
		h := c.current.Load()
		if h == nil {
			return View{}, errClosed
		}
		s.held.Store(h)
		if c.current.Load() != h { // h may have been unmapped before it was in the slot
			dropped = h
			continue
		}
		// The version is read before table_seq. In the other order a commit between the two could
		// go to a generation that h does not have.
		committed := h.committed()
		// A generation was replaced, or the whole image. Map the live generations and start over,
		// unless the publisher died in the middle of the change: then versions before the change
		// are still readable.
		if stale := c.stale.Load(); stale || !h.coversCommits() {
			if !stale && h.changeHangs() {
				// The same change still hangs, so nothing followed it when the safe version was
				// read.
				if committed = h.safeVersion(); h.isChanging() {
					return c.newView(s, word, h, committed, now).settleVersion(mode, version)
				}
			}
			s.held.Store(nil)
			dropped = h
			// The slot is empty while the new generations are mapped, so that the old ones can be
			// unmapped if no other view holds them.
			if err := c.remapLive(h); err != nil {
				return View{}, err
			}
			continue
		}
		v, err := c.newView(s, word, h, committed, now).settleVersion(mode, version)
		if err != nil && mode == closedCut && tries < closedTries && h.committed() != committed {
			continue // the ring may have gone round since committed was read
		}
		return v, err
	}
}

// closedTries bounds how often a closed view is tried again while commits overtake it.
const closedTries = 1_000

// newView returns a view of a version.
func (c *Client) newView(s *slot, word uint64, h *holding, version uint64, now int64) View {
	return View{client: c, slot: s, word: word, held: h, version: version, wall: c.wall.Load() + now}
}

// settleVersion turns a view of the newest version into the requested view.
func (v View) settleVersion(mode lockMode, version uint64) (View, error) {
	switch mode {
	case given:
		if version > v.version {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "version %d is not committed yet, the newest is %d", version, v.version)
		}
		if version < v.held.base {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "version %d is no longer available, the oldest is %d", version, v.held.base)
		}
		v.version = version
	case closedCut:
		// The closed timestamp of the version itself may be gone from the ring if commits overtook
		// the reader; an earlier one is a cut too.
		closed, ok := v.held.closedAt(v.version)
		if !ok {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "none of the last %d commits has a closed timestamp; use Lock", format.RingSize)
		}
		// A roll keeps only the versions that views at its closed timestamp or later need.
		if closed < v.held.closed {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "a generation was built at closed timestamp %v, the newest commit has %v", v.held.closed, closed)
		}
		v.closed = closed
	}
	// The ring entry is copied now. The ring is overwritten after sixteen commits, and View.Commit
	// may be called much later.
	v.held.copyRing(v.version, &v.slot.ring)
	return v, nil
}

// unmapAfter runs after a slot that held h was returned. Generations that are no longer current are
// unmapped with their last view.
func (c *Client) unmapAfter(h *holding) {
	// The current holding is needed whatever the slots hold, so the mutex can be avoided.
	if h == c.current.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmapUnused()
}

// watchOnce marks views that are too old, follows the wall clock, and notices that root was
// replaced. A timer runs it.
func (c *Client) watchOnce() {
	// Expiry follows the wall clock, ages follow the monotonic one. The difference is noted here,
	// so that Lock reads one clock only.
	c.wall.Store(time.Now().UnixNano() - c.sinceStart())
	oldest := c.sinceStart() - int64(c.opt.MaxLockAge)
	var expired uint64
	c.mu.Lock() // locked before the first mark: a caller whose read fails must find the view counted
	defer c.mu.Unlock()
	for i := range c.slots {
		s := &c.slots[i]
		word := s.word.Load()
		// held is checked because a claimed slot has an old time until fillSlot stores a new one.
		if word&(slotTaken|slotExpired|slotLeaving) == slotTaken && s.held.Load() != nil && s.since.Load() <= oldest && s.word.CompareAndSwap(word, word|slotExpired) {
			expired++
		}
	}
	if c.closed {
		return
	}
	if expired > 0 {
		c.counts.expired += expired
		c.opt.Logger.Warn("views are older than allowed and reject reads from now on; unlock them", "views", expired, "max_lock_age", c.opt.MaxLockAge)
	}
	// A node that restarts without its image creates a new root under the same name. The mapped
	// image would never change again.
	if h := c.current.Load(); h != nil && h.root.wasReplaced(c.dir) {
		c.stale.Store(true)
	}
	c.watch.Reset(c.watchPeriod())
}

// countLocked counts the views that hold something. The count is exact if no view can be locked at
// the same time.
func (c *Client) countLocked() (n int) {
	for i := range c.slots {
		if c.slots[i].held.Load() != nil {
			n++
		}
	}
	return n
}
