package route

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// TestCheck guards that a key is only written where every reader looks for it.
func TestCheck(t *testing.T) {
	st := build(t)
	r := Router{State: func() *catalog.State { return st }}
	flights, _ := st.TableByName("flights")
	crews, _ := st.TableByName("crews")
	pairs, _ := st.TableByName("pairs")
	next, res, _ := st.Apply(place.Complete(st, catalog.OpenSlot{Node: 1, Class: flights.Class}))
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	st = next
	opened, _ := st.ActiveSlot(1, flights.Class)
	right, err := r.Named(1, flights.ID, []byte("SWR8/1"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Range(right)
	if err != nil {
		t.Fatal(err)
	}
	beside := rhumb.RangeID{Region: 1, Slot: d.LastSlot() + 1}
	if !exists(st, beside) {
		beside.Slot = d.ID.Slot - 1
	}
	home, _ := st.HomeOf(1, flights, []byte("SWR8/1"))
	ofPairs, err := r.Named(1, pairs.ID, []byte("SWR8/1"))
	if err != nil {
		t.Fatal(err)
	}
	frankfurt, _ := st.RegionByName("frankfurt")
	away, err := r.Named(frankfurt.ID, flights.ID, []byte("SWR8/1"))
	if err != nil {
		t.Fatal(err)
	}
	sequence := string(rhumb.SequenceName(7))
	for _, tc := range []struct {
		what  string
		at    rhumb.RangeID
		kind  rhumb.MutationKind
		table rhumb.TableID
		name  string
		want  rhumb.Kind
		says  string
	}{
		{"a named key at home", right, rhumb.Put, flights.ID, "SWR8/1", rhumb.Other, ""},
		{"beside it by the colocate byte", right, rhumb.Delete, crews.ID, "SWR8/2", rhumb.Other, ""},
		{"another slot", beside, rhumb.Put, flights.ID, "SWR8/1", rhumb.InvalidArgument, "but to " + home.String()},
		{"another class", ofPairs, rhumb.Patch, flights.ID, "SWR8/1", rhumb.InvalidArgument, "but to " + home.String()},
		{"a node's slot", opened, rhumb.Put, flights.ID, "SWR8/1", rhumb.InvalidArgument, "but to " + home.String()},
		{"an insert", opened, rhumb.Insert, flights.ID, "", rhumb.Other, ""},
		{"an insert of another class", opened, rhumb.Insert, pairs.ID, "", rhumb.InvalidArgument, "leave the range out"},
		{"an insert into a hash slot", right, rhumb.Insert, flights.ID, "", rhumb.InvalidArgument, "leave the range out"},
		{"a server-named key", opened, rhumb.Patch, flights.ID, sequence, rhumb.Other, ""},
		{"a server-named key of another class", opened, rhumb.Patch, pairs.ID, sequence, rhumb.InvalidArgument, "but to 1/"},
		{"a region that holds nothing of the table", away, rhumb.Put, pairs.ID, "x", rhumb.InvalidArgument, "holds no key"},
		{"no such range", rhumb.RangeID{Region: 9, Slot: 9}, rhumb.Put, flights.ID, "x", rhumb.NotFound, "retry"},
		{"no such slot", rhumb.RangeID{Region: 1, Slot: opened.Slot + 1}, rhumb.Put, flights.ID, sequence, rhumb.NotFound, "retry"},
		{"no such table", right, rhumb.Put, 99, "x", rhumb.NotFound, "retry"},
	} {
		b := &rhumb.Batch{Range: tc.at, Mutations: []rhumb.Mutation{
			{Kind: tc.kind, Table: tc.table, Name: []byte(tc.name)},
		}}
		err := r.Check(b)
		if rhumb.KindOf(err) != tc.want || (err == nil) != (tc.want == rhumb.Other) || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s in %s: %v, want %s that says %q", tc.what, tc.at, err, tc.want, tc.says)
		}
	}
	// The second mutation is checked like the first.
	other := []byte("SWR9/1")
	for i := 0; ; i++ {
		if id, err := r.Named(1, flights.ID, other); err != nil || id != right {
			break
		}
		other = fmt.Appendf(nil, "SWR%d/1", i)
	}
	two := &rhumb.Batch{Range: right, Mutations: []rhumb.Mutation{
		{Kind: rhumb.Put, Table: flights.ID, Name: []byte("SWR8/1")}, {Kind: rhumb.Put, Table: flights.ID, Name: other},
	}}
	if err := r.Check(two); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), "mutation 2 of 2") {
		t.Errorf("two keys of which one is elsewhere: %v", err)
	}
}

func exists(st *catalog.State, id rhumb.RangeID) bool {
	_, ok := st.RangeOf(id)
	return ok
}
