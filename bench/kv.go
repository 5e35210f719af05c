package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/wan"
)

// target is a database under load.
type target interface {
	// name is the name of the target in the report.
	name() string
	run(ctx context.Context, c load.Case) (load.Result, error)
	stop()
}

// Rhumb is a running cluster to measure.
type Rhumb struct {
	// Name is the name of the cluster in the report. The default names its size.
	Name string
	// Client configures the callers.
	Client client.Config
	// PIDs are the processes of the nodes.
	PIDs []int
	// Replicas is the replication factor of the table, unless the table exists.
	Replicas int
	// Regions is the number of regions; 0 counts as 1.
	Regions int
	// LatencyFile holds the round trips to simulate between the callers and the nodes. If it is
	// empty, none are simulated. It needs Client.From.
	LatencyFile string
}

func (r *Rhumb) name() string {
	if r.Name != "" {
		return r.Name
	}
	name := fmt.Sprintf("rhumb-%d", r.Replicas)
	if r.Regions > 1 {
		name = fmt.Sprintf("rhumb-%dx%d", r.Regions, r.Replicas)
	}
	if r.Client.TLS != nil {
		name += secureSuffix
	}
	return name
}

// secureSuffix ends the name of a cluster with TLS and users. The cluster is compared with the one
// without the suffix.
const secureSuffix = "-tls"

// rhumbTarget drives a cluster through the default client.
type rhumbTarget struct {
	Rhumb
	c     *client.Client
	table *client.Table
	// runs counts the runs, so that no run creates the names of another.
	runs int
}

// openRhumb connects to a cluster and creates the table of the benchmark.
func openRhumb(ctx context.Context, r Rhumb) (*rhumbTarget, error) {
	cfg := r.Client
	if r.LatencyFile != "" {
		network, err := wan.Open(r.LatencyFile)
		if err != nil {
			return nil, err
		}
		// The callers see the same simulated distances as the nodes.
		cfg.Dial = network.Dialer(cfg.From)
	}
	c, err := client.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	settings := rhumb.DefaultClassSettings()
	settings.Replicas = r.Replicas
	// One node has one replica, fewer than the default number of in-sync members.
	settings.MinInSync = min(settings.MinInSync, r.Replicas)
	// A user who may write to the table of a cluster need not be allowed to create it.
	t, err := c.Table(ctx, "bench")
	if err != nil {
		if t, err = c.CreateTable(ctx, "bench", client.TableOptions{Settings: settings}); rhumb.KindOf(err) == rhumb.AlreadyExists {
			t, err = c.Table(ctx, "bench")
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &rhumbTarget{Rhumb: r, c: c, table: t}, nil
}

func (r *rhumbTarget) stop() { r.c.Close() }

// run runs one case.
func (r *rhumbTarget) run(ctx context.Context, c load.Case) (load.Result, error) {
	r.runs++
	// The load of a case of updates must not create records.
	if c.Op == load.Update {
		if err := r.fillRecords(ctx, c); err != nil {
			return load.Result{}, err
		}
	}
	return load.Run(ctx, c, r.PIDs, func(ctx context.Context, op load.Op, caller, key int, value []byte) error {
		if c.Batch > 1 {
			return r.callMany(ctx, op, caller, key, c.Batch, value)
		}
		return r.callOne(ctx, op, caller, key, value)
	}), nil
}

// fillersMax bounds the concurrent calls of fillRecords.
const fillersMax = 64

// fillRecords writes every record that a case of updates uses, so that the case creates none.
func (r *rhumbTarget) fillRecords(ctx context.Context, c load.Case) error {
	value := make([]byte, c.ValueBytes)
	failed := make([]error, c.Callers)
	turns := make(chan struct{}, fillersMax)
	var callers sync.WaitGroup
	for i := range c.Callers {
		callers.Go(func() {
			turns <- struct{}{}
			failed[i] = r.callMany(ctx, load.Update, i, 0, c.Keys, value)
			<-turns
		})
	}
	callers.Wait()
	return errors.Join(failed...)
}

// nameOf returns the name of key number key of a caller.
func (r *rhumbTarget) nameOf(op load.Op, caller, key int) []byte {
	switch op {
	case load.Create:
		return fmt.Appendf(nil, "c/%d/%d/%d", r.runs, caller, key)
	case load.Update:
		return fmt.Appendf(nil, "u/%d/%d", caller, key)
	}
	return fmt.Appendf(nil, "k/%d/%d", caller, key)
}

// callMany is callOne for n consecutive keys.
func (r *rhumbTarget) callMany(ctx context.Context, op load.Op, caller, key, n int, value []byte) error {
	names := make([][]byte, n)
	for i := range names {
		names[i] = r.nameOf(op, caller, key+i)
	}
	if op == load.Get {
		_, err := r.table.GetMany(ctx, names, client.GetOptions{})
		return err
	}
	m := rhumb.Mutation{Kind: rhumb.Patch, Table: r.table.Info().ID, Value: rhumb.EncodeRecord(nil, makeRecord(value))}
	// A put stores opaque bytes, a patch needs a record.
	if op == load.Put {
		m.Kind, m.Value = rhumb.Put, rhumb.EncodeOpaque(nil, value)
	}
	mutations := make([]rhumb.Mutation, n)
	for i := range mutations {
		mutations[i] = m
		mutations[i].Name = names[i]
	}
	_, err := r.c.WriteMany(ctx, mutations, client.BatchOptions{})
	return err
}

// makeRecord returns the record with a value as its only field.
func makeRecord(value []byte) rhumb.Record {
	return rhumb.Record{{Name: "value", Value: rhumb.BytesField(value)}}
}

// callOne executes one operation on one key.
func (r *rhumbTarget) callOne(ctx context.Context, op load.Op, caller, key int, value []byte) error {
	name := r.nameOf(op, caller, key)
	if op == load.Create || op == load.Update {
		return r.patchRecord(ctx, name, value)
	}
	if op == load.Put {
		_, err := r.table.Put(ctx, name, value, client.PutOptions{})
		return err
	}
	_, err := r.table.Get(ctx, name, client.GetOptions{})
	if rhumb.KindOf(err) == rhumb.NotFound {
		// An absent key is an answer too; other databases do not report an error.
		return nil
	}
	return err
}

// patchRecord writes a record without naming its home. A feed creates and updates records with this
// call, so it includes the search for the home.
func (r *rhumbTarget) patchRecord(ctx context.Context, name, value []byte) error {
	_, err := r.table.Patch(ctx, name, makeRecord(value), client.PatchOptions{})
	return err
}

// peerTarget drives another database through a process of bench/peers.
type peerTarget struct {
	title string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
}

// lineMax bounds one line of output of a process.
const lineMax = 1 << 20

// openPeer starts the process and waits until it is ready.
func openPeer(binary, kind string, nodes int, dir string) (*peerTarget, error) {
	p := &peerTarget{title: fmt.Sprintf("%s-%d", kind, nodes)}
	p.cmd = exec.Command(binary, kind, fmt.Sprint(nodes), dir)
	p.cmd.Stderr = os.Stderr
	// A Ctrl-C must reach the peer only through the end of its stdin.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w; build it with make bench-kv", binary, err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, lineMax)
	if !p.out.Scan() {
		p.stop()
		return nil, fmt.Errorf("%s ended before it was ready", p.title)
	}
	return p, nil
}

// name returns the name of the target in the report.
func (p *peerTarget) name() string { return p.title }

// offersOp reports whether a target supports an operation. Peers have no homes to find, so they
// only put and get.
func offersOp(t target, op load.Op) bool {
	_, peer := t.(*peerTarget)
	return !peer || op == load.Put || op == load.Get
}

// run sends a case to the process and waits for the result.
func (p *peerTarget) run(_ context.Context, c load.Case) (r load.Result, err error) {
	if err := json.NewEncoder(p.in).Encode(c); err != nil {
		return r, err
	}
	if !p.out.Scan() {
		return r, fmt.Errorf("%s ended during a case", p.title)
	}
	return r, json.Unmarshal(p.out.Bytes(), &r)
}

func (p *peerTarget) stop() {
	// The peer ends with its stdin.
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// KVConfig configures RunKV.
type KVConfig struct {
	// Clusters are the clusters to measure. Each is compared with a peer of as many nodes.
	Clusters []Rhumb
	// PeerBinary is the program of bench/peers; if it is empty, only Rhumb is measured. Dir holds
	// the data of the peers.
	PeerBinary, Dir string
	// Ops are the operations, by default put and get. Peers run only these two.
	Ops []load.Op
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

func (c *KVConfig) setDefaults() {
	if len(c.Ops) == 0 {
		c.Ops = []load.Op{load.Put, load.Get}
	}
	if len(c.Callers) == 0 {
		c.Callers = []int{1, 64, 256}
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
)

// RunKV measures operations on all clusters and their peers, interleaved, and returns every result.
func RunKV(ctx context.Context, cfg KVConfig) (*KVReport, error) {
	cfg.setDefaults()
	var targets []target
	defer func() {
		// Every exit stops all targets, including those of a failed start.
		for _, t := range targets {
			t.stop()
		}
	}()
	for _, r := range cfg.Clusters {
		t, err := openRhumb(ctx, r)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
		// The other cluster of as many nodes has the peer.
		if cfg.PeerBinary == "" || r.Client.TLS != nil {
			continue
		}
		p, err := openPeer(cfg.PeerBinary, "etcd", r.Replicas, filepath.Join(cfg.Dir, fmt.Sprintf("etcd-%d", r.Replicas)))
		if err != nil {
			return nil, err
		}
		targets = append(targets, p)
	}
	report := &KVReport{}
	for round := range cfg.Rounds {
		for _, callers := range cfg.Callers {
			for _, op := range cfg.Ops {
				keys := keysPerCaller
				if op == load.Update {
					keys = updateKeysPerCaller
				}
				c := load.Case{
					// The number of keys is a multiple of the batch, so that no call wraps around.
					Op: op, Callers: callers, ValueBytes: cfg.ValueBytes, Batch: cfg.Batch, Keys: (keys + cfg.Batch - 1) / cfg.Batch * cfg.Batch,
					Warm: cfg.Measure / 4, Measure: cfg.Measure,
				}
				// The targets take turns within a case: a slow phase of the machine then hits all
				// of them, and the ratios of a round stay comparable.
				for _, t := range targets {
					if !offersOp(t, op) {
						continue
					}
					if err := ctx.Err(); err != nil {
						return nil, err
					}
					cfg.Progress(fmt.Sprintf("round %d of %d: %s, %d callers, %s", round+1, cfg.Rounds, op, callers, t.name()))
					r, err := t.run(ctx, c)
					if err != nil {
						return nil, err
					}
					report.Runs = append(report.Runs, KVRun{Target: t.name(), Round: round, Result: r})
				}
			}
		}
	}
	report.summarise()
	return report, nil
}
