package load

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// RSS gives the resident memory of a process in bytes, from /proc, without what it shares with others through a file system
// in memory. A process that is gone, and a system without /proc, count as zero.
func RSS(pid int) (bytes int64) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib int64
		for _, name := range []string{"RssAnon:", "RssFile:"} {
			if rest, ok := strings.CutPrefix(s.Text(), name); ok {
				_, _ = fmt.Sscan(rest, &kib) // 0 where it does not read
				bytes += kib << 10
			}
		}
	}
	return bytes
}

// rssEvery is how often WatchRSS looks.
const rssEvery = 50 * time.Millisecond

// WatchRSS looks at the memory of processes until stop is called, which returns the greatest that it saw of each.
func WatchRSS(pids []int) (stop func() []int64) {
	most := make([]int64, len(pids))
	end := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		t := time.NewTicker(rssEvery)
		defer t.Stop()
		for {
			for i, pid := range pids {
				most[i] = max(most[i], RSS(pid))
			}
			select {
			case <-end:
				return
			case <-t.C:
			}
		}
	})
	return func() []int64 {
		close(end)
		wait.Wait()
		return most
	}
}
