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
	// attemptMax is how long a client waits for one answer before it tries another node.
	attemptMax = 700 * time.Millisecond
	// retryAfter is how long a client waits after a refusal.
	retryAfter = 40 * time.Millisecond
)

// theTable is the table that is created first. Most runs have no other.
const theTable rhumb.TableID = 1

// client is a user of the cluster. It issues one operation at a time, so its operations are ordered
// in time and the checkers need only the overlaps between clients.
type client struct {
	w     *world
	index int
	at    place
	id    rhumb.UUID
	seq   uint64
	// route is the node that the client believes to be primary, by range.
	route []int
	// versions are the newest versions that the client has seen, used in conditions.
	versions map[string]rhumb.Version
	// inserted are server-generated names, kept so that the client can read the records again.
	inserted [][]byte
	// counter grows for IfNewer conditions, sometimes by 0, so that both outcomes occur.
	counter int64
	busy    bool
}

// call is an operation in progress, with all its attempts.
type call struct {
	c  *client
	op *check.Op
	// rng is the index of the root, home that of the first key, which all others of the operation share a range with.
	rng     int
	home    rhumb.RangeID
	batch   *rhumb.Batch
	attempt int
	// until is when the client stops retrying.
	until time.Duration
	// open counts the copies of a write that may still take effect: attempts without an answer, and
	// repeated messages. A definite failure may be recorded only if open is 0.
	open int
	done bool
}

// newClient returns a client and schedules its first operation.
func newClient(w *world, i int) *client {
	c := &client{
		w: w, index: i, at: place(w.p.nodes + i), id: w.drawUUID(), route: make([]int, len(w.roots)),
		versions: map[string]rhumb.Version{},
	}
	// The first route is a guess, so that every run also tests routing by refusals.
	for i := range c.route {
		c.route[i] = w.rnd.IntN(w.p.nodes)
	}
	c.scheduleNext()
	return c
}

// scheduleNext schedules the next operation after a random think time.
func (c *client) scheduleNext() {
	c.w.after(time.Duration(float64(c.w.p.think)*c.w.rnd.ExpFloat64()), func() {
		if !c.w.loading {
			c.scheduleNext()
			return
		}
		c.issueCall(c.makeOp())
	})
}

// name returns the name of the client in traces.
func (c *client) name() string { return fmt.Sprintf("c%d", c.index) }

// makeOp draws an operation, 40 % of them reads.
func (c *client) makeOp() *call {
	w := c.w
	rng := w.rnd.IntN(len(w.roots))
	// A root that was given up with its region has no range to ask.
	for w.roots[rng].gone {
		rng = (rng + 1) % len(w.roots)
	}
	op := &check.Op{ID: len(w.history), Client: c.index, Range: w.ranges[rng], Table: w.roots[rng].table}
	call := &call{c: c, op: op, rng: rng, until: w.now + time.Duration(1+w.rnd.IntN(6))*time.Second}
	if w.rnd.IntN(100) < 40 {
		c.makeRead(op)
		call.home, op.Part = w.homeOf(rng, op.Names[0]), w.cellOf(rng, op.Names[0])
		return call
	}
	c.makeWrite(op)
	// The home decides which range has the operation, now and after a split.
	call.home, op.Part = op.Range, 0
	if name := op.Mutations[0].Name; len(name) > 0 {
		call.home, op.Part = w.homeOf(rng, name), w.cellOf(rng, name)
	}
	c.seq++
	op.Request = rhumb.RequestID{Client: c.id, Seq: c.seq}
	call.batch = &rhumb.Batch{Range: call.home, ID: op.Request, Mutations: op.Mutations}
	// The generator must produce valid batches: a rejected one would test nothing.
	w.judge(call.batch.Validate())
	return call
}

// recordName returns name i of the clients. The same name denotes a different record in each range.
func recordName(i int) []byte { return fmt.Appendf(nil, "k%d", i) }

// makeRead draws the keys of a read.
func (c *client) makeRead(op *check.Op) {
	first := c.w.rnd.IntN(c.w.p.keys)
	op.Names = [][]byte{recordName(first)}
	switch {
	// Two keys in one read test that a read sees one state of the range.
	case c.w.rnd.IntN(3) == 0 && c.w.p.keys > 1:
		rt := c.w.rootOf(op.Range)
		if name := recordName((first + 1) % c.w.p.keys); c.w.cellOf(rt, name) == c.w.cellOf(rt, op.Names[0]) {
			op.Names = append(op.Names, name)
		}
	case len(c.inserted) > 0 && c.w.rnd.IntN(10) == 0:
		op.Names = [][]byte{oneOf(c.w.rnd, c.inserted...)}
	}
}

// makeWrite draws the mutations of a write: usually one, sometimes a batch or an insert.
func (c *client) makeWrite(op *check.Op) {
	r := c.w.rnd
	first := r.IntN(c.w.p.keys)
	count := 1
	// Consecutive names keep the mutations of one batch on distinct records.
	if r.IntN(4) == 0 {
		count = min(1+r.IntN(3), c.w.p.keys)
	}
	for i := range count {
		name := recordName((first + i) % c.w.p.keys)
		// A batch is of one range, also after a split.
		if rt := c.w.rootOf(op.Range); c.w.cellOf(rt, name) != c.w.cellOf(rt, recordName(first)) {
			continue
		}
		op.Mutations = append(op.Mutations, c.makeMutation(op, name))
	}
	// An insert replaces the batch: recordNames expects exactly one generated name.
	if r.IntN(20) == 0 {
		op.Mutations = []rhumb.Mutation{{Kind: rhumb.Insert, Table: op.Table, Value: c.encodeRecord(op, "v")}}
	}
}

// encodeRecord encodes a record that no other operation writes: it holds the id of the operation,
// so a value read later identifies its writer.
func (c *client) encodeRecord(op *check.Op, field string) []byte {
	rec, err := rhumb.NewRecord(
		rhumb.Field{Name: field, Value: rhumb.Int64Field(int64(op.ID))},
		rhumb.Field{Name: "seq", Value: rhumb.Int64Field(c.counter)},
	)
	c.w.judge(err)
	return rhumb.EncodeRecord(nil, rec)
}

// makeMutation draws a mutation of a record, often with a condition.
func (c *client) makeMutation(op *check.Op, name []byte) rhumb.Mutation {
	r := c.w.rnd
	m := rhumb.Mutation{Table: op.Table, Name: name}
	switch kind := r.IntN(10); {
	case kind < 5:
		m.Kind, m.Value = rhumb.Put, c.encodeRecord(op, "v")
	case kind < 9:
		m.Kind, m.Value = rhumb.Patch, c.encodeRecord(op, oneOf(r, "a", "b", "v"))
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
	// IfNewer compares a field, so the value must have that field: the patch is rewritten with it.
	case cond < 7 && m.Kind == rhumb.Patch:
		c.counter += int64(r.IntN(2))
		m.Value = c.encodeRecord(op, "v")
		m.Cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"seq"}}
	}
	return m
}

// versionKey returns the key of a record in client.versions, which spans all ranges.
func (c *client) versionKey(op *check.Op, name []byte) string {
	return op.Range.String() + string(name)
}

// issueCall starts an operation. Its return time is set to Forever, because an operation without an
// answer may take effect at any later time.
func (c *client) issueCall(call *call) {
	c.busy = true
	call.op.Call, call.op.Return = c.w.now, check.Forever
	c.w.history = append(c.w.history, call.op)
	if c.w.tracing() {
		c.w.tracef(c.name(), "begin %v", call.op)
	}
	call.sendAttempt()
}

// sendAttempt sends one attempt and schedules the next in case no answer arrives. Every attempt
// carries the same request ID, so the cluster must apply the write at most once
// (docs/replication.md#requests).
func (call *call) sendAttempt() {
	c, w := call.c, call.c.w
	if w.now > call.until || w.roots[call.rng].gone {
		call.finish(check.Unknown)
		return
	}
	call.attempt++
	attempt := call.attempt
	n := w.nodes[c.route[call.rng]]
	// Answers to this attempt may arrive twice; only the first one counts.
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
					// The monitor checks at the moment the node answers, not when the client hears
					// of it: from here on the write counts as acknowledged (invariant I3).
					if a.Err == nil && a.Outcome.Applied {
						by := w.answeredBy(call.rng, call.op.Request, a.Outcome.Seq)
						w.judge(w.monitor.Acked(by, a.Outcome.Seq, w.diskOf(by)))
					}
					reply(func() { call.handleAnswer(a) })
				})
			})
		})
		if repeated {
			// The second copy may be applied although the answer to the first denies it.
			call.open++
		}
	} else {
		// Everything acknowledged before the read is sent must be visible to it (invariant I6).
		acked := w.acknowledged(call.rng)
		w.net.send(c.at, n.at, func() {
			n.run(n.life, func() { n.spawn(func() { call.readAt(n, acked, reply) }) })
		})
	}
	w.after(attemptMax, func() {
		if !call.done && !answered && call.attempt == attempt {
			call.pickNode()
			call.sendAttempt()
		}
	})
}

// readAt executes the read. It runs as a process of the node.
func (call *call) readAt(n *node, acked map[rhumb.RangeID]rhumb.Timestamp, reply func(func())) {
	items, at, by, err := n.readRecords(call.home, call.op.Names)
	if err == nil {
		// A range that was born since has nothing that was acknowledged before.
		n.w.judge(n.w.monitor.Read(by, n.id, at, acked[by]))
	}
	reply(func() {
		if err != nil {
			call.retryAfterRefusal(rhumb.KindOf(err))
			return
		}
		// The operation is filled in only when the answer arrives: an answer that is lost must
		// leave the operation without a result.
		call.op.Items, call.op.At = items, at
		for i, it := range items {
			if !it.Version.IsZero() {
				call.c.versions[call.c.versionKey(call.op, call.op.Names[i])] = it.Version
			}
		}
		call.finish(check.OK)
	})
}

// handleAnswer handles the answer to one attempt of a write. A failure is recorded as definite only
// if no other attempt can still apply the write; otherwise the outcome is Unknown and check.Resolve
// looks it up in the log.
func (call *call) handleAnswer(a replica.Answer) {
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
		call.recordNames()
		call.finish(check.OK)
	case a.Err == nil:
		call.finish(check.Unchanged)
	case kind == rhumb.ConditionFailed && call.open == 0:
		call.finish(check.ConditionFailed)
	case kind == rhumb.ConditionFailed:
		// Another attempt may arrive later and find the condition true.
		call.finish(check.Unknown)
	case kind == rhumb.Expired:
		// The stored result is collected: a clock that jumps makes it old.
		call.finish(check.Unknown)
	case kind == rhumb.NotPrimary || kind == rhumb.Unavailable || kind == rhumb.Overloaded || kind == rhumb.Unknown:
		// Unknown means that even the node does not know, so the attempt stays open.
		if kind == rhumb.Unknown {
			call.open++
		}
		call.retryAfterRefusal(kind)
	case kind.NotApplied() && call.open == 0:
		w.stats.Refused++
		call.finish(check.NotApplied)
	case kind.NotApplied():
		call.finish(check.Unknown)
	case w.roots[call.rng].gone:
		call.finish(check.Unknown)
	default:
		// Any other kind is a bug: a client must not see it under these faults.
		w.failf("client %d: %v", call.c.index, a.Err)
	}
}

// recordNames replaces an insert in the history by a put of the generated name, which no other
// operation uses.
func (call *call) recordNames() {
	op := call.op
	if op.Mutations[0].Kind != rhumb.Insert {
		return
	}
	if len(op.Outcome.Names) != 1 {
		call.c.w.failf("client %d: an insert was answered with %d names", call.c.index, len(op.Outcome.Names))
		return
	}
	// The batch may still be on its way to another node.
	op.Mutations = slices.Clone(op.Mutations)
	check.NameInserts(op.Mutations, op.Outcome.Names)
	// Names are kept for one range only, because makeRead draws its range first: a name of another
	// range would denote nothing.
	if op.Range == call.c.w.ranges[0] {
		call.c.inserted = append(call.c.inserted, op.Mutations[0].Name)
	}
}

// retryAfterRefusal tries again after a refusal, or ends the call when its time has passed.
func (call *call) retryAfterRefusal(kind rhumb.Kind) {
	w := call.c.w
	if call.op.IsWrite() && w.now > call.until {
		// Every attempt was refused, and none is on its way.
		if call.open == 0 {
			call.finish(check.NotApplied)
			return
		}
		call.finish(check.Unknown)
		return
	}
	// Other refusals are mostly temporary: the same node is asked again, but not always, or a
	// client would stay at a node that can never serve.
	if kind == rhumb.NotPrimary || w.rnd.IntN(4) == 0 {
		call.pickNode()
	}
	w.after(retryAfter+time.Duration(w.rnd.Int64N(int64(retryAfter))), func() {
		if !call.done {
			call.sendAttempt()
		}
	})
}

// pickNode picks another node: mostly the primary named by the metadata copy of a random node,
// which may be outdated.
func (call *call) pickNode() {
	c, w := call.c, call.c.w
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	c.route[call.rng] = n.index
	if n.group == nil || w.rnd.IntN(5) == 0 {
		return
	}
	if r, ok := n.group.State().RangeOf(call.home); ok {
		c.route[call.rng] = int(r.Primary) - 1
	}
}

// finish records the result of an operation and schedules the next one.
func (call *call) finish(res check.Result) {
	w, op := call.c.w, call.op
	call.done = true
	op.Result = res
	// An unknown outcome keeps the return time Forever.
	if res != check.Unknown {
		op.Return = w.now
	}
	w.stats.Results[res]++
	if w.tracing() {
		w.tracef(call.c.name(), "end %v", op)
	}
	call.c.busy = false
	call.c.scheduleNext()
}

// clientsIdle reports whether no client has an operation in progress.
func (w *world) clientsIdle() bool {
	return !slices.ContainsFunc(w.clients, func(c *client) bool { return c.busy })
}
