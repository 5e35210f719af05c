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

// porcupineWait bounds the search for one range's keys in real time. Histories of the size that simulations make take
// milliseconds; one that takes this long is reported rather than taken for good.
const porcupineWait = 20 * time.Second

// keyName is a key of a history.
type keyName struct {
	rng   rhumb.RangeID
	table rhumb.TableID
	name  string
}

func (k keyName) String() string {
	return fmt.Sprintf("%s/%s/%s", k.table, k.rng, rhumb.NameString([]byte(k.name)))
}

// part is an operation's part in one key.
type part struct {
	op *Op
	// index is the mutation's place in a write, or the name's in a read.
	index int
}

// register is the state of one key in the model. The version, of a deletion too, is known when an answer told it; a write
// of unknown outcome leaves it unknown until somebody reads it. Versions only grow.
type register struct {
	exists bool
	value  string
	known  bool
	ver    rhumb.Version
}

// Linearizable reports the first key whose operations no single copy could have answered. Keys are judged apart: a write
// of several keys counts as one operation on each of them.
func Linearizable(history []*Op) error {
	parts := map[keyName][]part{}
	var keys []keyName
	for _, op := range history {
		if op.Result == NotApplied || !op.IsWrite() && op.Result != OK {
			continue // it neither changed nor saw anything
		}
		for i, key := range op.keys() {
			if parts[key] == nil {
				keys = append(keys, key)
			}
			parts[key] = append(parts[key], part{op, i})
		}
	}
	for _, key := range keys {
		if err := linearizableKey(key, parts[key]); err != nil {
			return err
		}
	}
	return nil
}

func (o *Op) keys() []keyName {
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

func linearizableKey(key keyName, parts []part) error {
	ops := make([]porcupine.Operation, len(parts))
	for i, p := range parts {
		end := p.op.Return
		if p.op.Result == Unknown {
			end = Forever
		}
		ops[i] = porcupine.Operation{ClientId: p.op.Client, Input: p, Call: int64(p.op.Call), Return: int64(end)}
	}
	switch porcupine.CheckOperationsTimeout(model, ops, porcupineWait) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("linearizability of key %s is undecided after %v and %d operations", key, porcupineWait, len(ops))
	}
	return fmt.Errorf("key %s is not linearizable:\n%s", key, shortest(parts, ops))
}

// shortest cuts the history before the first operation that cannot be explained and shows its last lines.
func shortest(parts []part, ops []porcupine.Operation) string {
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
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

// prefixOK judges the operations that had ended by some time; those that had begun but not ended count as unknown.
func prefixOK(ended []int, ops []porcupine.Operation) bool {
	until := ops[ended[len(ended)-1]].Return
	sub := make([]porcupine.Operation, 0, len(ended))
	for _, i := range ended {
		sub = append(sub, ops[i])
	}
	for _, op := range ops {
		p := op.Input.(part)
		if op.Return <= until || op.Call > until || !p.op.IsWrite() {
			continue
		}
		open := *p.op
		open.Result = Unknown
		op.Input, op.Return = part{&open, p.index}, int64(Forever)
		sub = append(sub, op)
	}
	return porcupine.CheckOperationsTimeout(model, sub, porcupineWait) != porcupine.Illegal
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		s, p := state.(register), input.(part)
		if p.op.IsWrite() {
			return s.write(p.op, p.index)
		}
		return s.read(p.op.Items[p.index])
	},
}

func (s register) read(it Item) (bool, register) {
	if it.Version.IsZero() {
		return !s.exists, s
	}
	if !s.exists || s.value != string(it.Value) || s.known && s.ver != it.Version {
		return false, s
	}
	s.known, s.ver = true, it.Version
	return true, s
}

// write takes the step of one mutation of a write. A write of unknown outcome may always take place: where its condition
// does not hold it changes nothing.
func (s register) write(op *Op, index int) (bool, register) {
	m := &op.Mutations[index]
	holds, sure := s.holds(m)
	switch op.Result {
	case Unknown:
		if sure && !holds {
			return true, s
		}
		next, ok := s.apply(m, rhumb.Version{})
		if !ok {
			return true, s
		}
		return true, next
	case OK:
		if s.known && op.Outcome.Version.Compare(s.ver) <= 0 {
			return false, s
		}
		if sure && !holds || m.NeedsBase() && index < len(op.Outcome.Existed) && op.Outcome.Existed[index] != s.exists {
			return false, s
		}
		next, ok := s.apply(m, op.Outcome.Version)
		return ok, next
	case ConditionFailed, Unchanged:
		if m.Cond.Kind == rhumb.Always || conditions(op) > 1 {
			return true, s // another key's condition decided
		}
		return !sure || !holds, s
	}
	return true, s
}

func conditions(op *Op) (n int) {
	for i := range op.Mutations {
		if op.Mutations[i].Cond.Kind != rhumb.Always {
			n++
		}
	}
	return n
}

// holds decides a mutation's condition; sure is false when it asks for a version that is not known.
func (s register) holds(m *rhumb.Mutation) (holds, sure bool) {
	switch m.Cond.Kind {
	case rhumb.IfAbsent:
		return !s.exists, true
	case rhumb.IfPresent:
		return s.exists, true
	case rhumb.IfVersion:
		if !s.exists {
			return m.Cond.Version.IsZero(), true
		}
		return s.ver == m.Cond.Version, s.known
	case rhumb.IfNewer:
		return !s.exists || newer(s.value, m), true
	}
	return true, true
}

// newer reports whether the condition's fields are smaller in the stored record than in the patch, compared in turn.
func newer(stored string, m *rhumb.Mutation) bool {
	for _, name := range m.Cond.Fields {
		old, _, err1 := rhumb.RecordField([]byte(stored), name)
		with, _, err2 := rhumb.RecordField(m.Value, name)
		if err1 != nil || err2 != nil {
			return false
		}
		if c := old.Compare(with); c != 0 {
			return c < 0
		}
	}
	return false
}

// apply gives the state after m; ok is false when a patch meets a value that is no record.
func (s register) apply(m *rhumb.Mutation, ver rhumb.Version) (register, bool) {
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
