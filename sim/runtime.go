package sim

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb/sched"
)

// runtime implements sched.Runtime for one life of a node by events and processes of the world. It
// drops the schedules of an earlier life.
type runtime struct {
	n    *node
	life int
}

// later schedules do in this life.
func (rt *runtime) later(wait time.Duration, do func()) {
	rt.n.w.after(wait, func() { rt.n.run(rt.life, do) })
}

func (rt *runtime) Now() time.Duration { return rt.n.monotonicNow() }

func (rt *runtime) Rand() uint64 { return rt.n.w.rnd.Uint64() }

func (rt *runtime) Go(f func()) <-chan struct{} { return rt.n.spawn(f) }

func (rt *runtime) Await(a, b, c <-chan struct{}) int { return rt.n.w.awaitChannels(a, b, c) }

// Every ignores urgent: in the world nothing competes for a processor.
func (rt *runtime) Every(period time.Duration, _ bool, f func()) (stop func()) {
	stopped := false
	var tick func()
	tick = func() {
		if stopped {
			return
		}
		f()
		rt.later(period, tick)
	}
	// The first period is partial, so that the tickers of the nodes do not run in step.
	rt.later(time.Duration(rt.n.w.rnd.Int64N(int64(period))), tick)
	return func() { stopped = true }
}

func (rt *runtime) Timer(f func()) sched.Timer { return &timer{rt: rt, f: f} }

// timer implements sched.Timer. set numbers the calls of Reset and Stop; only the newest schedule
// runs.
type timer struct {
	rt  *runtime
	f   func()
	set int
}

// Reset schedules the function and invalidates earlier schedules.
func (t *timer) Reset(d time.Duration) {
	t.set++
	mine := t.set
	t.rt.later(d, func() {
		if t.set == mine {
			t.f()
		}
	})
}

func (t *timer) Stop() { t.set++ }

func (rt *runtime) Worker(f func()) sched.Worker { return &worker{rt: rt, f: f} }

// worker implements sched.Worker.
type worker struct {
	rt             *runtime
	f              func()
	woken, stopped bool
}

// Wake runs the function after a random delay, so that events accumulate as they do on a busy
// machine.
func (wk *worker) Wake() {
	if wk.woken || wk.stopped {
		return
	}
	wk.woken = true
	n := wk.rt.n
	wk.rt.later(time.Duration(n.w.rnd.Int64N(int64(n.w.p.pass))), func() {
		// Reset before the call: events during the call must wake the worker again.
		wk.woken = false
		if !wk.stopped {
			wk.f()
		}
	})
}

func (wk *worker) Stop() { wk.stopped = true }

// WithTimeout returns a context that ends after d of virtual time. A context with a deadline would
// use the clock of the machine.
func (rt *runtime) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	rt.later(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() { cancel(context.Canceled) }
}

// Disk performs the work at once and calls done when the disk of the node answers
// (disk.requestSync).
func (rt *runtime) Disk(_ bool, work, done func()) {
	rt.n.disk.working = true
	work()
	rt.n.disk.working = false
	rt.n.disk.requestSync(func() { rt.n.run(rt.life, done) })
}
