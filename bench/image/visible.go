package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb/snapshot"
)

// pace is the time between two commits that are followed.
const pace = 500 * time.Microsecond

// measureVisible follows changes to a process that polls for new versions: from before the commit
// begins until the value was read there.
func (r *run) measureVisible(context.Context) error {
	for _, n := range []int{1, 1000} {
		if err := r.golang.send("watch", 0, 0, 0); err != nil {
			return err
		}
		samples := r.cfg.Samples
		if n > 1 {
			// Large commits take longer, so fewer of them are followed.
			samples = min(samples, 2_000_000/n)
		}
		value := newValue()
		var failed error
		for range samples {
			begin := monotonicNow()
			if failed = r.commitStamped(n, uint64(begin), value); failed != nil {
				break
			}
			// The watcher must see each version before the next one replaces it.
			for monotonicNow() < begin+pace {
				time.Sleep(pace / 2)
			}
		}
		// The watcher must be stopped even after a failure, or receive would wait for it.
		if err := r.commitStamped(1, stampOver, value); failed == nil {
			failed = err
		}
		got, err := r.golang.receive("watch")
		if err := errors.Join(failed, err); err != nil {
			return err
		}
		for name, p := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1} {
			r.s.add(fmt.Sprintf("visible in another process, %d changes, %s", n, name), "µs", float64(percentileOf(got.Latencies, p))/1e3)
		}
		if seen := len(got.Latencies); seen < samples/2 {
			r.addNote("the watching process saw only %[3]d of %[1]d commits of %[2]d changes, because it had no processor to itself", samples, n, seen)
		}
	}
	return nil
}

// commitStamped commits n changes, ending with the stamp.
func (r *run) commitStamped(n int, stamp uint64, value []byte) error {
	c := r.pub.Begin()
	for i := 1; i < n; i++ {
		if err := r.putChange(c, shuffledIndex(r.next, uint64(r.cfg.Records), 99), value); err != nil {
			c.Discard()
			return err
		}
		r.next++
	}
	stampValue(value, stamp)
	if err := r.putChange(c, 0, value); err != nil {
		c.Discard()
		return err
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	return err
}

// measurePairs changes pairs of records together, as fast as possible, while a reader compares
// them.
func (r *run) measurePairs(context.Context) error {
	value := newValue()
	// The pairs must be equal before the reader starts.
	if err := r.pairCommit(value, 2); err != nil {
		return err
	}
	if err := r.golang.send("pairs", 0, 0, 0); err != nil {
		return err
	}
	commits := uint64(2)
	for end := time.Now().Add(min(r.cfg.Pairs, watchMax/2)); time.Now().Before(end); {
		commits++
		if err := r.pairCommit(value, commits); err != nil {
			return err
		}
	}
	if err := r.commitStamped(1, stampOver, value); err != nil {
		return err
	}
	got, err := r.golang.receive("pairs")
	if err != nil {
		return err
	}
	r.s.add("pairs read", "", float64(got.Found))
	r.s.add("pairs mixed", "", float64(got.Bad))
	r.s.add("pairs: versions seen", "", float64(got.Versions))
	r.s.add("pairs: commits", "", float64(commits))
	return nil
}

// pairCommit commits n to all pairs.
func (r *run) pairCommit(value []byte, n uint64) error {
	c := r.pub.Begin()
	stampValue(value, n)
	for i := range uint64(2 * pairsCount) {
		if err := r.putChange(c, 1+i, value); err != nil {
			c.Discard()
			return err
		}
	}
	if err := r.putChange(c, 0, value); err != nil {
		c.Discard()
		return err
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	return err
}

// measureRefresh compares reads without a writer with reads while a writer commits continuously.
func (r *run) measureRefresh(context.Context) error {
	n := r.turnSize(1)
	for range r.cfg.Rounds {
		for _, writing := range []bool{false, true} {
			if err := r.freshKeys([]turn{{worker: r.c, ops: n}}); err != nil {
				return err
			}
			name := "refresh: C multiget ×32, quiet"
			if writing {
				name = "refresh: C multiget ×32, writer at work"
			}
			if err := r.c.send("mget", n, 32, 0); err != nil {
				return err
			}
			done := make(chan error, 1)
			var got reply
			// commitChanges measures this thread, so another goroutine awaits the answer.
			go func() {
				var err error
				got, err = r.c.receive("mget")
				done <- err
			}()
			commits := 0
			for waiting := true; waiting; {
				select {
				case err := <-done:
					if err != nil {
						return err
					}
					waiting = false
				default:
					if !writing {
						time.Sleep(time.Millisecond)
					} else if _, err := r.commitChanges(1000); err != nil {
						return err
					}
					commits++
				}
			}
			r.s.add(name, "ns", got.perOp())
			if writing {
				r.s.add("refresh: changes meanwhile", "1/s", float64(commits)*1000/(float64(got.Wall)/1e9))
			}
			if _, err := r.c.do("lock-new", 0, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
