package sched_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb/sched"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		stop := sched.System.Every(time.Second, false, func() { calls.Add(1) })
		time.Sleep(3500 * time.Millisecond)
		stop()
		time.Sleep(3 * time.Second)
		if n := calls.Load(); n != 3 {
			t.Errorf("3.5 periods made %d calls, want 3", n)
		}
	})
}

func TestTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		timer := sched.System.Timer(func() { calls.Add(1) })
		time.Sleep(2 * time.Hour)
		if n := calls.Load(); n != 0 {
			t.Fatalf("a timer that was not started ran %d times", n)
		}
		timer.Reset(time.Second)
		timer.Reset(2 * time.Second)
		time.Sleep(1500 * time.Millisecond)
		if n := calls.Load(); n != 0 {
			t.Errorf("the earlier time of a timer still came, %d times", n)
		}
		time.Sleep(time.Minute)
		timer.Reset(time.Second)
		timer.Stop()
		time.Sleep(time.Minute)
		if n := calls.Load(); n != 1 {
			t.Errorf("the timer ran %d times, want once", n)
		}
	})
}

// TestWorkerMissesNothing: what is true before Wake is seen by a run that begins afterwards, also when one runs already.
func TestWorkerMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var want, seen atomic.Int32
		w := sched.System.Worker(func() {
			n := want.Load()
			time.Sleep(time.Second)
			seen.Store(n)
		})
		for range 5 {
			want.Add(1)
			w.Wake()
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if seen.Load() != want.Load() {
			t.Errorf("the worker saw %d, want %d", seen.Load(), want.Load())
		}
		w.Wake()
		synctest.Wait()
		w.Stop()
		w.Wake() // nobody runs any more
	})
}

func TestDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, apart := range []bool{false, true} {
			var order []string
			done := make(chan struct{})
			sched.System.Disk(apart, func() { time.Sleep(time.Second); order = append(order, "work") }, func() { order = append(order, "done"); close(done) })
			if returned := time.Now(); !apart {
				select {
				case <-done:
				default:
					t.Errorf("a call that waits returned at %v, before its work was done", returned)
				}
			}
			<-done
			if len(order) != 2 || order[0] != "work" {
				t.Errorf("apart %v: ran %v", apart, order)
			}
		}
	})
}
