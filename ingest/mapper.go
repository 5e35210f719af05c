package ingest

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
)

// Event is the result of one line: one atomic batch.
type Event struct {
	// Line is the number of the line, from 1.
	Line int64
	// Mutations are the rows. The first one determines the home and the order.
	Mutations []rhumb.Mutation
	// Order holds the values of the mapping's order keys, or nil if it has none.
	Order []rhumb.FieldValue

	raw []byte // the line as read
	// removes reports that the event removes a field. Such a patch cannot be merged with another.
	removes bool
}

// Size returns the number of bytes for which the event counts in the window.
func (e *Event) Size() int {
	n := len(e.raw)
	for i := range e.Mutations {
		n += e.Mutations[i].Size()
	}
	return n
}

// Mapper builds events from pairs. It is not safe for concurrent use.
type Mapper struct {
	mapping *Mapping
	rows    []boundRow
	specs   map[string]*fieldSpec
	// order holds the order keys, place the keys of the location, latitudes first. when is nil if
	// the mapping has no time.
	order, place []*fieldSpec
	when         *fieldSpec
	cond         rhumb.Condition
	plans        planTree

	fields []taggedField // of the current line
	record rhumb.Record
	coords [4]float64

	// For a line that follows a plan: the encoded fields, and the offset of each in encoded,
	// followed by the end of the last.
	encoded []byte
	ends    []int
}

// boundRow is a RowMapping with its table.
type boundRow struct {
	table rhumb.Table
	name  template
	kind  rhumb.MutationKind
	when  *Condition
}

// fieldSpec holds what the mapping defines for one key.
type fieldSpec struct {
	name string // a copy, independent of any line
	kind rhumb.FieldKind
	auto bool
	// rows has a bit for each row that includes the key as a field.
	rows uint16
	// made reports that the mapping computes the field from other keys. A line must not contain it.
	made bool
	seen int64 // last line that contained the key
}

// taggedField is a field with a bit for each row that includes it.
type taggedField struct {
	rhumb.Field
	rows uint16
}

// unlistedMax bounds the remembered keys that the mapping does not list. Input decides how many
// keys there are.
const unlistedMax = 4 * rhumb.RecordFieldsMax

// Bind returns a Mapper for the tables of the rows, in the same order. All rows of one event must
// be in one range, so several rows need tables of one class with the same colocate byte.
func (m *Mapping) Bind(tables []rhumb.Table) (*Mapper, error) {
	const op rhumb.Op = "ingest.Bind"
	if len(tables) != len(m.Rows) {
		panic("ingest: Bind needs one table per row")
	}
	mp := &Mapper{mapping: m, specs: map[string]*fieldSpec{}}
	first := tables[0]
	for i, r := range m.Rows {
		t := tables[i]
		if i > 0 && (t.Class != first.Class || t.Colocate != first.Colocate || t.Colocate == 0) {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument,
				"tables %s and %s cannot share a batch; create both with the same settings and the same --colocate byte", first.Name, t.Name)
		}
		if m.Location != nil && i == 0 && t.LocationField != m.Location.Field {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "table %s has its location in field %q, but the mapping writes %q; use the same field in both",
				t.Name, t.LocationField, m.Location.Field)
		}
		name, err := parseTemplate(r.Name)
		if err != nil {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "rows[%d]: name: %v", i, err)
		}
		row := boundRow{table: t, name: name, kind: rhumb.Put, when: r.When}
		if r.Write == "patch" {
			row.kind = rhumb.Patch
		}
		mp.rows = append(mp.rows, row)
	}
	// Names and fields are resolved once per run, not per line.
	mp.bindFields()
	return mp, nil
}

// bindFields looks up the keys that the mapping names.
func (mp *Mapper) bindFields() {
	m := mp.mapping
	for key := range m.Fields {
		mp.addSpec(key)
	}
	for _, key := range m.Order {
		mp.order = append(mp.order, mp.addSpec(key))
	}
	if len(m.Order) > 0 {
		mp.cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: slices.Clone(m.Order)}
	}
	// The key is removed from the record unless Keep is set: its time is in the computed field.
	if m.Time != nil {
		mp.when = mp.addSpec(m.Time.From)
		if !m.Time.Keep {
			mp.when.rows = 0
		}
		mp.markMade(m.Time.Field, m.Time.From)
	}
	if m.Location != nil {
		for _, key := range slices.Concat(m.Location.Lat, m.Location.Lon) {
			s := mp.addSpec(key)
			s.kind, s.auto = rhumb.FieldFloat64, false
			if !m.Location.Keep {
				s.rows = 0
			}
			mp.place = append(mp.place, s)
		}
		mp.markMade(m.Location.Field, slices.Concat(m.Location.Lat, m.Location.Lon)...)
	}
}

// markMade marks a field as computed by the mapping, unless one of the keys it is computed from has
// the same name.
func (mp *Mapper) markMade(field string, of ...string) {
	if !slices.Contains(of, field) {
		mp.addSpec(field).made = true
	}
}

// specOf returns the spec of a key, and remembers it if it is new and there is room.
func (mp *Mapper) specOf(key []byte) *fieldSpec {
	if s, ok := mp.specs[string(key)]; ok {
		return s
	}
	// A feed with ever new keys must not fill the memory. Its further keys are looked up for each
	// line.
	if len(mp.specs) < unlistedMax+len(mp.mapping.Fields) {
		return mp.addSpec(string(key))
	}
	return mp.makeSpec(string(key))
}

// addSpec returns the spec of a key and remembers it.
func (mp *Mapper) addSpec(key string) *fieldSpec {
	if s, ok := mp.specs[key]; ok {
		return s
	}
	s := mp.makeSpec(key)
	mp.specs[key] = s
	return s
}

// makeSpec returns the spec of a key according to the mapping.
func (mp *Mapper) makeSpec(key string) *fieldSpec {
	s := &fieldSpec{name: strings.Clone(key), rows: mp.rowsOf(key)}
	typ, listed := mp.mapping.Fields[key]
	if !listed {
		typ = mp.mapping.DefaultType
	}
	if typ == "auto" {
		s.auto = true
		return s
	}
	kind, err := rhumb.ParseFieldKind(typ)
	if err != nil {
		panic("ingest: a validated mapping contains an unknown type: " + typ)
	}
	s.kind = kind
	return s
}

// rowsOf returns a bit for each row that includes a field.
func (mp *Mapper) rowsOf(field string) (mask uint16) {
	for i, r := range mp.mapping.Rows {
		if len(r.Only) > 0 && !slices.Contains(r.Only, field) || slices.Contains(r.Except, field) {
			continue
		}
		mask |= 1 << i
	}
	return mask
}

// opMap is the operation of errors about the contents of a line.
const opMap rhumb.Op = "ingest.Map"

// Map returns the event of a line. Errors describe the fault of the line. The event shares no
// memory with the line. Map may change pairs.
func (mp *Mapper) Map(line int64, raw []byte, pairs []pair) (Event, error) {
	pairs = mp.dropNull(pairs)
	p := mp.plans.find(pairs)
	if p != nil {
		// A plan that does not fit reports no error: mapPlain finds and describes the fault.
		if ev, ok := mp.followPlan(p, line, raw, pairs); ok {
			mp.plans.hits.Add(1)
			return ev, nil
		}
	}
	mp.plans.misses.Add(1)
	ev, err := mp.mapPlain(line, raw, pairs)
	// Only lines without a fault become plans, so planning needs no error handling.
	if err == nil && p == nil && mp.plans.admits(pairs) {
		mp.plans.learn(pairs, mp.makePlan(pairs))
	}
	return ev, err
}

// dropNull removes the pairs whose value counts as absent.
func (mp *Mapper) dropNull(pairs []pair) []pair {
	if len(mp.mapping.Null) == 0 {
		return pairs
	}
	return slices.DeleteFunc(pairs, func(p pair) bool {
		return p.kind == textValue && slices.Contains(mp.mapping.Null, viewString(p.value))
	})
}

// mapPlain is Map without a plan: it looks up each pair in the mapping. It maps the first line of
// each sequence of keys, lines whose plan has no room in the tree, and lines that their plan cannot
// map, because only mapPlain describes faults.
func (mp *Mapper) mapPlain(line int64, raw []byte, pairs []pair) (Event, error) {
	mp.fields = mp.fields[:0]
	ev := Event{Line: line}
	// Backwards, so that the last value of a repeated key counts, as in a Tcl dictionary.
	for i := len(pairs) - 1; i >= 0; i-- {
		removes, err := mp.addPair(line, &pairs[i])
		if err != nil {
			return Event{}, err
		}
		ev.removes = ev.removes || removes
	}
	if err := mp.addPlaceAndTime(pairs); err != nil {
		return Event{}, err
	}
	// Sorted, as records are stored. Stable, so that CompactFunc keeps the first of equal names.
	slices.SortStableFunc(mp.fields, func(a, b taggedField) int { return strings.Compare(a.Name, b.Name) })
	mp.fields = slices.CompactFunc(mp.fields, func(a, b taggedField) bool { return a.Name == b.Name })
	if err := mp.addOrder(&ev); err != nil {
		return Event{}, err
	}
	return ev, mp.addRows(&ev, raw, pairs)
}

// addPair adds the field of a pair, unless no row includes it or the line contained it already.
func (mp *Mapper) addPair(line int64, p *pair) (removes bool, err error) {
	s := mp.specOf(p.key)
	if len(s.name) > rhumb.FieldNameSizeMax {
		return false, rhumb.Ef(opMap, rhumb.TooLarge, "key %.20q… has %d bytes; at most %d are allowed", s.name, len(s.name), rhumb.FieldNameSizeMax)
	}
	if s.made {
		return false, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: the mapping computes this field from other keys, so a line must not contain it", s.name)
	}
	// seen replaces a set per line, which would have to be cleared.
	if s.rows == 0 || s.seen == line {
		return false, nil
	}
	s.seen = line
	v, err := s.value(p)
	if err != nil {
		return false, err
	}
	mp.fields = append(mp.fields, taggedField{rhumb.Field{Name: s.name, Value: v}, s.rows})
	return p.kind == nullValue, nil
}

// value returns the value of a pair, with the type of the mapping or else of the format.
func (s *fieldSpec) value(p *pair) (rhumb.FieldValue, error) {
	text, kind := viewString(p.value), s.kind
	switch {
	case p.kind == nullValue:
		return rhumb.FieldValue{}, nil
	case s.auto && p.kind == numberValue:
		// JSON has one type of numbers. Those without a fraction become integers.
		if v, err := rhumb.ParseField(rhumb.FieldInt64, text); err == nil {
			return v, nil
		}
		kind = rhumb.FieldFloat64
	case s.auto && p.kind == boolValue:
		kind = rhumb.FieldBool
	case s.auto:
		kind = rhumb.FieldString
	}
	v, err := parseField(kind, text)
	if err != nil {
		return v, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: %.200v", s.name, messageOf(err))
	}
	// NaN has no order, and JSON can represent neither NaN nor infinities.
	if f := v.Float64(); math.IsNaN(f) || math.IsInf(f, 0) {
		return v, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: %.40q is not finite", s.name, text)
	}
	return v, nil
}

// parseField is rhumb.ParseField, with a fast path for whole seconds, which live feeds use. The
// fast path does not allocate.
func parseField(kind rhumb.FieldKind, text string) (rhumb.FieldValue, error) {
	if kind == rhumb.FieldTimestamp && len(text) <= 10 {
		if seconds, err := strconv.ParseUint(text, 10, 34); err == nil {
			return rhumb.TimestampField(time.Unix(int64(seconds), 0)), nil
		}
	}
	return rhumb.ParseField(kind, text)
}

// addPlaceAndTime adds the fields that the mapping computes from others.
func (mp *Mapper) addPlaceAndTime(pairs []pair) error {
	if mp.when != nil {
		if p := lastPair(pairs, mp.when.name); p != nil && p.kind != nullValue {
			v, err := parseField(rhumb.FieldTimestamp, viewString(p.value))
			if err != nil {
				return rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: %.200v", mp.when.name, messageOf(err))
			}
			mp.addMade(mp.mapping.Time.Field, v)
		}
	}
	if mp.place == nil {
		return nil
	}
	found := 0
	for i, s := range mp.place {
		p := lastPair(pairs, s.name)
		if p == nil || p.kind == nullValue {
			continue
		}
		v, err := s.value(p)
		if err != nil {
			return err
		}
		mp.coords[i] = v.Float64()
		found++
	}
	// An event without a location is valid, but one with a part of it is not.
	if found == 0 {
		return nil
	}
	if found < len(mp.place) {
		return rhumb.Ef(opMap, rhumb.InvalidArgument, "the location is incomplete: the line has %d of its %d keys", found, len(mp.place))
	}
	v := mp.placeValue()
	if err := v.Validate(); err != nil {
		return rhumb.Ef(opMap, rhumb.InvalidArgument, "location: %v", messageOf(err))
	}
	mp.addMade(mp.mapping.Location.Field, v)
	return nil
}

// placeValue returns a point for two coordinates, a box for four.
func (mp *Mapper) placeValue() rhumb.FieldValue {
	if len(mp.place) == 2 {
		return rhumb.PointField(rhumb.Point{Lat: mp.coords[0], Lon: mp.coords[1]})
	}
	return rhumb.BoxField(mp.placeBox())
}

// placeBox returns the box around two points, the short way around the earth.
func (mp *Mapper) placeBox() rhumb.Box {
	c := mp.coords
	west, east := min(c[2], c[3]), max(c[2], c[3])
	// The box crosses the antimeridian.
	if east-west > 180 {
		west, east = east, west
	}
	return rhumb.Box{
		Min: rhumb.Point{Lat: min(c[0], c[1]), Lon: west},
		Max: rhumb.Point{Lat: max(c[0], c[1]), Lon: east},
	}
}

// addMade adds a computed field. It replaces a field of the same name, which Keep may have added.
func (mp *Mapper) addMade(name string, v rhumb.FieldValue) {
	mp.fields = slices.DeleteFunc(mp.fields, func(f taggedField) bool { return f.Name == name })
	mp.fields = append(mp.fields, taggedField{rhumb.Field{Name: name, Value: v}, mp.rowsOf(name)})
}

// addOrder sets the order values of an event.
func (mp *Mapper) addOrder(ev *Event) error {
	if len(mp.order) == 0 {
		return nil
	}
	ev.Order = make([]rhumb.FieldValue, 0, len(mp.order))
	for _, s := range mp.order {
		v, ok := mp.field(s.name)
		if !ok || v.Kind() == rhumb.FieldNull {
			return rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q is missing; it orders the events", s.name)
		}
		ev.Order = append(ev.Order, owned(v))
	}
	return nil
}

// owned returns a value that shares no memory with the line. Order values outlive the line: the
// dispatcher compares them with later events.
func owned(v rhumb.FieldValue) rhumb.FieldValue {
	if v.Kind() == rhumb.FieldString {
		return rhumb.StringField(strings.Clone(v.Text()))
	}
	return v
}

// field returns the field of the current line with a name.
func (mp *Mapper) field(name string) (rhumb.FieldValue, bool) {
	i, ok := slices.BinarySearchFunc(mp.fields, name, func(f taggedField, name string) int { return strings.Compare(f.Name, name) })
	if !ok {
		return rhumb.FieldValue{}, false
	}
	return mp.fields[i].Value, true
}

// lastPair returns the last pair with a key, or nil.
func lastPair(pairs []pair, key string) *pair {
	if i := lastIndex(pairs, key); i >= 0 {
		return &pairs[i]
	}
	return nil
}

// lastIndex returns the index of the last pair with a key, or -1.
func lastIndex(pairs []pair, key string) int {
	for i := len(pairs) - 1; i >= 0; i-- {
		if string(pairs[i].key) == key {
			return i
		}
	}
	return -1
}

// viewString returns b as a string without a copy.
//
// HAZARD: the string changes when b does. It is used only for values that are encoded or compared
// before the memory of the line is reused.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// messageOf returns the message of an error without its operation and kind, for use within another
// message.
func messageOf(err error) string {
	if e, ok := err.(*rhumb.Error); ok {
		return e.Msg
	}
	return err.Error()
}
