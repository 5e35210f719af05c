package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sim/check"
)

// Times of a client.
const (
	// attemptMax is how long a client waits for one answer before it tries again elsewhere.
	attemptMax = 700 * time.Millisecond
	// retryAfter is how long it waits after a refusal.
	retryAfter = 40 * time.Millisecond
)

// theTable is the table of all records.
const theTable rhumb.TableID = 1

// client issues one operation at a time.
type client struct {
	w     *world
	index int
	at    place
	id    rhumb.UUID
	seq   uint64
	// route is the node that the client believes to be primary, by range.
	route []int
	// versions are the newest versions that it saw, for conditions.
	versions map[string]rhumb.Version
	// inserted are names that it made, to read them again.
	inserted [][]byte
	counter  int64
	busy     bool
}

// call is an operation under way.
type call struct {
	c       *client
	op      *check.Op
	rng     int
	batch   *rhumb.Batch
	attempt int
	until   time.Duration
	// open counts attempts of a write that may still take effect.
	open int
	done bool
}

func newClient(w *world, i int) *client {
	c := &client{
		w: w, index: i, at: place(w.p.nodes + i), id: w.uuid(), route: make([]int, len(w.ranges)),
		versions: map[string]rhumb.Version{},
	}
	for i := range c.route {
		c.route[i] = w.rnd.IntN(w.p.nodes)
	}
	c.next()
	return c
}

// next plans the next operation.
func (c *client) next() {
	c.w.after(time.Duration(float64(c.w.p.think)*c.w.rnd.ExpFloat64()), func() {
		if !c.w.loading {
			c.next()
			return
		}
		c.issue(c.makeOp())
	})
}

func (c *client) name() string { return fmt.Sprintf("c%d", c.index) }

// makeOp draws an operation.
func (c *client) makeOp() *call {
	w := c.w
	rng := w.rnd.IntN(len(w.ranges))
	op := &check.Op{ID: len(w.history), Client: c.index, Range: w.ranges[rng], Table: theTable}
	call := &call{c: c, op: op, rng: rng, until: w.now + time.Duration(1+w.rnd.IntN(6))*time.Second}
	if w.rnd.IntN(100) < 40 {
		c.makeRead(op)
		return call
	}
	c.makeWrite(op)
	c.seq++
	op.Request = rhumb.RequestID{Client: c.id, Seq: c.seq}
	call.batch = &rhumb.Batch{Range: op.Range, ID: op.Request, Mutations: op.Mutations}
	w.judge(call.batch.Validate())
	return call
}

// key gives a name; names of one number are different records in different ranges.
func (c *client) key(i int) []byte { return fmt.Appendf(nil, "k%d", i) }

func (c *client) makeRead(op *check.Op) {
	first := c.w.rnd.IntN(c.w.p.keys)
	op.Names = [][]byte{c.key(first)}
	switch {
	case c.w.rnd.IntN(3) == 0 && c.w.p.keys > 1:
		op.Names = append(op.Names, c.key((first+1)%c.w.p.keys))
	case len(c.inserted) > 0 && c.w.rnd.IntN(10) == 0:
		op.Names = [][]byte{one(c.w.rnd, c.inserted...)}
	}
}

func (c *client) makeWrite(op *check.Op) {
	r := c.w.rnd
	first := r.IntN(c.w.p.keys)
	count := 1
	if r.IntN(4) == 0 {
		count = min(1+r.IntN(3), c.w.p.keys)
	}
	for i := range count {
		name := c.key((first + i) % c.w.p.keys)
		op.Mutations = append(op.Mutations, c.makeMutation(op, name))
	}
	if r.IntN(20) == 0 {
		op.Mutations = []rhumb.Mutation{{Kind: rhumb.Insert, Table: theTable, Value: c.record(op, "v")}}
	}
}

// record makes a stored record that no other operation writes.
func (c *client) record(op *check.Op, field string) []byte {
	rec, err := rhumb.NewRecord(
		rhumb.Field{Name: field, Value: rhumb.Int64Field(int64(op.ID))},
		rhumb.Field{Name: "seq", Value: rhumb.Int64Field(c.counter)},
	)
	c.w.judge(err)
	return rhumb.EncodeRecord(nil, rec)
}

func (c *client) makeMutation(op *check.Op, name []byte) rhumb.Mutation {
	r := c.w.rnd
	m := rhumb.Mutation{Table: theTable, Name: name}
	switch kind := r.IntN(10); {
	case kind < 5:
		m.Kind, m.Value = rhumb.Put, c.record(op, "v")
	case kind < 9:
		m.Kind, m.Value = rhumb.Patch, c.record(op, one(r, "a", "b", "v"))
	default:
		m.Kind = rhumb.Delete
	}
	switch cond := r.IntN(12); {
	case cond == 0:
		m.Cond.Kind = rhumb.IfAbsent
	case cond == 1:
		m.Cond.Kind = rhumb.IfPresent
	case cond < 5 && !c.versions[c.versionKey(op, name)].IsZero():
		m.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: c.versions[c.versionKey(op, name)]}
	case cond < 7 && m.Kind == rhumb.Patch:
		c.counter += int64(r.IntN(2))
		m.Value = c.record(op, "v")
		m.Cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"seq"}}
	}
	return m
}

func (c *client) versionKey(op *check.Op, name []byte) string {
	return op.Range.String() + string(name)
}

// issue begins an operation.
func (c *client) issue(call *call) {
	c.busy = true
	call.op.Call, call.op.Return = c.w.now, check.Forever
	c.w.history = append(c.w.history, call.op)
	if c.w.tracing() {
		c.w.tracef(c.name(), "begin %v", call.op)
	}
	call.try()
}

// try makes one attempt, and plans the next for when it stays without an answer.
func (call *call) try() {
	c, w := call.c, call.c.w
	if w.now > call.until {
		call.finish(check.Unknown)
		return
	}
	call.attempt++
	attempt := call.attempt
	n := w.nodes[c.route[call.rng]]
	answered := false
	reply := func(do func()) {
		w.net.send(n.at, c.at, func() {
			if call.done || answered {
				return
			}
			answered = true
			do()
		})
	}
	if call.op.IsWrite() {
		call.open++
		repeated := w.net.send(c.at, n.at, func() {
			n.run(n.life, func() {
				n.propose(call.batch, func(a replica.Answer) {
					if a.Err == nil && a.Outcome.Applied {
						w.judge(w.monitor.Acked(call.op.Range, a.Outcome.Seq, w.diskOf(call.op.Range)))
					}
					reply(func() { call.answered(a) })
				})
			})
		})
		if repeated {
			call.open++ // the second copy may do what the answer to the first denies
		}
	} else {
		_, acked := w.monitor.Acknowledged(call.op.Range)
		w.net.send(c.at, n.at, func() {
			n.run(n.life, func() { n.spawn(func() { call.read(n, acked, reply) }) })
		})
	}
	w.after(attemptMax, func() {
		if !call.done && !answered && call.attempt == attempt {
			call.reroute()
			call.try()
		}
	})
}

// read runs at the node.
func (call *call) read(n *node, acked rhumb.Timestamp, reply func(func())) {
	items, at, err := n.read(call.rng, call.op.Names)
	if err == nil {
		n.w.judge(n.w.monitor.Read(call.op.Range, n.id, at, acked))
	}
	reply(func() {
		if err != nil {
			call.again(rhumb.KindOf(err))
			return
		}
		call.op.Items, call.op.At = items, at
		for i, it := range items {
			if !it.Version.IsZero() {
				call.c.versions[call.c.versionKey(call.op, call.op.Names[i])] = it.Version
			}
		}
		call.finish(check.OK)
	})
}

// answered takes the answer to one attempt of a write.
func (call *call) answered(a replica.Answer) {
	call.open--
	w, op := call.c.w, call.op
	kind := rhumb.KindOf(a.Err)
	switch {
	case a.Err == nil && a.Outcome.Applied:
		op.Outcome = a.Outcome
		for i := range op.Mutations {
			m := &op.Mutations[i]
			if m.Kind != rhumb.Insert {
				call.c.versions[call.c.versionKey(op, m.Name)] = a.Outcome.Version
			}
		}
		call.name()
		call.finish(check.OK)
	case a.Err == nil:
		call.finish(check.Unchanged)
	case kind == rhumb.ConditionFailed && call.open == 0:
		call.finish(check.ConditionFailed)
	case kind == rhumb.ConditionFailed:
		call.finish(check.Unknown) // an attempt without an answer may come later and find the condition true
	case kind == rhumb.Expired:
		call.finish(check.Unknown) // the stored result is collected: a clock that jumps makes it old
	case kind == rhumb.NotPrimary || kind == rhumb.Unavailable || kind == rhumb.Overloaded || kind == rhumb.Unknown:
		if kind == rhumb.Unknown {
			call.open++
		}
		call.again(kind)
	case kind.NotApplied() && call.open == 0:
		w.stats.Refused++
		call.finish(check.NotApplied)
	case kind.NotApplied():
		call.finish(check.Unknown)
	default:
		w.failf("client %d: %v", call.c.index, a.Err)
	}
}

// name puts the names that the server gave into the history: an insert is a put of a key that nobody else names.
func (call *call) name() {
	op := call.op
	if op.Mutations[0].Kind != rhumb.Insert {
		return
	}
	if len(op.Outcome.Names) != 1 {
		call.c.w.failf("client %d: an insert was answered with %d names", call.c.index, len(op.Outcome.Names))
		return
	}
	op.Mutations = slices.Clone(op.Mutations) // the batch may still be on its way to somebody
	check.NameInserts(op.Mutations, op.Outcome.Names)
	if op.Range == call.c.w.ranges[0] {
		call.c.inserted = append(call.c.inserted, op.Mutations[0].Name)
	}
}

// again tries once more after a refusal.
func (call *call) again(kind rhumb.Kind) {
	w := call.c.w
	if call.op.IsWrite() && w.now > call.until {
		if call.open == 0 {
			call.finish(check.NotApplied)
			return
		}
		call.finish(check.Unknown)
		return
	}
	if kind == rhumb.NotPrimary || w.rnd.IntN(4) == 0 {
		call.reroute()
	}
	w.after(retryAfter+time.Duration(w.rnd.Int64N(int64(retryAfter))), func() {
		if !call.done {
			call.try()
		}
	})
}

// reroute picks another node: mostly the primary that some node's copy of the metadata names.
func (call *call) reroute() {
	c, w := call.c, call.c.w
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	c.route[call.rng] = n.index
	if n.group == nil || w.rnd.IntN(5) == 0 {
		return
	}
	if r, ok := n.group.State().Range(w.ranges[call.rng]); ok {
		c.route[call.rng] = int(r.Primary) - 1
	}
}

// finish ends an operation.
func (call *call) finish(res check.Result) {
	w, op := call.c.w, call.op
	call.done = true
	op.Result = res
	if res != check.Unknown {
		op.Return = w.now
	}
	w.stats.Results[res]++
	if w.tracing() {
		w.tracef(call.c.name(), "end %v", op)
	}
	call.c.busy = false
	call.c.next()
}

// idle reports whether no client has an operation under way.
func (w *world) idle() bool {
	return !slices.ContainsFunc(w.clients, func(c *client) bool { return c.busy })
}
