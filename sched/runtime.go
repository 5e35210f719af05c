package sched

import (
	"context"
	"time"
)

// Runtime runs the work of one node. It may run the functions passed to it on any goroutine,
// several at a time, unless a method says otherwise.
type Runtime interface {
	// Now returns the monotonic time since an arbitrary start, which measures leases
	// (hlc.Boottime).
	Now() time.Duration
	// Every runs f once per period, one call at a time, until stop is called. If urgent is set, f
	// competes as little as possible with other work of the process. After stop returns, f is not
	// running and never runs again; f must not call stop.
	Every(period time.Duration, urgent bool, f func()) (stop func())
	// Timer returns a stopped timer that runs f.
	Timer(f func()) Timer
	// Worker returns a worker that runs f, one call at a time, whenever it is woken.
	Worker(f func()) Worker
	// Disk runs work, which may wait for the disk, and then done. If apart is set, Disk returns at
	// once. Otherwise it may make the caller wait, because a hand-off can cost more than the wait.
	Disk(apart bool, work, done func())
	// Rand returns a random number.
	Rand() uint64

	// Go runs f as a process, concurrently with the caller. Inside a process f may call Await. The
	// channel closes when f returns.
	Go(f func()) (done <-chan struct{})
	// Await waits until one of the channels is ready to receive or closed, receives from it and
	// returns its index. A nil channel is never ready. Only a process may call Await if no channel
	// is ready.
	Await(a, b, c <-chan struct{}) int
	// WithTimeout returns a context that ends after d, or with ctx.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Block runs work, which may wait for the disk, and returns when it is done. Only a process may
// call it.
func Block(rt Runtime, work func()) {
	done := make(chan struct{})
	rt.Disk(false, work, func() { close(done) })
	rt.Await(done, nil, nil)
}

// Sleep waits until d has passed or ctx ends. Only a process may call it.
func Sleep(rt Runtime, ctx context.Context, d time.Duration) {
	ctx, cancel := rt.WithTimeout(ctx, d)
	defer cancel()
	rt.Await(ctx.Done(), nil, nil)
}

// Timer runs a function once after a delay.
type Timer interface {
	// Reset schedules the function to run after d, and cancels an earlier schedule.
	Reset(d time.Duration)
	// Stop cancels the schedule. It does not wait for a running function.
	Stop()
}

// Worker runs a function when it is woken.
type Worker interface {
	// Wake makes the function run once, from its beginning, soon after. Wake never blocks; several
	// calls may lead to one run.
	Wake()
	// Stop waits for a running function and prevents further runs. The function must not call it.
	Stop()
}
