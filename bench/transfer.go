package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/client"
)

// TransferConfig configures RunTransfer.
type TransferConfig struct {
	// Cluster has one region of three nodes that keep little log, so that a new copy is transferred as a whole.
	Cluster *Cluster
	// Bytes is the size of the range, Copies how often a copy of it is made.
	Bytes  int64
	Copies int
	// Writers is the number of callers that write to the range meanwhile, Pause the time between two writes of a caller.
	Writers int
	Pause   time.Duration
	// Calm is how long writes are measured before the first copy.
	Calm time.Duration
	// Dir is a directory on the disk of the nodes.
	Dir string
	// Progress receives a line for each copy. It may be nil.
	Progress func(text string)
}

// TransferReport is the result of RunTransfer. Speeds are in bytes per second, quantiles in microseconds.
type TransferReport struct {
	Copies []TransferCopy `json:"copies"`
	// Speed is the median of the copies. Disk is the speed of writing a file with a sync at the end, Link that of one connection of
	// this machine to itself, both measured before, without load.
	Speed float64 `json:"bytes_per_second"`
	Disk  float64 `json:"disk_bytes_per_second"`
	Link  float64 `json:"link_bytes_per_second"`
	// Calm covers the writes before the first copy, Meanwhile those during the copies.
	Calm      Quantiles `json:"calm_us"`
	Meanwhile Quantiles `json:"meanwhile_us"`
	Writes    int64     `json:"writes"`
	Failed    int64     `json:"failed"`
	Lost      int       `json:"lost"`
}

// TransferCopy is one copy.
type TransferCopy struct {
	From  rhumb.NodeID `json:"from"`
	To    rhumb.NodeID `json:"to"`
	Bytes int64        `json:"bytes"`
	// Begun is the time from the command until the first byte arrived: a node makes the whole set before it sends. Took is the time
	// from then until the copy was installed, InSync that from the command until the new replica was in sync, Whole until the
	// old one was gone.
	Begun  time.Duration `json:"begun_ns"`
	Took   time.Duration `json:"took_ns"`
	InSync time.Duration `json:"in_sync_ns"`
	Whole  time.Duration `json:"whole_ns"`
	Speed  float64       `json:"bytes_per_second"`
}

// Constants of RunTransfer.
const (
	// transferPoll is the time between two looks at the metrics of the receiver.
	transferPoll = 20 * time.Millisecond
	// transferLate is how long the metrics may lag the metadata.
	transferLate = 5 * time.Second
	// transferMax bounds the wait for a copy.
	transferMax = 10 * time.Minute
	// transferValue is the size of the records that are copied.
	transferValue = 1 << 10
)

// TransferSettings are the settings of the nodes for RunTransfer. rate bounds a copy, "" for the default.
func TransferSettings(rate string) map[string]string {
	s := map[string]string{"log-keep": "1MiB"}
	if rate != "" {
		s["transfer-rate"] = rate
	}
	return s
}

// RunTransfer fills one range with two copies, and moves one of them to the third node and back, under load. At the end it reads back the
// last acknowledged write of each caller.
//
// A move is the transfer that people start most often. A node that was away for too long, a damaged copy and a removed node lead to
// the same one.
func RunTransfer(ctx context.Context, cfg TransferConfig) (*TransferReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	out := &TransferReport{}
	var err error
	if out.Disk, err = probeDisk(cfg.Dir); err != nil {
		return nil, err
	}
	if out.Link, err = probeLink(); err != nil {
		return nil, err
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// The range must stay one.
	if err := c.SetSetting(ctx, rhumb.SettingRangeSplitBytes, "64GiB"); err != nil {
		return nil, err
	}
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots, settings.Replicas = 1, 2
	t, err := c.CreateTable(ctx, "transfer", client.TableOptions{Settings: settings})
	if err != nil {
		return nil, err
	}
	m := &transferRun{cfg: cfg, hold: &hold{c: c, t: t}}
	if err := m.awaitSettled(ctx); err != nil {
		return nil, err
	}
	if err := fillTable(ctx, c, t, cfg.Bytes, transferValue); err != nil {
		return nil, err
	}
	var calm, meanwhile histogram
	m.startWriters(ctx, cfg.Writers, cfg.Pause)
	m.timeInto(&calm)
	err = pauseFor(ctx, cfg.Calm)
	for i := 0; i < cfg.Copies && err == nil; i++ {
		m.timeInto(&meanwhile)
		var x TransferCopy
		if x, err = m.copyOnce(ctx); err == nil {
			out.Copies = append(out.Copies, x)
			cfg.Progress(fmt.Sprintf("copied %d MiB from %s to %s in %v", x.Bytes>>20, x.From, x.To, x.Took.Round(time.Millisecond)))
		}
		m.timeInto(nil)
	}
	m.stopWriters()
	if err != nil {
		return nil, err
	}
	out.Speed = rounds.SpreadOf(out.Copies, func(x TransferCopy) float64 { return x.Speed }).Median
	out.Calm, out.Meanwhile = calm.quantiles(), meanwhile.quantiles()
	out.Writes, out.Failed = m.countWrites()
	out.Lost, err = m.countLost(ctx)
	return out, err
}

// transferRun is a run of RunTransfer.
type transferRun struct {
	*hold
	cfg TransferConfig
}

// record returns the record of the range.
func (m *transferRun) record() (*rhumb.Range, error) {
	for _, r := range m.c.Ranges() {
		if r.Class == m.t.Info().Class {
			return r, nil
		}
	}
	return nil, fmt.Errorf("the range of the table is gone")
}

// copyOnce moves the copy of a secondary to the node that has none.
func (m *transferRun) copyOnce(ctx context.Context) (x TransferCopy, err error) {
	r, err := m.record()
	if err != nil {
		return x, err
	}
	var admin string
	for _, n := range m.cfg.Cluster.Nodes {
		switch {
		case !r.IsReplica(n.ID):
			x.To, admin = n.ID, n.AdminAddr
		case n.ID != r.Primary:
			x.From = n.ID
		}
	}
	if x.To == rhumb.NoNode || x.From == rhumb.NoNode {
		return x, fmt.Errorf("range %s has the replicas %v and the primary %s", r.ID, r.Replicas, r.Primary)
	}
	read := func(name string) (float64, error) { return readMetric(ctx, admin, "rhumb_transfer_"+name) }
	received, err := read("received_bytes_total")
	if err != nil {
		return x, err
	}
	completed, err := read("completed_total")
	if err != nil {
		return x, err
	}
	start := time.Now()
	op, err := m.c.StartOperation(ctx, rhumb.Operation{Kind: rhumb.OperationMove, Range: r.ID, Node: x.From, Target: x.To})
	if err != nil {
		return x, err
	}
	var first time.Time
	// The counter of the receiver may be read a moment after the operation is over.
	for x.Whole == 0 || x.Took == 0 && time.Since(start) < x.Whole+transferLate {
		if err := pauseFor(ctx, transferPoll); err != nil {
			return x, err
		}
		if time.Since(start) > transferMax {
			return x, fmt.Errorf("range %s was not copied after %v", r.ID, transferMax)
		}
		// A node that is too busy to answer is asked again.
		now, err := read("received_bytes_total")
		if err != nil {
			continue
		}
		if now > received && first.IsZero() {
			first = time.Now()
			x.Begun = first.Sub(start)
		}
		done, err := read("completed_total")
		if err == nil && done > completed && x.Took == 0 {
			x.Bytes = int64(now - received)
			x.Took = max(time.Since(first), transferPoll)
			x.Speed = float64(x.Bytes) / x.Took.Seconds()
		}
		if r, err = m.record(); err != nil {
			return x, err
		}
		if slices.Contains(r.InSync, x.To) && x.InSync == 0 {
			x.InSync = time.Since(start)
		}
		if x.Whole > 0 {
			continue
		}
		if o, err := m.c.Operation(ctx, op.ID); err == nil && o.State.IsOver() {
			if o.State != rhumb.OperationDone {
				return x, fmt.Errorf("operation %s ended as %s: %s", o.ID, o.State, o.Error)
			}
			x.Whole = time.Since(start)
		}
	}
	if x.Took == 0 {
		return x, fmt.Errorf("%s got the range from the log, not by a copy: it holds less than what nodes keep of a log", x.To)
	}
	return x, nil
}
