package client

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TestRepairsCarryEveryField guards that the requests by which an operator gives up data name
// exactly what the operator named, and that a refusal is returned instead of being tried at another
// node.
func TestRepairsCarryEveryField(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("")
	id := rhumb.RangeID{Region: 1, Slot: hashFirst}
	got := func() proto.Message {
		all := slices.Concat(w.nodes[0].admin, w.nodes[1].admin)
		w.nodes[0].admin, w.nodes[1].admin = nil, nil
		if len(all) != 1 {
			t.Fatalf("the nodes got %v", all)
		}
		return all[0]
	}
	for _, lose := range []bool{false, true} {
		if err := c.DiscardReplica(t.Context(), id, 2, lose); err != nil {
			t.Fatal(err)
		}
		if want := (&rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(id), Node: 2, AcceptLoss: lose}); !proto.Equal(got(), want) {
			t.Errorf("the request is not %v", want)
		}
	}
	seen := rhumb.Recovery{Node: 2, End: 3, EndTime: 4, Known: 5}
	r, err := c.RecoverRange(t.Context(), id, 1, seen)
	if err != nil || r.ID != id {
		t.Fatal(r, err)
	}
	want := &rhumbpb.RecoverRangeRequest{Range: api.EncodeRangeID(id), Node: 2, Version: 1, End: 3, EndTime: 4, Known: 5}
	if !proto.Equal(got(), want) {
		t.Errorf("the request is not %v", want)
	}
	_, err = c.RecoverRange(t.Context(), id, 7, seen)
	wantKind(t, err, rhumb.Conflict)
	got()
}

// TestStatusOfTroubledNode guards the decoding of a status in which everything is reported, by a
// node that also knows a kind of trouble that this client does not.
func TestStatusOfTroubledNode(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	waiting, unknown := rhumbpb.ReplicaTroubleKind_REPLICA_TROUBLE_KIND_WAITING, rhumbpb.ReplicaTroubleKind(99)
	id := rhumb.RangeID{Region: 1, Slot: 5}
	w.nodes[0].status = &rhumbpb.StatusResponse{
		Cluster: api.EncodeUUID(rhumb.UUID{7}), Node: &rhumbpb.Node{Id: 1}, Suspected: []uint32{2, 3},
		Stores: []*rhumbpb.StoreStatus{{Dir: "d", Refuses: "full", Damages: []*rhumbpb.StoreDamage{{File: "f", Offset: -1, What: "torn"}}, DamagedRanges: 4}},
		Troubles: []*rhumbpb.ReplicaTrouble{
			{Kind: waiting, Range: api.EncodeRangeID(id), Node: 2, Reason: "asks"}, {Kind: unknown},
		},
		TroubleCounts: map[uint32]uint32{uint32(waiting): 6, uint32(unknown): 7},
		Sights:        []*rhumbpb.NodeSight{{Node: 3, FencedNs: 8, Lives: 9}},
		Metadata:      &rhumbpb.MetadataReplica{Silent: true, WaitsFor: []uint32{2}, Recovered: &rhumbpb.MetadataRecovery{Term: 3, LastIndex: 4, Lost: []uint32{5}}},
		StartPhases:   []*rhumbpb.StartPhase{{Name: "replay", TookNs: 5}}, DeferredLosses: &rhumbpb.DeferredLosses{UnsureEpochs: 2, Entries: 3, LastNs: 4e9},
	}
	s := c.Status(t.Context())[0]
	if s.Err != "" || !slices.Equal(s.Suspected, []rhumb.NodeID{2, 3}) || s.RoundTrip <= 0 {
		t.Errorf("%+v", s)
	}
	if st := s.Stores[0]; st.Refuses != "full" || st.DamagedRanges != 4 || len(st.Damages) != 1 || st.Damages[0] != (StoreDamage{"f", -1, "torn", ""}) {
		t.Errorf("store %+v", st)
	}
	if len(s.Troubles) != 1 || s.Troubles[0] != (ReplicaTrouble{TroubleWaiting, id, 2, "asks"}) {
		t.Errorf("troubles %+v", s.Troubles)
	}
	if len(s.TroubleCounts) != 1 || s.TroubleCounts[TroubleWaiting] != 6 {
		t.Errorf("counts %v", s.TroubleCounts)
	}
	if len(s.Sights) != 1 || s.Sights[0] != (NodeSight{3, 8 * time.Nanosecond, 9}) {
		t.Errorf("sights %+v", s.Sights)
	}
	if m := s.Metadata; !m.Silent || !slices.Equal(m.WaitsFor, []rhumb.NodeID{2}) || m.Recovered.Term != 3 || m.Recovered.LastIndex != 4 || m.Recovered.Lost[0] != 5 {
		t.Errorf("metadata %+v", s.Metadata)
	}
	if len(s.Start) != 1 || s.Start[0] != (StartPhase{"replay", 5 * time.Nanosecond}) {
		t.Errorf("start %+v", s.Start)
	}
	if l := s.DeferredLosses; l == nil || *l != (DeferredLosses{2, 3, time.Unix(4, 0).UTC()}) {
		t.Errorf("losses %+v", l)
	}
}

// TestInsertsGoToTheirLocation guards in which region an insert is written: the one that the caller
// names, else the one nearest to the location that the caller or the record gives, else the
// caller's own.
func TestInsertsGoToTheirLocation(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	paris, york := rhumb.Point{Lat: 48.9, Lon: 2.4}, rhumb.Point{Lat: 40.7, Lon: -74}
	box, err := rhumb.NewRecord(rhumb.Field{Name: "location", Value: rhumb.BoxField(rhumb.Box{Min: paris, Max: rhumb.Point{Lat: 50, Lon: 4}})})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		r    rhumb.Record
		o    InsertOptions
		want rhumb.RegionID
	}{
		{"no location", record(t, "a", 1), InsertOptions{}, 1},
		{"point", record(t, "location", paris), InsertOptions{}, 2},
		{"box", box, InsertOptions{}, 2},
		{"not a location", record(t, "location", "paris"), InsertOptions{}, 1},
		{"option before record", record(t, "location", paris), InsertOptions{Location: &york}, 3},
		{"region before location", record(t, "location", paris), InsertOptions{Region: "virginia", Location: &paris}, 3},
	} {
		put, err := tab.InsertRecord(t.Context(), tc.r, tc.o)
		if err != nil || put.Key.Home.Region != tc.want || len(put.Key.Name) == 0 {
			t.Errorf("%s: %+v, %v; want region %d", tc.name, put, err, tc.want)
			continue
		}
		got, err := tab.Get(t.Context(), put.Key.Name, GetOptions{Home: put.Key.Home.String()})
		if err != nil || got.Version != put.Version {
			t.Errorf("%s: read %+v, %v", tc.name, got, err)
		}
	}
	_, err = tab.InsertRecord(t.Context(), rhumb.Record{}, InsertOptions{Region: "atlantis"})
	wantKind(t, err, rhumb.NotFound)
}
