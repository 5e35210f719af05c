package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/sim/check"
)

// keyCalls is the number of calls after which the callers move to the next key, so that the history of a key can be searched.
const keyCalls = 150

// register is the workload whose history is searched for an order that a single copy could have answered in.
type register struct {
	e *env
	// calls counts the calls of all callers, and decides which key is the present one.
	calls atomic.Int64

	mu sync.Mutex // guards the fields below
	// history holds all operations in the order in which they began.
	history []*check.Op
	seen    map[*caller]registerKey
}

// registerKey is the key that a caller used last, and the newest version of it that the caller saw.
type registerKey struct {
	name    string
	version rhumb.Version
}

// newRegister starts the workload register.
func newRegister(e *env) script { return &register{e: e, seen: map[*caller]registerKey{}} }

// begin records an operation. Its result is Unknown until it is set.
func (r *register) begin(c *caller, op *check.Op) *check.Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	// An operation whose answer never comes may take effect at any later time, so its end is Forever until it is known.
	op.ID, op.Client, op.Call, op.Return = len(r.history), c.index, r.e.record.now(), check.Forever
	op.Request.Seq = uint64(op.ID + 1) // any number that differs: the client does not reveal its own
	r.history = append(r.history, op)
	return op
}

// latest returns the newest version that the caller saw of a key.
func (r *register) latest(c *caller, name string) rhumb.Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[c].name != name {
		return rhumb.Version{}
	}
	return r.seen[c].version
}

// saw notes the version that a caller saw, for its next conditional write.
func (r *register) saw(c *caller, name string, version rhumb.Version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[c] = registerKey{name, version}
}

// call reads or writes the present key. Half of the calls are reads. Among the writes are deletions, and writes with three kinds
// of condition, because each of them is another path through the primary.
func (r *register) call(ctx context.Context, c *caller) {
	name := fmt.Sprintf("r%d", r.calls.Add(1)/keyCalls)
	if c.random.IntN(2) == 0 {
		_ = r.read(ctx, c, name)
		return
	}
	m := rhumb.Mutation{Kind: rhumb.Put, Table: c.table.Info().ID, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(c.unique()))}
	version := r.latest(c, name)
	switch draw := c.random.IntN(10); {
	case draw == 0:
		m.Kind, m.Value = rhumb.Delete, nil
	case draw == 1:
		m.Cond.Kind = rhumb.IfAbsent
	case draw == 2:
		m.Cond.Kind = rhumb.IfPresent
	case draw < 6 && !version.IsZero():
		m.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: version}
	}
	op := r.begin(c, &check.Op{Mutations: []rhumb.Mutation{m}})
	got, err := c.client.Batch(ctx, op.Mutations, client.BatchOptions{Home: r.e.region})
	r.e.record.add(op.Call, err)
	op.Return = r.e.record.now()
	if op.Result = resultOf(err, err == nil && got.Applied); op.Result == check.OK {
		op.Outcome, op.Range = got.Outcome, got.Receipt.Range
		r.saw(c, name, got.Version)
	}
}

// resultOf returns the result of a write from its answer.
func resultOf(err error, applied bool) check.Result {
	switch kind := rhumb.KindOf(err); {
	case err == nil && applied:
		return check.OK
	case err == nil:
		return check.Unchanged
	case kind == rhumb.ConditionFailed:
		return check.ConditionFailed
	case kind.NotApplied():
		return check.NotApplied
	}
	return check.Unknown
}

// read reads a key and returns an error if it was not answered.
func (r *register) read(ctx context.Context, c *caller, name string) error {
	op := r.begin(c, &check.Op{Table: c.table.Info().ID, Names: [][]byte{[]byte(name)}})
	got, err := c.table.Get(ctx, op.Names[0], client.GetOptions{Home: r.e.region})
	r.e.record.addRead(op.Call, err)
	op.Return = r.e.record.now()
	if err != nil && rhumb.KindOf(err) != rhumb.NotFound {
		return err
	}
	// A missing record has neither value nor version.
	item := check.Item{}
	if err == nil {
		item = check.Item{Version: got.Version, Value: got.Value}
	}
	op.Result, op.Items, op.Range, op.At = check.OK, []check.Item{item}, got.Receipt.Range, got.Receipt.Timestamp
	r.saw(c, name, item.Version)
	return nil
}

// check reads each key once more and judges the history.
func (r *register) check(ctx context.Context) Verdict {
	// Each key is read once more, so that a lost write shows in the history.
	last := &caller{index: callersPerWorkload, table: r.e.tables[0], client: r.e.clients[0], record: r.e.record}
	for n := range r.calls.Load()/keyCalls + 1 {
		if err := eventually(ctx, func() error { return r.read(ctx, last, fmt.Sprintf("r%d", n)) }); err != nil {
			return Verdict{Operations: len(r.history), Err: err}
		}
	}
	return r.verdict()
}

// verdict searches an order of all operations that a single copy could have answered in. Each key
// is searched alone.
func (r *register) verdict() Verdict {
	// Only answers name the range, but all operations on a key belong to the same one.
	ranges := map[string]rhumb.RangeID{}
	nameOf := func(op *check.Op) string {
		if op.IsWrite() {
			return string(op.Mutations[0].Name)
		}
		return string(op.Names[0])
	}
	for _, op := range r.history {
		if op.Result == check.OK {
			ranges[nameOf(op)] = op.Range
		}
	}
	results, acknowledged := map[check.Result]int{}, 0
	for _, op := range r.history {
		op.Range = ranges[nameOf(op)]
		results[op.Result]++
		if op.IsWrite() && op.Result == check.OK {
			acknowledged++
		}
	}
	return Verdict{Operations: len(r.history), Acknowledged: acknowledged, Text: fmt.Sprint(results), Err: errors.Join(check.RealTime(r.history), check.Linearizable(r.history))}
}
