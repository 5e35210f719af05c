package client

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// slowly makes a node answer one write at a time, each after a pause.
func slowly(pause time.Duration) func(*rhumbpb.Request) fault {
	return func(q *rhumbpb.Request) fault {
		if isWrite(q) {
			time.Sleep(pause) // the work of the node
		}
		return fault{}
	}
}

// TestOverloadCostsOneAttempt guards that a call waits for its turn at a node that has more work than
// it can do, in one attempt: repeated attempts would cost the processor time that the node needs,
// and each would queue after everything that came later. All writes can be answered before their
// deadline here, but not within the time of one attempt, so all of them must succeed.
func TestOverloadCostsOneAttempt(t *testing.T) {
	w := newWorld(t, 1, 1)
	const callers, pause = 256, 5 * time.Millisecond
	c := w.open("", func(cfg *Config) { cfg.AttemptTimeout = callers * pause / 3; cfg.Timeout = 60 * time.Second })
	tab := w.table(c, "plain")
	w.nodes[0].set(slowly(pause))
	before := c.Metrics()
	value := make([]byte, 64<<10) // so that the window holds a few of them only
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			if _, err := tab.Put(t.Context(), fmt.Append(nil, i), value, PutOptions{}); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	work.Wait()
	after := c.Metrics()
	// Once there were 29 attempts for each write. On a busy machine some writes are sent again, because the node answers later than the
	// attempt allows. And a node of which nothing is heard for a second loses its connection, which ends an attempt of every caller.
	attempts, sent := after.Requests-before.Requests, after.Sent-before.Sent
	lost := after.Silent - before.Silent + after.Broken - before.Broken
	if attempts > 2*sent+callers*lost || sent < callers {
		t.Errorf("%d attempts and %d requests for %d writes", attempts, sent, callers)
	}
}

// TestOverloadRefusesOnce guards that a write that cannot be answered before its deadline is refused
// as overloaded, with the time to wait, after one attempt, and that nothing of it was sent.
func TestOverloadRefusesOnce(t *testing.T) {
	w := newWorld(t, 1, 1)
	const callers, pause = 256, 10 * time.Millisecond
	c := w.open("", func(cfg *Config) { cfg.AttemptTimeout = callers * pause / 4; cfg.Timeout = callers * pause / 2 })
	tab := w.table(c, "plain")
	w.nodes[0].set(slowly(pause))
	before := c.Metrics()
	value := make([]byte, 64<<10)
	var work sync.WaitGroup
	var good, late, refused atomic.Int64
	for i := range callers {
		work.Go(func() {
			_, err := tab.Put(t.Context(), fmt.Append(nil, i), value, PutOptions{})
			switch {
			case err == nil:
				good.Add(1)
			// On a busy machine the node needs longer than its pause for a write that was sent in time.
			case rhumb.KindOf(err) == rhumb.Unknown:
				late.Add(1)
			case rhumb.KindOf(err) == rhumb.Overloaded && rhumb.RetryAfterOf(err) > 0:
				refused.Add(1)
			default:
				t.Errorf("write %d: %v, with a pause of %v", i, err, rhumb.RetryAfterOf(err))
			}
		})
	}
	work.Wait()
	after := c.Metrics()
	attempts, sent := int64(after.Requests-before.Requests), int64(after.Sent-before.Sent)
	// A refused write makes one attempt, which is not sent. The factor is for a busy machine, as above.
	if good.Load() == 0 || refused.Load() == 0 || attempts > 2*(sent+refused.Load()) {
		t.Errorf("%d writes succeeded, %d were late and %d were refused, with %d attempts, of which %d were sent", good.Load(), late.Load(), refused.Load(), attempts, sent)
	}
}
