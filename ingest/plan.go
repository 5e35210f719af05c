package ingest

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// plan is how the lines of one sequence of keys become rows: all that the mapping says of them, looked up once (row P4:
// Popeye's tree of prepared statements). What depends on values is left to the line.
//
// A plan maps a line exactly as mapPlain does, or not at all.
type plan struct {
	fields []plannedField // of all rows, sorted by name
	rows   []plannedRow
	// order lists the fields that order the events.
	order []int
	// when is the pair that holds the time, and place those of the location; -1 and nil without.
	when    int
	place   []int
	removes bool
}

// plannedField is a field, and where its value comes from.
type plannedField struct {
	head []byte // the stored form of its name
	name string
	spec *fieldSpec // of the pair
	pair int        // for fieldOfPair
	from fieldSource
	// ordered says that plan.order has the field.
	ordered bool
	rows    uint16
}

type fieldSource uint8

const (
	fieldOfPair fieldSource = iota
	fieldOfNull
	fieldOfTime
	fieldOfPlace
)

// plannedRow is a row that some lines of the plan have: its condition holds as far as it asks for fields.
type plannedRow struct {
	row  *boundRow
	name []plannedPart
	// asks is the pair that the row's condition looks at; -1 when the line has none.
	asks int
	head []byte // the stored form of the record in front of its fields
	runs []run
}

// plannedPart is literal text, or the pair whose value stands in its place, filled with zeros up to width.
type plannedPart struct {
	text  string
	pair  int // -1 for text
	width int
}

// run is a part of plan.fields: from up to, without, to.
type run struct{ from, to int }

// plan makes the plan for lines with the keys of pairs, which mapPlain has just mapped: so the keys are allowed, and those
// that order, name and place the event are there.
func (mp *Mapper) plan(pairs []pair) *plan {
	p := &plan{when: -1}
	mp.planFields(p, pairs)
	slices.SortFunc(p.fields, func(a, b plannedField) int { return strings.Compare(a.name, b.name) })
	for _, s := range mp.order {
		i := p.field(s.name)
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

func (mp *Mapper) planFields(p *plan, pairs []pair) {
	seen := map[string]bool{}
	for i := len(pairs) - 1; i >= 0; i-- {
		s := mp.spec(pairs[i].key)
		if s.rows == 0 || seen[s.name] {
			continue
		}
		seen[s.name] = true
		f := plannedField{name: s.name, spec: s, pair: i, rows: s.rows}
		if pairs[i].kind == nullValue {
			f.from, p.removes = fieldOfNull, true
		}
		p.add(f)
	}
	there := func(i int) bool { return i >= 0 && pairs[i].kind != nullValue }
	if mp.when != nil {
		if i := lastIndex(pairs, mp.when.name); there(i) {
			p.when = i
			p.add(plannedField{name: mp.mapping.Time.Field, from: fieldOfTime, rows: mp.rowsOf(mp.mapping.Time.Field)})
		}
	}
	for _, s := range mp.place {
		if i := lastIndex(pairs, s.name); there(i) {
			p.place = append(p.place, i)
		}
	}
	if p.place != nil {
		p.add(plannedField{name: mp.mapping.Location.Field, from: fieldOfPlace, rows: mp.rowsOf(mp.mapping.Location.Field)})
	}
}

// add puts a field in the place of one with its name.
func (p *plan) add(f plannedField) {
	f.head = rhumb.AppendFieldName(nil, f.name)
	if i := p.field(f.name); i >= 0 {
		p.fields[i] = f
	} else {
		p.fields = append(p.fields, f)
	}
}

func (p *plan) field(name string) int {
	return slices.IndexFunc(p.fields, func(f plannedField) bool { return f.name == name })
}

// hasAll reports whether the fields that a condition asks for are there.
func (mp *Mapper) hasAll(p *plan, c *Condition) bool {
	if c == nil {
		return true
	}
	for _, name := range c.Has {
		if i := p.field(name); i < 0 || p.fields[i].from == fieldOfNull {
			return false
		}
	}
	return true
}

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
		if f.rows&(1<<at) == 0 || f.from == fieldOfNull && row.kind != rhumb.Patch {
			continue
		}
		n++
		if last := len(r.runs) - 1; last >= 0 && r.runs[last].to == i {
			r.runs[last].to++
		} else {
			r.runs = append(r.runs, run{i, i + 1})
		}
	}
	r.head = rhumb.AppendRecordHeader(nil, n)
	return r
}

// follow maps a line by a plan; ok is false when something is wrong with its values.
func (mp *Mapper) follow(p *plan, line int64, raw []byte, pairs []pair) (ev Event, ok bool) {
	ev = Event{Line: line, removes: p.removes}
	if len(p.order) > 0 {
		ev.Order = make([]rhumb.FieldValue, len(p.order))
	}
	for i, at := range p.place {
		v, ok := mp.place[i].read(&pairs[at])
		if !ok {
			return ev, false
		}
		mp.coords[i] = v.Float64()
	}
	if !mp.encode(p, pairs, ev.Order) {
		return ev, false
	}
	held, rows, size := mp.measure(p, pairs)
	arena := append(make([]byte, 0, len(raw)+size), raw...)
	ev.raw = arena[:len(raw):len(raw)]
	ev.Mutations = make([]rhumb.Mutation, rows)
	next := 0
	for i := range p.rows {
		if held&(1<<i) == 0 {
			continue
		}
		if arena, ok = mp.fill(&ev, next, &p.rows[i], arena, pairs); !ok {
			return ev, false
		}
		next++
	}
	return ev, true
}

// encode writes the stored form of all fields to mp.encoded, each behind the one before; field i stands from mp.ends[i] to
// mp.ends[i+1]. It keeps the values that order the event.
func (mp *Mapper) encode(p *plan, pairs []pair, order []rhumb.FieldValue) (ok bool) {
	dst, ends := mp.encoded[:0], append(mp.ends[:0], 0)
	for i := range p.fields {
		f := &p.fields[i]
		dst = append(dst, f.head...)
		if f.from == fieldOfPlace && !f.ordered {
			dst, ok = mp.appendPlace(dst)
		} else {
			var v rhumb.FieldValue
			v, ok = mp.read(p, f, pairs)
			dst = rhumb.AppendFieldValue(dst, v)
			if f.ordered {
				p.keep(order, i, v)
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

// appendPlace appends what placeValue gives. The value is made here and does not leave the function: it stays off the heap.
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

// keep takes the value of field i for those places of the order that it has.
func (p *plan) keep(order []rhumb.FieldValue, i int, v rhumb.FieldValue) {
	for j, at := range p.order {
		if at == i {
			order[j] = owned(v)
		}
	}
}

func (mp *Mapper) read(p *plan, f *plannedField, pairs []pair) (v rhumb.FieldValue, ok bool) {
	switch f.from {
	case fieldOfPair:
		return f.spec.read(&pairs[f.pair])
	case fieldOfTime:
		v, err := parseField(rhumb.FieldTimestamp, viewString(pairs[p.when].value))
		return v, err == nil
	case fieldOfPlace:
		v = mp.placeValue()
		return v, v.Validate() == nil
	}
	return v, true
}

// read is value for the kinds of live feeds, without what it takes to say what is wrong.
func (s *fieldSpec) read(p *pair) (v rhumb.FieldValue, ok bool) {
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

// measure tells which rows the line has, a bit for each of the plan's, how many they are, and their size in bytes.
func (mp *Mapper) measure(p *plan, pairs []pair) (held uint16, rows, size int) {
	for i := range p.rows {
		r := &p.rows[i]
		if !r.holds(pairs) {
			continue
		}
		held |= 1 << i
		rows++
		size += len(r.head)
		for _, part := range r.name {
			size += len(part.text)
			if part.pair >= 0 {
				size += max(part.width, len(pairs[part.pair].value))
			}
		}
		for _, n := range r.runs {
			size += mp.ends[n.to] - mp.ends[n.from]
		}
	}
	return held, rows, size
}

// holds tells whether the value that the row's condition looks at is one that it wants.
func (r *plannedRow) holds(pairs []pair) bool {
	c := r.row.when
	if c == nil || c.Field == "" {
		return true
	}
	value := ""
	if r.asks >= 0 {
		value = viewString(pairs[r.asks].value)
	}
	return c.takes(value)
}

// fill writes one row to the arena, which has room for it.
func (mp *Mapper) fill(ev *Event, at int, r *plannedRow, arena []byte, pairs []pair) (_ []byte, ok bool) {
	m := &ev.Mutations[at]
	m.Kind, m.Table = r.row.kind, r.row.table.ID
	start := len(arena)
	for _, part := range r.name {
		arena = append(arena, part.text...)
		if part.pair < 0 {
			continue
		}
		value := pairs[part.pair].value
		if len(value) == 0 {
			return arena, false
		}
		arena = appendFilled(arena, value, part.width)
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
