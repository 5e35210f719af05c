package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// evaluate decides a proposal's conditions against the newest state, appended entries included (rule W(3)), and adds
// its final values to g.writes. It fills in q.Existed and q.Noop. On a fault some writes may have been added.
//
// A condition that does not hold fails the batch before any IfNewer condition makes it a no-op.
func (r *Replica) evaluate(g *group, q *entry.Request, p *Proposal) error {
	b := p.Batch
	bases := r.orders.bases[:0]
	looked := false
	for i := range b.Mutations {
		var base Base
		if m := &b.Mutations[i]; m.NeedsBase() {
			base = r.overlay.newest(m.Table, m.Name, p.Base[i])
			looked = true
		}
		bases = append(bases, base)
	}
	r.orders.bases = bases
	defer clear(bases)
	if looked {
		q.Existed = make([]bool, len(bases))
		for i := range bases {
			q.Existed[i] = !bases[i].Version.IsZero()
		}
		if err := r.decide(q, b, bases); err != nil || q.Noop {
			return err
		}
	}
	names, size := p.Names, 0
	for i := range b.Mutations {
		m := &b.Mutations[i]
		w := entry.Write{Table: m.Table, Name: m.Name, Value: m.Value}
		switch m.Kind {
		case rhumb.Insert:
			w.Name, names = names[0], names[1:]
		case rhumb.Delete:
			w.Value = rhumb.Tombstone
		case rhumb.Patch:
			var err error
			if w.Value, err = r.merge(i, bases[i].Value, m.Value); err != nil {
				return err
			}
		}
		if size += len(w.Value); size > rhumb.EntrySizeMax {
			return r.fault(rhumb.TooLarge, fmt.Sprintf("the merged records have more than %d bytes", rhumb.EntrySizeMax))
		}
		g.writes = append(g.writes, w)
	}
	return nil
}

// decide checks the conditions of a batch and sets q.Noop when one of its patches is not newer.
func (r *Replica) decide(q *entry.Request, b *rhumb.Batch, bases []Base) error {
	for i := range b.Mutations {
		m, base := &b.Mutations[i], &bases[i]
		ok := true
		switch m.Cond.Kind {
		case rhumb.IfAbsent:
			ok = base.Version.IsZero()
		case rhumb.IfPresent:
			ok = !base.Version.IsZero()
		case rhumb.IfVersion:
			ok = base.Version == m.Cond.Version
		case rhumb.IfNewer:
			newer, err := isNewer(m, base)
			if err != nil {
				return r.fault(rhumb.InvalidArgument, fmt.Sprintf("mutation %d: %v", i, err))
			}
			q.Noop = q.Noop || !newer
		}
		if !ok {
			return r.conditionFailed(i, m, base.Version)
		}
	}
	return nil
}

// conditionFailed says which condition does not hold, and what the key's present version is.
func (r *Replica) conditionFailed(i int, m *rhumb.Mutation, current rhumb.Version) error {
	state := "it does not exist"
	if !current.IsZero() {
		state = "its version is " + current.String()
	}
	err := r.fault(rhumb.ConditionFailed, fmt.Sprintf("mutation %d: %s does not hold for key %s of table %s, %s",
		i, m.Cond.Kind, rhumb.NameString(m.Name), m.Table, state))
	err.Current = current
	return err
}

// isNewer compares the fields of an IfNewer condition in turn; equal in all of them is not newer.
func isNewer(m *rhumb.Mutation, base *Base) (bool, error) {
	if base.Version.IsZero() {
		return true, nil
	}
	for _, name := range m.Cond.Fields {
		have, _, err := rhumb.RecordField(base.Value, name)
		if err != nil {
			return false, err
		}
		patch, _, err := rhumb.RecordField(m.Value, name)
		if err != nil {
			return false, err
		}
		if c := have.Compare(patch); c != 0 {
			return c < 0, nil
		}
	}
	return false, nil
}

// merge gives the record that base becomes under patch; its memory is cut from the arena.
func (r *Replica) merge(i int, base, patch []byte) ([]byte, error) {
	room := len(base) + len(patch) + 8
	if cap(r.orders.arena)-len(r.orders.arena) < room {
		r.orders.arena = make([]byte, 0, max(arenaSize, room))
	}
	from := len(r.orders.arena)
	merged, err := rhumb.MergeRecord(r.orders.arena, base, patch)
	if err != nil {
		return nil, r.fault(rhumb.KindOf(err), fmt.Sprintf("mutation %d: %v", i, err))
	}
	r.orders.arena = merged
	value := merged[from:len(merged):len(merged)]
	if len(value) > rhumb.ValueSizeMax {
		return nil, r.fault(rhumb.TooLarge, fmt.Sprintf("mutation %d: the merged record has %d bytes, at most %d are allowed",
			i, len(value), rhumb.ValueSizeMax))
	}
	return value, nil
}
