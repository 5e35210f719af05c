package reader

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// slot is where a locked view is registered. The word says whether the slot is taken, and counts how often it was, so that
// a copy of a view that was unlocked never passes for the slot's next view.
type slot struct {
	word  atomic.Uint64
	held  atomic.Pointer[holding]
	since atomic.Int64 // when it was locked, in ns of Client.now
	_     [40]byte
	ring  [format.RingEntrySize / 8]uint64 // the ring entry of the version, as it was when the view was locked
}

// Bits of a slot's word; the rest counts.
const (
	slotTaken   = 1
	slotExpired = 2
	slotLeaving = 4 // it is being given back
	slotCount   = 8
)

// hotSlots gives how many slots are tried first, less one: few, so that their lines stay in the caches, and enough that
// goroutines that lock at the same time rarely meet.
func hotSlots(n int) uint32 {
	hot := 1
	for hot < 8*runtime.GOMAXPROCS(0) && hot*2 <= n {
		hot *= 2
	}
	return uint32(hot - 1)
}

// claim takes a free slot; word is what the slot says as long as the view may be read.
func (c *Client) claim() (s *slot, word uint64) {
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

// release gives a slot back, whatever the watch made of it in the meantime. It reports false when that was done before.
func (s *slot) release(word uint64) bool {
	for {
		now := s.word.Load()
		if now&^slotExpired != word {
			return false
		}
		if s.word.CompareAndSwap(now, now|slotLeaving) {
			s.held.Store(nil)
			s.word.Store(word - slotTaken + slotCount)
			return true
		}
	}
}

// Lock gives a view of the newest version. It makes no system call unless a generation was swapped since the last one; then
// it maps the new one. It fails with kind Overloaded when ViewsMax views are locked, ConditionFailed when the client is
// closed, and as Attach does when a new generation cannot be mapped.
func (c *Client) Lock() (View, error) { return c.lock(newest, 0) }

// LockClosed gives a view that is a cut consistent across all ranges: of the newest version, and in it only what was
// written up to the newest closed timestamp. It fails with kind Unavailable when no closed timestamp is known, or when
// generations were built at a later one.
func (c *Client) LockClosed() (View, error) { return c.lock(closedCut, 0) }

// LockVersion gives a view of an earlier version, so that several processes can answer from one. It fails with kind
// Unavailable when the version is not committed yet, or lies before the base of a generation: then it cannot be had any
// more.
func (c *Client) LockVersion(version uint64) (View, error) { return c.lock(given, version) }

// lockMode says which version a view is of.
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

func (c *Client) lock(mode lockMode, version uint64) (View, error) {
	s, word := c.claim()
	if s == nil {
		return View{}, errViewsMax
	}
	v, err := c.fill(s, word, mode, version)
	if err != nil {
		s.release(word)
		c.released(nil)
	}
	return v, err
}

// fill takes hold of the current generations and settles the version.
func (c *Client) fill(s *slot, word uint64, mode lockMode, version uint64) (View, error) {
	now := c.now()
	s.since.Store(now)
	var dropped *holding // was in the slot for a moment, which may have kept others from unmapping it
	defer func() {
		if dropped != nil {
			c.released(dropped)
		}
	}()
	for tries := 0; ; tries++ {
		h := c.current.Load()
		if h == nil {
			return View{}, errClosed
		}
		s.held.Store(h)
		if c.current.Load() != h { // it may have been unmapped before it stood in the slot
			dropped = h
			continue
		}
		committed := h.committed()
		if stale := c.stale.Load(); stale || !h.covers() {
			if !stale && h.stuck() {
				if committed = h.safe(); h.changing() {
					return c.view(s, word, h, committed, now).settle(mode, version)
				}
			}
			s.held.Store(nil)
			dropped = h
			if err := c.refresh(h); err != nil {
				return View{}, err
			}
			continue
		}
		v, err := c.view(s, word, h, committed, now).settle(mode, version)
		if err != nil && mode == closedCut && tries < closedTries && h.committed() != committed {
			continue // the ring may have gone round since committed was read
		}
		return v, err
	}
}

// closedTries bounds how often a closed view is tried again while commits overtake it.
const closedTries = 1_000

func (c *Client) view(s *slot, word uint64, h *holding, version uint64, now int64) View {
	return View{client: c, slot: s, word: word, held: h, version: version, wall: c.wall.Load() + now}
}

// settle turns the newest version into the one that was asked for.
func (v View) settle(mode lockMode, version uint64) (View, error) {
	switch mode {
	case given:
		if version > v.version {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "version %d is not committed yet, the newest is %d", version, v.version)
		}
		if version < v.held.base {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "version %d cannot be had any more, the oldest is %d", version, v.held.base)
		}
		v.version = version
	case closedCut:
		closed, ok := v.held.closedAt(v.version)
		if !ok {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "none of the last %d commits knows a closed timestamp; use Lock", format.RingSize)
		}
		if closed < v.held.closed {
			return View{}, rhumb.Ef(opLock, rhumb.Unavailable, "a generation was built at closed timestamp %v, the newest commit has %v", v.held.closed, closed)
		}
		v.closed = closed
	}
	v.held.copyRing(v.version, &v.slot.ring)
	return v, nil
}

// released is called after a slot that held h was given back: generations that are no longer current are unmapped with
// their last view.
func (c *Client) released(h *holding) {
	if h == c.current.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
}

// look is the watch: it marks views that grew too old, follows the wall clock, and notices when root is another file.
func (c *Client) look() {
	c.wall.Store(time.Now().UnixNano() - c.now())
	oldest := c.now() - int64(c.opt.MaxLockAge)
	var expired uint64
	c.mu.Lock() // before the first mark, so that whoever meets one finds it counted
	defer c.mu.Unlock()
	for i := range c.slots {
		s := &c.slots[i]
		word := s.word.Load()
		if word&(slotTaken|slotExpired|slotLeaving) == slotTaken && s.held.Load() != nil && s.since.Load() <= oldest && s.word.CompareAndSwap(word, word|slotExpired) {
			expired++
		}
	}
	if c.closed {
		return
	}
	if expired > 0 {
		c.counts.expired += expired
		c.opt.Logger.Warn("views are older than allowed and refuse reads from now on; unlock them", "views", expired, "max_lock_age", c.opt.MaxLockAge)
	}
	if h := c.current.Load(); h != nil && h.root.replaced(c.dir) {
		c.stale.Store(true)
	}
	c.watch.Reset(c.watchPeriod())
}

// locked counts the views that hold something. It is exact when no view can be locked at the same time.
func (c *Client) locked() (n int) {
	for i := range c.slots {
		if c.slots[i].held.Load() != nil {
			n++
		}
	}
	return n
}
