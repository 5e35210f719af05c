package host

import (
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Budgets bound the memory of a host. Nil ones have no bound.
type Budgets struct {
	// PeersIn are entries of peers that wait for a pass.
	PeersIn *memory.Budget
	// Uncommitted are entries of ranges of which this node is primary that are not committed yet.
	Uncommitted *memory.Budget
	// Tails are committed entries that are kept for peers that lag, Recent entries that are kept for Config.Committed.
	Tails, Recent *memory.Budget
	// Requests bounds the client batches that are taken in and not answered; 0 is waitingBytesMax. How many bytes of it are
	// used follows the pace at which they are answered.
	Requests int64
}

// proposeOverhead is about what a batch takes besides its names and values.
const proposeOverhead = 512

// stuckAfter is how long a batch counts in the admission. A batch that is unanswered for longer still counts as
// uncommitted, but a range without in-sync members must not use up what the others need.
const stuckAfter = 2 * time.Second

const (
	// tookShare is the part, one in so many, that one answer has in what is usual.
	tookShare = 16
	// retryAfterLeast and retryAfterMost bound what a refusal says about when to try again.
	retryAfterLeast = 10 * time.Millisecond
	retryAfterMost  = 2 * time.Second
)

// admission bounds the client batches that a host has accepted and not answered.
type admission struct {
	clock func() time.Duration

	mu   sync.Mutex // guards all below
	pace pace
	took time.Duration // to answer a batch, smoothed
	used int64
	// open are the batches that count in used, oldest first. Answered ones stay until they are the oldest.
	open []*admitted
}

// admitted is one batch that was taken in.
type admitted struct {
	size  int64
	since time.Duration
	over  bool // it was answered, or is stuck
}

// take takes a batch in, or refuses it.
func (a *admission) take(size int64) (*admitted, bool) {
	now := a.clock()
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.open) > 0 && (a.open[0].over || now-a.open[0].since > stuckAfter) {
		a.endLocked(a.open[0])
		a.open = a.open[1:]
	}
	if a.used > 0 && a.used+size > a.pace.now {
		return nil, false
	}
	b := &admitted{size: size, since: now}
	a.used += size
	a.open = append(a.open, b)
	return b, true
}

func (a *admission) endLocked(b *admitted) {
	if !b.over {
		b.over = true
		a.used -= b.size
	}
}

// answered ends a batch.
func (a *admission) answered(b *admitted) {
	now := a.clock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !b.over {
		took := now - b.since
		a.took += (took - a.took) / tookShare
		a.pace.answered(now, took, b.size, a.used)
	}
	a.endLocked(b)
}

// state returns the bytes that are taken in, and how many may be.
func (a *admission) state() (used, now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, a.pace.now
}

// retryAfter returns when there is probably room for a batch that was refused: when as much as is taken in is answered.
func (a *admission) retryAfter() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(max(a.took, retryAfterLeast), retryAfterMost)
}

// overloaded refuses a batch that was not taken in.
func (h *Host) overloaded(op rhumb.Op, ev *proposeEvent, why string) {
	h.m.overloaded.Inc()
	ev.answer(rhumb.Outcome{}, &rhumb.Error{
		Op: op, Kind: rhumb.Overloaded, Range: ev.batch.Range, Node: h.cfg.Self.Node,
		RetryAfter: h.admission.retryAfter(), Msg: why + "; send less or retry later",
	})
}
