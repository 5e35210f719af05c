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

// Event is what one line becomes: one atomic batch.
type Event struct {
	// Line is the number of its line, from 1.
	Line int64
	// Mutations are the rows; the first is the record whose home and whose order count.
	Mutations []rhumb.Mutation
	// Order holds the values of the mapping's order keys; nil when it has none.
	Order []rhumb.FieldValue

	raw []byte // the line as it was read
	// removes says that a field is null, and so removed: such a patch cannot be merged into another.
	removes bool
}

// Size is what the event counts against the window, in bytes.
func (e *Event) Size() int {
	n := len(e.raw)
	for i := range e.Mutations {
		n += e.Mutations[i].Size()
	}
	return n
}

// Mapper builds events from pairs. It serves one goroutine.
type Mapper struct {
	mapping *Mapping
	rows    []boundRow
	specs   map[string]*fieldSpec
	// order lists the order keys' specs; place those of the location, latitudes first; when is nil without Time.
	order, place []*fieldSpec
	when         *fieldSpec
	cond         rhumb.Condition
	plans        planTree

	fields []taggedField // of the present line
	record rhumb.Record
	coords [4]float64

	// Of the present line, when a plan is followed: the stored form of its fields, and where each begins; the last end is
	// that of the last.
	encoded []byte
	ends    []int
}

// boundRow is a RowMapping whose table is known.
type boundRow struct {
	table rhumb.Table
	name  template
	kind  rhumb.MutationKind
	when  *Condition
}

// fieldSpec is what the mapping says of one key.
type fieldSpec struct {
	name string // as text that no line owns
	kind rhumb.FieldKind
	auto bool
	// rows has a bit for each row that takes the key as a field.
	rows uint16
	// made says that the mapping makes the field of other keys; a line must not hold it.
	made bool
	seen int64 // the line in which the key stood last
}

type taggedField struct {
	rhumb.Field
	rows uint16
}

// unlistedMax bounds the keys, beyond those of the mapping, whose specs are remembered.
const unlistedMax = 4 * rhumb.RecordFieldsMax

// Bind ties the mapping to its tables, given in the order of its rows. The rows of one event must lie in one range:
// several rows ask for tables of one class that cut names at the same byte.
func (m *Mapping) Bind(tables []rhumb.Table) (*Mapper, error) {
	const op rhumb.Op = "ingest.Bind"
	if len(tables) != len(m.Rows) {
		panic("ingest: Bind wants one table for each row")
	}
	mp := &Mapper{mapping: m, specs: map[string]*fieldSpec{}}
	first := tables[0]
	for i, r := range m.Rows {
		t := tables[i]
		if i > 0 && (t.Class != first.Class || t.Colocate != first.Colocate || t.Colocate == 0) {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument,
				"tables %s and %s cannot share a batch: create both with the same settings and the same --colocate byte", first.Name, t.Name)
		}
		if m.Location != nil && i == 0 && t.LocationField != m.Location.Field {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "table %s holds locations in field %q, the mapping makes %q; let them agree",
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
	mp.bindFields()
	return mp, nil
}

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
	if m.Time != nil {
		mp.when = mp.addSpec(m.Time.From)
		if !m.Time.Keep {
			mp.when.rows = 0
		}
		mp.made(m.Time.Field, m.Time.From)
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
		mp.made(m.Location.Field, slices.Concat(m.Location.Lat, m.Location.Lon)...)
	}
}

// made marks a field as made by the mapping, unless it has the name of a key that it is made of.
func (mp *Mapper) made(field string, of ...string) {
	if !slices.Contains(of, field) {
		mp.addSpec(field).made = true
	}
}

// spec gives what is known of a key, and learns it when it is new.
func (mp *Mapper) spec(key []byte) *fieldSpec {
	if s, ok := mp.specs[string(key)]; ok {
		return s
	}
	if len(mp.specs) < unlistedMax+len(mp.mapping.Fields) {
		return mp.addSpec(string(key))
	}
	return mp.makeSpec(string(key))
}

func (mp *Mapper) addSpec(key string) *fieldSpec {
	if s, ok := mp.specs[key]; ok {
		return s
	}
	s := mp.makeSpec(key)
	mp.specs[key] = s
	return s
}

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
		panic("ingest: a validated mapping names an unknown type: " + typ)
	}
	s.kind = kind
	return s
}

// rowsOf tells the rows that take a field.
func (mp *Mapper) rowsOf(field string) (mask uint16) {
	for i, r := range mp.mapping.Rows {
		if len(r.Only) > 0 && !slices.Contains(r.Only, field) || slices.Contains(r.Except, field) {
			continue
		}
		mask |= 1 << i
	}
	return mask
}

const opMap rhumb.Op = "ingest.Map"

// Map builds the event of a line. Errors say what is wrong with the line. The event shares no memory with the line. Map
// may change pairs.
func (mp *Mapper) Map(line int64, raw []byte, pairs []pair) (Event, error) {
	pairs = mp.present(pairs)
	p := mp.plans.find(pairs)
	if p != nil {
		if ev, ok := mp.follow(p, line, raw, pairs); ok {
			mp.plans.hits.Add(1)
			return ev, nil
		}
	}
	mp.plans.misses.Add(1)
	ev, err := mp.mapPlain(line, raw, pairs)
	if err == nil && p == nil && mp.plans.admits(pairs) {
		mp.plans.learn(pairs, mp.plan(pairs))
	}
	return ev, err
}

// present leaves out the pairs whose text the mapping takes for nothing.
func (mp *Mapper) present(pairs []pair) []pair {
	if len(mp.mapping.Null) == 0 {
		return pairs
	}
	return slices.DeleteFunc(pairs, func(p pair) bool {
		return p.kind == textValue && slices.Contains(mp.mapping.Null, viewString(p.value))
	})
}

// mapPlain is Map without a plan: each pair is looked up in the mapping. It maps the first line of each sequence of keys,
// those for which there is no room in the tree, and those that a plan cannot map, for it knows what is wrong with them.
func (mp *Mapper) mapPlain(line int64, raw []byte, pairs []pair) (Event, error) {
	mp.fields = mp.fields[:0]
	ev := Event{Line: line}
	// Backwards, so that of a key that stands twice the last value counts, as it does in a Tcl dictionary.
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
	slices.SortStableFunc(mp.fields, func(a, b taggedField) int { return strings.Compare(a.Name, b.Name) })
	mp.fields = slices.CompactFunc(mp.fields, func(a, b taggedField) bool { return a.Name == b.Name })
	if err := mp.addOrder(&ev); err != nil {
		return Event{}, err
	}
	return ev, mp.addRows(&ev, raw, pairs)
}

func (mp *Mapper) addPair(line int64, p *pair) (removes bool, err error) {
	s := mp.spec(p.key)
	if len(s.name) > rhumb.FieldNameSizeMax {
		return false, rhumb.Ef(opMap, rhumb.TooLarge, "key %.20q… has %d bytes, at most %d are allowed", s.name, len(s.name), rhumb.FieldNameSizeMax)
	}
	if s.made {
		return false, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: the mapping makes this field of other keys, so no line may hold it", s.name)
	}
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

// value reads the pair's value as what the mapping says, else as what the format says.
func (s *fieldSpec) value(p *pair) (rhumb.FieldValue, error) {
	text, kind := viewString(p.value), s.kind
	switch {
	case p.kind == nullValue:
		return rhumb.FieldValue{}, nil
	case s.auto && p.kind == numberValue:
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
	if f := v.Float64(); math.IsNaN(f) || math.IsInf(f, 0) {
		return v, rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q: %.40q is not finite", s.name, text)
	}
	return v, nil
}

// parseField is rhumb.ParseField with a short way for the whole seconds of live feeds, which allocates nothing.
func parseField(kind rhumb.FieldKind, text string) (rhumb.FieldValue, error) {
	if kind == rhumb.FieldTimestamp && len(text) <= 10 {
		if seconds, err := strconv.ParseUint(text, 10, 34); err == nil {
			return rhumb.TimestampField(time.Unix(int64(seconds), 0)), nil
		}
	}
	return rhumb.ParseField(kind, text)
}

// addPlaceAndTime adds the fields that the mapping makes of others.
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
	if found == 0 {
		return nil
	}
	if found < len(mp.place) {
		return rhumb.Ef(opMap, rhumb.InvalidArgument, "the location is not whole: %d of %d keys are there", found, len(mp.place))
	}
	v := mp.placeValue()
	if err := v.Validate(); err != nil {
		return rhumb.Ef(opMap, rhumb.InvalidArgument, "location: %v", messageOf(err))
	}
	mp.addMade(mp.mapping.Location.Field, v)
	return nil
}

// placeValue makes a point of two coordinates, a box of four.
func (mp *Mapper) placeValue() rhumb.FieldValue {
	if len(mp.place) == 2 {
		return rhumb.PointField(rhumb.Point{Lat: mp.coords[0], Lon: mp.coords[1]})
	}
	return rhumb.BoxField(mp.placeBox())
}

// placeBox makes the box around two points, the short way around the earth.
func (mp *Mapper) placeBox() rhumb.Box {
	c := mp.coords
	west, east := min(c[2], c[3]), max(c[2], c[3])
	if east-west > 180 {
		west, east = east, west
	}
	return rhumb.Box{
		Min: rhumb.Point{Lat: min(c[0], c[1]), Lon: west},
		Max: rhumb.Point{Lat: max(c[0], c[1]), Lon: east},
	}
}

func (mp *Mapper) addMade(name string, v rhumb.FieldValue) {
	mp.fields = slices.DeleteFunc(mp.fields, func(f taggedField) bool { return f.Name == name })
	mp.fields = append(mp.fields, taggedField{rhumb.Field{Name: name, Value: v}, mp.rowsOf(name)})
}

func (mp *Mapper) addOrder(ev *Event) error {
	if len(mp.order) == 0 {
		return nil
	}
	ev.Order = make([]rhumb.FieldValue, 0, len(mp.order))
	for _, s := range mp.order {
		v, ok := mp.field(s.name)
		if !ok || v.Kind() == rhumb.FieldNull {
			return rhumb.Ef(opMap, rhumb.InvalidArgument, "key %q is missing: it orders the events", s.name)
		}
		ev.Order = append(ev.Order, owned(v))
	}
	return nil
}

// owned gives a value that shares no memory with the line.
func owned(v rhumb.FieldValue) rhumb.FieldValue {
	if v.Kind() == rhumb.FieldString {
		return rhumb.StringField(strings.Clone(v.Text()))
	}
	return v
}

func (mp *Mapper) field(name string) (rhumb.FieldValue, bool) {
	i, ok := slices.BinarySearchFunc(mp.fields, name, func(f taggedField, name string) int { return strings.Compare(f.Name, name) })
	if !ok {
		return rhumb.FieldValue{}, false
	}
	return mp.fields[i].Value, true
}

// lastPair gives the pair of a key, the last one where it stands twice; nil when it is absent.
func lastPair(pairs []pair, key string) *pair {
	if i := lastIndex(pairs, key); i >= 0 {
		return &pairs[i]
	}
	return nil
}

func lastIndex(pairs []pair, key string) int {
	for i := len(pairs) - 1; i >= 0; i-- {
		if string(pairs[i].key) == key {
			return i
		}
	}
	return -1
}

// viewString gives b as a string without a copy.
//
// HAZARD: the string changes when b does. It is used only for values that are encoded or compared before the line's
// memory is used again.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// messageOf leaves out the operation and the kind of an error that stands within another's message.
func messageOf(err error) string {
	if e, ok := err.(*rhumb.Error); ok {
		return e.Msg
	}
	return err.Error()
}
