package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// mergeRounds is how often TestMergesUnderLoad splits and merges its range.
const mergeRounds = 3

// receipts counts acknowledged writes by the range and by the node that served them.
type receipts struct {
	mu     sync.Mutex
	ofID   map[rhumb.RangeID]int
	ofNode map[rhumb.NodeID]int
}

func (s *receipts) add(r rhumb.Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofID == nil {
		s.ofID, s.ofNode = map[rhumb.RangeID]int{}, map[rhumb.NodeID]int{}
	}
	s.ofID[r.Range]++
	s.ofNode[r.Node]++
}

// reset forgets what was counted.
func (s *receipts) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ofID, s.ofNode = nil, nil
}

// ranges returns the number of ranges that served writes.
func (s *receipts) ranges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ofID)
}

// by returns the number of writes that a node served.
func (s *receipts) by(n rhumb.NodeID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofNode[n]
}

// TestMergesUnderLoad splits a range and merges the parts again, several times, while it is written and read, and then kills its primary. No write
// fails, each is applied once, reads see what was acknowledged before, and everything is there afterwards, in one scan without gaps.
func TestMergesUnderLoad(t *testing.T) {
	const writers = 8
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "4", "--latency", "none", "--load", "none", "--no-restart")
	h := &holder{t: t}
	h.open(l)
	ok(t, "table", "create", "merge", "--hash-slots", "1")
	table, err := h.c.Table(t.Context(), "merge")
	if err != nil {
		t.Fatal(err)
	}
	class := table.Info().Class
	await(t, "the range of the table", settleWait, func() bool { return len(rangesOf(h.c, class)) == 1 })
	ctx, stop := context.WithTimeout(t.Context(), 2*settleWait)
	defer stop()
	value := []byte(strings.Repeat("v", 100))
	var acked [writers]int
	var served receipts
	times := make([][]time.Duration, writers)
	var work sync.WaitGroup
	for i := range writers {
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Appendf(nil, "m%d-%06d", i, n)
				begin := time.Now()
				// A write that is applied a second time finds its own record, and fails.
				res, err := table.Put(ctx, name, value, client.PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}, Local: true})
				switch {
				case ctx.Err() != nil:
					return
				case err != nil:
					t.Errorf("put %s: %v", name, err)
					return
				}
				times[i] = append(times[i], time.Since(begin))
				acked[i] = n + 1
				served.add(res.Receipt)
				// A read of what was just acknowledged, wherever its range is by now.
				if n%10 != 0 {
					continue
				}
				if it, err := table.Get(ctx, name, client.GetOptions{}); ctx.Err() == nil && (err != nil || it.Value == nil) {
					t.Errorf("get %s: %v, %v", name, it.Version, err)
					return
				}
			}
		})
	}
	for range mergeRounds {
		first := rangesOf(h.c, class)[0]
		ok(t, "range", "split", first.ID.String())
		served.reset()
		await(t, "writes to both parts", settleWait, func() bool { return served.ranges() == 2 })
		// Both parts need the same primary and all replicas in sync. On a busy machine one may leave for a moment.
		await(t, "ranges that can be merged", settleWait, func() bool {
			_, _, code := runIn(ctx, "", "range", "merge", first.ID.String(), "--dry-run")
			return code == exit.OK
		})
		await(t, "a merge", settleWait, func() bool {
			_, _, code := runIn(ctx, "", "range", "merge", first.ID.String())
			// A command whose answer was lost may have merged them.
			return code == exit.OK || len(rangesOf(h.c, class)) == 1
		})
		await(t, "one range", settleWait, func() bool { return len(rangesOf(h.c, class)) == 1 })
	}
	// Another primary serves what was merged.
	primary := rangesOf(h.c, class)[0].Primary
	if err := syscall.Kill(nodeOf(l, primary).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "another primary", settleWait, func() bool { return rangesOf(h.c, class)[0].Primary != primary })
	served.reset()
	await(t, "writes through the new primary", settleWait, func() bool { return served.by(rangesOf(h.c, class)[0].Primary) > 100 })
	stop()
	work.Wait()
	seen := map[string]bool{}
	for item, err := range table.Scan(t.Context(), client.ScanOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(item.Key.Name)] {
			t.Errorf("%s is read twice", item.Key.Name)
		}
		seen[string(item.Key.Name)] = true
	}
	var all []time.Duration
	for i := range acked {
		for n := range acked[i] {
			if name := fmt.Sprintf("m%d-%06d", i, n); !seen[name] {
				t.Errorf("the acknowledged write of %s is lost", name)
			}
		}
		all = append(all, times[i]...)
	}
	slices.Sort(all)
	t.Logf("%d writes while the range was split and merged %d times, and its primary was killed: p50 %v, p99 %v, p99.9 %v, longest %v", len(all), mergeRounds,
		all[len(all)/2], all[len(all)*99/100], all[len(all)*999/1000], all[len(all)-1])
}

// judgeKept checks that the commands show one range as split off by an operator, and no other one.
func judgeKept(t *testing.T, kept rhumb.RangeID) {
	t.Helper()
	var docs []rangeDoc
	okJSON(t, &docs, "range", "ls", "-o", "json")
	for _, d := range docs {
		if d.Kept != (d.ID == kept.String()) {
			t.Errorf("range %s: kept %v; an operator split off %s only", d.ID, d.Kept, kept)
		}
	}
	if got := ok(t, "range", "describe", kept.String()); !strings.Contains(got, "an operator split it off") {
		t.Errorf("range describe does not tell that an operator split the range off:\n%s", got)
	}
	if got := ok(t, "range", "ls"); strings.Count(got, "kept") != 1 {
		t.Errorf("range ls marks %d ranges as kept, want 1:\n%s", strings.Count(got, "kept"), got)
	}
}

// TestSmallRangesAreMerged fills a range until it is split, and then raises the size of a split so far that both parts are small: they are merged
// without a command, as an operation. A range that was split by a command stays.
func TestSmallRangesAreMerged(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	h := &holder{t: t}
	h.open(l)
	ok(t, "setting", "set", "range_split_bytes", "1MiB")
	ok(t, "table", "create", "small", "--hash-slots", "1")
	table, err := h.c.Table(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	class := table.Info().Class
	value := []byte(strings.Repeat("v", 10<<10))
	for i := range 150 {
		if _, err := table.Put(t.Context(), fmt.Appendf(nil, "s%03d", i), value, client.PutOptions{Local: true}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "a split", settleWait, func() bool {
		ranges := rangesOf(h.c, class)
		return len(ranges) == 2 && ranges[0].Birth == 0 && ranges[1].Birth == 0
	})
	// What is written counts too, for ten minutes ahead, so the limit is far above what the table has.
	ok(t, "setting", "set", "range_split_bytes", "64GiB")
	// 0 is not taken for the default, the middle.
	fails(t, exit.Usage, "range", "split", rangesOf(h.c, class)[0].ID.String(), "--at", "0")
	ok(t, "range", "split", rangesOf(h.c, class)[1].ID.String())
	await(t, "the new range", settleWait, func() bool { return len(rangesOf(h.c, class)) == 3 })
	kept := rangesOf(h.c, class)[2].ID
	judgeKept(t, kept)
	ok(t, "setting", "set", "range_merge_after", "5s")
	await(t, "a merge", settleWait, func() bool {
		ranges := rangesOf(h.c, class)
		return len(ranges) == 2 && ranges[1].ID == kept
	})
	var ops []operationDoc
	await(t, "the end of the operation", settleWait, func() bool {
		okJSON(t, &ops, "operation", "ls", "-o", "json")
		return len(ops) == 1 && ops[0].Kind == "merge" && ops[0].State == "done"
	})
	n := 0
	for _, err := range table.Scan(t.Context(), client.ScanOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 150 {
		t.Errorf("%d records after the merge, want 150", n)
	}
}
