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

// settleMax bounds the wait for a cluster to be whole again after a fault.
const settleMax = 2 * time.Minute

// hold is a load of writes that is held on a cluster while the cluster is hurt.
type hold struct {
	c       *client.Client
	t       *client.Table
	writers []*writer
	stop    atomic.Bool
	wait    sync.WaitGroup
}

// writer is one caller. It writes a growing number under one key.
type writer struct {
	name []byte
	home string // the region that its key lives in

	mu     sync.Mutex // guards all below
	acked  int64      // the greatest number that was acknowledged
	last   time.Time  // when
	gap    time.Duration
	writes int64
	errors int64
}

// begin starts callers that pause between two writes.
func (h *hold) begin(ctx context.Context, callers int, pause time.Duration) {
	regions := h.c.Regions()
	for i := range callers {
		w := &writer{name: fmt.Appendf(nil, "w%d", i), home: regions[i%len(regions)].Name, last: time.Now()}
		h.writers = append(h.writers, w)
		h.wait.Go(func() {
			for n := int64(1); !h.stop.Load() && ctx.Err() == nil; n++ {
				_, err := h.t.Put(ctx, w.name, fmt.Append(nil, n), client.PutOptions{Home: w.home})
				w.note(n, err)
				time.Sleep(pause)
			}
		})
	}
}

// end stops the callers, and returns once their last writes have ended.
func (h *hold) end() {
	h.stop.Store(true)
	h.wait.Wait()
}

func (w *writer) note(n int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.errors++
		return
	}
	now := time.Now()
	w.gap = max(w.gap, now.Sub(w.last))
	w.last, w.acked = now, n
	w.writes++
}

// gaps returns the longest time that each caller was without a successful write since the last call, a gap that lasts
// included.
func (h *hold) gaps() (out []time.Duration) {
	now := time.Now()
	for _, w := range h.writers {
		w.mu.Lock()
		out = append(out, max(w.gap, now.Sub(w.last)))
		w.gap = 0
		w.mu.Unlock()
	}
	return out
}

// counts returns the writes that were acknowledged, and those that failed or whose outcome stayed unknown.
func (h *hold) counts() (writes, errors int64) {
	for _, w := range h.writers {
		w.mu.Lock()
		writes += w.writes
		errors += w.errors
		w.mu.Unlock()
	}
	return writes, errors
}

// leader returns the node that leads the metadata group, NoNode while nobody says so.
func (h *hold) leader(ctx context.Context) rhumb.NodeID {
	for _, s := range h.c.Status(ctx) {
		if s.Err == "" && s.MetadataLeader != rhumb.NoNode {
			return s.MetadataLeader
		}
	}
	return rhumb.NoNode
}

// settled waits until all nodes are live and every range has all its replicas in sync.
func (h *hold) settled(ctx context.Context) error {
	deadline := time.Now().Add(settleMax)
	for {
		behind := 0
		for _, r := range h.c.Ranges() {
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
			return fmt.Errorf("%d ranges and nodes are not whole after %v", behind, settleMax)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// audit reads back every key, and returns how many do not hold the last acknowledged number, nor a later one whose outcome
// was not known.
func (h *hold) audit(ctx context.Context) (lost int, err error) {
	for _, w := range h.writers {
		got, err := h.t.Get(ctx, w.name, client.GetOptions{Home: w.home})
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
		if n < w.acked {
			lost++
		}
	}
	return lost, nil
}
