package load

import (
	"fmt"
	"os"
	"slices"
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
		f := statFields(pid)
		// A process that ends while it is read may leave a short line.
		if len(f) < 13 {
			continue
		}
		// Fields 14 and 15 of the file are utime and stime.
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		sum += time.Duration(user+system) * clockTick
	}
	return sum
}

// statFields returns the third and all later fields of the file stat of a process, or nil if the
// process has ended.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The second field is the command in parentheses, which may contain spaces and parentheses.
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return strings.Fields(rest)
}

// Family returns processes and all their descendants, from /proc. A server that forks, such as
// PostgreSQL, works in its children.
func Family(roots ...int) []int {
	children := map[int][]int{}
	dirs, _ := os.ReadDir("/proc") // without /proc, only the roots count
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if f := statFields(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], pid)
		}
	}
	out := slices.Clone(roots)
	// The slice grows while it is walked: children of children follow.
	for i := 0; i < len(out); i++ {
		out = append(out, children[out[i]]...)
	}
	return out
}
