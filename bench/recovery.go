package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// RecoveryConfig configures RunRecovery.
type RecoveryConfig struct {
	// Cluster has one node and was started with --no-restart.
	Cluster *Cluster
	// Records is the number of records, each of ValueBytes bytes.
	Records    int
	ValueBytes int
	// Restarts is how often the node is killed and started again. Before each, a share of the records
	// is written again, so that the log is never empty.
	Restarts int
	// Progress receives a line about each step.
	Progress func(text string)
}

// recoveryRewrite is the share of the records that is written again before each kill: one of so many.
const recoveryRewrite = 10

// Recovery is one kill -9 of a node with records, and its restart.
type Recovery struct {
	// Served is the time from the start of the process to the first acknowledged write, Read that to
	// the first answered read.
	Served time.Duration `json:"served_ns"`
	Read   time.Duration `json:"read_ns"`
	// RecordsPerSecond is the number of records divided by Served.
	RecordsPerSecond float64 `json:"records_per_second"`
	// Phases are those of the start, as the node measured them.
	Phases []RecoveryPhase `json:"phases"`
	// DiskBytes is the size of the node's files before the restart.
	DiskBytes int64 `json:"disk_bytes"`
	// Missing counts the records of a sample that were acknowledged and are not there.
	Missing int `json:"missing"`
}

// RecoveryPhase is a phase of the start of a node.
type RecoveryPhase struct {
	// Name is a label of the metric rhumb_node_start_seconds.
	Name string `json:"name"`
	// Took has the resolution of the node's clock.
	Took time.Duration `json:"took_ns"`
}

// recoveryPhases are the phases of rhumb_node_start_seconds in their order.
var recoveryPhases = []string{"check", "replay", "load", "ports", "metadata", "replicas", "total"}

const (
	// recoveryMost bounds the time until a node serves after its start.
	recoveryMost = 10 * time.Minute
	// recoverySample is the number of records that are read back after each restart.
	recoverySample = 1000
	// recoveryTry bounds an attempt to reach a node that is still starting.
	recoveryTry = 500 * time.Millisecond
)

// RunRecovery fills a node, kills it with kill -9, and measures how long it takes to serve again.
//
// The node is alone, so that its whole state is that of its disk: with other nodes, their leases and
// elections would be part of the time, which RunFailover measures. A client is connected all the time
// and retries, as the clients of a service do, so the time includes its reconnection. The kill comes
// directly after the last acknowledged write, which is when the log is longest.
func RunRecovery(ctx context.Context, cfg RecoveryConfig) ([]Recovery, error) {
	commands, err := cfg.Cluster.findCommands()
	if err != nil {
		return nil, err
	}
	defer commands.stopAll()
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync = 1, 1
	t, err := c.CreateTable(ctx, "restart", client.TableOptions{Settings: settings})
	if err != nil {
		return nil, err
	}
	cfg.Progress(fmt.Sprintf("write %d records of %d bytes", cfg.Records, cfg.ValueBytes))
	if err := fillTable(ctx, c, t, int64(cfg.Records)*int64(cfg.ValueBytes), cfg.ValueBytes); err != nil {
		return nil, err
	}
	var out []Recovery
	for i := range cfg.Restarts {
		cfg.Progress(fmt.Sprintf("restart %d of %d: write %d records again", i+1, cfg.Restarts, cfg.Records/recoveryRewrite))
		if err := fillTable(ctx, c, t, int64(cfg.Records/recoveryRewrite)*int64(cfg.ValueBytes), cfg.ValueBytes); err != nil {
			return out, err
		}
		r, err := recoverOnce(ctx, cfg, commands, t)
		if err != nil {
			return out, err
		}
		out = append(out, r)
	}
	return out, nil
}

// recoverOnce kills the node and measures its restart.
func recoverOnce(ctx context.Context, cfg RecoveryConfig, commands *nodeProcesses, t *client.Table) (r Recovery, err error) {
	n := cfg.Cluster.Nodes[0]
	if r.DiskBytes, err = diskBytes(cfg.Cluster.Dir); err != nil {
		return r, err
	}
	pid, err := commands.signal(n.ID, syscall.SIGKILL)
	if err != nil {
		return r, err
	}
	if err := awaitEnd(ctx, pid); err != nil {
		return r, err
	}
	// The clock starts before the process, so that loading the program counts.
	begin := time.Now()
	if err := commands.startNode(n.ID); err != nil {
		return r, err
	}
	// The client was open all the time, as the clients of a service are.
	if r.Read, err = retryUntil(ctx, begin, commands.ended, func(ctx context.Context) error {
		_, err := t.Get(ctx, recoveryName(0), client.GetOptions{})
		return err
	}); err != nil {
		return r, err
	}
	if r.Served, err = retryUntil(ctx, begin, commands.ended, func(ctx context.Context) error {
		_, err := t.Put(ctx, []byte("after"), []byte("restart"), client.PutOptions{})
		return err
	}); err != nil {
		return r, err
	}
	r.RecordsPerSecond = float64(cfg.Records) / r.Served.Seconds()
	// The metrics are read from the process that has just started.
	for _, name := range recoveryPhases {
		seconds, err := readMetric(ctx, n.AdminAddr, fmt.Sprintf("rhumb_node_start_seconds{phase=%q}", name))
		if err != nil {
			return r, err
		}
		r.Phases = append(r.Phases, RecoveryPhase{name, time.Duration(seconds * float64(time.Second))})
	}
	r.Missing, err = countMissing(ctx, cfg, t)
	return r, err
}

// recoveryName returns the name of a record, which fillTable has chosen.
func recoveryName(i int) []byte { return fmt.Appendf(nil, "f%012d", i) }

// awaitEnd waits until a killed process is gone.
func awaitEnd(ctx context.Context, pid int) error {
	for !hasEnded(pid) {
		if err := pauseFor(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// retryUntil repeats a call until it succeeds, and returns the time since begin. It gives up when the
// process that would answer has ended.
func retryUntil(ctx context.Context, begin time.Time, ended <-chan struct{}, call func(ctx context.Context) error) (time.Duration, error) {
	for {
		try, cancel := context.WithTimeout(ctx, recoveryTry)
		err := call(try)
		cancel()
		took := time.Since(begin)
		if err == nil {
			return took, nil
		}
		select {
		case <-ended:
			return took, fmt.Errorf("the node ended after %v instead of serving; see its log", took.Round(time.Millisecond))
		default:
		}
		if took > recoveryMost {
			return took, fmt.Errorf("the node did not serve within %v: %w", recoveryMost, err)
		}
		if err := pauseFor(ctx, time.Millisecond); err != nil {
			return took, err
		}
	}
}

// countMissing reads a sample of the records.
func countMissing(ctx context.Context, cfg RecoveryConfig, t *client.Table) (missing int, err error) {
	random := rand.New(rand.NewPCG(1, uint64(cfg.Records)))
	names := make([][]byte, min(recoverySample, cfg.Records))
	for i := range names {
		names[i] = recoveryName(random.IntN(cfg.Records))
	}
	got, err := t.GetMany(ctx, names, client.GetOptions{})
	if err != nil {
		return 0, err
	}
	for _, g := range got {
		if !g.Exists() || len(g.Item.Value) == 0 {
			missing++
		}
	}
	return missing, nil
}
