package load

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// RSS returns the resident memory of a process in bytes, from /proc, without memory that it shares
// through a file system in memory. A process that has ended, or a system without /proc, counts as
// zero.
func RSS(pid int) (bytes int64) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib int64
		// RssShmem is left out: images are shared, and every process that maps one would count it.
		for _, name := range []string{"RssAnon:", "RssFile:"} {
			if rest, ok := strings.CutPrefix(s.Text(), name); ok {
				// kib stays 0 if the line is malformed.
				_, _ = fmt.Sscan(rest, &kib)
				bytes += kib << 10
			}
		}
	}
	return bytes
}

// rssEvery is the interval at which WatchRSS samples.
const rssEvery = 50 * time.Millisecond

// WatchRSS samples the memory of processes until stop is called. stop returns the maximum of each
// process.
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
			// One sample is taken even if stop is called at once.
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
