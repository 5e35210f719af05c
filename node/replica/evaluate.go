package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// evaluate checks the conditions of a proposal against the newest state, including appended entries
// that are not committed (rule W), and adds the final values to g.writes. It sets q.Existed and
// q.Noop. If it returns an error, some writes may have been added.
//
// A condition that does not hold fails the batch, even if an IfNewer condition would make it a
// no-op.
func (r *Replica) evaluate(g *group, q *entry.Request, p *Proposal) error {
	b := p.Batch
	// Only mutations that depend on the present value are looked up: plain puts, the most common
	// requests, cost nothing here.
	bases := r.orders.bases[:0]
	looked := false
	for i := range b.Mutations {
		var base Base
		if m := &b.Mutations[i]; m.NeedsBase() {
			base = r.overlay.newestBase(m.Table, m.Name, p.Base[i])
			looked = true
		}
		bases = append(bases, base)
	}
	// The scratch slice is kept for its memory, but not the values that it refers to.
	r.orders.bases = bases
	defer clear(bases)
	if looked {
		q.Existed = make([]bool, len(bases))
		for i := range bases {
			q.Existed[i] = !bases[i].Version.IsZero()
		}
		// All conditions are decided before any write is produced: a batch is atomic.
		if err := r.checkConditions(q, b, bases); err != nil || q.Noop {
			return err
		}
	}
	// Mutations of one batch do not see each other: the batch has one final operation per key.
	names, size := p.Names, 0
	for i := range b.Mutations {
		m := &b.Mutations[i]
		w := entry.Write{Table: m.Table, Name: m.Name, Value: m.Value}
		if p.Slots != nil {
			w.Slot = p.Slots[i]
		}
		switch m.Kind {
		case rhumb.Insert:
			w.Name, names = names[0], names[1:]
		case rhumb.Delete:
			w.Value = rhumb.Tombstone
		case rhumb.Patch:
			var err error
			if w.Value, err = r.mergePatch(i, bases[i].Value, m.Value); err != nil {
				return err
			}
		}
		// Checked while merging, not only at the end: each patch of a batch may grow a small request to a
		// large record, and all of them would have to be held in memory first.
		if size += len(w.Value); size > rhumb.EntrySizeMax {
			return r.newError(rhumb.TooLarge, fmt.Sprintf("the merged records have more than %d bytes", rhumb.EntrySizeMax))
		}
		g.writes = append(g.writes, w)
	}
	return nil
}

// checkConditions checks the conditions of a batch. It sets q.Noop if one of its patches is not
// newer.
func (r *Replica) checkConditions(q *entry.Request, b *rhumb.Batch, bases []Base) error {
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
				return r.newError(rhumb.InvalidArgument, fmt.Sprintf("mutation %d: %v", i, err))
			}
			q.Noop = q.Noop || !newer
		}
		if !ok {
			return r.conditionFailed(m, base.Version)
		}
	}
	return nil
}

// conditionFailed returns the error for a condition that does not hold, with the key's present
// version.
func (r *Replica) conditionFailed(m *rhumb.Mutation, current rhumb.Version) error {
	err := r.newError(rhumb.ConditionFailed, r.cfg.FailedCondition(m, current))
	err.Current = current
	return err
}

// FailedCondition says that the condition of a mutation does not hold for a record with the given version, zero for none. The text
// names the record and its table; programs find the version in the error.
func (c *Config) FailedCondition(m *rhumb.Mutation, current rhumb.Version) string {
	table := m.Table.String()
	if c.TableName != nil {
		table = c.TableName(m.Table)
	}
	text := fmt.Sprintf("record %s of table %s does not exist", rhumb.NameString(m.Name), table)
	if !current.IsZero() {
		text = fmt.Sprintf("record %s of table %s exists, with version %s", rhumb.NameString(m.Name), table, current)
	}
	if m.Cond.Kind == rhumb.IfVersion {
		text += fmt.Sprintf("; the condition wants version %s", m.Cond.Version)
	}
	return text
}

// isNewer compares the fields of an IfNewer condition in order. A patch that is equal in all of
// them is not newer.
func isNewer(m *rhumb.Mutation, base *Base) (bool, error) {
	if base.Version.IsZero() {
		// Anything is newer than a missing record.
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

// mergePatch returns base changed by patch. The result is cut from the arena: one allocation serves
// many small records.
func (r *Replica) mergePatch(i int, base, patch []byte) ([]byte, error) {
	room := len(base) + len(patch) + 8
	// Grown before merging, so that MergeRecord appends in place. A full arena is dropped and not
	// reused, because entries refer to the records in it.
	if cap(r.orders.arena)-len(r.orders.arena) < room {
		r.orders.arena = make([]byte, 0, max(arenaSize, room))
	}
	from := len(r.orders.arena)
	merged, err := rhumb.MergeRecord(r.orders.arena, base, patch)
	if err != nil {
		return nil, r.newError(rhumb.KindOf(err), fmt.Sprintf("mutation %d: %v", i, err))
	}
	r.orders.arena = merged
	// The capped capacity keeps an append to value from overwriting the next record.
	value := merged[from:len(merged):len(merged)]
	if len(value) > rhumb.ValueSizeMax {
		return nil, r.newError(rhumb.TooLarge, fmt.Sprintf("mutation %d: the merged record has %d bytes, at most %d are allowed",
			i, len(value), rhumb.ValueSizeMax))
	}
	return value, nil
}
