package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// callersPerWorkload is the number of callers of each workload. Few callers that
// meet at few keys find more than many that never meet.
const callersPerWorkload = 6

// Verdict is the judgement of a workload about its own history.
type Verdict struct {
	Workload string
	// Operations is the number of calls that were checked. Text has further figures
	// for people.
	Operations int
	Text       string
	// Acknowledged is the number of writes that were acknowledged.
	Acknowledged int
	// Err describes the fault in the history. Nil means valid.
	Err error
}

// problem returns why the history is not valid, or nil. One in which nothing was
// acknowledged has nothing that could have been lost.
func (v *Verdict) problem() error {
	switch {
	case v.Err != nil:
		return v.Err
	case v.Operations == 0:
		return errors.New("nothing was checked")
	case v.Acknowledged == 0:
		return fmt.Errorf("no write was acknowledged in %d operations", v.Operations)
	}
	return nil
}

// workload is one kind of load with the check of its history.
type workload struct {
	// name selects the workload and names its table; doc is one line about its
	// calls and checks.
	name, doc string
	// options are those of the table of the workload.
	options rhumb.TableOptions
	start   func(e *env) script
}

// script is a workload in progress.
type script interface {
	// call makes one call, or a few that belong together. Calls of different
	// callers overlap, those of one do not.
	call(ctx context.Context, c *caller)
	// check reads the tables when all faults are over and all callers have ended,
	// and judges the history.
	check(ctx context.Context) Verdict
}

// workloads returns all workloads.
func workloads() []workload {
	return []workload{
		{probeName, "writes to a few keys all the time, to measure how long each has no service", rhumb.TableOptions{}, newProbe},
		{"register", "reads, writes, deletions and conditional writes; linearizable", rhumb.TableOptions{}, newRegister},
		{"append", "appends to lists by conditional writes; each read is a prefix of the final list", rhumb.TableOptions{}, newAppend},
		{"transactions", "reads and appends of several lists of a range at once; strictly serializable, by a search for cycles", rhumb.TableOptions{Colocate: '/'}, newTransactions},
		{"counter", "increments by conditional writes; never less than acknowledged, never more than tried", rhumb.TableOptions{}, newCounter},
		{"set", "new names, and scans meanwhile; each scan and the end have all acknowledged ones", rhumb.TableOptions{}, newSet},
		{"insert", "records whose names the server chooses; none lost, none twice", rhumb.TableOptions{}, newInsert},
		{"create", "the same name created from all regions at once; refused after another creation was acknowledged, none lost", rhumb.TableOptions{}, newCreate},
		{"bank", "transfers within a range; each read of all accounts has the same sum", rhumb.TableOptions{Colocate: '/'}, newBank},
		{viewsTable, "writes to a published table, and a process on the host of each node that reads its image; each view equals the log at its position", rhumb.TableOptions{Snapshot: rhumb.SnapshotOn}, newViews},
		{"batch", "batches of several keys; each read sees all of a batch or nothing", rhumb.TableOptions{Colocate: '/'}, newBatch},
	}
}

// env holds the things that the callers of a workload share.
type env struct {
	record *Record
	// tables holds the table of the workload as clients in each region see it.
	tables []*client.Table
	// clients has one client for each region, in the order of tables. seed makes a
	// run repeatable.
	clients []*client.Client
	seed    uint64
	// region is the name of the region in which names without a home of their own
	// are.
	region string
	// nodes returns the nodes of the cluster at present. previous is set if some run
	// the previous release.
	nodes    func() []*Node
	previous bool
	// finalText reads a name, and finalScan the whole table, until they are answered.
	finalText func(ctx context.Context, name, home string) (text string, exists bool, err error)
	finalScan func(ctx context.Context) ([]rhumb.Item, error)
}

// caller makes calls one after the other.
type caller struct {
	// index distinguishes the callers of a workload, and is part of the values that
	// they write.
	index int
	// random decides the operations of this caller only, so that callers do not
	// influence each other.
	random *rand.Rand
	client *client.Client
	table  *client.Table
	record *Record
	// count is the number of calls so far, so that each value is written once.
	count int
}

// unique returns a value that nobody else writes.
func (c *caller) unique() string {
	c.count++
	return fmt.Sprintf("%d.%d", c.index, c.count)
}

// outcome is how a write ended, as its caller sees it.
type outcome uint8

const (
	unknown outcome = iota // it may take effect at any later time, or never
	acked
	refused // it has no effect: a condition did not hold, or nobody took it
)

// outcomeOf returns the outcome of a write.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return acked
	case rhumb.KindOf(err).NotApplied():
		return refused
	}
	return unknown
}

// put writes text under a name and records the call.
func (c *caller) put(ctx context.Context, name, text string, cond rhumb.Condition, home string) outcome {
	at := c.record.now()
	_, err := c.table.Put(ctx, []byte(name), []byte(text), client.PutOptions{If: cond, Home: home})
	c.record.add(at, err)
	return outcomeOf(err)
}

// get reads the text under a name and records the call. The version is zero if
// there is none; ok is false if the read was not answered.
func (c *caller) get(ctx context.Context, name, home string) (text string, version rhumb.Version, ok bool) {
	at := c.record.now()
	got, err := c.table.Get(ctx, []byte(name), client.GetOptions{Home: home})
	c.record.addRead(at, err)
	return textOf(got, err)
}

// textOf returns the text in the answer to a read. That there is none is an answer, too.
func textOf(got client.Got, err error) (text string, version rhumb.Version, ok bool) {
	if err != nil {
		return "", rhumb.Version{}, rhumb.KindOf(err) == rhumb.NotFound
	}
	return opaque(got.Value), got.Version, true
}

// opaque returns the text of a stored value.
func opaque(stored []byte) string {
	payload, _ := rhumb.DecodeOpaque(stored)
	return string(payload)
}

// patience bounds the wait for what needs no more than a few tries: the start of a
// cluster, and the reads after the faults, when only a last change of primaries can
// be in the way.
const patience = 30 * time.Second

// eventually repeats f until it succeeds.
func eventually(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if waited := wait(ctx, pollWait); waited != nil {
			return errors.Join(err, waited)
		}
	}
}

// readText reads a name until it is answered.
func (e *env) readText(ctx context.Context, name, home string) (text string, exists bool, err error) {
	err = eventually(ctx, func() error {
		got, err := e.tables[0].Get(ctx, []byte(name), client.GetOptions{Home: home})
		if rhumb.KindOf(err) == rhumb.NotFound {
			exists = false
			return nil
		}
		text, exists = opaque(got.Value), err == nil
		return err
	})
	return text, exists, err
}

// readAll reads a whole table until no page fails.
func (e *env) readAll(ctx context.Context) (items []rhumb.Item, err error) {
	err = eventually(ctx, func() error {
		items = items[:0]
		for item, err := range e.tables[0].Scan(ctx, client.ScanOptions{}) {
			if err != nil {
				return err
			}
			items = append(items, item)
		}
		return nil
	})
	return items, err
}

// load runs workloads against a cluster.
type load struct {
	// names and scripts are parallel.
	names   []string
	scripts []script
	// stop ends the callers after their present call, and wait counts those that
	// run.
	stop atomic.Bool
	wait sync.WaitGroup
}

// startLoad creates the tables and starts the callers. All together make at most
// perSecond calls a second.
func startLoad(ctx context.Context, c *Cluster, record *Record, seed uint64, perSecond int, only []string) (*load, error) {
	l := &load{}
	limit := rate.NewLimiter(rate.Limit(perSecond), 1)
	var clients []*client.Client
	for _, region := range c.cfg.Regions {
		cl, err := c.Open(ctx, region)
		if err != nil {
			return nil, err
		}
		clients = append(clients, cl)
	}
	for w, work := range workloads() {
		if !selected(only, work.name) {
			continue
		}
		if _, err := c.operator.CreateTable(ctx, work.name, client.TableOptions{TableOptions: work.options}); err != nil {
			return nil, err
		}
		// Names without a home of their own live in the first region.
		e := &env{record: record, clients: clients, seed: seed, region: c.cfg.Regions[0], nodes: c.Nodes, previous: c.cfg.Previous != ""}
		e.finalText, e.finalScan = e.readText, e.readAll
		for _, cl := range clients {
			t, err := cl.Table(ctx, work.name)
			if err != nil {
				return nil, err
			}
			e.tables = append(e.tables, t)
		}
		s := work.start(e)
		l.names, l.scripts = append(l.names, work.name), append(l.scripts, s)
		for i := range callersPerWorkload {
			place := i % len(clients)
			one := &caller{
				// Each caller has a sequence of random numbers of its own.
				index: i, random: rand.New(rand.NewPCG(seed, uint64(w*callersPerWorkload+i+1))),
				client: clients[place], table: e.tables[place], record: record,
			}
			l.wait.Go(func() {
				for !l.stop.Load() && limit.Wait(ctx) == nil {
					s.call(ctx, one)
				}
			})
		}
	}
	return l, nil
}

// selected reports whether a list of names contains a name. An empty list contains
// all.
func selected(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return len(names) == 0
}

// finish ends the callers and checks all histories.
func (l *load) finish(ctx context.Context) (verdicts []Verdict) {
	l.stop.Store(true)
	l.wait.Wait()
	for i, s := range l.scripts {
		v := s.check(ctx)
		v.Workload = l.names[i]
		verdicts = append(verdicts, v)
	}
	return verdicts
}
