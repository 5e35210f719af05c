package image

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
)

// othersMax is the processor time per second of other processes above which a run reports it.
const othersMax = 0.1

// usage measures how much of the machine other processes use.
type usage struct {
	start time.Time
	busy  time.Duration
}

func newUsage() usage { return usage{start: time.Now(), busy: machineBusy()} }

// othersUsed returns the number of processors that were busy since newUsage, without the given
// processes.
func (u usage) othersUsed(pids []int) float64 {
	return max((machineBusy()-u.busy-load.CPU(pids)).Seconds()/time.Since(u.start).Seconds(), 0)
}

// machineBusy returns the processor time that was used on the machine.
func machineBusy() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var f [8]int64 // user nice system idle iowait irq softirq steal
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6], &f[7]); err != nil {
		return 0
	}
	// Idle and iowait are left out. A tick is 10 ms (load.CPU).
	return time.Duration(f[0]+f[1]+f[2]+f[5]+f[6]+f[7]) * 10 * time.Millisecond
}
