package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb/client"
)

// Restart is the result of one kill -9 of all nodes at once and their restart.
type Restart struct {
	// P50 and Max are over the keys: the time from the start of the first process to the first
	// successful write.
	P50 time.Duration `json:"p50_ns"`
	Max time.Duration `json:"max_ns"`
	// Keys are the times of all keys in ascending order.
	Keys []time.Duration `json:"keys_ns"`
	// InSync is the time from the start of the first process until every range had all replicas in
	// sync.
	InSync time.Duration `json:"in_sync_ns"`
}

const (
	// restartKeys is the number of keys that are written after a restart, each by its own caller.
	restartKeys = 64
	// startsMax bounds the wait for the processes to restart.
	startsMax = 30 * time.Second
)

// restartAll kills and restarts the whole cluster Restarts times.
func (f *failover) restartAll(ctx context.Context) error {
	if f.cfg.Restarts == 0 {
		return nil
	}
	for i := range restartKeys {
		if err := f.putRestartKey(ctx, i); err != nil {
			return err
		}
	}
	for range f.cfg.Restarts {
		if err := f.awaitSettled(ctx); err != nil {
			return err
		}
		r, err := f.restartOnce(ctx)
		if err != nil {
			return err
		}
		f.report.Restarts = append(f.report.Restarts, *r)
		f.cfg.Progress(fmt.Sprintf("killed all nodes: of %d keys the median was written %v after the start, the last %v; in sync again after %v", restartKeys, r.P50, r.Max, r.InSync))
	}
	return nil
}

// restartOnce kills all nodes and measures, from their restart, how long each key cannot be
// written. Callers retry all the time, as those of a service do.
func (f *failover) restartOnce(ctx context.Context) (*Restart, error) {
	old, err := f.killAll()
	if err != nil {
		return nil, err
	}
	written := make([]time.Time, restartKeys)
	errs := make([]error, restartKeys)
	var callers sync.WaitGroup
	for i := range written {
		callers.Go(func() {
			errs[i] = f.putRestartKey(ctx, i)
			written[i] = time.Now()
		})
	}
	start, err := f.awaitStarted(ctx, old)
	if err != nil {
		return nil, err
	}
	callers.Wait()
	r := &Restart{}
	for i, at := range written {
		if errs[i] != nil {
			return nil, errs[i]
		}
		// Callers began before the restart, but only the time after it counts.
		r.Keys = append(r.Keys, at.Sub(start))
	}
	slices.Sort(r.Keys)
	r.P50, r.Max = medianAndMax(r.Keys)
	err = f.awaitSettled(ctx)
	r.InSync = time.Since(start)
	return r, err
}

// killAll kills all nodes and returns their processes.
func (f *failover) killAll() (pids map[int]bool, err error) {
	pids = make(map[int]bool)
	for _, n := range f.cfg.Cluster.Nodes {
		pid, err := pidOf(n.Addr)
		if err != nil {
			return nil, err
		}
		pids[pid] = true
	}
	// All processes are killed before any restarts: the demo waits three
	// seconds.
	for pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return nil, fmt.Errorf("kill -9 %d: %w", pid, err)
		}
	}
	return pids, nil
}

// putRestartKey writes one key, and retries for at most settleMax.
func (f *failover) putRestartKey(ctx context.Context, i int) (err error) {
	regions := f.c.Regions()
	home := regions[i%len(regions)].Name
	for deadline := time.Now().Add(settleMax); time.Now().Before(deadline) && ctx.Err() == nil; {
		if _, err = f.t.Put(ctx, fmt.Appendf(nil, "restart-%d", i), []byte("x"), client.PutOptions{Home: home}); err == nil {
			return nil
		}
	}
	return err
}

// awaitStarted waits until every node has a new process, and returns the time at which the first
// one appeared.
func (f *failover) awaitStarted(ctx context.Context, old map[int]bool) (first time.Time, err error) {
	for deadline := time.Now().Add(startsMax); time.Now().Before(deadline); {
		count := 0
		for _, n := range f.cfg.Cluster.Nodes {
			// A process that is still dying has an old number.
			if pid, err := pidOf(n.Addr); err == nil && !old[pid] {
				count++
			}
		}
		if count > 0 && first.IsZero() {
			first = time.Now()
		}
		if count == len(f.cfg.Cluster.Nodes) {
			return first, nil
		}
		if err := pauseFor(ctx, 5*time.Millisecond); err != nil {
			return first, err
		}
	}
	return first, fmt.Errorf("the nodes did not restart within %v", startsMax)
}
