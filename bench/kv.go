package bench

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
)

// KVConfig configures RunKV.
type KVConfig struct {
	// Clusters are the clusters to measure. Each is compared with a peer of as many nodes.
	Clusters []Rhumb
	// PeerBinary is the program of bench/peers; if it is empty, only Rhumb is measured. Dir holds
	// the data of the peers.
	PeerBinary, Dir string
	// Ops are the operations, by default put and get. Peers run only these two.
	Ops []load.Op
	// Workloads are mixes to run in place of Ops, on Records records.
	Workloads []load.Workload
	Records   int
	// Callers are the numbers of callers, by default 1, 64 and 256.
	Callers []int
	// Batch is the number of keys per call, by default 1. Peers have no equivalent.
	Batch int
	// Rounds is how often every case runs on every target, in turn. The default is 5. Ratios are
	// taken within a round, and the report has their median.
	Rounds int
	// ValueBytes is the size of a value, by default 100.
	ValueBytes int
	// Measure is how long a case is measured, by default 2 s, after a quarter of that for warming
	// up.
	Measure time.Duration
	// Progress receives a line about the next case. It may be nil.
	Progress func(text string)
}

// setDefaults sets what the caller has left out.
func (c *KVConfig) setDefaults() {
	if len(c.Ops) == 0 {
		c.Ops = []load.Op{load.Put, load.Get}
	}
	if len(c.Callers) == 0 {
		c.Callers = []int{1, 64, 256}
	}
	if c.Records == 0 {
		c.Records = 20_000
	}
	if c.Batch == 0 {
		c.Batch = 1
	}
	if c.Rounds == 0 {
		c.Rounds = 5
	}
	if c.ValueBytes == 0 {
		c.ValueBytes = 100
	}
	if c.Measure == 0 {
		c.Measure = 2 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
}

const (
	// keysPerCaller is the number of keys of each caller.
	keysPerCaller = 2_000
	// updateKeysPerCaller is the number for updates, whose records are written before the case.
	updateKeysPerCaller = 50
	// GetKeysPerCaller is the number for gets. Every database writes the records before the first
	// of them, and the slowest writes some thousand a second: with more records, filling would take
	// longer than all cases.
	GetKeysPerCaller = 400
)

// RunKV measures operations on all clusters and their peers, interleaved, and returns every result.
func RunKV(ctx context.Context, cfg KVConfig) (*KVReport, error) {
	cfg.setDefaults()
	var targets []rounds.Target
	defer func() {
		// Every exit stops all targets, including those of a failed start.
		for _, t := range targets {
			t.Stop()
		}
	}()
	for _, r := range cfg.Clusters {
		t, err := OpenRhumb(ctx, r)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
		// The other cluster of as many nodes has the peer.
		if cfg.PeerBinary == "" || r.kind() != "" {
			continue
		}
		title := fmt.Sprintf("etcd-%d", r.Replicas)
		p, err := rounds.OpenPeer(cfg.PeerBinary, title, filepath.Join(cfg.Dir, title), "etcd", fmt.Sprint(r.Replicas))
		if err != nil {
			return nil, err
		}
		targets = append(targets, p)
	}
	runs, err := rounds.Plan{Cases: cfg.makeCases(), Targets: targets, Rounds: cfg.Rounds, Progress: cfg.Progress}.Play(ctx)
	if err != nil {
		return nil, err
	}
	return reportOf(runs), nil
}

// makeCases returns the cases of one round. Puts come before gets, and fewer callers before more.
func (c *KVConfig) makeCases() (out []load.Case) {
	if len(c.Workloads) > 0 {
		c.Ops = nil
	}
	for _, w := range c.Workloads {
		for _, callers := range c.Callers {
			out = append(out, load.Case{Workload: w, Callers: callers, ValueBytes: c.ValueBytes, Keys: c.Records, Warm: c.Measure / 4, Measure: c.Measure})
		}
	}
	for _, op := range c.Ops {
		// Creations count on without an end, so the number means nothing to them.
		keys := map[load.Op]int{load.Update: updateKeysPerCaller, load.Get: GetKeysPerCaller}[op]
		keys = cmp.Or(keys, keysPerCaller)
		for _, callers := range c.Callers {
			out = append(out, load.Case{
				// The number of keys is a multiple of the batch, so that no call wraps around.
				Op: op, Callers: callers, ValueBytes: c.ValueBytes, Batch: c.Batch, Keys: (keys + c.Batch - 1) / c.Batch * c.Batch,
				Warm: c.Measure / 4, Measure: c.Measure,
			})
		}
	}
	return out
}
