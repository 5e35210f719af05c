package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// settleMax bounds the wait for a cluster to recover after a fault.
const settleMax = 2 * time.Minute

// hold keeps a load of writes on a cluster while faults strike.
type hold struct {
	c       *client.Client
	t       *client.Table
	writers []*writer
	stop    atomic.Bool
	wait    sync.WaitGroup

	timing sync.Mutex // guards phase
	// phase, if not nil, counts the latencies of successful writes.
	phase *histogram
	// began, if set, makes calls keep every write with its time from then, up to holdCallsMax of them.
	began time.Time
	calls []timedCall
}

// holdCallsMax bounds the writes that are kept for a picture: 100 MiB.
const holdCallsMax = 4 << 20

// keepCalls makes h keep all writes from now on.
func (h *hold) keepCalls() {
	h.timing.Lock()
	defer h.timing.Unlock()
	h.began = time.Now()
}

// timeInto makes a histogram count the latencies of writes that end from now on.
func (h *hold) timeInto(to *histogram) {
	h.timing.Lock()
	defer h.timing.Unlock()
	h.phase = to
}

// noteTime counts the latency of a write that ended, if it succeeded.
func (h *hold) noteTime(d time.Duration, ok bool) {
	h.timing.Lock()
	defer h.timing.Unlock()
	// A picture of a long run ends where the bound is reached; the figures do not depend on it.
	if !h.began.IsZero() && len(h.calls) < holdCallsMax {
		h.calls = append(h.calls, timedCall{time.Since(h.began), d, ok})
	}
	if ok && h.phase != nil {
		h.phase.add(d)
	}
}

// writer is one caller. It writes increasing numbers to one key, so a read shows which writes
// survived.
type writer struct {
	name []byte
	home string // home region of the key

	mu     sync.Mutex    // guards the fields below
	at     rhumb.RangeID // home of the key, after its first write
	acked  int64         // greatest acknowledged number
	last   time.Time     // time of that acknowledgement
	gap    time.Duration
	writes int64
	errors int64
}

// startWriters starts callers that pause between two writes.
func (h *hold) startWriters(ctx context.Context, callers int, pause time.Duration) {
	regions := h.c.Regions()
	for i := range callers {
		// Homes rotate, so that every region has its share of the keys. Setting last now makes a
		// writer that never succeeds show as one long gap.
		w := &writer{name: fmt.Appendf(nil, "w%d", i), home: regions[i%len(regions)].Name, last: time.Now()}
		h.writers = append(h.writers, w)
		h.wait.Go(func() {
			for n := int64(1); !h.stop.Load() && ctx.Err() == nil; n++ {
				// The client retries within its timeout, so an error means a call that failed for
				// good.
				begin := time.Now()
				res, err := h.t.Put(ctx, w.name, fmt.Append(nil, n), client.PutOptions{Home: w.home})
				w.recordResult(n, res.Key.Home, err)
				h.noteTime(time.Since(begin), err == nil)
				time.Sleep(pause)
			}
		})
	}
}

// stopWriters stops the callers and returns once their last writes have ended.
func (h *hold) stopWriters() {
	h.stop.Store(true)
	h.wait.Wait()
}

// recordResult records the result of writing n, and the home of the key.
func (w *writer) recordResult(n int64, at rhumb.RangeID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// last stays, so that the gap spans failed writes.
	if err != nil {
		w.errors++
		return
	}
	now := time.Now()
	w.gap = max(w.gap, now.Sub(w.last))
	w.last, w.acked, w.at = now, n, at
	w.writes++
}

// takeGaps returns the longest time that each caller was without a successful write since the last
// call, including a gap that still lasts.
func (h *hold) takeGaps() (out []time.Duration) {
	now := time.Now()
	for _, w := range h.writers {
		w.mu.Lock()
		// A gap that continues is reported again by the next call, in full.
		out = append(out, max(w.gap, now.Sub(w.last)))
		w.gap = 0
		w.mu.Unlock()
	}
	return out
}

// homes returns the homes of the keys, in the order of takeGaps. A key that was never written has a zero home.
func (h *hold) homes() (out []rhumb.RangeID) {
	for _, w := range h.writers {
		w.mu.Lock()
		out = append(out, w.at)
		w.mu.Unlock()
	}
	return out
}

// countWrites returns the number of acknowledged writes, and of writes that failed or whose outcome
// is unknown.
func (h *hold) countWrites() (writes, errors int64) {
	for _, w := range h.writers {
		w.mu.Lock()
		writes += w.writes
		errors += w.errors
		w.mu.Unlock()
	}
	return writes, errors
}

// metadataLeader returns the leader of the metadata group, or NoNode if no node reports one.
func (h *hold) metadataLeader(ctx context.Context) rhumb.NodeID {
	for _, s := range h.c.Status(ctx) {
		// The first node that answers and knows a leader decides.
		if s.Err == "" && s.MetadataLeader != rhumb.NoNode {
			return s.MetadataLeader
		}
	}
	return rhumb.NoNode
}

// awaitSettled waits until all nodes are live and every range has all replicas in sync.
func (h *hold) awaitSettled(ctx context.Context) error {
	deadline := time.Now().Add(settleMax)
	for {
		behind := 0
		for _, r := range h.c.Ranges() {
			// Redundancy must be complete, or the next fault would hit a weaker cluster.
			if len(r.InSync) < len(r.Replicas) {
				behind++
			}
		}
		for _, d := range h.c.Nodes() {
			if d.State != rhumb.NodeLive {
				behind++
			}
		}
		if behind == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d ranges or nodes have not recovered after %v", behind, settleMax)
		}
		if err := pauseFor(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// countLost reads back every key and returns how many hold less than their last acknowledged
// number. A greater number is correct: a write of unknown outcome may have been applied.
func (h *hold) countLost(ctx context.Context) (lost int, err error) {
	for _, w := range h.writers {
		got, err := h.t.Get(ctx, w.name, client.GetOptions{Home: w.home})
		// A missing key counts as 0.
		if err != nil && rhumb.KindOf(err) != rhumb.NotFound {
			return lost, err
		}
		var n int64
		if err == nil {
			b, err := got.Bytes()
			if err != nil {
				return lost, err
			}
			if _, err := fmt.Sscan(string(b), &n); err != nil {
				return lost, fmt.Errorf("key %s holds %q", w.name, b)
			}
		}
		// Numbers of one writer only grow, so a smaller one means that the last acknowledged write
		// is gone.
		if n < w.acked {
			lost++
		}
	}
	return lost, nil
}
