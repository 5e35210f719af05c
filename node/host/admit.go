package host

import (
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Budgets bound the memory of a host. A nil budget has no bound.
type Budgets struct {
	// PeersIn bounds the entries of peers that wait for a pass.
	PeersIn *memory.Budget
	// Uncommitted bounds the uncommitted entries of ranges whose primary is this node.
	Uncommitted *memory.Budget
	// Tails bounds the committed entries kept for lagging peers, and Recent the entries kept for
	// Config.Committed.
	Tails, Recent *memory.Budget
	// Requests bounds the client batches that are admitted and not answered; 0 means
	// waitingBytesMax. The pace at which batches are answered determines how much of it is used.
	Requests int64
}

// proposeOverhead is the approximate memory of a batch besides its names and values.
const proposeOverhead = 512

// stuckAfter is how long a batch counts in the admission. A batch that is unanswered for longer
// still counts as uncommitted, but a range without in-sync members must not use up the share of
// other ranges.
const stuckAfter = 2 * time.Second

const (
	// latencyWeight is the divisor of one answer in the smoothed latency.
	latencyWeight = 16
	// retryAfterMin and retryAfterMax bound the pause that a rejection suggests.
	retryAfterMin = 10 * time.Millisecond
	retryAfterMax = 2 * time.Second
)

// admission bounds the client batches that a host has accepted and not answered. A bound in bytes
// alone would limit memory but not time: on a slow disk a small queue takes long. So the bound
// follows the pace at which batches are answered (docs/decisions/0019-one-memory-ceiling.md).
type admission struct {
	clock func() time.Duration

	// mu guards the fields below.
	mu   sync.Mutex
	pace pace
	// latency is the smoothed time to answer a batch.
	latency time.Duration
	used    int64
	// open are the batches that count in used, oldest first. Answered ones stay until they are the
	// oldest.
	open []*admitted
}

// admitted is one batch that was admitted.
type admitted struct {
	size  int64
	since time.Duration
	// done is true once the batch no longer counts: it was answered, or it is stuck.
	done bool
}

// admitBatch admits a batch, or returns false if the batch does not fit.
func (a *admission) admitBatch(now time.Duration, size int64) (*admitted, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Only the oldest batches can be stuck, so the list is trimmed from the front and each batch is
	// looked at once.
	for len(a.open) > 0 && (a.open[0].done || now-a.open[0].since > stuckAfter) {
		a.endLocked(a.open[0])
		a.open = a.open[1:]
	}
	// One batch is always admitted. Otherwise a batch larger than the pace could never be applied.
	if a.used > 0 && a.used+size > a.pace.limit {
		return nil, false
	}
	b := &admitted{size: size, since: now}
	a.used += size
	a.open = append(a.open, b)
	return b, true
}

// endLocked stops counting a batch. A stuck batch that is answered after all is not counted twice.
func (a *admission) endLocked(b *admitted) {
	if !b.done {
		b.done = true
		a.used -= b.size
	}
}

// endBatch records the answer to a batch.
func (a *admission) endBatch(now time.Duration, b *admitted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The time of a stuck batch shows that its range lacks members, not how fast this node is.
	if !b.done {
		took := now - b.since
		a.latency += (took - a.latency) / latencyWeight
		a.pace.recordAnswer(now, took, b.size, a.used)
	}
	a.endLocked(b)
}

// readUsage returns the admitted bytes and the present limit.
func (a *admission) readUsage() (used, now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, a.pace.limit
}

// retryAfter returns when there is probably room for a rejected batch: after the time in which the
// admitted batches are answered.
func (a *admission) retryAfter() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(max(a.latency, retryAfterMin), retryAfterMax)
}

// refuseOverloaded rejects a batch that was not admitted.
func (h *Host) refuseOverloaded(op rhumb.Op, ev *proposeEvent, why string) {
	h.m.overloaded.Inc()
	ev.answer(rhumb.Outcome{}, &rhumb.Error{
		Op: op, Kind: rhumb.Overloaded, Range: ev.batch.Range, Node: h.cfg.Self.Node,
		RetryAfter: h.admission.retryAfter(), Msg: why + "; send less or retry later",
	})
}
