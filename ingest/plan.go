package ingest

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// plan describes how lines with one sequence of keys become rows. It holds everything that the
// mapping defines for these keys, looked up once, like Popeye's tree of prepared statements.
// Decisions that depend on values are left to each line.
//
// A plan maps a line exactly as mapPlain does, or not at all.
type plan struct {
	fields []plannedField // of all rows, sorted by name
	rows   []plannedRow
	// order holds the indexes of the fields that order the events.
	order []int
	// when is the index of the pair with the time, or -1. place holds those of the location, or
	// nil.
	when    int
	place   []int
	removes bool
}

// plannedField is a field and the source of its value.
type plannedField struct {
	head []byte // the encoded name
	name string
	spec *fieldSpec // of the pair
	pair int        // index of the pair, for fieldOfPair
	from fieldSource
	// ordered reports that the field is in plan.order.
	ordered bool
	rows    uint16
}

// fieldSource is the source of a field's value.
type fieldSource uint8

const (
	fieldOfPair fieldSource = iota
	fieldOfNull
	fieldOfTime
	fieldOfPlace
)

// plannedRow is a row for lines of the plan. Its condition holds as far as it concerns the presence
// of fields; the rest depends on values.
type plannedRow struct {
	row  *boundRow
	name []plannedPart
	// asks is the index of the pair that the row's condition compares, or -1.
	asks int
	head []byte // the encoded record before its fields
	runs []run
}

// plannedPart is literal text, or a pair whose value is padded with zeros to width.
type plannedPart struct {
	text  string
	pair  int // -1 for text
	width int
}

// run is the fields of a plan from index from up to, but not including, index to.
type run struct{ from, to int }

// makePlan returns the plan for lines with the keys of pairs, which mapPlain has just mapped. So
// the keys are valid, and those that order, name and locate the event are present.
func (mp *Mapper) makePlan(pairs []pair) *plan {
	p := &plan{when: -1}
	// Fields are sorted before rows refer to them by index.
	mp.planFields(p, pairs)
	slices.SortFunc(p.fields, func(a, b plannedField) int { return strings.Compare(a.name, b.name) })
	for _, s := range mp.order {
		i := p.indexOf(s.name)
		p.fields[i].ordered = true
		p.order = append(p.order, i)
	}
	for i := range mp.rows {
		if mp.hasAll(p, mp.rows[i].when) {
			p.rows = append(p.rows, mp.planRow(p, i, pairs))
		}
	}
	return p
}

// planFields sets the fields of a plan.
func (mp *Mapper) planFields(p *plan, pairs []pair) {
	seen := map[string]bool{}
	// Backwards, as in mapPlain: the last value of a repeated key counts.
	for i := len(pairs) - 1; i >= 0; i-- {
		s := mp.specOf(pairs[i].key)
		if s.rows == 0 || seen[s.name] {
			continue
		}
		seen[s.name] = true
		f := plannedField{name: s.name, spec: s, pair: i, rows: s.rows}
		if pairs[i].kind == nullValue {
			f.from, p.removes = fieldOfNull, true
		}
		p.addField(f)
	}
	there := func(i int) bool { return i >= 0 && pairs[i].kind != nullValue }
	if mp.when != nil {
		if i := lastIndex(pairs, mp.when.name); there(i) {
			p.when = i
			p.addField(plannedField{name: mp.mapping.Time.Field, from: fieldOfTime, rows: mp.rowsOf(mp.mapping.Time.Field)})
		}
	}
	for _, s := range mp.place {
		if i := lastIndex(pairs, s.name); there(i) {
			p.place = append(p.place, i)
		}
	}
	if p.place != nil {
		p.addField(plannedField{name: mp.mapping.Location.Field, from: fieldOfPlace, rows: mp.rowsOf(mp.mapping.Location.Field)})
	}
}

// addField adds a field, or replaces the one with the same name.
func (p *plan) addField(f plannedField) {
	// Encoded once for all lines of the plan.
	f.head = rhumb.AppendFieldName(nil, f.name)
	if i := p.indexOf(f.name); i >= 0 {
		p.fields[i] = f
	} else {
		p.fields = append(p.fields, f)
	}
}

// indexOf returns the index of a field, or -1.
func (p *plan) indexOf(name string) int {
	return slices.IndexFunc(p.fields, func(f plannedField) bool { return f.name == name })
}

// hasAll reports whether the fields that a condition requires are present.
func (mp *Mapper) hasAll(p *plan, c *Condition) bool {
	if c == nil {
		return true
	}
	for _, name := range c.Has {
		if i := p.indexOf(name); i < 0 || p.fields[i].from == fieldOfNull {
			return false
		}
	}
	return true
}

// planRow returns the plan of one row.
func (mp *Mapper) planRow(p *plan, at int, pairs []pair) plannedRow {
	row := &mp.rows[at]
	r := plannedRow{row: row, asks: -1}
	if row.when != nil && row.when.Field != "" {
		r.asks = lastIndex(pairs, row.when.Field)
	}
	for _, part := range row.name {
		planned := plannedPart{text: part.text, pair: -1, width: part.width}
		if part.key != "" {
			planned.pair = lastIndex(pairs, part.key)
		}
		r.name = append(r.name, planned)
	}
	n := 0
	for i := range p.fields {
		f := &p.fields[i]
		// A null removes a field from a patch; a row that is written as a whole does not contain
		// it.
		if f.rows&(1<<at) == 0 || f.from == fieldOfNull && row.kind != rhumb.Patch {
			continue
		}
		n++
		// Neighbouring fields form one run, so that fillRow copies most rows with one append.
		if last := len(r.runs) - 1; last >= 0 && r.runs[last].to == i {
			r.runs[last].to++
		} else {
			r.runs = append(r.runs, run{i, i + 1})
		}
	}
	r.head = rhumb.AppendRecordHeader(nil, n)
	return r
}

// followPlan maps a line by a plan. ok is false if one of its values is invalid.
func (mp *Mapper) followPlan(p *plan, line int64, raw []byte, pairs []pair) (ev Event, ok bool) {
	ev = Event{Line: line, removes: p.removes}
	if len(p.order) > 0 {
		ev.Order = make([]rhumb.FieldValue, len(p.order))
	}
	for i, at := range p.place {
		v, ok := mp.place[i].readFast(&pairs[at])
		if !ok {
			return ev, false
		}
		mp.coords[i] = v.Float64()
	}
	// All values are checked here, before memory is allocated for the rows.
	if !mp.encodeFields(p, pairs, ev.Order) {
		return ev, false
	}
	// One allocation holds the line, the names and the values of all rows.
	// Sizes are known before anything is copied, so the arena never grows.
	held, rows, size := mp.measureRows(p, pairs)
	arena := append(make([]byte, 0, len(raw)+size), raw...)
	ev.raw = arena[:len(raw):len(raw)]
	ev.Mutations = make([]rhumb.Mutation, rows)
	next := 0
	for i := range p.rows {
		if held&(1<<i) == 0 {
			continue
		}
		if arena, ok = mp.fillRow(&ev, next, &p.rows[i], arena, pairs); !ok {
			return ev, false
		}
		next++
	}
	return ev, true
}

// encodeFields encodes all fields into mp.encoded, one after the other: field i is between
// mp.ends[i] and mp.ends[i+1]. It also sets the values that order the event.
func (mp *Mapper) encodeFields(p *plan, pairs []pair, order []rhumb.FieldValue) (ok bool) {
	dst, ends := mp.encoded[:0], append(mp.ends[:0], 0)
	for i := range p.fields {
		// Each field is encoded once, whatever the number of rows that include it.
		f := &p.fields[i]
		dst = append(dst, f.head...)
		if f.from == fieldOfPlace && !f.ordered {
			dst, ok = mp.appendPlace(dst)
		} else {
			var v rhumb.FieldValue
			v, ok = mp.readField(p, f, pairs)
			dst = rhumb.AppendFieldValue(dst, v)
			if f.ordered {
				p.keepOrder(order, i, v)
			}
		}
		if !ok {
			return false
		}
		ends = append(ends, len(dst))
	}
	mp.encoded, mp.ends = dst, ends
	return true
}

// appendPlace appends the encoded location. It repeats placeValue, because a value that does not
// leave the function stays off the heap.
func (mp *Mapper) appendPlace(dst []byte) (_ []byte, ok bool) {
	var v rhumb.FieldValue
	if len(mp.place) == 2 {
		v = rhumb.PointField(rhumb.Point{Lat: mp.coords[0], Lon: mp.coords[1]})
	} else {
		v = rhumb.BoxField(mp.placeBox())
	}
	if v.Validate() != nil {
		return dst, false
	}
	return rhumb.AppendFieldValue(dst, v), true
}

// keepOrder sets the order values that field i provides.
func (p *plan) keepOrder(order []rhumb.FieldValue, i int, v rhumb.FieldValue) {
	for j, at := range p.order {
		if at == i {
			order[j] = owned(v)
		}
	}
}

// readField returns the value of a field.
func (mp *Mapper) readField(p *plan, f *plannedField, pairs []pair) (v rhumb.FieldValue, ok bool) {
	switch f.from {
	case fieldOfPair:
		return f.spec.readFast(&pairs[f.pair])
	case fieldOfTime:
		v, err := parseField(rhumb.FieldTimestamp, viewString(pairs[p.when].value))
		return v, err == nil
	case fieldOfPlace:
		v = mp.placeValue()
		return v, v.Validate() == nil
	}
	return v, true
}

// readFast is value for the types of live feeds, without describing faults.
func (s *fieldSpec) readFast(p *pair) (v rhumb.FieldValue, ok bool) {
	text := viewString(p.value)
	switch {
	case s.auto && p.kind == textValue, !s.auto && s.kind == rhumb.FieldString:
		return rhumb.StringField(text), true
	case !s.auto && s.kind == rhumb.FieldInt64:
		n, err := strconv.ParseInt(text, 10, 64)
		return rhumb.Int64Field(n), err == nil
	case !s.auto && s.kind == rhumb.FieldFloat64:
		f, err := strconv.ParseFloat(text, 64)
		return rhumb.Float64Field(f), err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	}
	v, err := s.value(p)
	return v, err == nil
}

// measureRows returns a bit for each row of the plan that the line has, their number, and their
// size in bytes.
func (mp *Mapper) measureRows(p *plan, pairs []pair) (held uint16, rows, size int) {
	for i := range p.rows {
		r := &p.rows[i]
		if !r.isSelected(pairs) {
			continue
		}
		held |= 1 << i
		rows++
		size += len(r.head)
		for _, part := range r.name {
			size += len(part.text)
			if part.pair >= 0 {
				// At most: padding adds zeros only up to the width.
				size += max(part.width, len(pairs[part.pair].value))
			}
		}
		for _, n := range r.runs {
			size += mp.ends[n.to] - mp.ends[n.from]
		}
	}
	return held, rows, size
}

// isSelected reports whether the row's condition accepts the value of the line.
func (r *plannedRow) isSelected(pairs []pair) bool {
	c := r.row.when
	if c == nil || c.Field == "" {
		return true
	}
	value := ""
	if r.asks >= 0 {
		value = viewString(pairs[r.asks].value)
	}
	return c.accepts(value)
}

// fillRow writes one row to the arena, which has room for it.
func (mp *Mapper) fillRow(ev *Event, at int, r *plannedRow, arena []byte, pairs []pair) (_ []byte, ok bool) {
	m := &ev.Mutations[at]
	m.Kind, m.Table = r.row.kind, r.row.table.ID
	start := len(arena)
	for _, part := range r.name {
		arena = append(arena, part.text...)
		if part.pair < 0 {
			continue
		}
		value := pairs[part.pair].value
		// mapPlain describes this fault, and the ones below.
		if len(value) == 0 {
			return arena, false
		}
		arena = appendPadded(arena, value, part.width)
	}
	m.Name = arena[start:len(arena):len(arena)]
	if len(m.Name) == 0 || len(m.Name) > rhumb.NameSizeMax {
		return arena, false
	}
	if at == 0 {
		m.Cond = mp.cond
	} else if !sharesRange(ev.Mutations[0].Name, m.Name, r.row.table.Colocate) {
		return arena, false
	}
	start = len(arena)
	arena = append(arena, r.head...)
	for _, n := range r.runs {
		arena = append(arena, mp.encoded[mp.ends[n.from]:mp.ends[n.to]]...)
	}
	m.Value = arena[start:len(arena):len(arena)]
	return arena, true
}
