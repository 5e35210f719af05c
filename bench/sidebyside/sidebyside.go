// Package sidebyside measures the limits of the machine, Rhumb and other databases in one
// interleaved run, and reports the figures of Rhumb as ratios to each of the others. Every database
// syncs each write to the disk before it answers, unless its name says otherwise.
//
// # Equal terms
//
// All databases keep their data below one directory, and so on one disk, and listen on loopback. All
// run from the beginning to the end, so that caches are warm and no start is measured. They take turns
// within a case (package rounds), under the same callers, keys and values (package load). A ratio is
// that of two results of one round; the report has its median and its spread. The first round of a
// full measurement is thrown away, because programs in Java compile themselves while they run.
//
// # Differences that remain
//
// Each peer has its usual client in Go, whose processor time is reported apart. Redis has none: the
// driver writes its commands itself, which is as fast as a client can be. etcd acknowledges a write when
// two of three nodes have synced it, Rhumb when all in-sync copies have. Redis and NATS have no scan in
// the order of keys, so they take no part in workload E, and Kafka only takes part in the feed.
// Cassandra scans in the order of its tokens.
//
// # A busy machine
//
// Every measurement notes how many cores other processes kept busy, the waiting databases among them.
// Other work does not slow all databases alike: one with many threads gains from it against one with a
// single thread. So the report says how many measurements were disturbed, and calls the ratios no more
// than a direction if these are more than a tenth.
package sidebyside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
)

// Peer is a database to compare Rhumb with.
type Peer struct {
	// Name is the name in reports and flags.
	Name string `json:"name"`
	// Rhumb is the name of the cluster with which it is compared.
	Rhumb string `json:"rhumb"`
	// Acks says when the peer acknowledges a write.
	Acks string `json:"acks"`
	// Args are the arguments of the driver. An empty one is replaced by the directory with the jars.
	args []string
	jars string // the name of the directory with the jars
}

// Names of the clusters of Rhumb, and of the limits of the machine.
const (
	single  = "rhumb-1"
	triple  = "rhumb-3"
	machine = "machine"
)

// Peers returns all peers in the order in which they take turns.
func Peers() []Peer {
	const synced = "after the sync"
	return []Peer{
		{Name: "etcd-1", Rhumb: single, Acks: synced, args: []string{"etcd", "1"}},
		{Name: "etcd-3", Rhumb: triple, Acks: "after the sync of 2 of 3 copies; Rhumb: 3 of 3", args: []string{"etcd", "3"}},
		{Name: "redis-always", Rhumb: single, Acks: synced, args: []string{"redis", "always"}},
		{Name: "redis-everysec", Rhumb: single, Acks: "before the sync, which follows within a second", args: []string{"redis", "everysec"}},
		{Name: "nats", Rhumb: single, Acks: synced, args: []string{"nats"}},
		{Name: "postgres", Rhumb: single, Acks: synced, args: []string{"postgres"}},
		{Name: "cassandra", Rhumb: single, Acks: synced, args: []string{"cassandra"}, jars: "cassandra"},
		{Name: "kafka", Rhumb: single, Acks: synced, args: []string{"kafka"}, jars: "kafka"},
	}
}

// Config configures a measurement.
type Config struct {
	// Clusters are those of Rhumb. Their names must be those in Peers.
	Clusters []bench.Rhumb
	// Peers are the names of the peers to measure; the default is all.
	Peers []string
	// Binary is the program of bench/peers. Jars holds a directory of jars for each peer in Java.
	Binary, Jars string
	// Dir holds the data of the peers and the file of the machine's limits.
	Dir string
	// Callers are the numbers of callers of single puts and gets.
	Callers []int
	// Rounds is the number of rounds that count. Discard more run before them.
	Rounds, Discard int
	// Measure is how long a case is measured, after a quarter of that for warming up.
	Measure time.Duration
	// Records is the number of records of the workloads.
	Records int
	// MemoryBytes is the size of the memory that is read at random.
	MemoryBytes int
	// Workloads are those to run.
	Workloads []load.Workload
	// Progress receives a line about the next case.
	Progress func(text string)
}

// Full returns the configuration of a measurement to quote: about 16 minutes on two cores. There are 22
// cases and ten databases, not all of them in each case: about 130 measurements in a round.
func Full() Config {
	return Config{
		Callers: []int{1, 64, 256}, Rounds: 5, Discard: 1, Measure: time.Second, Records: 20_000, MemoryBytes: 256 << 20, Workloads: load.Workloads(),
	}
}

// Quick returns the configuration of a measurement that only shows that everything runs: about a
// minute. Its figures mean nothing, since programs in Java are still being compiled.
func Quick() Config {
	return Config{
		Callers: []int{1, 64}, Rounds: 1, Measure: 150 * time.Millisecond, Records: 1000, MemoryBytes: 64 << 20, Workloads: []load.Workload{"A", "E"},
	}
}

// Bounds of a configuration.
const (
	RoundsMax  = 50
	MeasureMax = time.Minute
	RecordsMax = 1_000_000
	// CallersMax is bounded by the connections that PostgreSQL is started with.
	CallersMax = 512
)

// Check returns an error for values out of bounds and unknown peers. Measure calls it too.
func (c *Config) Check() error {
	var errs []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(c.Rounds < 1 || c.Rounds > RoundsMax, "%d rounds; want 1 to %d", c.Rounds, RoundsMax)
	fault(c.Measure < time.Millisecond || c.Measure > MeasureMax, "a case of %v; want 1ms to %v", c.Measure, MeasureMax)
	fault(c.Records < 1 || c.Records > RecordsMax, "%d records; want 1 to %d", c.Records, RecordsMax)
	for _, n := range c.Callers {
		fault(n < 1 || n > CallersMax, "%d callers; want 1 to %d", n, CallersMax)
	}
	for _, name := range c.Peers {
		fault(!slices.ContainsFunc(Peers(), func(p Peer) bool { return p.Name == name }), "%q is not a peer; want some of %v", name, peerNames())
	}
	return rhumb.WrapKind("sidebyside.Measure", rhumb.InvalidArgument, errors.Join(errs...))
}

func peerNames() (out []string) {
	for _, p := range Peers() {
		out = append(out, p.Name)
	}
	return out
}

const (
	// keysPerCaller is the number of keys of each caller, so that caches are of no more use than in
	// a service.
	keysPerCaller = 2000
	// valueBytes is the size of the values of single puts and gets, feedBytes that of a feed's
	// records, recordBytes that of YCSB's records.
	valueBytes  = 100
	feedBytes   = 600
	recordBytes = 1000
	// pipeline is the number of keys of a call in the cases with many, feedBatch that of a feed.
	pipeline  = 16
	feedBatch = 64
	// callers is the number of callers of all cases but single puts and gets, and a feed in batches.
	callers     = 64
	feedCallers = 8
)

// makeCases returns the cases of one round.
func (c *Config) makeCases() (out []load.Case) {
	// Times are the same for all cases.
	add := func(x load.Case) {
		x.Warm, x.Measure = c.Measure/4, c.Measure
		out = append(out, x)
	}
	for _, x := range limitCases() {
		add(x)
	}
	for _, op := range []load.Op{load.Put, load.Get} {
		keys := keysPerCaller
		if op == load.Get {
			keys = bench.GetKeysPerCaller
		}
		for _, n := range c.Callers {
			add(load.Case{Op: op, Callers: n, ValueBytes: valueBytes, Keys: keys})
		}
		add(load.Case{Op: op, Callers: callers, ValueBytes: valueBytes, Batch: pipeline, Keys: keys})
	}
	add(load.Case{Op: load.Append, Callers: callers, ValueBytes: feedBytes, Keys: 1})
	add(load.Case{Op: load.Append, Callers: feedCallers, ValueBytes: feedBytes, Batch: feedBatch, Keys: feedBatch})
	for _, w := range c.Workloads {
		add(load.Case{Workload: w, Callers: callers, ValueBytes: recordBytes, Keys: c.Records})
	}
	return out
}

// Measure runs the limits of the machine, the clusters and the peers in turn. A peer that this machine
// lacks, or that fails, is listed in the report, and the others continue.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	r := &Report{Started: time.Now().UTC().Truncate(time.Second), Machine: describeMachine(), Rounds: cfg.Rounds, Measure: cfg.Measure}
	var targets []rounds.Target
	defer func() {
		// Every exit stops all targets, including those of a failed start.
		for _, t := range targets {
			t.Stop()
		}
	}()
	cfg.Progress("limits of the machine")
	// Filling the memory takes seconds, so it is done before databases run and wait.
	limits, err := openLimits(cfg.Dir, cfg.MemoryBytes)
	if err != nil {
		return nil, err
	}
	targets = append(targets, limits)
	for _, x := range cfg.Clusters {
		t, err := bench.OpenRhumb(ctx, x)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	for _, p := range Peers() {
		if len(cfg.Peers) > 0 && !slices.Contains(cfg.Peers, p.Name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cfg.Progress("start " + p.Name)
		if t := r.openPeer(p, cfg); t != nil {
			targets = append(targets, t)
		}
	}
	// All databases run from here to the end: starting one takes longer than its cases.
	runs, err := rounds.Plan{
		Cases: cfg.makeCases(), Targets: targets, Rounds: cfg.Rounds, Discard: cfg.Discard, Progress: cfg.Progress,
		Dropped: func(target string, err error) {
			r.Missing = append(r.Missing, rounds.MissingError{Peer: target, Reason: err.Error()})
		},
	}.Play(ctx)
	if err != nil {
		return nil, err
	}
	r.summarise(runs)
	return r, nil
}

// openPeer starts a peer, or notes in the report why there is none.
func (r *Report) openPeer(p Peer, cfg Config) *rounds.Peer {
	args := slices.Clone(p.args)
	if p.jars != "" {
		args = append(args, filepath.Join(cfg.Jars, p.jars))
	}
	dir := filepath.Join(cfg.Dir, p.Name)
	t, err := rounds.OpenPeer(cfg.Binary, p.Name, dir, args...)
	var m *rounds.MissingError
	switch {
	case err == nil:
		r.Peers = append(r.Peers, PeerVersion{p, t.Version()})
		return t
	case !errors.As(err, &m):
		m = &rounds.MissingError{Peer: p.Name, Reason: err.Error()}
	}
	_ = os.RemoveAll(dir) // what a peer leaves that never ran is of no use to anyone
	r.Missing = append(r.Missing, *m)
	return nil
}
