package client

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Concurrent calls share frames, and a lone caller's each have their own.
func TestBatching(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	for i := range 20 {
		must[Result](t)(tab.Put(t.Context(), fmt.Append(nil, i), nil, PutOptions{}))
	}
	n := w.nodes[0]
	n.mu.Lock()
	for _, k := range n.frames {
		if k != 1 {
			t.Errorf("a lone caller's frame has %d requests", k)
		}
	}
	n.frames = nil
	n.mu.Unlock()

	const callers, each = 256, 20
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for j := range each {
				name := fmt.Appendf(nil, "%d-%d", i, j)
				if _, err := tab.Put(t.Context(), name, name, PutOptions{}); err != nil {
					t.Error(err)
					return
				}
				got, err := tab.Get(t.Context(), name, GetOptions{})
				if b, _ := got.Bytes(); err != nil || string(b) != string(name) {
					t.Errorf("read %q of %q: %v", b, name, err)
					return
				}
			}
		})
	}
	work.Wait()
	n.mu.Lock()
	frames := len(n.frames)
	n.mu.Unlock()
	if mean := callers * each * 2 / frames; mean < 8 {
		t.Errorf("%d calls in %d frames: %d each", callers*each*2, frames, mean)
	}
	if _, most := w.times(); most != 1 {
		t.Errorf("a write took effect %d times", most)
	}
}

// cpuTime is what this process, client and servers, has used of its processors: it is fair to
// compare on a busy machine.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkPut(b *testing.B) {
	w := newWorld(b, 1, 1)
	c := w.open("")
	t, err := c.Table(b.Context(), "plain")
	if err != nil {
		b.Fatal(err)
	}
	value := make([]byte, 100)
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.ReportAllocs()
			before := c.Metrics()
			var work sync.WaitGroup
			left := make(chan struct{}, b.N)
			for range b.N {
				left <- struct{}{}
			}
			close(left)
			cpu := cpuTime()
			b.ResetTimer()
			for i := range callers {
				work.Go(func() {
					name := fmt.Append(nil, i)
					for range left {
						if _, err := t.Put(b.Context(), name, value, PutOptions{}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			work.Wait()
			m := c.Metrics()
			b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(m.Requests-before.Requests)/float64(m.Frames-before.Frames), "requests/frame")
		})
	}
}
