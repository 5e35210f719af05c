package ingest

import (
	"bytes"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// addRows encodes the rows into memory that the event owns.
func (mp *Mapper) addRows(ev *Event, raw []byte, pairs []pair) error {
	// An estimate: each row holds about as much as the line. append grows the arena if it is too
	// small.
	arena := make([]byte, 0, (1+len(mp.rows))*(len(raw)+64))
	arena = append(arena, raw...)
	// A copy for a later rejection, so that the event does not keep the block of the line in
	// memory.
	ev.raw = arena[:len(raw):len(raw)]
	ev.Mutations = make([]rhumb.Mutation, 0, len(mp.rows))
	for i := range mp.rows {
		row := &mp.rows[i]
		if !mp.isSelected(row.when, pairs) {
			continue
		}
		m := rhumb.Mutation{Kind: row.kind, Table: row.table.ID}
		var err error
		start := len(arena)
		if arena, err = row.name.appendTo(arena, pairs); err != nil {
			return err
		}
		m.Name = arena[start:len(arena):len(arena)]
		if len(m.Name) > rhumb.NameSizeMax {
			return rhumb.Ef(opMap, rhumb.TooLarge, "the name for table %s has %d bytes; at most %d are allowed", row.table.Name, len(m.Name), rhumb.NameSizeMax)
		}
		// Only the first row is conditional. A batch is atomic, so the others depend on it.
		if i == 0 {
			m.Cond = mp.cond
		} else if !sharesRange(ev.Mutations[0].Name, m.Name, row.table.Colocate) {
			return rhumb.Ef(opMap, rhumb.InvalidArgument, "names %s and %s differ before %q, so they are in different ranges",
				rhumb.NameString(ev.Mutations[0].Name), rhumb.NameString(m.Name), row.table.Colocate)
		}
		start = len(arena)
		arena = rhumb.EncodeRecord(arena, mp.recordOf(i, row.kind))
		m.Value = arena[start:len(arena):len(arena)]
		ev.Mutations = append(ev.Mutations, m)
	}
	return nil
}

// recordOf returns the fields of one row. A null removes a field from a patch; a row that is
// written as a whole does not contain it.
func (mp *Mapper) recordOf(row int, kind rhumb.MutationKind) rhumb.Record {
	mp.record = mp.record[:0]
	for _, f := range mp.fields {
		if f.rows&(1<<row) != 0 && (kind == rhumb.Patch || f.Value.Kind() != rhumb.FieldNull) {
			mp.record = append(mp.record, f.Field)
		}
	}
	return mp.record
}

// isSelected reports whether a condition holds for the current line.
func (mp *Mapper) isSelected(c *Condition, pairs []pair) bool {
	if c == nil {
		return true
	}
	for _, name := range c.Has {
		if v, ok := mp.field(name); !ok || v.Kind() == rhumb.FieldNull {
			return false
		}
	}
	if c.Field == "" {
		return true
	}
	value := ""
	// A missing key compares as an empty value, so not_in accepts it.
	if p := lastPair(pairs, c.Field); p != nil {
		value = viewString(p.value)
	}
	return c.accepts(value)
}

// accepts reports whether a condition accepts the value of its key.
func (c *Condition) accepts(value string) bool {
	return (len(c.In) == 0 || slices.Contains(c.In, value)) && !slices.Contains(c.NotIn, value)
}

// appendTo appends the name for a line.
func (t template) appendTo(dst []byte, pairs []pair) ([]byte, error) {
	start := len(dst)
	for _, part := range t {
		if part.key == "" {
			dst = append(dst, part.text...)
			continue
		}
		p := lastPair(pairs, part.key)
		if p == nil || p.kind == nullValue || len(p.value) == 0 {
			return dst, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q is missing; the name needs it", part.key)
		}
		dst = appendPadded(dst, p.value, part.width)
	}
	if len(dst) == start {
		return dst, rhumb.E(opMap, rhumb.InvalidArgument, "the name is empty")
	}
	return dst, nil
}

// appendPadded appends a value, padded with zeros to a width.
func appendPadded(dst, value []byte, width int) []byte {
	for n := len(value); n < width; n++ {
		dst = append(dst, '0')
	}
	return append(dst, value...)
}

// sharesRange reports whether two names are equal up to the colocate byte, before which they are
// hashed.
func sharesRange(a, b []byte, colocate byte) bool {
	return bytes.Equal(cutName(a, colocate), cutName(b, colocate))
}

// cutName returns the part of a name that is hashed.
func cutName(name []byte, colocate byte) []byte {
	if i := bytes.IndexByte(name, colocate); colocate != 0 && i >= 0 {
		return name[:i]
	}
	return name
}
