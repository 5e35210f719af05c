package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// BalanceConfig configures RunBalance.
type BalanceConfig struct {
	// Cluster has one region of three nodes. Binary is the program of the node that joins.
	Cluster *Cluster
	Binary  string
	// Bytes is the size of the table, HashSlots the number of its ranges.
	Bytes     int64
	HashSlots int
	// Writers is the number of callers, Pause the time between two writes of a caller.
	Writers int
	Pause   time.Duration
	// Calm is how long writes are measured before the node joins, Most how long the cluster may take to be balanced.
	Calm, Most time.Duration
	// Progress receives a line now and then. It may be nil.
	Progress func(text string)
}

// BalanceReport is the result of RunBalance. Times are from the start of the new node's process. Quantiles are in microseconds.
type BalanceReport struct {
	// Joined is when the node was in the cluster, First when it had its first copy in sync, Balanced when nothing was left to move.
	Joined   time.Duration `json:"joined_ns"`
	First    time.Duration `json:"first_copy_ns"`
	Balanced time.Duration `json:"balanced_ns"`
	// Ranges is the number of ranges, Copies and Primaries count those of the new node. Received are the bytes that it received to
	// copy ranges as a whole, without those of logs.
	Ranges    int   `json:"ranges"`
	Copies    int   `json:"copies"`
	Primaries int   `json:"primaries"`
	Received  int64 `json:"received_bytes"`
	// Before and After are the least and the greatest weight of a node, in bytes (see `rhumb rebalance --dry-run`).
	Before BalanceSpread `json:"before"`
	After  BalanceSpread `json:"after"`
	// Calm covers the writes before the node started, Meanwhile those until the cluster was balanced.
	Calm      Quantiles `json:"calm_us"`
	Meanwhile Quantiles `json:"meanwhile_us"`
	Writes    int64     `json:"writes"`
	Failed    int64     `json:"failed"`
	Lost      int       `json:"lost"`
}

// BalanceSpread is the least and the greatest weight of a node.
type BalanceSpread struct {
	Least int64 `json:"least_bytes"`
	Most  int64 `json:"most_bytes"`
}

// Constants of RunBalance.
const (
	// balancePoll is the time between two plans. A plan is made of sizes that nodes report every five seconds.
	balancePoll = 250 * time.Millisecond
	// balanceQuiet is how long nothing may be left to move: longer than two reports of sizes.
	balanceQuiet = 11 * time.Second
)

// RunBalance lets a fourth node join a region of three under load, and measures how long the cluster takes to move copies to it. At the
// end it reads back the last acknowledged write of each caller.
func RunBalance(ctx context.Context, cfg BalanceConfig) (*BalanceReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = cfg.HashSlots
	t, err := c.CreateTable(ctx, "balance", client.TableOptions{Settings: settings})
	if err != nil {
		return nil, err
	}
	b := &balanceRun{cfg: cfg, hold: &hold{c: c, t: t}}
	if err := b.awaitSettled(ctx); err != nil {
		return nil, err
	}
	if err := fillTable(ctx, c, t, cfg.Bytes, transferValue); err != nil {
		return nil, err
	}
	var calm, meanwhile histogram
	b.startWriters(ctx, cfg.Writers, cfg.Pause)
	b.timeInto(&calm)
	err = pauseFor(ctx, cfg.Calm)
	b.timeInto(&meanwhile)
	out := &BalanceReport{}
	if err == nil {
		err = b.join(ctx, out)
	}
	b.timeInto(nil)
	b.stopWriters()
	if err != nil {
		return nil, err
	}
	out.Calm, out.Meanwhile = calm.quantiles(), meanwhile.quantiles()
	out.Writes, out.Failed = b.countWrites()
	out.Lost, err = b.countLost(ctx)
	return out, err
}

// balanceRun is a run of RunBalance.
type balanceRun struct {
	*hold
	cfg BalanceConfig
}

// join starts the node, waits until the cluster is balanced, and stops it.
func (b *balanceRun) join(ctx context.Context, out *BalanceReport) error {
	start := time.Now()
	n, err := b.cfg.Cluster.Join(ctx, b.c, b.cfg.Binary, b.cfg.Cluster.Nodes[0].Region, "d")
	if err != nil {
		return err
	}
	// The demo stops the others afterwards. Their data is not used again, so the order does not matter.
	defer n.Stop()
	out.Joined = time.Since(start)
	b.cfg.Progress(fmt.Sprintf("%s is in the cluster after %v", n.ID, out.Joined.Round(time.Millisecond)))
	if err := b.awaitBalance(ctx, start, n, out); err != nil {
		return err
	}
	if v, err := readMetric(ctx, n.AdminAddr, "rhumb_transfer_received_bytes_total"); err == nil {
		out.Received = int64(v)
	}
	return nil
}

// awaitBalance waits until nothing is left to move for balanceQuiet, and describes the result.
func (b *balanceRun) awaitBalance(ctx context.Context, start time.Time, n *Joiner, out *BalanceReport) error {
	var quiet time.Time // since when nothing was left
	seen := false
	for last := -1; ; {
		if time.Since(start) > b.cfg.Most {
			return fmt.Errorf("the cluster is not balanced after %v: %s has copies of %d of %d ranges", b.cfg.Most, n.ID, out.Copies, out.Ranges)
		}
		b.count(n.ID, out)
		if out.Copies > 0 && out.First == 0 {
			out.First = time.Since(start)
		}
		if out.Copies/8 != last {
			last = out.Copies / 8
			b.cfg.Progress(fmt.Sprintf("%v: %s has copies of %d of %d ranges", time.Since(start).Round(time.Second), n.ID, out.Copies, out.Ranges))
		}
		plan, err := b.c.PlanRebalance(ctx, 0)
		if err != nil {
			// A busy leader is asked again, within the bound above.
			if err := pauseFor(ctx, balancePoll); err != nil {
				return err
			}
			continue
		}
		for _, x := range plan.Spreads {
			s := BalanceSpread{x.Least, x.Most}
			// The first plan that knows the sizes of all nodes. A few copies may move already.
			if !seen && plan.Waits == "" {
				out.Before, seen = s, true
			}
			out.After = s
		}
		if len(plan.Moves) > 0 || plan.Moving > 0 || plan.Waits != "" || out.Copies == 0 {
			quiet = time.Time{}
		} else if quiet.IsZero() {
			quiet = time.Now()
			out.Balanced = quiet.Sub(start)
		} else if time.Since(quiet) > balanceQuiet {
			return nil
		}
		if err := pauseFor(ctx, balancePoll); err != nil {
			return err
		}
	}
}

// count counts the ranges of a node.
func (b *balanceRun) count(id rhumb.NodeID, out *BalanceReport) {
	out.Ranges, out.Copies, out.Primaries = 0, 0, 0
	for _, r := range b.c.Ranges() {
		out.Ranges++
		if r.IsInSync(id) {
			out.Copies++
		}
		if r.Primary == id {
			out.Primaries++
		}
	}
}
