package sched

import (
	"context"
	"time"
)

// Runtime runs the work of one node. Functions that it takes may be run on any goroutine, several at a time, unless it is
// said that they are not.
type Runtime interface {
	// Now returns the monotonic time since an arbitrary start that leases are measured with (hlc.Boottime).
	Now() time.Duration
	// Every runs f once in each period, one call at a time, until stop is called. With urgent f does not wait for other work
	// of the process where that can be avoided. When stop returns, f does not run and will not run again; f must not call it.
	Every(period time.Duration, urgent bool, f func()) (stop func())
	// Timer returns a timer that runs f. It is not started.
	Timer(f func()) Timer
	// Worker returns a worker that runs f, one call at a time, whenever it was woken.
	Worker(f func()) Worker
	// Disk runs work, which may wait for the disk, and then done. With apart it returns at once; otherwise it may keep the
	// caller waiting, and does where a hand-off would cost more than the wait.
	Disk(apart bool, work, done func())
	// Rand returns a random number.
	Rand() uint64

	// Go runs f as a process: apart from the caller, and f may call Await. The channel closes when f has returned.
	Go(f func()) (done <-chan struct{})
	// Await waits until one of the channels can be received from or is closed, receives from it, and returns its index. A nil
	// channel never can. Only a process may call it where none can at once.
	Await(a, b, c <-chan struct{}) int
	// WithTimeout returns a context that ends after d, or with ctx.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Block runs work, which may wait for the disk. Only a process may call it.
func Block(rt Runtime, work func()) {
	done := make(chan struct{})
	rt.Disk(false, work, func() { close(done) })
	rt.Await(done, nil, nil)
}

// Sleep waits until d has passed or ctx has ended. Only a process may call it.
func Sleep(rt Runtime, ctx context.Context, d time.Duration) {
	ctx, cancel := rt.WithTimeout(ctx, d)
	defer cancel()
	rt.Await(ctx.Done(), nil, nil)
}

// Timer runs a function once after a time.
type Timer interface {
	// Reset runs the function after d, in place of an earlier time that has not come.
	Reset(d time.Duration)
	// Stop forgets a time that has not come. The function may run at the moment.
	Stop()
}

// Worker runs a function when it is woken.
type Worker interface {
	// Wake makes the function run once from its beginning, soon. It never blocks; several calls may lead to one run.
	Wake()
	// Stop waits until the function does not run; it will not run again. The function must not call it.
	Stop()
}
