package storage

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestFill guards that writes are rejected earlier the faster a disk fills, within bounds, and that
// they are accepted again when space is freed, but not right at the limit.
func TestFill(t *testing.T) {
	const mib = 1 << 20
	type sample struct {
		at   time.Duration
		free uint64
		want DiskState
	}
	for name, c := range map[string]struct {
		total   uint64
		owed    uint64
		samples []sample
	}{
		"slow": {100_000 * mib, 0, []sample{
			{0, 50_000 * mib, DiskHealthy},
			{1 * time.Second, 49_999 * mib, DiskHealthy},
			{2 * time.Second, 5_001 * mib, DiskRefusing}, // a fall within one step is a high speed
			{300 * time.Second, 5_001 * mib, DiskRefusing},
			{301 * time.Second, 5_600 * mib, DiskHealthy},
			{302 * time.Second, 4_999 * mib, DiskRefusing},
			{303 * time.Second, 3_999 * mib, DiskFull},
			{304 * time.Second, 4_300 * mib, DiskFull}, // not enough above the limit
			{305 * time.Second, 4_500 * mib, DiskRefusing},
			{600 * time.Second, 6_000 * mib, DiskHealthy},
		}},
		"100 MiB a second on 300 MiB": {300 * mib, 0, []sample{
			{0, 300 * mib, DiskHealthy},
			{1 * time.Second, 200 * mib, DiskHealthy},
			{1200 * time.Millisecond, 180 * mib, DiskHealthy},
			{2300 * time.Millisecond, 70 * mib, DiskRefusing},
			{2400 * time.Millisecond, 60 * mib, DiskRefusing},
			{60 * time.Second, 60 * mib, DiskHealthy}, // it no longer fills
		}},
		"a jump between two samples": {300 * mib, 0, []sample{
			{0, 300 * mib, DiskHealthy},
			{time.Second, 0, DiskFull},
			{2 * time.Second, 300 * mib, DiskHealthy},
		}},
		"samples too close to measure": {1000 * mib, 0, []sample{
			{0, 500 * mib, DiskHealthy},
			{time.Millisecond, 400 * mib, DiskHealthy},
			{2 * time.Millisecond, 49 * mib, DiskRefusing},
		}},
		"a flush is owed": {1000 * mib, 64 * mib, []sample{
			{0, 500 * mib, DiskHealthy},
			{100 * time.Second, 110 * mib, DiskRefusing},
			{200 * time.Second, 130 * mib, DiskHealthy},
		}},
		"nothing is known": {0, 0, []sample{{0, 0, DiskHealthy}, {time.Second, 0, DiskHealthy}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := fill{refuseShare: 0.05, fullShare: 0.04}
			for _, s := range c.samples {
				f.observe(s.at, s.free, c.total, c.owed)
				if f.state != s.want {
					t.Errorf("at %v with %d MiB free: %s, want %s (%.0f MiB/s, refused below %.0f MiB)", s.at, s.free/mib, f.state, s.want, f.rate/mib, f.refuseBelow(c.total)/mib)
				}
				if n := f.nextQuery(time.Second); n > time.Second || n < fillStep {
					t.Errorf("asks again in %v", n)
				}
			}
		})
	}
}

// TestExplainFull guards that the error of a disk between the limit and the space that ends the
// rejection asks for more than what is free, and says when the speed raised the limit.
func TestExplainFull(t *testing.T) {
	const gib = 1 << 30
	d := disk{total: 252 * gib, fill: fill{refuseShare: 0.05, fullShare: 0.04}}
	for at, free := range []uint64{80 * gib, 60 * gib, 66 * gib} {
		d.free = free
		d.fill.observe(time.Duration(at)*time.Second, free, d.total, 0)
	}
	if d.fill.state != DiskRefusing {
		t.Fatalf("the disk is %s", d.fill.state)
	}
	err := explainFull("op", "/d", &d, DiskRefusing).Error()
	_, after, ok := strings.Cut(err, "accepted again from ")
	need, numberErr := strconv.ParseUint(strings.Fields(after + " -")[0], 10, 64)
	if !ok || numberErr != nil || need <= d.free {
		t.Errorf("%d bytes are free, but the error is %q", d.free, err)
	}
	if !strings.Contains(err, "while the disk fills by up to") {
		t.Errorf("the error does not tell the speed: %q", err)
	}
}

// TestFillNeverSurprised guards that writes are rejected before the disk is full, at any speed up
// to a sixteenth of the disk per second, if the disk is queried as often as nextQuery says.
func TestFillNeverSurprised(t *testing.T) {
	const total = 1 << 30
	for speed := uint64(1 << 20); speed <= total/16; speed *= 2 {
		f := fill{refuseShare: 0.05, fullShare: 0.04}
		now, free := time.Duration(0), uint64(total)
		for f.state == DiskHealthy {
			f.observe(now, free, total, 0)
			step := f.nextQuery(time.Second)
			now += step
			free -= min(free, uint64(float64(speed)*step.Seconds()))
		}
		if f.state != DiskRefusing {
			t.Errorf("at %d bytes a second the disk is %s when writes are first refused", speed, f.state)
		}
	}
}

// TestOwedMatters checks that bytes in memory are left uncounted only where no number of them changes the state.
func TestOwedMatters(t *testing.T) {
	const total = 1000
	for _, refuseShare := range []float64{0.05, 0.15, 0.4} {
		for free := uint64(0); free <= total; free += 10 {
			f := fill{refuseShare: refuseShare, fullShare: refuseShare / 2}
			if f.owedMatters(free, total) {
				continue
			}
			// The disk fills as fast as it can, and as much as possible is in memory.
			for range 3 {
				f.observe(f.measured+time.Second, free, total, math.MaxUint32)
			}
			f.rate = math.MaxUint32
			f.observe(f.measured, free, total, math.MaxUint32)
			if f.state != DiskHealthy {
				t.Errorf("refuse share %v, %d of %d bytes free: %v with bytes in memory that were not counted", refuseShare, free, total, f.state)
			}
		}
	}
}
