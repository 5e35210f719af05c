package server

import (
	"context"
	"sync"
	"time"
)

// lateContext is a context with a deadline that costs a timer only if somebody waits for it. Nearly all reads are
// answered from memory or the local disk and never wait.
type lateContext struct {
	context.Context // the parent
	at              time.Time

	mu      sync.Mutex
	waited  context.Context // made by the first Done; nil before
	cancel  context.CancelFunc
	stopped bool
}

// newLateContext returns ctx limited to a duration from now on. The caller must call stop.
func newLateContext(ctx context.Context, d time.Duration) *lateContext {
	c := &lateContext{Context: ctx, at: time.Now().Add(d)}
	// As for every context, the parent's deadline counts if it is earlier.
	if at, ok := ctx.Deadline(); ok && at.Before(c.at) {
		c.at = at
	}
	return c
}

// stop ends the context, and with it those that were derived from it.
func (c *lateContext) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.cancel != nil {
		c.cancel()
	}
}

// Deadline implements context.Context.
func (c *lateContext) Deadline() (time.Time, bool) { return c.at, true }

// Done implements context.Context. The first call makes the timer.
func (c *lateContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waited == nil {
		c.waited, c.cancel = context.WithDeadline(c.Context, c.at)
		// Whoever begins to wait after the end must not wait for the deadline.
		if c.stopped {
			c.cancel()
		}
	}
	return c.waited.Done()
}

// Err implements context.Context. It agrees with Done once Done was called.
func (c *lateContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	// The timer decides once it exists, or Err could report an end that Done does not show yet.
	case c.waited != nil:
		return c.waited.Err()
	case c.stopped:
		return context.Canceled
	case c.Context.Err() != nil:
		return c.Context.Err()
	case !time.Now().Before(c.at):
		return context.DeadlineExceeded
	}
	return nil
}
