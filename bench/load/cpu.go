package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of processor times in /proc. USER_HZ is 100 on every Linux that Go
// supports.
const clockTick = 10 * time.Millisecond

// CPU returns the processor time that processes have used, user and system together, from /proc. A
// process that has ended, or a system without /proc, counts as zero.
func CPU(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The second field is the command in parentheses, which may contain spaces and parentheses.
		// Fields 14 and 15 are utime and stime.
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')'):]), " ")
		f := strings.Fields(rest)
		// A process that ends while it is read may leave a short line.
		if len(f) < 13 {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		sum += time.Duration(user+system) * clockTick
	}
	return sum
}
