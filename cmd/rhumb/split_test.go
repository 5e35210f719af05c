package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// rangesOf returns the ranges of a table's class.
func rangesOf(c *client.Client, class rhumb.ClassID) (out []*rhumb.Range) {
	for _, r := range c.Ranges() {
		if r.Class == class {
			out = append(out, r)
		}
	}
	return out
}

// TestSplitsUnderLoad fills a table of one range until it was split several times, and kills the primary of a range that is
// being split. No write fails, each is applied once, and all are there afterwards, in one scan without gaps.
func TestSplitsUnderLoad(t *testing.T) {
	const writers, wanted = 8, 6
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	h := &holder{t: t}
	h.open(l)
	ok(t, "setting", "set", "range_split_bytes", "1MiB")
	ok(t, "table", "create", "grow", "--hash-slots", "1")
	table, err := h.c.Table(t.Context(), "grow")
	if err != nil {
		t.Fatal(err)
	}
	class := table.Info().Class
	await(t, "the range of the table", settleWait, func() bool { return len(rangesOf(h.c, class)) == 1 })
	ctx, stop := context.WithTimeout(t.Context(), 45*time.Second)
	defer stop()
	value := []byte(strings.Repeat("v", 1<<10))
	var acked [writers]int
	var longest atomic.Int64
	var work sync.WaitGroup
	for i := range writers {
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				begin := time.Now()
				// A write that is applied a second time finds its own record, and fails.
				_, err := table.Put(ctx, fmt.Appendf(nil, "g%d-%06d", i, n), value, client.PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}, Local: true})
				switch {
				case ctx.Err() != nil:
					return
				case err != nil:
					t.Errorf("put g%d-%06d: %v", i, n, err)
					return
				}
				longest.Store(max(longest.Load(), int64(time.Since(begin))))
				acked[i] = n + 1
			}
		})
	}
	// The primary of a range dies while the range is split, as the record shows.
	var victim rhumb.NodeID
	await(t, "a range that is being split", settleWait, func() bool {
		ranges := rangesOf(h.c, class)
		for _, r := range ranges {
			if r.Birth != 0 && len(ranges) > 2 {
				victim = r.Primary
			}
		}
		return victim != 0
	})
	if err := syscall.Kill(nodeOf(l, victim).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "more ranges", settleWait, func() bool { return len(rangesOf(h.c, class)) >= wanted || ctx.Err() != nil })
	// A split on request, of a range that need not be split.
	// It may be about to be split all the same, which refuses the request.
	await(t, "a split on request", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", "range", "split", rangesOf(h.c, class)[0].ID.String())
		return code == exit.OK
	})
	stop()
	work.Wait()
	await(t, "the end of all splits", settleWait, func() bool {
		for _, r := range rangesOf(h.c, class) {
			if r.Birth != 0 {
				return false
			}
		}
		return true
	})
	var ranges []rangeDoc
	okJSON(t, &ranges, "range", "ls", "-o", "json")
	slots := uint32(0)
	for _, r := range ranges {
		if r.Class == class.String() {
			slots += r.Slots
		}
	}
	if slots != rhumb.BucketsDefault {
		t.Errorf("the ranges have %d slots, want %d", slots, rhumb.BucketsDefault)
	}
	total, seen := 0, map[string]bool{}
	for item, err := range table.Scan(t.Context(), client.ScanOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(item.Key.Name)] {
			t.Errorf("%s is read twice", item.Key.Name)
		}
		seen[string(item.Key.Name)] = true
	}
	for i := range acked {
		for n := range acked[i] {
			if name := fmt.Sprintf("g%d-%06d", i, n); !seen[name] {
				t.Errorf("the acknowledged write of %s is lost", name)
			}
		}
		total += acked[i]
	}
	t.Logf("%d writes in %d ranges; the longest took %v", total, len(rangesOf(h.c, class)), time.Duration(longest.Load()).Round(time.Millisecond))
}
