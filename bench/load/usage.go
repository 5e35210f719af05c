package load

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Usage measures how much of the machine other processes use.
type Usage struct {
	start      time.Time
	busy, ours time.Duration // processor time at the start, of all and of our processes
}

// StartUsage begins a measurement. Processes that start later have used nothing yet and need not be
// passed.
func StartUsage(pids []int) Usage {
	return Usage{start: time.Now(), busy: machineBusy(), ours: CPU(pids)}
}

// OtherCores returns the number of cores that were busy since the start, without those of the given
// processes.
func (u Usage) OtherCores(pids []int) float64 {
	return max((machineBusy()-u.busy-(CPU(pids)-u.ours)).Seconds()/time.Since(u.start).Seconds(), 0)
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
	// Idle and iowait are left out.
	return time.Duration(f[0]+f[1]+f[2]+f[5]+f[6]+f[7]) * clockTick
}
