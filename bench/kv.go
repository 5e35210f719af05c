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
	// name says what it is, for the report.
	name() string
	run(ctx context.Context, c load.Case) (load.Result, error)
	stop()
}

// Rhumb is a running cluster to measure: where its nodes answer and which processes they are.
type Rhumb struct {
	Addrs []string
	PIDs  []int
	// Replicas is the replication factor to ask for: the number of nodes of a region.
	Replicas int
	// Regions is the number of regions; 0 counts as 1.
	Regions int
	// From is the region in which the callers stand. Default: that of the nearest node.
	From string
	// LatencyFile holds the round trips to imitate between the callers and the nodes; empty imitates none. It needs From.
	LatencyFile string
}

func (r *Rhumb) name() string {
	if r.Regions > 1 {
		return fmt.Sprintf("rhumb-%dx%d", r.Regions, r.Replicas)
	}
	return fmt.Sprintf("rhumb-%d", r.Replicas)
}

// rhumbTarget drives a cluster through the default client.
type rhumbTarget struct {
	Rhumb
	c     *client.Client
	table *client.Table
	// runs counts the runs, so that no run creates a name of another one.
	runs int
}

func openRhumb(ctx context.Context, r Rhumb) (*rhumbTarget, error) {
	cfg := client.Config{Addrs: r.Addrs, From: r.From, Insecure: true}
	if r.LatencyFile != "" {
		network, err := wan.Open(r.LatencyFile)
		if err != nil {
			return nil, err
		}
		cfg.Dial = network.Dialer(r.From)
	}
	c, err := client.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	settings := rhumb.DefaultClassSettings()
	settings.Replicas = r.Replicas
	settings.MinInSync = min(settings.MinInSync, r.Replicas)
	t, err := c.CreateTable(ctx, "bench", client.TableOptions{Settings: settings})
	if rhumb.KindOf(err) == rhumb.AlreadyExists {
		t, err = c.Table(ctx, "bench")
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &rhumbTarget{Rhumb: r, c: c, table: t}, nil
}

func (r *rhumbTarget) stop() { r.c.Close() }

func (r *rhumbTarget) run(ctx context.Context, c load.Case) (load.Result, error) {
	r.runs++
	if c.Op == load.Update {
		if err := r.fill(ctx, c); err != nil {
			return load.Result{}, err
		}
	}
	return load.Run(ctx, c, r.PIDs, func(ctx context.Context, op load.Op, caller, key int, value []byte) error {
		if c.Batch > 1 {
			return r.callMany(ctx, op, caller, key, c.Batch, value)
		}
		return r.call(ctx, op, caller, key, value)
	}), nil
}

// fillersMax bounds the calls that fill at once.
const fillersMax = 64

// fill writes every record that a case of updates goes through, so that the case creates none.
func (r *rhumbTarget) fill(ctx context.Context, c load.Case) error {
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

// nameOf returns the name of a key of a caller.
func (r *rhumbTarget) nameOf(op load.Op, caller, key int) []byte {
	switch op {
	case load.Create:
		return fmt.Appendf(nil, "c/%d/%d/%d", r.runs, caller, key)
	case load.Update:
		return fmt.Appendf(nil, "u/%d/%d", caller, key)
	}
	return fmt.Appendf(nil, "k/%d/%d", caller, key)
}

// callMany is call on n keys from the given one on.
func (r *rhumbTarget) callMany(ctx context.Context, op load.Op, caller, key, n int, value []byte) error {
	names := make([][]byte, n)
	for i := range names {
		names[i] = r.nameOf(op, caller, key+i)
	}
	if op == load.Get {
		_, err := r.table.GetMany(ctx, names, client.GetOptions{})
		return err
	}
	m := rhumb.Mutation{Kind: rhumb.Patch, Table: r.table.Info().ID, Value: rhumb.EncodeRecord(nil, record(value))}
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

func record(value []byte) rhumb.Record {
	return rhumb.Record{{Name: "value", Value: rhumb.BytesField(value)}}
}

func (r *rhumbTarget) call(ctx context.Context, op load.Op, caller, key int, value []byte) error {
	name := r.nameOf(op, caller, key)
	if op == load.Create || op == load.Update {
		return r.patch(ctx, name, value)
	}
	if op == load.Put {
		_, err := r.table.Put(ctx, name, value, client.PutOptions{})
		return err
	}
	_, err := r.table.Get(ctx, name, client.GetOptions{})
	if rhumb.KindOf(err) == rhumb.NotFound {
		return nil // an answer too; other databases do not call it an error
	}
	return err
}

// patch writes a record without naming its home: the call with which a feed creates and updates records.
func (r *rhumbTarget) patch(ctx context.Context, name, value []byte) error {
	_, err := r.table.Patch(ctx, name, record(value), client.PatchOptions{})
	return err
}

// peerTarget drives another database in a process of bench/peers.
type peerTarget struct {
	title string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
}

// lineMax bounds one line of a peer's process.
const lineMax = 1 << 20

func openPeer(binary, kind string, nodes int, dir string) (*peerTarget, error) {
	p := &peerTarget{title: fmt.Sprintf("%s-%d", kind, nodes)}
	p.cmd = exec.Command(binary, kind, fmt.Sprint(nodes), dir)
	p.cmd.Stderr = os.Stderr
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
		return nil, fmt.Errorf("%s: %w; build it with make bench-kv", binary, err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, lineMax)
	if !p.out.Scan() {
		p.stop()
		return nil, fmt.Errorf("%s ended before it was ready", p.title)
	}
	return p, nil
}

func (p *peerTarget) name() string { return p.title }

// offers reports whether a target runs an operation: peers have no homes to look for, so they only put and get.
func offers(t target, op load.Op) bool {
	_, peer := t.(*peerTarget)
	return !peer || op == load.Put || op == load.Get
}

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
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// KVConfig says what RunKV measures.
type KVConfig struct {
	// Clusters are Rhumb's; each is compared with a peer of as many nodes.
	Clusters []Rhumb
	// PeerBinary is the program of bench/peers; empty measures Rhumb alone. Dir is where peers keep their data.
	PeerBinary, Dir string
	// Ops are the operations; default put and get. Peers run only these two.
	Ops []load.Op
	// Callers are the numbers of callers; default 1, 64, 256.
	Callers []int
	// Batch is the number of keys of one call; default 1. Peers have no like of it.
	Batch int
	// Rounds is how often every case is run on every target, in turn; default 5. Ratios are of one round, reported as
	// their median.
	Rounds int
	// ValueBytes is the size of a value; default 100.
	ValueBytes int
	// Measure is how long a case is measured; default 2 s, after a quarter of that to warm up.
	Measure time.Duration
	// Progress is told what is about to run; it may be nil.
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
	// keysPerCaller is the number of keys that each caller goes through.
	keysPerCaller = 2_000
	// updateKeysPerCaller is that number for updates, whose records are written before the case.
	updateKeysPerCaller = 50
)

// RunKV measures operations on all clusters and their peers, interleaved, and gives every result.
func RunKV(ctx context.Context, cfg KVConfig) (*KVReport, error) {
	cfg.setDefaults()
	var targets []target
	defer func() {
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
		if cfg.PeerBinary == "" {
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
					Op: op, Callers: callers, ValueBytes: cfg.ValueBytes, Batch: cfg.Batch, Keys: (keys + cfg.Batch - 1) / cfg.Batch * cfg.Batch,
					Warm: cfg.Measure / 4, Measure: cfg.Measure,
				}
				for _, t := range targets {
					if !offers(t, op) {
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
