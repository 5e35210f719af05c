package local

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestLine checks what each shape does to a thousand packets of 1,000 bytes that arrive at intervals of 1 ms.
func TestLine(t *testing.T) {
	const packets = 1_000
	for _, tc := range []struct {
		name        string
		shape       shape
		least, most time.Duration // the delay of each packet that keeps its order
		lost        [2]int        // bounds
		overtaken   [2]int
		keepsOrder  bool
	}{
		{"no shape", shape{}, 0, 0, [2]int{}, [2]int{}, true},
		{"delay", shape{delay: 50 * time.Millisecond}, 50 * time.Millisecond, 50 * time.Millisecond, [2]int{}, [2]int{}, true},
		{"jitter", shape{delay: 50 * time.Millisecond, jitter: 20 * time.Millisecond}, 50 * time.Millisecond, 70 * time.Millisecond, [2]int{}, [2]int{}, true},
		{"loss", shape{loss: 0.1}, 0, 0, [2]int{70, 130}, [2]int{}, true},
		{"reorder", shape{delay: 10 * time.Millisecond, overtake: 0.25}, 0, 10 * time.Millisecond, [2]int{}, [2]int{200, 300}, false},
		// A quarter of a megabyte a second: the last packet has waited for 3 s.
		{"slow link", shape{bytesPerSecond: 250_000}, 4 * time.Millisecond, 3*time.Second + 4*time.Millisecond, [2]int{}, [2]int{}, true},
		{"fast link", shape{bytesPerSecond: 2_000_000}, 500 * time.Microsecond, 500 * time.Microsecond, [2]int{}, [2]int{}, true},
	} {
		l := line{shape: tc.shape, random: rand.New(rand.NewPCG(1, 1))}
		var delivered []time.Duration
		for i := range packets {
			now := time.Duration(i) * time.Millisecond
			at, lost := l.admit(now, 1_000)
			if lost {
				continue
			}
			delivered = append(delivered, at)
			if d := at - now; d < tc.least || d > tc.most {
				t.Errorf("%s: packet %d is delayed by %v", tc.name, i, d)
			}
		}
		if sorted := slices.IsSorted(delivered); sorted != tc.keepsOrder {
			t.Errorf("%s: packets keep their order: %v", tc.name, sorted)
		}
		within := func(n int, bounds [2]int) bool { return n >= bounds[0] && n <= bounds[1] }
		if l.passed+l.lost != packets || l.passed != len(delivered) || !within(l.lost, tc.lost) || !within(l.overtaken, tc.overtaken) {
			t.Errorf("%s: %d passed, %d lost, %d overtook", tc.name, l.passed, l.lost, l.overtaken)
		}
	}
}
