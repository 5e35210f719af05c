package catalog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/fxamacker/cbor/v2"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

// goldenCommands returns a command of each code with every field set.
func goldenCommands() []Command {
	register := RegisterNode{
		Cluster: rhumb.UUID{1}, Node: 3, Store: rhumb.UUID{2}, Boot: 4, Nonce: 5, Previous: 6, Short: true, Region: "fra", Zone: "a",
		Location: rhumb.Point{Lat: 50.5, Lon: 8.25}, HasLocation: true, Addr: "h:1", HeartbeatAddr: "h:2", AdminAddr: "h:3", Binary: "v1",
		Name: "eu-1",
	}
	first := register
	first.Cluster = rhumb.UUID{}
	placements := []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2}, {2, 1}}}}
	id := rhumb.RangeID{Region: 1, Slot: 9}
	fingerprint := strings.Repeat("ab", 32)
	keys := []rhumb.GossipKey{{ID: 2, Secret: bytes.Repeat([]byte{7}, rhumb.GossipSecretSize)}}
	return []Command{
		Init{Cluster: rhumb.UUID{9}, First: first, Gossip: keys},
		AddRegion{Name: "sin", Location: rhumb.Point{Lat: 1.5, Lon: 103.75}},
		register,
		CreateClass{Settings: rhumb.DefaultClassSettings(), Placements: placements},
		CreateTable{
			Name: "flights", Settings: rhumb.DefaultClassSettings(), Placements: placements,
			TableOptions: rhumb.TableOptions{Colocate: '/', LocationField: "pos", History: time.Hour, Snapshot: rhumb.SnapshotOn | rhumb.SnapshotSpatial},
		},
		EnsureRegionBlocks{Class: 2, Placements: placements},
		OpenSlot{Node: 1, Class: 2, Opened: 3, Replicas: []rhumb.NodeID{1, 2}},
		AlterISR{Range: id, Epoch: 7, Version: 8, Members: []Member{{1, 2, false}, {3, 4, true}}},
		Elect{Range: id, Version: 8, Node: 2, InSync: []rhumb.NodeID{2, 3}},
		FenceNode{Node: 2, Boot: 6},
		SetNodeState{Node: 2, Boot: 6, State: rhumb.NodeDraining},
		SetReplicas{Range: id, Version: 8, Replicas: []rhumb.NodeID{1, 2, 3}, Preferred: 3},
		SetVoters{Voters: []rhumb.NodeID{1, 4, 7}},
		QuarantineReplica{Range: id, Node: 3, Epoch: 4},
		RecoverRange{Range: id, Version: 7, Node: 3, End: 8, EndTime: 9, Known: 10},
		ReadmitReplica{Range: id, Node: 3, Epoch: 5},
		SetRegionDead{Region: 3},
		CreateUser{Name: "ann", Verifier: someVerifier(1), Roles: []string{"reader", "writer"}},
		SetUser{Name: "ann", Verifier: new(someVerifier(2)), Disabled: new(false)},
		SetUser{Name: "ann", Verifier: &access.Verifier{}},
		DropUser{Name: "ann"},
		CreateRole{Name: "reader"},
		DropRole{Name: "reader", Cascade: true},
		AssignRole{User: "ann", Role: "reader", Remove: true},
		AlterGrant{Role: "reader", Scope: access.Scope{Table: "t", Prefix: "a\xff"}, Add: access.Read | access.Watch, Remove: access.Write},
		AlterGrant{Role: "ops", Scope: access.Scope{Cluster: true}, Add: access.Admin},
		RefuseSnapshot{Table: "flights"},
		DropTable{Name: "flights", Table: 4},
		RemoveClass{Class: 2},
		SetTrust{Trust: []rhumb.Authority{{Fingerprint: fingerprint, Cert: []byte{1, 2}}}, Distrust: []string{fingerprint}},
		SetTrust{Trust: []rhumb.Authority{{Fingerprint: fingerprint, Cert: []byte{1, 2}, Proof: []byte{3, 4}}}},
		RevokeCertificate{rhumb.Revocation{Serial: "1f", Name: "rhumb://c/node/eu-1", NotAfter: time.Unix(9, 0).UTC(), Why: "lost", At: time.Unix(8, 0).UTC()}},
		SetGossipKeys{Version: 3, Keys: keys},
		RevokeCertificate{rhumb.Revocation{Serial: "1f", Authority: fingerprint, At: time.Unix(8, 0).UTC()}},
		RevokeBearer{rhumb.Revocation{Name: "user tower", Why: "lost", At: time.Unix(8, 0).UTC()}},
		RegisterNode{Store: rhumb.UUID{2}, Boot: 5, Name: "eu-2", Proof: &RegistrationProof{At: 7, Chain: [][]byte{{1}, {2}}, Signature: []byte{3}}},
		RegisterNode{Store: rhumb.UUID{3}, Boot: 5, Region: "sin", Zone: "a", Witness: true},
		ForgetNode{Node: 2, Boot: 6},
		PrepareHandover{Range: id, Version: 8, Target: 2},
		AdoptHandover{Range: id, Epoch: 9, Boot: 4},
		PrepareSplit{Range: id, Version: 8, At: 77},
		PrepareSplit{Range: id, Version: 8, At: 77, Kept: true},
		CompleteSplit{Range: id, Epoch: 9},
		CancelSplit{Range: id, Epoch: 9, Version: 8},
		PrepareMerge{Range: id, Version: 8, RightVersion: 7},
		CancelMerge{Range: id, Epoch: 9, Version: 8},
		CompleteMerge{Range: id, Epoch: 9, Merge: 11},
		CancelHandover{Range: id, Version: 8},
		ForgetNode{Node: 2, Boot: 6, Empty: true},
		StartOperation{Kind: rhumb.OperationMove, Node: 2, Target: 3, Range: id, By: "ann", At: time.Unix(8, 9).UTC()},
		StartOperation{Kind: rhumb.OperationRebalance, Region: 1, By: "ann", At: time.Unix(8, 9).UTC()},
		StartOperation{Kind: rhumb.OperationMoveVote, Node: 1, Target: 2, By: "ann", At: time.Unix(8, 9).UTC()},
		StartOperation{Kind: rhumb.OperationMerge, Range: id, By: "cluster", At: time.Unix(8, 9).UTC()},
		UnpinVotes{Nodes: []rhumb.NodeID{2, 3}},
		RecordRelapse{Node: 2, Relapses: 3, At: time.Unix(8, 9).UTC()},
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 2, Into: 1, By: "ann", At: time.Unix(8, 9).UTC()},
		RemoveRegion{Region: 2, Into: 1, Force: true, Lost: 3, By: "ann", At: time.Unix(8, 9).UTC()},
		RemoveRegion{Region: 2, Into: 1, Force: true, Lost: 1, Restarts: []RangeCopies{{Range: id, Replicas: []rhumb.NodeID{2, 1}}}, By: "ann", At: time.Unix(8, 9).UTC()},
		UpdateOperation{
			ID: 4, Version: 5, State: rhumb.OperationRunning, Steps: []rhumb.OperationStep{{Name: "copy", State: rhumb.OperationDone}},
			Progress: rhumb.Progress{Done: 1, Total: 2, DoneBytes: 3, TotalBytes: 4}, Waits: "w", Error: "e", At: time.Unix(8, 9).UTC(),
		},
		ControlOperation{ID: 4, Action: PauseOperation, At: time.Unix(8, 9).UTC()},
		SetLeaving{Range: id, Version: 8, Leaving: []rhumb.NodeID{2}},
		SetSetting{Name: "replace_after", Value: "5m"},
		SetClusterVersion{Version: 2, Previous: 1, Without: []rhumb.NodeID{3}},
		Batch{Commands: []Command{FenceNode{Node: 2, Boot: 6}, SetVoters{Voters: []rhumb.NodeID{1}}}},
	}
}

// someVerifier returns a valid verifier.
func someVerifier(b byte) access.Verifier {
	key := bytes.Repeat([]byte{b}, access.KeySize)
	return access.Verifier{Iterations: access.IterationsMin, Salt: key[:16], StoredKey: key, ServerKey: key}
}

// goldenState returns a state with records of every type.
func goldenState(t testing.TB) *State {
	s := plainState(t)
	for _, cmd := range []Command{
		RegisterNode{Node: 2, Store: rhumb.UUID{2}, Boot: 5, Nonce: 11, Previous: 9, Region: "fra", Zone: "b", Name: "eu-2"},
		SetTrust{Trust: []rhumb.Authority{{Fingerprint: strings.Repeat("ab", 32), Cert: []byte{1, 2}, Proof: []byte{3}}, {Fingerprint: strings.Repeat("ef", 32), Cert: []byte{4}}}},
		SetTrust{Distrust: []string{strings.Repeat("cd", 32), strings.Repeat("ef", 32)}},
		RevokeCertificate{rhumb.Revocation{Serial: "1f", Name: "rhumb://c/node/eu-1", NotAfter: time.Unix(9, 0), Why: "lost", At: time.Unix(8, 0)}},
		SetGossipKeys{Keys: []rhumb.GossipKey{{ID: 1, Secret: bytes.Repeat([]byte{7}, rhumb.GossipSecretSize)}}},
		FenceNode{Node: 2, Boot: 5},
		ForgetNode{Node: 2, Boot: 5},
		CreateRole{"reader"},
		CreateRole{"writer"},
		AlterGrant{Role: "reader", Scope: access.Scope{Cluster: true}, Add: access.Read},
		AlterGrant{Role: "reader", Scope: access.Scope{Table: "t", Prefix: "p/\xff"}, Add: access.Read},
		CreateUser{"ann", someVerifier(3), []string{"writer", "reader"}},
		CreateUser{Name: "bob"},
		SetUser{Name: "bob", Disabled: new(true)},
		RegisterNode{Binary: testBinary, Node: 1, Store: rhumb.UUID{1}, Boot: 9, Nonce: 12, Region: "fra", Zone: "z"},
		SetClusterVersion{Version: 2, Previous: 1},
	} {
		var res Result
		if s, res, _ = s.Apply(cmd); res.Failure != nil {
			t.Fatal(res.Failure)
		}
	}
	return s
}

// movingState returns a state with operations, settings, and ranges that lose replicas.
func movingState(t testing.TB) *State {
	s := founded()
	id := rhumb.RangeID{Region: 1}
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.HashSlots = 2, 1
	join := func(store byte) RegisterNode {
		return RegisterNode{Binary: testBinary, Store: rhumb.UUID{store}, Boot: 1, Nonce: uint64(store), Region: "fra", Zone: "b"}
	}
	for i, cmd := range []Command{
		join(2),
		CreateTable{Name: "t", Settings: settings, Placements: []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2}}}}},
		join(3), join(4),
		SetReplicas{Range: id, Version: 1, Replicas: []rhumb.NodeID{1, 2, 3, 4}},
		SetReplicas{Range: id, Version: 2, Replicas: []rhumb.NodeID{1, 2, 3}},
		StartOperation{Kind: rhumb.OperationDecommission, Node: 3, By: "ann", At: time.Unix(9, 0)},
		SetLeaving{Range: id, Version: 3, Leaving: []rhumb.NodeID{3}},
		ControlOperation{ID: 1, Action: PauseOperation, At: time.Unix(11, 0)},
		SetSetting{Name: "replace_after", Value: "5m"},
		AddRegion{Name: "gone", Location: rhumb.Point{Lat: 1}},
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 2, Into: 1, By: "ann", At: time.Unix(9, 0)},
		RemoveRegion{Region: 2},
		AddRegion{Name: "goes", Location: rhumb.Point{Lat: 1}},
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 3, Into: 1, By: "ann", At: time.Unix(9, 0)},
	} {
		var res Result
		if s, res, _ = s.Apply(cmd); res.Failure != nil {
			t.Fatalf("%d %T: %v", i, cmd, res.Failure)
		}
	}
	return s
}

// plainState returns a state without names and security, as binaries before them wrote it.
func plainState(t testing.TB) *State {
	s := foundedBy("")
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.HashSlots = 2, 1
	for _, next := range []func() Command{
		func() Command { return RegisterNode{Store: rhumb.UUID{2}, Boot: 3, Nonce: 4, Region: "fra", Zone: "b"} },
		func() Command { return CreateTable{Name: "t", Settings: c, Placements: rotate(s, c)} },
		func() Command { return OpenSlot{Node: 1, Class: 1, Replicas: []rhumb.NodeID{1, 2}} },
		func() Command { return SetVoters{[]rhumb.NodeID{1}} },
		func() Command { return Elect{Range: rhumb.RangeID{Region: 1}, Version: 1, Node: 2} },
		func() Command { return QuarantineReplica{Range: rhumb.RangeID{Region: 1}, Node: 1} },
		func() Command {
			return RegisterNode{Node: 2, Store: rhumb.UUID{2}, Boot: 2, Nonce: 9, Previous: 1, Region: "fra", Zone: "b"}
		},
	} {
		var res Result
		if s, res, _ = s.Apply(next()); res.Failure != nil {
			t.Fatal(res.Failure)
		}
	}
	return s
}

// TestGolden fixes the stored bytes. A changed line is a changed format, which needs a new version
// and a reader of the old one.
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/golden", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "commands":
			for _, cmd := range goldenCommands() {
				fmt.Fprintf(&out, "%T %s\n", cmd, hex.EncodeToString(EncodeCommand(cmd)))
			}
		case "results":
			r := &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: 2}, Class: 1, Epoch: 3, Allocated: 4, Version: 5, Primary: 6, Preferred: 7, InSync: []rhumb.NodeID{6}, Replicas: []rhumb.NodeID{6, 7}}
			failure := &rhumb.Error{Op: "catalog.Elect", Kind: rhumb.Conflict, Msg: "no", Range: r.ID}
			for _, res := range []Result{
				{Revision: 1, Region: 2, Node: 3, Class: 4, Table: 5},
				{Revision: 1, Failure: failure, Range: r},
				{Revision: 9, Items: []Result{{Revision: 9, Node: 1}, {Revision: 9, Failure: failure}}},
			} {
				fmt.Fprintln(&out, hex.EncodeToString(EncodeResult(res)))
			}
		case "plain-state":
			fmt.Fprintln(&out, hex.EncodeToString(plainState(t).Encode()))
		case "moving-state":
			fmt.Fprintln(&out, hex.EncodeToString(movingState(t).Encode()))
		case "state":
			fmt.Fprintln(&out, hex.EncodeToString(goldenState(t).Encode()))
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		return out.String()
	})
}

// TestCommandRoundTrip checks that commands decode to themselves, field by field.
func TestCommandRoundTrip(t *testing.T) {
	for _, want := range goldenCommands() {
		got, err := DecodeCommand(EncodeCommand(want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%T: got %+v (%v), want %+v", want, got, err, want)
		}
	}
}

// TestDecodeEarlierTrust guards that a state of an earlier build, without proofs and revisions of authorities, is read,
// and that what it distrusts vouches for nobody.
func TestDecodeEarlierTrust(t *testing.T) {
	var w wireState
	if err := decMode.Unmarshal(goldenState(t).Encode(), &w); err != nil {
		t.Fatal(err)
	}
	w.Security.DistrustedAt, w.Security.Retired = nil, nil
	w.Security.Authorities[0].Proof, w.Security.Authorities[0].Revision = nil, 0
	s, err := Decode(must(encMode.Marshal(w)))
	if err != nil {
		t.Fatal(err)
	}
	if x := s.Security(); !slices.Equal(x.DistrustedAt, []uint64{0, 0}) || len(x.Authorities) != 1 || s.Check() != nil {
		t.Errorf("%+v, %v", x, s.Check())
	}
}

// TestDecodeRefuses checks that bytes of a newer binary and damaged bytes have different kinds of
// errors.
func TestDecodeRefuses(t *testing.T) {
	wire := func(m map[int]any) []byte { return must(encMode.Marshal(m)) }
	tests := []struct {
		name string
		b    []byte
		want rhumb.Kind
	}{
		{"nothing", nil, rhumb.Corrupt},
		{"no map", []byte{0x01}, rhumb.Corrupt},
		{"no version", wire(map[int]any{2: 9}), rhumb.Corrupt},
		{"newer version", wire(map[int]any{1: 2, 2: 9}), rhumb.Incompatible},
		{"unknown code", wire(map[int]any{1: 1, 2: 99}), rhumb.Incompatible},
		{"unknown field", wire(map[int]any{1: 1, 2: 9, 99: 1}), rhumb.Incompatible},
		{"wrong type", wire(map[int]any{1: 1, 2: 10, 4: "x"}), rhumb.Corrupt},
		{"short store", wire(map[int]any{1: 1, 2: 3, 5: []byte{1}}), rhumb.Corrupt},
		{"short cluster", wire(map[int]any{1: 1, 2: 3, 3: []byte{1}}), rhumb.Corrupt},
		{"nested batch", wire(map[int]any{1: 1, 2: 14, 29: []map[int]any{{2: 14}}}), rhumb.Corrupt},
		{"init in a batch", wire(map[int]any{1: 1, 2: 14, 29: []map[int]any{{2: 1}}}), rhumb.Corrupt},
		{"unknown code in a batch", wire(map[int]any{1: 1, 2: 14, 29: []map[int]any{{2: 99}}}), rhumb.Incompatible},
		{"trailing bytes", append(EncodeCommand(FenceNode{1, 1}), 0), rhumb.Corrupt},
		{"repeated field", []byte{0xa3, 0x01, 0x01, 0x02, 0x0a, 0x02, 0x0a}, rhumb.Corrupt},
	}
	for _, tt := range tests {
		if cmd, err := DecodeCommand(tt.b); rhumb.KindOf(err) != tt.want || err == nil {
			t.Errorf("%s: got %v, %v, want kind %s", tt.name, cmd, err, tt.want)
		}
	}
	if _, err := DecodeResult(wire(map[int]any{1: 2})); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("a newer result: %v", err)
	}
	if _, err := Decode(wire(map[int]any{1: 2})); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("a newer state: %v", err)
	}
}

// TestDecodeChecks damages an encoded state in ways that CBOR itself does not notice.
func TestDecodeChecks(t *testing.T) {
	good := goldenState(t).Encode()
	tests := []struct {
		name   string
		damage func(w *wireState)
	}{
		{"primary out of sync", func(w *wireState) { w.Ranges[0].Primary = 1; w.Ranges[0].InSync = []rhumb.NodeID{2} }},
		{"in sync without a replica", func(w *wireState) { w.Ranges[0].Replicas = []rhumb.NodeID{2} }},
		{"unsorted", func(w *wireState) { w.Ranges[0].InSync = []rhumb.NodeID{2, 1} }},
		{"below the minimum", func(w *wireState) { w.Ranges[0].InSync = []rhumb.NodeID{2} }},
		{"epoch not allocated", func(w *wireState) { w.Ranges[0].Epoch = 99 }},
		{"no version", func(w *wireState) { w.Ranges[0].Version = 0 }},
		{"preferred no replica", func(w *wireState) { w.Ranges[0].Preferred = 9 }},
		{"unknown replica", func(w *wireState) { w.Ranges[0].Replicas = []rhumb.NodeID{1, 2, 9} }},
		{"range without a block", func(w *wireState) { w.Ranges[0].Slot = 5_000 }},
		{"range twice", func(w *wireState) { w.Ranges = append(w.Ranges, w.Ranges[0]) }},
		{"node without a region", func(w *wireState) { w.Nodes[0].Region = 9 }},
		{"node id not given out", func(w *wireState) { w.Nodes[1].ID = 9 }},
		{"bad node state", func(w *wireState) { w.Nodes[0].State = 9 }},
		{"store of another", func(w *wireState) { w.Nodes[0].Store = w.Nodes[1].Store }},
		{"class of nobody", func(w *wireState) { w.Tables[0].Class = 9 }},
		{"bad settings", func(w *wireState) { w.Classes[0].Settings.Replicas = 99 }},
		{"crooked block", func(w *wireState) { w.Blocks[0].First++ }},
		{"active block of another", func(w *wireState) { w.Active[0].Node = 2 }},
		{"active block of nobody", func(w *wireState) { w.Active[0].Node = 9 }},
		{"active slot without a range", func(w *wireState) { w.Active[0].Opened = 7 }},
		{"region off the map", func(w *wireState) { w.Regions[0].Location.Lat = 91 }},
		{"name of another", func(w *wireState) { w.Nodes[0].Name = "eu-2"; w.Nodes[1].Forgotten = false }},
		{"bad name", func(w *wireState) { w.Nodes[0].Name = "EU" }},
		{"forgotten and live", func(w *wireState) { w.Nodes[0].Forgotten = true }},
		{"trusted and distrusted", func(w *wireState) { w.Security.Distrusted[0] = w.Security.Authorities[0].Fingerprint }},
		{"bad fingerprint", func(w *wireState) { w.Security.Authorities[0].Fingerprint = "AB" }},
		{"authority without a certificate", func(w *wireState) { w.Security.Authorities[0].Cert = nil }},
		{"authority with a proof that is too large", func(w *wireState) { w.Security.Authorities[0].Proof = make([]byte, rhumb.TrustProofSizeMax+1) }},
		{"distrusted at no revision", func(w *wireState) { w.Security.DistrustedAt = w.Security.DistrustedAt[:1] }},
		{"retired and not distrusted", func(w *wireState) { w.Security.Retired[0].Fingerprint = strings.Repeat("aa", 32) }},
		{"revoked twice", func(w *wireState) { w.Security.Revoked = append(w.Security.Revoked, w.Security.Revoked[0]) }},
		{"bad serial", func(w *wireState) { w.Security.Revoked[0].Serial = "0f" }},
		{"short key", func(w *wireState) { w.Security.GossipKeys[0].Secret = []byte{1} }},
		{"keys without a version", func(w *wireState) { w.Security.GossipVersion = 0 }},
		{"no cluster", func(w *wireState) { w.Cluster = nil }},
		{"users without a revision", func(w *wireState) { w.AccessRevision = 0 }},
		{"users of the future", func(w *wireState) { w.AccessRevision = 99 }},
		{"credentials of the future", func(w *wireState) { w.Users[0].Credentials = 99 }},
		{"users out of order", func(w *wireState) { w.Users[0], w.Users[1] = w.Users[1], w.Users[0] }},
		{"user twice", func(w *wireState) { w.Users = append(w.Users, w.Users[1]) }},
		{"bad user name", func(w *wireState) { w.Users[0].Name = ".a" }},
		{"bad verifier", func(w *wireState) { w.Users[0].Verifier.StoredKey = []byte{1} }},
		{"role of nobody", func(w *wireState) { w.Users[0].Roles = []string{"absent"} }},
		{"role taken twice", func(w *wireState) { w.Users[0].Roles = []string{"reader", "reader"} }},
		{"roles out of order", func(w *wireState) { w.Roles[0], w.Roles[1] = w.Roles[1], w.Roles[0] }},
		{"bad right", func(w *wireState) { w.Roles[0].Grants[0].Rights = 64 }},
		{"no right", func(w *wireState) { w.Roles[0].Grants[0].Rights = 0 }},
		{"watching the cluster", func(w *wireState) { w.Roles[0].Grants[0].Rights = access.Watch }},
		{"grant twice", func(w *wireState) { w.Roles[0].Grants = append(w.Roles[0].Grants, w.Roles[0].Grants[1]) }},
	}
	for _, tt := range tests {
		var w wireState
		if err := cbor.Unmarshal(good, &w); err != nil {
			t.Fatal(err)
		}
		tt.damage(&w)
		if _, err := Decode(encodeWire(w)); !errors.Is(err, rhumb.ErrCorrupt) {
			t.Errorf("%s: got %v, want kind corrupt", tt.name, err)
		}
	}
}

func FuzzDecodeCommand(f *testing.F) {
	for _, cmd := range goldenCommands() {
		f.Add(EncodeCommand(cmd))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		cmd, err := DecodeCommand(b)
		if err != nil {
			if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible {
				t.Fatalf("kind %s: %v", k, err)
			}
			return
		}
		s := goldenState(t)
		next, _, _ := s.Apply(cmd)
		if err := next.Check(); err != nil {
			t.Fatalf("%#v: %v", cmd, err)
		}
		again, err := DecodeCommand(EncodeCommand(cmd))
		if err != nil || !bytes.Equal(EncodeCommand(again), EncodeCommand(cmd)) {
			t.Fatalf("%#v does not survive: %#v, %v", cmd, again, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(goldenState(f).Encode())
	f.Add(New().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible {
				t.Fatalf("kind %s: %v", k, err)
			}
			return
		}
		again, err := Decode(s.Encode())
		if err != nil || !bytes.Equal(again.Encode(), s.Encode()) {
			t.Fatalf("the state does not survive: %v", err)
		}
	})
}

func FuzzDecodeResult(f *testing.F) {
	f.Add(EncodeResult(Result{Revision: 3, Items: []Result{{Node: 1}}}))
	f.Add(EncodeResult(Result{Failure: &rhumb.Error{Kind: rhumb.Conflict, Msg: "m"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeResult(b)
		if err != nil {
			return
		}
		again, err := DecodeResult(EncodeResult(r))
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v does not survive: %+v, %v", r, again, err)
		}
	})
}

// TestMovingStateRoundTrip guards that operations, settings and leaving replicas survive a state transfer.
func TestMovingStateRoundTrip(t *testing.T) {
	want := movingState(t)
	got, err := Decode(want.Encode())
	if err != nil || !reflect.DeepEqual(got.Encode(), want.Encode()) {
		t.Fatal(err)
	}
	o, _ := got.Operation(1)
	if was, _ := want.Operation(1); !reflect.DeepEqual(o, was) || got.Setting("replace_after") != "5m" {
		t.Errorf("got %+v, want %+v", o, was)
	}
	if r, _ := got.Range(rhumb.RangeID{Region: 1}); !r.IsLeaving(3) || len(r.Removed) != 1 {
		t.Errorf("%+v", r)
	}
}
