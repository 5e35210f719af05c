package publish

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/storage"
)

// entriesOf returns entries with the given sequence numbers.
func entriesOf(seqs ...rhumb.Seq) (out []*entry.Entry) {
	for _, seq := range seqs {
		out = append(out, &entry.Entry{Seq: seq})
	}
	return out
}

func seqsOf(entries []*entry.Entry) (out []rhumb.Seq) {
	for _, e := range entries {
		out = append(out, e.Seq)
	}
	return out
}

// TestMove guards that the entries at hand never have a gap, since followLog applies them one after
// the other: what cannot be joined is read from storage.
func TestMove(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, added []rhumb.Seq
		want          []rhumb.Seq
	}{
		{"nothing before", nil, []rhumb.Seq{5, 6}, []rhumb.Seq{5, 6}},
		{"the next entry", []rhumb.Seq{5, 6}, []rhumb.Seq{7}, []rhumb.Seq{5, 6, 7}},
		{"a gap", []rhumb.Seq{5, 6}, []rhumb.Seq{8, 9}, []rhumb.Seq{8, 9}},
		{"no entries at hand", []rhumb.Seq{5, 6}, nil, nil},
	} {
		m := move{Position{6, 60}, entriesOf(tc.before...)}.extend(Position{9, 90}, entriesOf(tc.added...))
		if got := seqsOf(m.entries); m.Position != (Position{9, 90}) || !slices.Equal(got, tc.want) {
			t.Errorf("%s: a move to %v with %v, want 9 with %v", tc.name, m.Position, got, tc.want)
		}
	}

	m := move{Position{9, 90}, entriesOf(7, 8, 9)}
	for from, want := range map[rhumb.Seq][]rhumb.Seq{6: nil, 7: {7, 8, 9}, 9: {9}, 10: {}} {
		got := m.entriesFrom(from)
		if !slices.Equal(seqsOf(got), want) || (got == nil) != (want == nil) {
			t.Errorf("from %d: %v, want %v", from, seqsOf(got), want)
		}
	}
}

// TestPolicyWait guards when a version is due. Waits are long, so that the test's own time does not
// matter.
func TestPolicyWait(t *testing.T) {
	const soon = time.Hour
	demand := []chan<- answer{make(chan answer, 1)}
	for _, tc := range []struct {
		name   string
		policy Policy
		age    time.Duration // of the last version
		retry  time.Duration // until a failure is retried
		work   work
		want   time.Duration
	}{
		{"at once", Policy{}, 0, 0, work{}, 0},
		{"too early", Policy{Interval: soon}, 0, 0, work{entries: 1000}, soon},
		{"old enough", Policy{Interval: time.Millisecond}, soon, 0, work{}, 0},
		{"too few entries", Policy{Count: 5}, soon, 0, work{entries: 4}, never},
		{"enough entries", Policy{Count: 5}, 0, 0, work{entries: 5}, 0},
		{"enough entries before the time", Policy{Count: 5, Interval: soon}, 0, 0, work{entries: 5}, 0},
		{"too few entries before the time", Policy{Count: 5, Interval: soon}, 0, 0, work{entries: 4}, soon},
		{"not demanded", Policy{OnDemand: true}, soon, 0, work{entries: 1000}, never},
		{"demanded", Policy{OnDemand: true}, 0, 0, work{demands: demand}, 0},
		{"demanded before the time", Policy{Interval: soon}, 0, 0, work{demands: demand}, 0},
		{"after a failure", Policy{}, 0, soon, work{}, soon},
		{"demanded after a failure", Policy{}, 0, soon, work{demands: demand}, 0},
	} {
		now := hlc.Boottime()
		d := &Driver{cfg: Config{Policy: tc.policy}, last: now - tc.age, retry: now + tc.retry}
		got := d.policyWait(tc.work)
		if got > tc.want || tc.want-got > time.Minute {
			t.Errorf("%s: waits %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestReportsAreBounded guards Config.HeldBytes, and that an older report does not replace a newer
// one: the positions are kept, and the entries are read from storage later.
func TestReportsAreBounded(t *testing.T) {
	e := &entry.Entry{Seq: 1, Requests: []entry.Request{{Writes: []entry.Write{{Name: []byte("k"), Value: make([]byte, 1_000)}}}}}
	d := &Driver{cfg: Config{HeldBytes: 3 * e.Size()}, moved: map[rhumb.RangeID]move{}, wake: make(chan struct{}, 1)}
	report := func(slot int, seq rhumb.Seq) {
		at := *e
		at.Seq = seq
		d.Committed(hashRange(slot), Position{seq, rhumb.Timestamp(seq)}, []*entry.Entry{&at})
	}
	want := func(what string, entries, bytes int) {
		t.Helper()
		got := 0
		for _, m := range d.moved {
			got += len(m.entries)
		}
		if got != entries || d.queued != bytes {
			t.Errorf("%s: %d entries and %d bytes are held, want %d and %d", what, got, d.queued, entries, bytes)
		}
	}

	report(0, 1)
	want("without an image", 0, 0)
	d.following.Store(true)
	report(0, 2)
	report(1, 1)
	report(0, 3)
	want("within the bound", 3, 3*e.Size())
	report(0, 2)
	want("after an older report", 3, 3*e.Size())
	report(1, 2)
	want("beyond the bound", 0, 0)
	if at := d.moved[hashRange(0)].Position; at != (Position{3, 3}) {
		t.Errorf("the position is %v, want 3", at)
	}
	if at := d.moved[hashRange(1)].Position; at != (Position{2, 2}) {
		t.Errorf("the position is %v, want 2", at)
	}
	if len(d.wake) != 1 {
		t.Error("reports do not wake the driver")
	}
}

// TestBoxOf guards that no field of a client keeps the image from being published: a field without
// a valid location has no box.
func TestBoxOf(t *testing.T) {
	point := rhumb.Point{Lat: 1, Lon: 2}
	box := rhumb.Box{Min: rhumb.Point{Lat: 1, Lon: 2}, Max: rhumb.Point{Lat: 3, Lon: 4}}
	for _, tc := range []struct {
		name  string
		field rhumb.FieldValue
		want  format.Box
		ok    bool
	}{
		{"a point", rhumb.PointField(point), format.MakePoint(point), true},
		{"a box", rhumb.BoxField(box), format.MakeBox(box), true},
		{"a box with its corners swapped", rhumb.BoxField(rhumb.Box{Min: box.Max, Max: box.Min}), format.Box{}, false},
		{"a text", rhumb.StringField("1,2"), format.Box{}, false},
	} {
		if got, ok := boxOf(tc.field); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%s: box %+v, %v; want %+v, %v", tc.name, got, ok, tc.want, tc.ok)
		}
	}
}

// TestConfigValidate guards that all faults of a configuration are reported at once.
func TestConfigValidate(t *testing.T) {
	good := Config{
		Cluster: rhumb.UUID{1}, Node: 1, Engine: &storage.Engine{}, Logger: slog.New(slog.DiscardHandler),
		State: func() *catalog.State { return nil },
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for says, spoil := range map[string]func(*Config){
		"node or cluster":         func(c *Config) { c.Node = rhumb.NoNode },
		"engine, state or logger": func(c *Config) { c.State = nil },
		"interval is -1s":         func(c *Config) { c.Policy.Interval = -time.Second },
		"count is -2":             func(c *Config) { c.Policy.Count = -2 },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	err := (&Config{Policy: Policy{Count: -2}}).Validate()
	for _, says := range []string{"node or cluster", "engine, state or logger", "count is -2"} {
		if !strings.Contains(rhumb.Message(err), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
}

// TestPublishAfterClose guards that a demand for a version ends when the node stops.
func TestPublishAfterClose(t *testing.T) {
	w := newWorld(t, Policy{})
	w.table("t", rhumb.SnapshotOn)
	w.check(nil)
	if err := w.driver.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.driver.Publish(t.Context()); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("publishing after Close: %v, want unavailable", err)
	}
	w.open(Policy{}) // for the cleanup
}
