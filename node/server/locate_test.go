package server

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

func locateReq(names ...string) *rhumbpb.Request {
	l := &rhumbpb.Locate{Region: uint32(here)}
	for _, n := range names {
		l.Names, l.Tables = append(l.Names, []byte(n)), append(l.Tables, uint32(table))
	}
	return &rhumbpb.Request{Locate: l, Hops: 2}
}

// TestLocate guards that a node decides the names of ranges of which it is primary under a lease,
// in the order of the request, and leaves all others undecided instead of forwarding them.
func TestLocate(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.items[home]["a1"], w.items[second]["b1"], w.items[beside]["c1"] = []byte{1}, []byte{2}, []byte{3}
	q := locateReq("a1", "c1", "b2", "x1", "b1", "a2")
	for _, tc := range []struct {
		name   string
		change func()
		want   []api.Existence
	}{
		{"leased", func() {}, []api.Existence{api.Present, api.Undecided, api.Absent, api.Undecided, api.Present, api.Absent}},
		{"a range that cannot be read", func() { w.refuse = rhumb.E("test", rhumb.Unavailable, "retry") }, make([]api.Existence, 6)},
		{"without a lease", func() { w.refuse, w.unleased = nil, true }, make([]api.Existence, 6)},
	} {
		w.with(tc.change)
		resp, err, _ := do(t, c, q)
		if err.Kind != 0 || !slices.Equal(resp.Located, tc.want) {
			t.Errorf("%s: %v, %v, want %v", tc.name, resp.GetLocated(), err, tc.want)
		}
	}
	if len(w.forwards) != 0 {
		t.Error("a locate was passed on")
	}
	if _, err, _ := do(t, c, locateReq(make([]string, rhumb.LocateNamesMax+1)...)); err.Kind != rhumb.TooLarge {
		t.Errorf("too many names: %v", err)
	}
	if _, err, _ := do(t, c, locateReq("")); err.Kind != rhumb.InvalidArgument {
		t.Errorf("an empty name: %v", err)
	}
}
