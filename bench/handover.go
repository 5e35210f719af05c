package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/wan"
)

// HandoverConfig configures RunHandover.
type HandoverConfig struct {
	Cluster *Cluster
	// Handovers is the number of handovers, one after the other, in turn to each other node.
	Handovers int
	// Writers is the number of callers that write to the one range that is handed over, Pause the time between two writes
	// of a caller.
	Writers int
	Pause   time.Duration
	// Far chooses a range, and places the callers, in the region that is farthest from the metadata leader. The
	// cluster then needs two regions or more. Without it the cluster has one.
	Far bool
	// Dir is a directory on the disk of the nodes, in which the duration of a sync is measured.
	Dir string
	// Progress receives a line now and then. It may be nil.
	Progress func(text string)
}

// HandoverReport is the result of RunHandover. Quantiles are in microseconds.
type HandoverReport struct {
	Handovers int `json:"handovers"`
	// Region is the home of the range, and Leader the round trip from there to the region of the metadata leader, both
	// at the start of the run and only if HandoverConfig.Far is set.
	Region string        `json:"region,omitempty"`
	Leader time.Duration `json:"leader_round_trip_ns,omitempty"`
	// Pause is for each handover the longest time in which no write to the range was acknowledged, from the request for
	// the handover until a little after the metadata showed the new primary. Calm is the same, measured over equal times
	// without a handover: which the writers and the machine add.
	Pause Quantiles `json:"pause_us"`
	Calm  Quantiles `json:"calm_us"`
	// RoundTrip is an empty request of a client, Sync a write of 4 KiB with fdatasync, both under the load of the run.
	RoundTrip Quantiles `json:"round_trip_us"`
	Sync      Quantiles `json:"sync_us"`
	// Write is the latency of the writes, of all callers over the whole run.
	Write Quantiles `json:"write_us"`
	// Bound is the median round trip, the median sync and handoverAllowance together; Within is the number of
	// handovers whose pause was not longer. WithinSlow is the same with the 99th percentiles of both.
	Bound      float64 `json:"bound_us"`
	Within     int     `json:"within"`
	BoundSlow  float64 `json:"bound_p99_us"`
	WithinSlow int     `json:"within_p99"`
	Writes     int64   `json:"writes"`
	// Refused counts writes that failed for their caller, Failed the handovers that were cancelled or ended in an
	// election. HandedOver is the number that the nodes counted.
	Refused    int64 `json:"refused"`
	Failed     int   `json:"failed"`
	HandedOver int   `json:"handed_over"`
	// Lost counts acknowledged writes that were missing at the end.
	Lost int `json:"lost"`
}

// Constants of RunHandover.
const (
	// handoverAllowance is the part of the bound of a pause for work besides the round trip and the sync.
	handoverAllowance = 5 * time.Millisecond
	// handoverAfter is how long after the metadata showed the new primary a pause still counts, and handoverApart the calm
	// time between two handovers, in which the figures without a handover are measured.
	handoverAfter = 30 * time.Millisecond
	handoverApart = 60 * time.Millisecond
	// handoverKeysTried bounds the search for keys of one range.
	handoverKeysTried = 100_000
)

// The parts of a pause, in their order:
//
//   - the old primary stops, and syncs its promise of the reserved epoch;
//   - the message with the remainder of the log travels to the target;
//   - the target syncs its promise, and at the same time asks the third nodes to confirm that they hold no lease;
//   - the target syncs the epoch-start entry and the first write, and so do the others;
//   - the acknowledgement travels back through the old primary, which forwarded the write.
//
// The bound names one round trip and one sync, and an allowance for everything else. So a disk with slow syncs misses it by the
// number of syncs in a row, and a machine with more processes than cores by the time until each of them runs.

// RunHandover writes to one range, hands the range over again and again, and measures how long writes pause. At the end it
// reads back the last acknowledged write of every caller.
func RunHandover(ctx context.Context, cfg HandoverConfig) (*HandoverReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	h := &handoverRun{cfg: cfg}
	cc := cfg.Cluster.ClientConfig(30 * time.Second)
	if cfg.Far {
		network, err := wan.Open(cfg.Cluster.LatencyFile)
		if err != nil {
			return nil, err
		}
		if h.region, h.leader, err = farthestRegion(ctx, cfg.Cluster, network); err != nil {
			return nil, err
		}
		cc.From, cc.Dial = h.region, network.Dialer(h.region)
	}
	c, err := client.Open(ctx, cc)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// Fail-back and balance would move ranges as well.
	if err := c.SetSetting(ctx, rhumb.SettingFailback, "manual"); err != nil {
		return nil, err
	}
	t, err := c.CreateTable(ctx, "handover", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	h.c, h.t = c, t
	if err := h.settle(ctx); err != nil {
		return nil, err
	}
	// A class has few ranges in a small cluster, so a few names suffice.
	if err := h.findKeys(ctx); err != nil {
		return nil, err
	}
	// All loads end before the report is made.
	running, stop := context.WithCancel(ctx)
	defer stop()
	h.load(running)
	report, err := h.handOver(ctx)
	stop()
	h.wait.Wait()
	if err != nil {
		return nil, err
	}
	return report, h.audit(ctx, report)
}

// handoverRun is a run of RunHandover.
//
// The writers share one range, because a pause is a property of a range: a single caller that waits for its answer sees
// the pause only if it happens to write at that moment. So the time between any two acknowledgements of the range is
// taken, whichever callers they went to. A caller that writes all the time would wait for as long.
type handoverRun struct {
	cfg  HandoverConfig
	c    *client.Client
	t    *client.Table
	id   rhumb.RangeID
	keys [][]byte
	wait sync.WaitGroup

	// region is the home of the range if it was chosen, and leader its round trip to the metadata leader.
	region string
	leader time.Duration

	// refused counts the writes whose caller got an error.
	refused atomic.Int64
	acked   []atomic.Int64 // last acknowledged number of each writer

	mu   sync.Mutex // guards the fields below
	last time.Time  // of the last acknowledgement of any writer
	// gap is the longest time between two acknowledgements since takeGap was called last.
	gap time.Duration
	// The durations of all writes, round trips and syncs of the run. A run of an hour would have some millions.
	writes []time.Duration
	trips  []time.Duration
	syncs  []time.Duration
}

// farthestRegion returns the region with the longest simulated round trip to that of the metadata leader, and this round trip.
func farthestRegion(ctx context.Context, cluster *Cluster, network *wan.Network) (region string, trip time.Duration, err error) {
	c, err := client.Open(ctx, cluster.ClientConfig(30*time.Second))
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	lead := (&hold{c: c}).metadataLeader(ctx)
	at := slices.IndexFunc(cluster.Nodes, func(n ClusterNode) bool { return n.ID == lead })
	if at < 0 {
		return "", 0, fmt.Errorf("no node reports a metadata leader")
	}
	for _, n := range cluster.Nodes {
		if d := network.RoundTrip(cluster.Nodes[at].Region, n.Region); n.Region != cluster.Nodes[at].Region && d >= trip {
			region, trip = n.Region, d
		}
	}
	if region == "" {
		return "", 0, fmt.Errorf("the cluster has one region; a far handover needs two")
	}
	return region, trip, nil
}

// settle waits until every range has all copies in sync.
func (h *handoverRun) settle(ctx context.Context) error {
	for deadline := time.Now().Add(settleMax); ; {
		whole := len(h.c.Ranges()) > 0
		for _, r := range h.c.Ranges() {
			whole = whole && len(r.InSync) == len(r.Replicas)
		}
		if whole {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not all copies are in sync after %v", settleMax)
		}
		if err := pauseFor(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// findKeys finds a name for each writer in one range: that of the first name.
func (h *handoverRun) findKeys(ctx context.Context) error {
	ranges := h.c.Ranges()
	for i := range handoverKeysTried {
		name := fmt.Appendf(nil, "w%d", i)
		res, err := h.t.Put(ctx, name, []byte("0"), client.PutOptions{Home: h.region})
		if err != nil {
			return err
		}
		home := res.Key.Home
		// A range has the slots from its ID to Last. Last is 0 if it has one slot.
		for _, r := range ranges {
			if r.ID.Region != home.Region || home.Slot < r.ID.Slot || home.Slot > max(r.ID.Slot, r.Last) {
				continue
			}
			if h.id.IsZero() {
				h.id = r.ID
			}
			if r.ID == h.id {
				h.keys = append(h.keys, name)
			}
		}
		if len(h.keys) == h.cfg.Writers {
			h.acked = make([]atomic.Int64, len(h.keys))
			return nil
		}
	}
	return fmt.Errorf("found %d of %d names in one range", len(h.keys), h.cfg.Writers)
}

// load starts the writers, and measures round trips and syncs next to them.
func (h *handoverRun) load(ctx context.Context) {
	h.last = time.Now()
	for i, name := range h.keys {
		h.wait.Go(func() {
			// The client repeats refused requests, with the same request ID, until its own timeout. An
			// error is therefore a write that the caller would have to deal with.
			for n := int64(1); ctx.Err() == nil; n++ {
				begin := time.Now()
				_, err := h.t.Put(ctx, name, fmt.Append(nil, n), client.PutOptions{Home: h.region})
				switch {
				case err == nil:
					h.acked[i].Store(n)
					h.note(begin)
				case ctx.Err() == nil:
					h.refused.Add(1)
				}
				_ = pauseFor(ctx, h.cfg.Pause) // the loop ends with ctx
			}
		})
	}
	h.wait.Go(func() { h.measureDisk(ctx) })
	h.wait.Go(func() { h.measureTrips(ctx) })
}

// note records an acknowledgement.
func (h *handoverRun) note(begin time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// The clock is read under the lock, so that acknowledgements are in order and no gap is negative.
	now := time.Now()
	h.gap = max(h.gap, now.Sub(h.last))
	h.last = now
	h.writes = append(h.writes, now.Sub(begin))
}

// takeGap returns the longest time without an acknowledgement since the last call, the present one included.
func (h *handoverRun) takeGap() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Without the present gap, a handover that never ends would show no pause.
	now := time.Now()
	gap := max(h.gap, now.Sub(h.last))
	h.gap = 0
	return gap
}

// measureDisk syncs a small file from time to time. The nodes write to the same disk, so the probe waits as long as they do.
func (h *handoverRun) measureDisk(ctx context.Context) {
	f, err := os.Create(filepath.Join(h.cfg.Dir, "sync-probe"))
	if err != nil {
		return
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	block := make([]byte, 4096)
	for ctx.Err() == nil {
		begin := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil || f.Sync() != nil {
			return
		}
		h.mu.Lock()
		h.syncs = append(h.syncs, time.Since(begin))
		h.mu.Unlock()
		_ = pauseFor(ctx, 20*time.Millisecond)
	}
}

// measureTrips sends empty requests to the nodes in turn, over connections that stay open. A node answers them from
// memory, so they take a round trip and the time until both processes run.
func (h *handoverRun) measureTrips(ctx context.Context) {
	nodes := h.cfg.Cluster.Nodes
	for i := 0; ctx.Err() == nil; i++ {
		begin := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+nodes[i%len(nodes)].AdminAddr+"/livez", nil)
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // read to the end, so that the connection is used again
			_ = resp.Body.Close()
			// The first request to each node also connects.
			if i >= len(nodes) {
				h.mu.Lock()
				h.trips = append(h.trips, time.Since(begin))
				h.mu.Unlock()
			}
		}
		_ = pauseFor(ctx, 20*time.Millisecond)
	}
}

// handOver hands the range over, one time after the other.
func (h *handoverRun) handOver(ctx context.Context) (*HandoverReport, error) {
	out := &HandoverReport{Region: h.region, Leader: h.leader}
	var pauses, calm []time.Duration
	// The number that the nodes counted must be the one that the client saw: an election would move the range, too.
	counted := h.cfg.Cluster.Sum(ctx, "rhumb_host_handovers_total")
	// Calm times and handovers take turns, so that a slow minute of the machine counts for both.
	for i := range h.cfg.Handovers {
		// As long as a handover lasts, to compare like with like.
		h.takeGap()
		if err := pauseFor(ctx, handoverApart); err != nil {
			return nil, err
		}
		calm = append(calm, h.takeGap())
		ok, err := h.handOverOnce(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			out.Failed++
		}
		pauses = append(pauses, h.takeGap())
		if (i+1)%100 == 0 {
			h.cfg.Progress(fmt.Sprintf("%d handovers, %d failed, %d writes refused; the longest pause so far was %v", i+1, out.Failed, h.refused.Load(), slices.Max(pauses)))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out.Handovers, out.Refused, out.Writes = len(pauses), h.refused.Load(), int64(len(h.writes))
	out.HandedOver = int(h.cfg.Cluster.Sum(ctx, "rhumb_host_handovers_total") - counted)
	out.Pause, out.Calm = quantilesOf(pauses), quantilesOf(calm)
	out.RoundTrip, out.Sync, out.Write = quantilesOf(h.trips), quantilesOf(h.syncs), quantilesOf(h.writes)
	allowance := float64(handoverAllowance.Microseconds())
	out.Bound = out.RoundTrip.P50 + out.Sync.P50 + allowance
	out.BoundSlow = out.RoundTrip.P99 + out.Sync.P99 + allowance
	for _, p := range pauses {
		us := float64(p.Nanoseconds()) / 1e3
		if us <= out.Bound {
			out.Within++
		}
		if us <= out.BoundSlow {
			out.WithinSlow++
		}
	}
	return out, nil
}

// handOverOnce hands the range over to the next in-sync node, and reports whether that node became primary. The request
// is the one of `rhumb range handover`, so it also makes the node the preferred primary: two commands of the metadata in one
// batch, for which no write waits.
func (h *handoverRun) handOverOnce(ctx context.Context) (bool, error) {
	r, err := h.record()
	if err != nil {
		return false, err
	}
	// The set is sorted, so the role goes round, and each pair of nodes has its turn.
	at := slices.Index(r.InSync, r.Primary)
	to := r.InSync[(at+1)%len(r.InSync)]
	// On a busy machine a node may be fenced and out of sync for a moment. The handover has not failed then.
	if _, err := h.c.HandOverRange(ctx, h.id, to); rhumb.KindOf(err) == rhumb.Conflict {
		if err := h.settle(ctx); err != nil {
			return false, err
		}
		h.takeGap()
		_, err = h.c.HandOverRange(ctx, h.id, to)
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	for deadline := time.Now().Add(settleMax); ; {
		// The watch of the client shows the new primary a little after it serves.
		now, err := h.record()
		if err != nil {
			return false, err
		}
		if now.Prepared == nil && now.Epoch > r.Epoch {
			return now.Primary == to, pauseFor(ctx, handoverAfter)
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("range %s was not handed over to %s after %v", h.id, to, settleMax)
		}
		if err := pauseFor(ctx, time.Millisecond); err != nil {
			return false, err
		}
	}
}

// record returns the client's record of the range: that of its copy of the metadata, which a watch keeps current.
func (h *handoverRun) record() (*rhumb.Range, error) {
	for _, r := range h.c.Ranges() {
		if r.ID == h.id {
			return r, nil
		}
	}
	return nil, fmt.Errorf("range %s is gone", h.id)
}

// audit counts the acknowledged writes that are missing. The values are increasing numbers, so a smaller one than the
// last that was acknowledged means that a later primary lacks a write which an earlier one had confirmed.
func (h *handoverRun) audit(ctx context.Context, out *HandoverReport) error {
	for i, name := range h.keys {
		rec, err := h.t.Get(ctx, name, client.GetOptions{Home: h.region})
		if err != nil {
			return err
		}
		var n int64
		// A write that was on its way at the end may have been applied besides.
		value, err := rec.Bytes()
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(value), &n); err != nil || n < h.acked[i].Load() {
			out.Lost++
		}
	}
	return nil
}
