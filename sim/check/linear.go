package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/rhumbdb/rhumb"
)

// porcupineWait bounds the search for one key in real time. Histories as long as those of the
// simulator take milliseconds. An undecided history counts as a failure, not as a success.
const porcupineWait = 2 * time.Minute

// keyName is a key of a history.
type keyName struct {
	rng   rhumb.RangeID
	table rhumb.TableID
	name  string
}

func (k keyName) String() string {
	return fmt.Sprintf("%s/%s/%s", k.table, k.rng, rhumb.NameString([]byte(k.name)))
}

// part is the part of an operation that concerns one key.
type part struct {
	op *Op
	// index is the index of the mutation in a write, or of the name in a read.
	index int
}

// register is the state of one key in the sequential model. The version, also that of a deletion,
// is known only if an answer reported it: a write of unknown outcome leaves the version unknown
// until a read returns it. Versions only grow.
type register struct {
	exists bool
	value  string
	known  bool
	ver    rhumb.Version
}

// Linearizable reports the first key whose operations no single copy could have answered. It checks
// each key separately, because the search is exponential in the number of concurrent operations: a
// write of several keys counts as one operation on each. RealTime and Atomic cover the order across
// keys.
func Linearizable(history []*Op) error {
	parts := map[keyName][]part{}
	var keys []keyName
	// An unknown write stays in the history: it may explain the result of a read.
	for _, op := range history {
		if op.Result == NotApplied || !op.IsWrite() && op.Result != OK {
			// It neither changed nor observed anything.
			continue
		}
		for i, key := range op.keyNames() {
			// Keys are checked in the order of their first operation, so that failures are
			// reproducible.
			if parts[key] == nil {
				keys = append(keys, key)
			}
			parts[key] = append(parts[key], part{op, i})
		}
	}
	for _, key := range keys {
		if err := linearizableKey(key, parts[key], porcupineWait); err != nil {
			return err
		}
	}
	return nil
}

// keyNames returns the keys of the operation, in the order of Mutations or Names.
func (o *Op) keyNames() []keyName {
	if o.IsWrite() {
		out := make([]keyName, len(o.Mutations))
		for i, m := range o.Mutations {
			out[i] = keyName{o.Range, m.Table, string(m.Name)}
		}
		return out
	}
	out := make([]keyName, len(o.Names))
	for i, n := range o.Names {
		out[i] = keyName{o.Range, o.Table, string(n)}
	}
	return out
}

// linearizableKey checks the operations on one key, for at most a time.
func linearizableKey(key keyName, parts []part, most time.Duration) error {
	ops := make([]porcupine.Operation, len(parts))
	for i, p := range parts {
		end := p.op.Return
		// Return may be set for an answer without a definite result; the write may still come
		// later.
		if p.op.Result == Unknown {
			end = Forever
		}
		ops[i] = porcupine.Operation{ClientId: p.op.Client, Input: p, Call: int64(p.op.Call), Return: int64(end)}
	}
	switch porcupine.CheckOperationsTimeout(model, ops, most) {
	case porcupine.Ok:
		return nil
	// A history that cannot be decided in time must not pass.
	case porcupine.Unknown:
		return fmt.Errorf("linearizability of key %s is undecided after %v and %d operations", key, most, len(ops))
	}
	return fmt.Errorf("key %s is not linearizable:\n%s", key, shortestFailure(parts, ops))
}

// shortestFailure finds the shortest prefix of the history that cannot be explained, by bisection,
// and describes its last operations. A longer prefix of a failing one fails too, so bisection is
// valid.
func shortestFailure(parts []part, ops []porcupine.Operation) string {
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	// Prefixes are taken by Return, because a prefix must contain complete operations.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ops[a].Return, ops[b].Return) })
	least, most := 0, len(order)
	for least < most {
		mid := (least + most) / 2
		if prefixOK(order[:mid+1], ops) {
			least = mid + 1
		} else {
			most = mid
		}
	}
	shown := order[:min(least+1, len(order))]
	lines := make([]string, 0, shownMax)
	for _, i := range shown[max(0, len(shown)-shownMax):] {
		lines = append(lines, "  "+parts[i].op.String())
	}
	return strings.Join(lines, "\n")
}

// shownMax bounds the operations in a report.
const shownMax = 12

// prefixOK checks the operations that had ended at some time. Operations that had begun by then
// count as writes of unknown outcome, since ended reads may have seen their effect.
func prefixOK(ended []int, ops []porcupine.Operation) bool {
	until := ops[ended[len(ended)-1]].Return
	sub := make([]porcupine.Operation, 0, len(ended))
	for _, i := range ended {
		sub = append(sub, ops[i])
	}
	for _, op := range ops {
		p := op.Input.(part)
		// Unfinished reads constrain nothing.
		if op.Return <= until || op.Call > until || !p.op.IsWrite() {
			continue
		}
		// The operation is copied: other prefixes still need its result.
		open := *p.op
		open.Result = Unknown
		op.Input, op.Return = part{&open, p.index}, int64(Forever)
		sub = append(sub, op)
	}
	// An undecided prefix counts as correct, which can only lengthen the report.
	return porcupine.CheckOperationsTimeout(model, sub, porcupineWait) != porcupine.Illegal
}

// model is the sequential specification for Porcupine.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		s, p := state.(register), input.(part)
		if p.op.IsWrite() {
			return s.stepWrite(p.op, p.index)
		}
		return s.stepRead(p.op.Items[p.index])
	},
}

// stepRead checks a read against the state. It may reveal the version that a write of unknown
// outcome left.
func (s register) stepRead(it Item) (bool, register) {
	// A deleted key and a key that never existed look alike to a read.
	if it.Version.IsZero() {
		return !s.exists, s
	}
	// Values identify their writers, so an equal value with an unknown version is the version of
	// that writer.
	if !s.exists || s.value != string(it.Value) || s.known && s.ver != it.Version {
		return false, s
	}
	// From here on the version of the unknown write is known, and later reads must repeat it.
	s.known, s.ver = true, it.Version
	return true, s
}

// stepWrite executes one mutation of a write. A write of unknown outcome may always be placed
// somewhere: where its condition does not hold it changes nothing.
func (s register) stepWrite(op *Op, index int) (bool, register) {
	m := &op.Mutations[index]
	holds, sure := s.conditionHolds(m)
	switch op.Result {
	case Unknown:
		// The model cannot choose between two next states, so an unknown write with an undecidable
		// condition counts as applied.
		if sure && !holds {
			return true, s
		}
		next, ok := s.applyMutation(m, rhumb.Version{})
		// The patch could not have been applied to this value; an unknown write may also have
		// failed.
		if !ok {
			return true, s
		}
		return true, next
	case OK:
		// Versions of a key grow with the log.
		if s.known && op.Outcome.Version.Compare(s.ver) <= 0 {
			return false, s
		}
		// Existed is reported for mutations that need the base value.
		if sure && !holds || m.NeedsBase() && index < len(op.Outcome.Existed) && op.Outcome.Existed[index] != s.exists {
			return false, s
		}
		next, ok := s.applyMutation(m, op.Outcome.Version)
		return ok, next
	case ConditionFailed, Unchanged:
		if m.Cond.Kind == rhumb.Always || countConditions(op) > 1 {
			// With several conditions the answer does not say which one failed.
			// The condition of another key decided.
			return true, s
		}
		return !sure || !holds, s
	}
	return true, s
}

// countConditions returns the number of mutations with a condition.
func countConditions(op *Op) (n int) {
	for i := range op.Mutations {
		if op.Mutations[i].Cond.Kind != rhumb.Always {
			n++
		}
	}
	return n
}

// conditionHolds evaluates the condition of a mutation. sure is false if the result depends on an
// unknown version.
func (s register) conditionHolds(m *rhumb.Mutation) (holds, sure bool) {
	switch m.Cond.Kind {
	case rhumb.IfAbsent:
		return !s.exists, true
	case rhumb.IfPresent:
		return s.exists, true
	case rhumb.IfVersion:
		// IfVersion with a zero version requires that the key does not exist.
		if !s.exists {
			return m.Cond.Version.IsZero(), true
		}
		return s.ver == m.Cond.Version, s.known
	case rhumb.IfNewer:
		return !s.exists || isNewer(s.value, m), true
	}
	return true, true
}

// isNewer reports whether the fields of the condition are smaller in the stored record than in the
// patch, compared in order.
func isNewer(stored string, m *rhumb.Mutation) bool {
	for _, name := range m.Cond.Fields {
		old, _, err1 := rhumb.RecordField([]byte(stored), name)
		with, _, err2 := rhumb.RecordField(m.Value, name)
		// A field that cannot be compared is not newer.
		if err1 != nil || err2 != nil {
			return false
		}
		if c := old.Compare(with); c != 0 {
			return c < 0
		}
	}
	return false
}

// applyMutation returns the state after m. It reports false if a patch meets a value that is not a
// record.
func (s register) applyMutation(m *rhumb.Mutation, ver rhumb.Version) (register, bool) {
	// A write of unknown outcome has a zero version, which marks the version as unknown.
	next := register{exists: true, value: string(m.Value), known: !ver.IsZero(), ver: ver}
	switch m.Kind {
	case rhumb.Delete:
		next.exists, next.value = false, ""
	case rhumb.Patch:
		merged, err := rhumb.MergeRecord(nil, []byte(s.value), m.Value)
		if err != nil {
			return s, false
		}
		next.value = string(merged)
	}
	return next, true
}
