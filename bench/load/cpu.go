package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc's processor times: USER_HZ is 100 on every Linux that Go supports.
const clockTick = 10 * time.Millisecond

// CPU gives the processor time that processes have used, user and system together, from /proc. Processes that are gone,
// and systems without /proc, count as zero.
func CPU(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The second field is the command in parentheses and may hold spaces; fields 14 and 15 are utime and stime.
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')'):]), " ")
		f := strings.Fields(rest)
		if len(f) < 13 {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		sum += time.Duration(user+system) * clockTick
	}
	return sum
}
