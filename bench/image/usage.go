package image

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
)

// othersMax is how much of a processor others may use before a run says so.
const othersMax = 0.1

// usage finds out how much of the machine others use.
type usage struct {
	start time.Time
	busy  time.Duration
}

func newUsage() usage { return usage{start: time.Now(), busy: machineBusy()} }

// others gives the processors that were busy since, without these processes.
func (u usage) others(pids []int) float64 {
	return max((machineBusy()-u.busy-load.CPU(pids)).Seconds()/time.Since(u.start).Seconds(), 0)
}

// machineBusy gives the processor time that was used on the machine, in ticks of 10 ms.
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
	return time.Duration(f[0]+f[1]+f[2]+f[5]+f[6]+f[7]) * 10 * time.Millisecond
}
