package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/benchcmd"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// The tests of this file inject faults into real processes under load and then read every
// acknowledged write back.

// TestKilledPrimariesLoseNothing guards I3 and I4: kill -9 of primaries under load, including the
// metadata leader. It only reports the gaps that it measures.
func TestKilledPrimariesLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	t.Setenv("RHUMB_DEMO", filepath.Join(t.TempDir(), "context.json"))
	p := startProcess(t, nil, "bench", "failover", "--role", "primary,secondary,leader", "--kills", "1", "--writers", "96", "--dir", t.TempDir(), "-o", "json")
	var report bench.FailoverReport
	text, _ := p.line()
	if code := p.wait(); code != exit.OK {
		t.Fatalf("exit %d", code)
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if len(report.Kills) != 3 || report.Writes == 0 || report.Lost != 0 || report.Errors != 0 {
		t.Fatalf("%+v", report)
	}
	for i, g := range report.Roles {
		// A node that dies as a secondary is primary of nothing, and one that dies as a primary had other copies too.
		if k := report.Kills[i]; k.Role != g.Role || g.Kills != 1 || (g.Role == bench.RoleSecondary) != (k.Primaries == 0) && g.Role != bench.RoleLeader || g.Secondary.Ranges == 0 {
			t.Errorf("%+v of %+v", g, k)
		}
		// How long a range waits depends on the machine. Who takes over does not.
		if g.Plan.Ranges == 0 || g.Plan.Unlike > 0 {
			t.Errorf("%s killed: the plan said something else: %+v", g.Role, g.Plan)
		}
		t.Logf("%s killed: ranges of which it was primary: %+v; of which it had a copy: %+v", g.Role, g.Primary, g.Secondary)
	}
}

// holder writes growing numbers to its keys until it is stopped, and remembers the last number of
// each that was acknowledged.
type holder struct {
	t     *testing.T
	c     *client.Client
	table *client.Table
	acked []atomic.Int64
	// failed counts writes without an acknowledgement, and gap is the longest time, in nanoseconds, for which a
	// caller waited for one.
	failed, gap atomic.Int64
	stop        context.CancelFunc
	wait        sync.WaitGroup
}

// holdLoad starts to write to a demo from many callers.
func holdLoad(t *testing.T, l *demo.Layout, callers int) *holder {
	t.Helper()
	return holdTableLoad(t, l, callers, client.TableOptions{})
}

// holdTableLoad is holdLoad with options of the table, for example fewer ranges where each of them has to move.
func holdTableLoad(t *testing.T, l *demo.Layout, callers int, o client.TableOptions) *holder {
	t.Helper()
	h := &holder{t: t, acked: make([]atomic.Int64, callers)}
	h.open(l)
	var err error
	if h.table, err = h.c.CreateTable(t.Context(), "load", o); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(t.Context())
	for i := range callers {
		h.wait.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				begin := time.Now()
				_, err := h.table.Put(ctx, fmt.Appendf(nil, "k%d", i), fmt.Append(nil, n), client.PutOptions{})
				if ctx.Err() == nil {
					h.noteWait(time.Since(begin))
				}
				if err != nil && ctx.Err() == nil {
					h.failed.Add(1)
				}
				switch {
				case err == nil:
					h.acked[i].Store(n)
				case ctx.Err() == nil && rhumb.KindOf(err) != rhumb.Unknown && rhumb.KindOf(err) != rhumb.Unavailable:
					t.Errorf("put k%d: %v", i, err)
				}
			}
		})
	}
	return h
}

// noteWait keeps the longest wait of any caller.
func (h *holder) noteWait(d time.Duration) {
	for {
		longest := h.gap.Load()
		if int64(d) <= longest || h.gap.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// open connects to a demo.
func (h *holder) open(l *demo.Layout) {
	h.t.Helper()
	var addrs []string
	for _, n := range l.Nodes {
		addrs = append(addrs, n.Addr)
	}
	c, err := client.Open(h.t.Context(), client.Config{Addrs: addrs, Insecure: true, Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(c.Close)
	h.c = c
}

// total returns the number of acknowledged writes.
func (h *holder) total() (n int64) {
	for i := range h.acked {
		n += h.acked[i].Load()
	}
	return n
}

// awaitProgress waits until every caller has written again.
func (h *holder) awaitProgress() {
	h.t.Helper()
	var before []int64
	for i := range h.acked {
		before = append(before, h.acked[i].Load())
	}
	await(h.t, "every caller to write again", settleWait, func() bool {
		for i := range h.acked {
			if h.acked[i].Load() == before[i] {
				return false
			}
		}
		return true
	})
}

func (h *holder) end() {
	h.stop()
	h.wait.Wait()
}

// audit fails the test if an acknowledged write is missing.
func (h *holder) audit() {
	h.t.Helper()
	table, err := h.c.Table(h.t.Context(), "load")
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range h.acked {
		var got client.Got
		await(h.t, "the key to be read", settleWait, func() bool {
			got, err = table.Get(h.t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{})
			return err == nil || rhumb.KindOf(err) == rhumb.NotFound
		})
		var n int64
		if err == nil {
			b, err := got.Bytes()
			if err != nil {
				h.t.Fatal(err)
			}
			if _, err := fmt.Sscan(string(b), &n); err != nil {
				h.t.Fatal(err)
			}
		}
		if want := h.acked[i].Load(); n < want {
			h.t.Errorf("k%d holds %d, and %d was acknowledged", i, n, want)
		}
	}
	h.t.Logf("%d acknowledged writes, none missing", h.total())
}

// awaitHealthy waits until all nodes are live, all replicas are in sync and the metadata group has its voters.
func (h *holder) awaitHealthy() {
	h.t.Helper()
	await(h.t, "the cluster to be whole", settleWait, func() bool {
		voters, regions := 0, make(map[rhumb.RegionID]bool)
		for _, n := range h.c.Nodes() {
			if n.State != rhumb.NodeLive {
				return false
			}
			regions[n.Region] = true
			if n.Voter {
				voters++
			}
		}
		if voters < rhumb.VoterCount(len(h.c.Nodes()), len(regions)) {
			return false
		}
		for _, r := range h.c.Ranges() {
			if len(r.InSync) < len(r.Replicas) {
				return false
			}
		}
		return true
	})
}

// TestAllNodesKilledAtOnce guards that acknowledged writes are on disk, by killing every process at
// the same moment.
func TestAllNodesKilledAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	args := []string{"--regions", "singapore", "--latency", "none", "--load", "none", "--no-restart", "--dir", dir}
	layout, p := startDemo(t, args...)
	h := holdLoad(t, layout, 32)
	await(t, "2,000 writes", settleWait, func() bool { return h.total() >= 2_000 })
	for _, n := range layout.Nodes {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	h.end()
	_ = p.Process.Signal(os.Interrupt)
	p.wait()
	layout, _ = startDemo(t, args...)
	h.open(layout)
	h.audit()
}

// TestTermUnderLoad guards that a node which receives SIGTERM gives up its primaries first: no
// write fails and none is missing.
func TestTermUnderLoad(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "singapore", "--latency", "none", "--load", "none")
	h := holdLoad(t, layout, 32)
	h.awaitProgress()
	for _, n := range layout.Nodes[:2] {
		if err := syscall.Kill(n.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		await(t, "the node to be gone", settleWait, func() bool { return syscall.Kill(n.PID, 0) != nil })
		h.awaitProgress()
		h.awaitHealthy()
	}
	h.end()
	h.audit()
}

// TestPausedNodeComesBack guards fencing: a paused node is replaced, and when it resumes, it serves
// nothing in its old life and takes part in a new one (docs/replication.md#rule-life).
func TestPausedNodeComesBack(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "singapore", "--latency", "none", "--load", "none")
	h := holdLoad(t, layout, 32)
	h.awaitProgress()
	h.awaitHealthy()
	victim := layout.Nodes[0]
	plan := planOf(t, victim.ID.String())
	h.gap.Store(0)
	if err := syscall.Kill(victim.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be fenced", settleWait, func() bool {
		for _, n := range h.c.Nodes() {
			if n.ID == victim.ID {
				return n.State == rhumb.NodeFenced
			}
		}
		return false
	})
	h.awaitProgress()
	// A paused node is as good as dead, so what the plan of its failure says must have happened.
	plan.expect(t, h.c, time.Duration(h.gap.Load()))
	if err := syscall.Kill(victim.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.awaitHealthy()
	h.awaitProgress()
	h.end()
	h.audit()
	if err := syscall.Kill(victim.PID, 0); err != nil {
		t.Errorf("the paused process is gone: %v", err)
	}
}

// TestDiskFull guards that a node with a full disk rejects writes with a clear error, keeps serving
// reads, and accepts writes again when there is room. It needs root to mount a small disk.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("mounts a disk of 256 MiB; run as root")
	}
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("cannot mount a disk here: %v: %s; run as root with the capability SYS_ADMIN and loop devices", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	startDemo(t, "--regions", "singapore", "--nodes-per-region", "1", "--latency", "none", "--load", "none", "--dir", filepath.Join(disk, "data"))
	ok(t, "put", "airports", "SIN", "name=Changi")
	filler := filepath.Join(disk, "filler")
	fillDisk(t, disk, filler)
	await(t, "writes to be refused", settleWait, func() bool {
		_, stderr, code := runIn(t.Context(), "", "put", "airports", "FRA", "name=Frankfurt", "--timeout", "2s", "-o", "json")
		return code != exit.OK && strings.Contains(stderr, "disk_full")
	})
	if got := ok(t, "get", "airports", "SIN"); !strings.Contains(got, "Changi") {
		t.Errorf("a read while the disk is full gave %q", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	await(t, "writes to be taken again", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", "put", "airports", "FRA", "name=Frankfurt", "--timeout", "2s")
		return code == exit.OK
	})
}

// fillDisk writes a file until only 3 % of the disk is free.
func fillDisk(t *testing.T, disk, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		if float64(s.Bavail) < 0.03*float64(s.Blocks) {
			return
		}
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNamesWhileARegionIsDead guards that status reports a region without a live node, and that
// names are created elsewhere in the meantime, with a receipt that names the region that was not
// asked.
func TestNamesWhileARegionIsDead(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "singapore,frankfurt,virginia", "--nodes-per-region", "1", "--latency", "none", "--load", "none", "--no-restart")
	if err := syscall.Kill(layout.Nodes[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "status to name the region", settleWait, func() bool {
		stdout, _, _ := runIn(t.Context(), "", "status")
		return strings.Contains(stdout, "region virginia is dead")
	})
	var doc struct {
		Receipt struct {
			Unasked []string `json:"unasked"`
		} `json:"receipt"`
	}
	await(t, "a name to be created", settleWait, func() bool {
		stdout, _, code := runIn(t.Context(), "", "put", "airports", "NEW", "name=New", "--if-absent", "--timeout", "2s", "-o", "json")
		return code == exit.OK && json.Unmarshal([]byte(stdout), &doc) == nil
	})
	if len(doc.Receipt.Unasked) != 1 || doc.Receipt.Unasked[0] != "virginia" {
		t.Errorf("not asked were %v", doc.Receipt.Unasked)
	}
}

// TestCutLinks guards that a cluster of three keeps working and loses nothing while links between
// its nodes are cut one way, cut both ways, or lose data on connections that stay open. It only
// reports how long keys could not be written.
func TestCutLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	t.Setenv("RHUMB_DEMO", filepath.Join(t.TempDir(), "context.json"))
	p := startProcess(t, nil, "bench", "stall", "--nodes", "3", "--kinds", "oneway,ring,halfopen", "--faults", "1", "--hold", "2s", "--dir", t.TempDir(), "-o", "json")
	var r benchcmd.StallReport
	text, _ := p.line()
	if code := p.wait(); code != exit.OK {
		t.Fatalf("exit %d", code)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if len(r.Cells) != 3 {
		t.Fatalf("%d kinds of faults, want 3: %s", len(r.Cells), text)
	}
	for _, c := range r.Cells {
		if c.Faults != 1 || c.Writes == 0 || c.Lost != 0 || c.Errors != 0 {
			t.Errorf("%+v", c)
		}
		t.Logf("%s: %d writes; longest gap of a key: p50 %v, max %v; %d false fencings", c.Kind, c.Writes, c.P50, c.Max, c.FalseFencings)
	}
}
