package sched

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/hlc"
)

// System uses the clock and the goroutines of the machine.
var System Runtime = system{}

// system implements Runtime.
type system struct{}

func (system) Now() time.Duration { return hlc.Boottime() }

func (system) Rand() uint64 { return rand.Uint64() }

func (system) Go(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

func (system) Await(a, b, c <-chan struct{}) int {
	select {
	case <-a:
		return 0
	case <-b:
		return 1
	case <-c:
		return 2
	}
}

func (system) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (system) Disk(apart bool, work, done func()) {
	// The work must not delay the caller, for example a pass that sends heartbeats afterwards.
	if apart {
		go func() { work(); done() }()
		return
	}
	// A hand-off to another goroutine can cost more than the wait.
	work()
	done()
}

// Every calls f in a goroutine of its own, which stop ends and waits for. Calls do not overlap: one that takes longer than the period
// delays the next.
func (system) Every(period time.Duration, urgent bool, f func()) (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if urgent {
			raisePriority()
		}
		t := time.NewTicker(period)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				f()
			}
		}
	})
	return func() {
		close(quit)
		running.Wait()
	}
}

// urgentNice is the scheduling priority of urgent work.
const urgentNice = -10

// raisePriority locks the goroutine to its thread and raises the priority of the thread where the system
// permits, so that a loaded machine does not look dead to its peers. The goroutine never unlocks
// the thread: the thread ends with the goroutine, so no other work inherits the priority.
func raisePriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), urgentNice) // fails without privilege, and the priority stays
}

func (system) Timer(f func()) Timer {
	// AfterFunc starts the timer, so it is stopped long before its first duration elapses.
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return timer{t}
}

// timer implements Timer.
type timer struct{ *time.Timer }

func (t timer) Reset(d time.Duration) { t.Timer.Reset(d) }

func (t timer) Stop() { t.Timer.Stop() }

func (system) Worker(f func()) Worker {
	w := &worker{woken: make(chan struct{}, 1), quit: make(chan struct{})}
	w.running.Go(func() { w.runLoop(f) })
	return w
}

// worker is a goroutine that waits until it is woken.
type worker struct {
	woken   chan struct{}
	quit    chan struct{}
	running sync.WaitGroup
}

// runLoop calls f for each wake-up until Stop.
func (w *worker) runLoop(f func()) {
	for {
		select {
		case <-w.quit:
			return
		case <-w.woken:
			f()
		}
	}
}

func (w *worker) Wake() {
	select {
	case w.woken <- struct{}{}:
	default: // a run is pending already
	}
}

func (w *worker) Stop() {
	close(w.quit)
	w.running.Wait()
}
