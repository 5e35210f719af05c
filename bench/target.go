// A Target drives Rhumb through the default client with one connection pool for all callers, as a service
// does. Single puts and gets of many callers share the frames of the client, which is the batching
// that Rhumb is built for. A case with several keys per call uses the calls for many names. The names of
// keys are readable and differ in their last digits only, so that the hash of the names, and nothing
// else, spreads them over the ranges.

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/wan"
)

// Rhumb is a running cluster to measure.
type Rhumb struct {
	// Name is the name of the cluster in the report. The default names its size.
	Name string
	// Client configures the callers.
	Client client.Config
	// PIDs are the processes of the nodes.
	PIDs []int
	// Admins are the admin addresses of the nodes, whose metrics say how many reads found a row in memory. It may be empty.
	Admins []string
	// Replicas is the replication factor of the table, unless the table exists.
	Replicas int
	// Durability is that of the table, unless the table exists.
	Durability rhumb.Durability
	// Regions is the number of regions; 0 counts as 1.
	Regions int
	// Stores is the number of directories of each node if the cluster is compared with one that has
	// one each, and NodeLog is set if it is compared with one whose stores use the log of the
	// database.
	Stores  int
	NodeLog bool
	// LatencyFile holds the round trips to simulate between the callers and the nodes. If it is
	// empty, none are simulated. It needs Client.From.
	LatencyFile string
}

func (r *Rhumb) title() string {
	if r.Name != "" {
		return r.Name
	}
	name := fmt.Sprintf("rhumb-%d", r.Replicas)
	if r.Regions > 1 {
		name = fmt.Sprintf("rhumb-%dx%d", r.Regions, r.Replicas)
	}
	return name + r.kind()
}

// kind returns the end of the name of a cluster that is compared with another one of its size, and
// "" for the latter.
func (r *Rhumb) kind() (name string) {
	if r.Durability.Deferred() {
		name += deferredSuffix
	}
	if r.Stores > 1 {
		name += fmt.Sprintf("%s%d", storesSuffix, r.Stores)
	}
	if r.NodeLog {
		name += nodeLogSuffix
	}
	if r.Client.TLS != nil {
		name += secureSuffix
	}
	return name
}

// deferredSuffix ends the name of a cluster whose table defers syncs.
const deferredSuffix = "-deferred"

// storesSuffix ends, with a number, the name of a cluster whose nodes have several directories, and
// nodeLogSuffix that of one whose stores have logs of their own. Such clusters are compared with
// the one without a suffix, like those of deferredSuffix.
const storesSuffix, nodeLogSuffix = "-stores", "-nodelog"

// secureSuffix ends the name of a cluster with TLS and users. The cluster is compared with the one
// without the suffix.
const secureSuffix = "-tls"

// Target drives a cluster through the default client.
type Target struct {
	Rhumb
	c     *client.Client
	table *client.Table
	// runs counts the runs, so that no run creates the names of another.
	runs   int
	filled load.Filled
}

// OpenRhumb connects to a cluster and creates the table of the benchmark.
func OpenRhumb(ctx context.Context, r Rhumb) (*Target, error) {
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
	settings.Durability = r.Durability
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
	return &Target{Rhumb: r, c: c, table: t}, nil
}

// Name returns the name of the cluster in the report.
func (r *Target) Name() string { return r.title() }

// Offers reports whether the client can run a case.
func (r *Target) Offers(c load.Case) bool {
	// Operations of other targets, such as those of the machine, have names of their own.
	for _, op := range c.Needs() {
		if op != load.Append && op != load.Scan && !slices.Contains(load.Ops(), op) {
			return false
		}
	}
	return true
}

// Stop closes the client, and leaves the cluster running.
func (r *Target) Stop() { r.c.Close() }

// Run runs one case.
func (r *Target) Run(ctx context.Context, c load.Case) (load.Result, error) {
	r.runs++
	if err := r.fillRecords(ctx, c); err != nil {
		return load.Result{}, err
	}
	hits, reads := r.rowReads(ctx)
	out := load.Run(ctx, c, r.PIDs, r.callStep)
	hitsAfter, readsAfter := r.rowReads(ctx)
	if readsAfter > reads {
		out.RowHits = (hitsAfter - hits) / (readsAfter - reads)
	}
	return out, nil
}

// rowReads returns how many reads by name found a row in the memory of a node so far, and how many there were.
func (r *Target) rowReads(ctx context.Context) (hits, reads float64) {
	hits = sumMetric(ctx, r.Admins, "rhumb_storage_row_hits_total")
	return hits, hits + sumMetric(ctx, r.Admins, "rhumb_storage_row_misses_total")
}

// fillRecords writes the records that a case uses and must not create.
func (r *Target) fillRecords(ctx context.Context, c load.Case) error {
	if c.Workload != "" || c.Op != load.Update {
		// The records stay from one round to the next.
		return r.filled.Fill(ctx, c, fillKeys, r.callStep)
	}
	value := make([]byte, c.ValueBytes)
	failed := make([]error, c.Callers)
	turns := make(chan struct{}, fillersMax)
	var callers sync.WaitGroup
	for i := range c.Callers {
		callers.Go(func() {
			turns <- struct{}{}
			failed[i] = r.callMany(ctx, load.Step{Op: load.Update, Caller: i, Keys: c.Keys, Value: value})
			<-turns
		})
	}
	callers.Wait()
	return errors.Join(failed...)
}

const (
	// fillersMax bounds the concurrent calls of fillRecords, fillKeys the keys of one call.
	fillersMax = 64
	fillKeys   = 64
)

// callStep executes one step of a case.
func (r *Target) callStep(ctx context.Context, s load.Step) error {
	switch {
	case s.Op == load.Scan:
		return r.scanFrom(ctx, s)
	case s.Keys > 1:
		return r.callMany(ctx, s)
	}
	return r.callOne(ctx, s)
}

// scanFrom reads records in the order of their names, beginning after that of a key. The home in the
// token is below all homes, so the record itself is part of the scan.
func (r *Target) scanFrom(ctx context.Context, s load.Step) error {
	from := rhumb.Item{Key: rhumb.Key{Name: r.nameOf(load.Put, s.Caller, s.Key)}}
	for _, err := range r.table.Scan(ctx, client.ScanOptions{After: client.ScanToken(from), Limit: s.Keys}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// nameOf returns the name of key number key of a caller.
func (r *Target) nameOf(op load.Op, caller, key int) []byte {
	switch op {
	case load.Create:
		return fmt.Appendf(nil, "c/%d/%d/%d", r.runs, caller, key)
	case load.Update:
		return fmt.Appendf(nil, "u/%d/%d", caller, key)
	}
	return fmt.Appendf(nil, "k/%d/%d", caller, key)
}

// callMany is callOne for several consecutive keys.
func (r *Target) callMany(ctx context.Context, s load.Step) error {
	names := make([][]byte, s.Keys)
	for i := range names {
		names[i] = r.nameOf(s.Op, s.Caller, s.Key+i)
	}
	if s.Op == load.Get {
		got, err := r.table.GetMany(ctx, names, client.GetOptions{})
		if err == nil && s.Written && slices.ContainsFunc(got, func(g client.Got) bool { return !g.Exists() }) {
			err = load.ErrAbsent
		}
		return err
	}
	m := rhumb.Mutation{Kind: rhumb.Patch, Table: r.table.Info().ID, Value: rhumb.EncodeRecord(nil, makeRecord(s.Value))}
	// A put or an append stores opaque bytes, a patch needs a record.
	if s.Op == load.Put || s.Op == load.Append {
		m.Kind, m.Value = rhumb.Put, rhumb.EncodeOpaque(nil, s.Value)
	}
	mutations := make([]rhumb.Mutation, s.Keys)
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
func (r *Target) callOne(ctx context.Context, s load.Step) error {
	name := r.nameOf(s.Op, s.Caller, s.Key)
	switch s.Op {
	case load.Create, load.Update:
		return r.patchRecord(ctx, name, s.Value)
	case load.Put, load.Append:
		_, err := r.table.Put(ctx, name, s.Value, client.PutOptions{})
		return err
	}
	_, err := r.table.Get(ctx, name, client.GetOptions{})
	if rhumb.KindOf(err) != rhumb.NotFound {
		return err
	}
	if s.Written {
		return load.ErrAbsent
	}
	// An absent key is an answer too; other databases do not report an error.
	return nil
}

// patchRecord writes a record without naming its home. A feed creates and updates records with this
// call, so it includes the search for the home.
func (r *Target) patchRecord(ctx context.Context, name, value []byte) error {
	_, err := r.table.Patch(ctx, name, makeRecord(value), client.PatchOptions{})
	return err
}
