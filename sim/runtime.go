package sim

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb/sched"
)

// runtime is the sched.Runtime of one life of a node: events and processes of the world.
type runtime struct {
	n    *node
	life int
}

// later does something in this life after a while.
func (rt *runtime) later(wait time.Duration, do func()) {
	rt.n.w.after(wait, func() { rt.n.run(rt.life, do) })
}

func (rt *runtime) Now() time.Duration { return rt.n.mono() }

func (rt *runtime) Rand() uint64 { return rt.n.w.rnd.Uint64() }

func (rt *runtime) Go(f func()) <-chan struct{} { return rt.n.spawn(f) }

func (rt *runtime) Await(a, b, c <-chan struct{}) int { return rt.n.w.await(a, b, c) }

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
	rt.later(time.Duration(rt.n.w.rnd.Int64N(int64(period))), tick)
	return func() { stopped = true }
}

func (rt *runtime) Timer(f func()) sched.Timer { return &timer{rt: rt, f: f} }

// timer is a sched.Timer. set counts the times that were set: only the last one runs.
type timer struct {
	rt  *runtime
	f   func()
	set int
}

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

type worker struct {
	rt             *runtime
	f              func()
	woken, stopped bool
}

// Wake lets events gather for a while, as they do on a machine that has other things to do.
func (wk *worker) Wake() {
	if wk.woken || wk.stopped {
		return
	}
	wk.woken = true
	n := wk.rt.n
	wk.rt.later(time.Duration(n.w.rnd.Int64N(int64(n.w.p.pass))), func() {
		wk.woken = false
		if !wk.stopped {
			wk.f()
		}
	})
}

func (wk *worker) Stop() { wk.stopped = true }

func (rt *runtime) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	rt.later(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() { cancel(context.Canceled) }
}

// Disk does the work at once, and says so when the node's disk would have: see disk.owe.
func (rt *runtime) Disk(_ bool, work, done func()) {
	rt.n.disk.working = true
	work()
	rt.n.disk.working = false
	rt.n.disk.owe(func() { rt.n.run(rt.life, done) })
}
