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

// System is the machine's clock and goroutines.
var System Runtime = system{}

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
	if apart {
		go func() { work(); done() }()
		return
	}
	work()
	done()
}

func (system) Every(period time.Duration, urgent bool, f func()) (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if urgent {
			hurry()
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

// urgentNice is the priority of urgent work.
const urgentNice = -10

// hurry locks the goroutine to a thread and raises the thread's priority where the system allows that, so that a loaded
// machine does not look like a dead one. The goroutine never unlocks the thread: it ends with the goroutine, and so its
// priority does not pass to other work.
func hurry() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), urgentNice) // refused without privilege: the priority stays
}

func (system) Timer(f func()) Timer {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return timer{t}
}

type timer struct{ *time.Timer }

func (t timer) Reset(d time.Duration) { t.Timer.Reset(d) }

func (t timer) Stop() { t.Timer.Stop() }

func (system) Worker(f func()) Worker {
	w := &worker{woken: make(chan struct{}, 1), quit: make(chan struct{})}
	w.running.Go(func() { w.run(f) })
	return w
}

// worker is a goroutine that waits for its next turn.
type worker struct {
	woken   chan struct{}
	quit    chan struct{}
	running sync.WaitGroup
}

func (w *worker) run(f func()) {
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
	default: // a turn is due already
	}
}

func (w *worker) Stop() {
	close(w.quit)
	w.running.Wait()
}
