package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/sim/check"
)

var (
	faultOperations = flag.Int("faults.operations", 20_000, "minimum number of operations that TestFaults checks")
	faultSeed       = flag.Uint64("faults.seed", 1, "seed for the faults and operations of TestFaults")
	faultKinds      = flag.String("faults.only", "", "name of the only fault of TestFaults, such as flip")
)

// The load of TestFaults consists of crowds of callers. Each crowd uses one key at a time, so that
// the history of a key stays small.
const (
	crowds      = 16
	crowdSize   = 3
	keyCalls    = 150 // of a crowd, before it takes the next key
	callTimeout = 10 * time.Second
	faultHold   = 2 * time.Second
	faultCalm   = time.Second
	// roundOperations bounds the operations on one cluster, so that the history fits into memory.
	roundOperations = 250_000
	// roundFaults is the number of faults in one cluster before one of its disks loses data.
	roundFaults = 6
	// diskWait is how long to wait for all copies to be in sync after a disk lost data. They may
	// never be: a copy that needs log which is trimmed away elsewhere stays a learner.
	diskWait = 10 * time.Second
)

// TestFaults guards that the history of every key is linearizable and that no acknowledged write is
// lost, while nodes of real processes are killed and paused, links are cut, clocks are set wrong,
// and a disk is damaged, rolled back or emptied.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	total := 0
	for round := uint64(0); total < *faultOperations && !t.Failed(); round++ {
		t.Run(fmt.Sprintf("seed=%d", *faultSeed+round), func(t *testing.T) {
			total += faultRound(t, *faultSeed+round, *faultOperations-total)
		})
	}
	t.Logf("%d operations were checked", total)
}

// faultRound injects faults into one cluster and returns how many operations it checked.
func faultRound(t *testing.T, seed uint64, wanted int) int {
	random := rand.New(rand.NewPCG(seed, 0))
	k := startCrew(t, 3, random)
	table, err := k.c.CreateTable(t.Context(), "register", client.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	load := &crowdLoad{k: k, table: table, seed: seed, most: int64(min(wanted, roundOperations)), begin: time.Now()}
	load.start(t.Context())
	passing, disks := chosenFaults(t)
	for range roundFaults {
		if len(passing) == 0 || load.enough() {
			break
		}
		what := passing[random.IntN(len(passing))].run(k, faultHold)
		await(t, "the cluster to be whole after "+what, settleWait, k.isHealthy)
		time.Sleep(faultCalm)
		t.Logf("%6d operations: %s", load.count.Load(), what)
	}
	if len(disks) > 0 {
		what := disks[seed%uint64(len(disks))].run(k, faultHold)
		whole := becomesTrue(diskWait, k.isHealthy)
		t.Logf("%6d operations: %s; whole again: %v", load.count.Load(), what, whole)
	}
	load.finish()
	return load.checkHistory(t)
}

// chosenFaults returns the faults that -faults.only selects.
func chosenFaults(t *testing.T) (passing, disks []crewFault) {
	keep := func(all []crewFault) (out []crewFault) {
		for _, f := range all {
			if *faultKinds == "" || f.name == *faultKinds {
				out = append(out, f)
			}
		}
		return out
	}
	passing, disks = keep(passingFaults()), keep(diskFaults())
	if len(passing)+len(disks) == 0 {
		t.Fatalf("-faults.only %s: unknown fault", *faultKinds)
	}
	return passing, disks
}

// becomesTrue reports whether f becomes true in time.
func becomesTrue(most time.Duration, f func() bool) bool {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); time.Sleep(awaitPoll) {
		if f() {
			return true
		}
	}
	return false
}

// crowdLoad is a load of callers that record what they see.
type crowdLoad struct {
	k     *crew
	table *client.Table
	seed  uint64
	most  int64
	begin time.Time

	count atomic.Int64
	calls [crowds]atomic.Int64
	ended atomic.Bool
	wait  sync.WaitGroup

	mu      sync.Mutex // guards history
	history []*check.Op
}

// enough reports whether the load has made as many calls as it should.
func (l *crowdLoad) enough() bool { return l.count.Load() >= l.most }

// start begins the load of all crowds.
func (l *crowdLoad) start(ctx context.Context) {
	for i := range crowds * crowdSize {
		c := &caller{l: l, index: i, random: rand.New(rand.NewPCG(l.seed, uint64(i+1)))}
		l.wait.Go(func() {
			for !l.ended.Load() {
				c.call(ctx)
			}
			l.record(c.done)
		})
	}
}

// record adds the operations of one caller to the history that is judged.
func (l *crowdLoad) record(ops []*check.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, op := range ops {
		op.ID = len(l.history)
		op.Request.Seq = uint64(op.ID + 1) // any number that differs: the client does not reveal its own
		l.history = append(l.history, op)
	}
}

// finish ends the load and then reads each key, so that a lost write shows in the history.
func (l *crowdLoad) finish() {
	l.k.t.Helper()
	l.ended.Store(true)
	l.wait.Wait()
	last := &caller{l: l, index: crowds * crowdSize}
	for i := range crowds {
		for gen := range l.calls[i].Load()/keyCalls + 1 {
			name := keyName(i, gen)
			await(l.k.t, "the key to be read", settleWait, func() bool { return last.read(l.k.t.Context(), name) })
		}
	}
	l.record(last.done)
}

// checkHistory fails the test if a single copy could not have given the answers. It returns the
// number of operations.
func (l *crowdLoad) checkHistory(t *testing.T) int {
	t.Helper()
	l.setRanges()
	if err := check.RealTime(l.history); err != nil {
		t.Error(err)
	}
	if err := check.Linearizable(l.history); err != nil {
		t.Error(err)
	}
	results := map[check.Result]int{}
	for _, op := range l.history {
		results[op.Result]++
	}
	t.Logf("%d operations in %v: %v", len(l.history), time.Since(l.begin).Round(time.Second), results)
	return len(l.history)
}

// setRanges sets the range of every operation. Only answers name it, but all operations on a key
// belong to the same range.
func (l *crowdLoad) setRanges() {
	ranges := map[string]rhumb.RangeID{}
	for _, op := range l.history {
		if op.Result == check.OK {
			ranges[nameOf(op)] = op.Range
		}
	}
	for _, op := range l.history {
		op.Range = ranges[nameOf(op)]
	}
}

func nameOf(op *check.Op) string {
	if op.IsWrite() {
		return string(op.Mutations[0].Name)
	}
	return string(op.Names[0])
}

// keyName returns the key with number gen of a crowd.
func keyName(crowd int, gen int64) []byte { return fmt.Appendf(nil, "k%d-%d", crowd, gen) }

// caller makes one call at a time.
type caller struct {
	l       *crowdLoad
	index   int
	random  *rand.Rand
	key     string        // the key of the last call
	version rhumb.Version // the newest version of it that the caller saw
	done    []*check.Op
}

// call reads or writes the current key of the caller's crowd.
func (c *caller) call(ctx context.Context) {
	crowd := c.index % crowds
	name := keyName(crowd, c.l.calls[crowd].Add(1)/keyCalls)
	if string(name) != c.key {
		c.key, c.version = string(name), rhumb.Version{}
	}
	if c.random.IntN(2) == 0 {
		c.read(ctx, name)
		return
	}
	c.write(ctx, c.mutation(name))
}

// mutation returns a random write.
func (c *caller) mutation(name []byte) rhumb.Mutation {
	value := rhumb.EncodeOpaque(nil, fmt.Appendf(nil, "%d.%d", c.index, len(c.done)))
	m := rhumb.Mutation{Kind: rhumb.Put, Table: c.l.table.Info().ID, Name: name, Value: value}
	switch draw := c.random.IntN(10); {
	case draw == 0:
		m.Kind, m.Value = rhumb.Delete, nil
	case draw == 1:
		m.Cond.Kind = rhumb.IfAbsent
	case draw == 2:
		m.Cond.Kind = rhumb.IfPresent
	case draw < 6 && !c.version.IsZero():
		m.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: c.version}
	}
	return m
}

// begin records an operation that begins now.
func (c *caller) begin() *check.Op {
	c.l.count.Add(1)
	op := &check.Op{Client: c.index, Call: time.Since(c.l.begin), Return: check.Forever}
	c.done = append(c.done, op)
	return op
}

// read reports whether the key was read.
func (c *caller) read(ctx context.Context, name []byte) bool {
	op := c.begin()
	op.Table, op.Names = c.l.table.Info().ID, [][]byte{name}
	got, err := c.l.table.Get(ctx, name, client.GetOptions{Home: "singapore"})
	op.Return = time.Since(c.l.begin)
	switch rhumb.KindOf(err) {
	case rhumb.NotFound:
		got = client.Got{Receipt: got.Receipt}
	case rhumb.KindOf(nil):
	default:
		return false // the outcome stays unknown
	}
	op.Result, op.Items = check.OK, []check.Item{{Version: got.Version, Value: got.Value}}
	op.Range, op.At = got.Receipt.Range, got.Receipt.Timestamp
	c.version = got.Version
	return true
}

// write sends a mutation, and records its answer as applied, refused, or unknown.
func (c *caller) write(ctx context.Context, m rhumb.Mutation) {
	op := c.begin()
	op.Mutations = []rhumb.Mutation{m}
	r, err := c.l.k.c.Batch(ctx, op.Mutations, client.BatchOptions{Home: "singapore"})
	op.Return = time.Since(c.l.begin)
	switch kind := rhumb.KindOf(err); {
	case err == nil && r.Applied:
		op.Result, op.Outcome, op.Range = check.OK, r.Outcome, r.Receipt.Range
		c.version = r.Version
	case err == nil:
		op.Result = check.Unchanged
	case kind == rhumb.ConditionFailed:
		op.Result = check.ConditionFailed
	case kind.NotApplied():
		op.Result = check.NotApplied
	}
}
