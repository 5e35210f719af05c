package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// killRegion kills every node of a region at once.
func killRegion(t *testing.T, l *demo.Layout, region string) {
	t.Helper()
	for _, n := range l.Nodes {
		if n.Region == region {
			if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRegionIsLost kills the home region of two tables under load. The one that survives a region continues in another
// region with every acknowledged write; the other one reports that it is unavailable.
func TestRegionIsLost(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "frankfurt,virginia,singapore", "--nodes-per-region", "2", "--latency", "none", "--load", "none", "--no-restart")
	ok(t, "table", "create", "survives", "--survive", "region", "--hash-slots", "4")
	ok(t, "table", "create", "local", "--replicas", "2", "--hash-slots", "4")
	var addrs []string
	for _, n := range layout.Nodes {
		if n.Region != "frankfurt" {
			addrs = append(addrs, n.Addr)
		}
	}
	c, err := client.Open(t.Context(), client.Config{Addrs: addrs, Insecure: true, Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	table, err := c.Table(t.Context(), "survives")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, code := runIn(t.Context(), "", "put", "local", "k", "n=1", "--home", "frankfurt"); code != exit.OK {
		t.Fatalf("a write of the local table ended with %d", code)
	}
	// The home of all keys is the region that is lost.
	const callers = 8
	var acked [callers]atomic.Int64
	var longest atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{}, callers)
	for i := range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			last := time.Now()
			for n := int64(1); ctx.Err() == nil; n++ {
				_, err := table.Put(ctx, fmt.Appendf(nil, "k%d", i), fmt.Append(nil, n), client.PutOptions{Home: "frankfurt"})
				if err == nil {
					acked[i].Store(n)
					longest.Store(max(longest.Load(), int64(time.Since(last))))
					last = time.Now()
				}
			}
		}()
	}
	progress := func() {
		t.Helper()
		for i := range callers {
			before := acked[i].Load()
			await(t, "every caller to write", settleWait, func() bool { return acked[i].Load() > before+1 })
		}
	}
	progress()
	longest.Store(0)
	killRegion(t, layout, "frankfurt")
	progress()
	t.Logf("the longest pause of a caller was %v", time.Duration(longest.Load()).Round(time.Millisecond))
	// The region that is lost had all copies of the other table.
	local, err := c.Table(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_, err = local.Get(short, []byte("k"), client.GetOptions{Home: "frankfurt"})
	cancel()
	if kind := rhumb.KindOf(err); kind != rhumb.Unavailable && kind != rhumb.DeadlineExceeded {
		t.Errorf("a read of the local table: %v", err)
	}
	progress()
	stop()
	for range callers {
		<-done
	}
	for i := range callers {
		got, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{Home: "frankfurt"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := got.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		if _, err := fmt.Sscan(string(b), &n); err != nil || n < acked[i].Load() {
			t.Errorf("k%d holds %q, and %d was acknowledged (%v)", i, b, acked[i].Load(), err)
		}
		// Without a home the record is found too: the region is dead, its ranges of this table are not.
		if found, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{}); err != nil || !found.Exists() {
			t.Errorf("k%d is not found without its home: %v", i, err)
		}
	}
}
