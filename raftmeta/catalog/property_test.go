package catalog

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

// genCommand draws a command that is usually sensible: ids near existing ones, versions near
// current ones.
func genCommand(t *rapid.T, s *State) Command {
	g := gen{t, s}
	kinds := map[string]func() Command{
		"register":     func() Command { return g.registration() },
		"add-region":   func() Command { return AddRegion{Name: g.region(), Location: g.point()} },
		"create-class": func() Command { c := g.settings(); return CreateClass{c, rotate(s, c)} },
		"create-table": func() Command {
			c := g.settings()
			return CreateTable{Name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "table"), Settings: c, Placements: rotate(s, c)}
		},
		"ensure": func() Command {
			id := rhumb.ClassID(rapid.IntRange(1, 3).Draw(t, "class"))
			if c, ok := s.Class(id); ok {
				return EnsureRegionBlocks{id, rotate(s, c.Settings)}
			}
			return EnsureRegionBlocks{Class: id}
		},
		"open-slot": g.openSlot,
		"alter-isr": g.alterISR,
		"elect":     g.elect,
		"prepare": func() Command {
			r, v := g.record()
			return PrepareHandover{r.ID, v, g.node()}
		},
		"adopt": func() Command {
			r, _ := g.record()
			return AdoptHandover{r.ID, r.Allocated - rhumb.Epoch(rapid.IntRange(0, 1).Draw(t, "reserved before")), g.boot(g.node())}
		},
		"prepare-split": func() Command {
			r, v := g.record()
			return PrepareSplit{r.ID, v, r.ID.Slot + rhumb.Slot(rapid.SampledFrom([]int{0, 1, 2, 700, 2_047, 5_000}).Draw(t, "at")), rapid.Bool().Draw(t, "kept")}
		},
		"complete-split": func() Command {
			r, _ := g.record()
			return CompleteSplit{r.ID, r.Epoch - rhumb.Epoch(rapid.IntRange(0, 9).Draw(t, "late")/9)}
		},
		"cancel-split": func() Command {
			r, v := g.record()
			old, _ := g.s.RangeOf(r.ID)
			return CancelSplit{r.ID, old.Epoch, v}
		},
		"cancel":          func() Command { r, v := g.record(); return CancelHandover{r.ID, v} },
		"fence":           func() Command { n := g.node(); return FenceNode{n, g.boot(n)} },
		"set-state":       func() Command { n := g.node(); return SetNodeState{n, g.boot(n), g.state()} },
		"set-replicas":    g.setReplicas,
		"set-region-dead": func() Command { return SetRegionDead{rhumb.RegionID(rapid.IntRange(1, 4).Draw(g.t, "region"))} },
		"set-voters":      func() Command { return SetVoters{g.nodes(3)} },
		"unpin-votes":     func() Command { return UnpinVotes{g.nodes(2)} },
		"record-relapse": func() Command {
			return RecordRelapse{g.node(), uint32(rapid.IntRange(0, 3).Draw(t, "relapses")), time.Unix(int64(rapid.IntRange(0, 9).Draw(t, "at")), 0).UTC()}
		},
		"create-user": func() Command {
			return CreateUser{g.user(), g.verifier(), rapid.SliceOfN(rapid.SampledFrom(fewRoles), 0, 2).Draw(t, "roles")}
		},
		"set-user": func() Command {
			c := SetUser{Name: g.user()}
			if rapid.Bool().Draw(t, "password") {
				c.Verifier = new(g.verifier())
			}
			if rapid.Bool().Draw(t, "switch") {
				c.Disabled = new(rapid.Bool().Draw(t, "disabled"))
			}
			return c
		},
		"drop-table": func() Command {
			c := DropTable{Name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "dropped")}
			if rapid.Bool().Draw(t, "exact") {
				c.Table = rhumb.TableID(rapid.IntRange(1, 4).Draw(t, "number"))
			}
			return c
		},
		"remove-class":    func() Command { return RemoveClass{rhumb.ClassID(rapid.IntRange(1, 4).Draw(t, "removed"))} },
		"drop-user":       func() Command { return DropUser{g.user()} },
		"create-role":     func() Command { return CreateRole{g.role()} },
		"drop-role":       func() Command { return DropRole{g.role(), rapid.Bool().Draw(t, "cascade")} },
		"refuse-snapshot": func() Command { return RefuseSnapshot{rapid.SampledFrom([]string{"a", "b", "z"}).Draw(t, "refused")} },
		"assign-role":     func() Command { return AssignRole{g.user(), g.role(), rapid.Bool().Draw(t, "remove")} },
		"alter-grant": func() Command {
			c := AlterGrant{Role: g.role(), Scope: rapid.SampledFrom(fewScopes).Draw(t, "scope")}
			c.Add, c.Remove = access.Rights(rapid.IntRange(0, 31).Draw(t, "add")), access.Rights(rapid.IntRange(0, 31).Draw(t, "drop"))
			return c
		},
		"forget": func() Command { n := g.node(); return ForgetNode{n, g.boot(n), rapid.Bool().Draw(t, "empty")} },
		"start-operation": func() Command {
			return StartOperation{Kind: rhumb.OperationKind(rapid.IntRange(0, 7).Draw(t, "kind")), Node: g.node(), Target: g.node(), Region: g.regionID(), Into: g.regionID(), Range: rhumb.RangeID{Region: 1}, By: "ann"}
		},
		"remove-region": func() Command {
			c := RemoveRegion{Region: g.regionID(), Into: g.regionID(), Force: rapid.Bool().Draw(t, "force"), By: "ann"}
			lost, _ := s.LostRanges(c.Region)
			c.Lost = uint32(len(lost))
			for _, r := range s.BrokenRanges(lost) {
				c.Restarts = append(c.Restarts, RangeCopies{r.ID, placeIn(s, c.Into, r.Class)})
			}
			return c
		},
		"control-operation": func() Command {
			return ControlOperation{ID: rhumb.OperationID(rapid.IntRange(1, 4).Draw(t, "operation")), Action: OperationAction(rapid.IntRange(0, 4).Draw(t, "action"))}
		},
		"update-operation": func() Command {
			c := UpdateOperation{ID: rhumb.OperationID(rapid.IntRange(1, 4).Draw(t, "operation")), State: rhumb.OperationState(rapid.IntRange(1, 5).Draw(t, "to"))}
			if o, ok := s.Operation(c.ID); ok {
				c.Version, c.Steps = o.Version, o.Steps
			}
			return c
		},
		"prepare-merge": func() Command {
			c := PrepareMerge{Range: g.someRange()}
			if l, ok := s.Range(c.Range); ok {
				c.Version = l.Version
				if r, ok := s.RightOf(l); ok {
					c.RightVersion = r.Version
				}
			}
			return c
		},
		"cancel-merge": func() Command {
			c := CancelMerge{Range: g.someRange()}
			if r, ok := s.Range(c.Range); ok {
				c.Epoch, c.Version = r.Epoch, r.Version
			}
			return c
		},
		"complete-merge": func() Command {
			c := CompleteMerge{Range: g.someRange()}
			if r, ok := s.Range(c.Range); ok {
				c.Epoch, c.Merge = r.Epoch, r.TakesOver
			}
			return c
		},
		"set-leaving": func() Command {
			c := SetLeaving{Range: rhumb.RangeID{Region: 1, Slot: rhumb.Slot(rapid.IntRange(0, 1).Draw(t, "slot"))}, Leaving: g.nodes(2)}
			if r, ok := s.Range(c.Range); ok {
				c.Version = r.Version
			}
			return c
		},
		"set-setting": func() Command {
			return SetSetting{rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "setting"), rapid.SampledFrom([]string{"1", ""}).Draw(t, "value")}
		},
		"set-version": func() Command {
			v := rhumb.ClusterVersion(rapid.IntRange(1, int(rhumb.VersionNewest)).Draw(t, "version"))
			return SetClusterVersion{v, rhumb.ClusterVersion(rapid.IntRange(1, int(rhumb.VersionNewest)).Draw(t, "previous")), g.nodes(2)}
		},
		"set-trust":       g.setTrust,
		"revoke":          g.revoke,
		"set-gossip-keys": g.setGossipKeys,
	}
	names := []string{
		"register", "register", "create-table", "open-slot", "alter-isr", "alter-isr", "elect", "elect", "fence", "set-state",
		"prepare", "prepare", "adopt", "adopt", "cancel", "prepare-split", "prepare-split", "complete-split", "complete-split", "prepare-merge", "prepare-merge", "cancel-merge", "complete-merge",
		"start-operation", "control-operation", "update-operation", "set-leaving", "set-setting", "remove-region",
		"set-replicas", "add-region", "create-class", "ensure", "set-voters", "set-voters", "unpin-votes", "record-relapse", "set-version", "forget", "set-trust", "revoke", "set-gossip-keys",
		"create-user", "set-user", "drop-user", "create-role", "refuse-snapshot", "create-role", "drop-role", "assign-role", "alter-grant", "alter-grant",
		"drop-table", "remove-class",
	}
	return kinds[rapid.SampledFrom(names).Draw(t, "command")]()
}

type gen struct {
	t *rapid.T
	s *State
}

// someRange draws one of the ranges.
func (g *gen) someRange() rhumb.RangeID {
	var ids []rhumb.RangeID
	for r := range g.s.Ranges() {
		ids = append(ids, r.ID)
	}
	return rapid.SampledFrom(append(ids, rhumb.RangeID{Region: 1})).Draw(g.t, "range")
}

func (g *gen) regionID() rhumb.RegionID {
	return rhumb.RegionID(rapid.IntRange(1, 3).Draw(g.t, "region"))
}

var (
	fewRoles  = []string{"reader", "writer", "ops"}
	fewScopes = []access.Scope{{Cluster: true}, {Table: "a"}, {Table: "a", Prefix: "p\xff"}, {Table: access.AllTables}, {Table: "b", Prefix: "p"}, {}}
)

func (g gen) user() string {
	return rapid.SampledFrom([]string{"ann", "bob", "-bad"}).Draw(g.t, "user")
}

func (g gen) role() string { return rapid.SampledFrom(fewRoles).Draw(g.t, "role") }

// verifier draws a valid verifier, or none.
func (g gen) verifier() access.Verifier {
	if b := rapid.ByteRange(0, 2).Draw(g.t, "password"); b > 0 {
		return someVerifier(b)
	}
	return access.Verifier{}
}

func (g gen) node() rhumb.NodeID {
	return rhumb.NodeID(rapid.IntRange(1, g.s.NodeCount()+1).Draw(g.t, "node"))
}

func (g gen) nodes(most int) []rhumb.NodeID {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rhumb.NodeID {
		return rhumb.NodeID(rapid.IntRange(1, g.s.NodeCount()+1).Draw(t, "n"))
	}), 0, most).Draw(g.t, "nodes")
}

func (g gen) boot(id rhumb.NodeID) rhumb.BootSeq {
	n, ok := g.s.Node(id)
	if !ok || rapid.IntRange(0, 9).Draw(g.t, "wrong boot") == 0 {
		return 1
	}
	return n.Boot
}

func (g gen) region() string { return rapid.SampledFrom([]string{"fra", "sin"}).Draw(g.t, "region") }

func (g gen) state() rhumb.NodeState {
	return rapid.SampledFrom([]rhumb.NodeState{rhumb.NodeLive, rhumb.NodeDraining, rhumb.NodeFenced}).Draw(g.t, "state")
}

func (g gen) point() rhumb.Point {
	return rhumb.Point{Lat: float64(rapid.IntRange(-9, 9).Draw(g.t, "lat")), Lon: float64(rapid.IntRange(-9, 9).Draw(g.t, "lon"))}
}

func (g gen) settings() rhumb.ClassSettings {
	c := rhumb.DefaultClassSettings()
	c.Replicas = rapid.IntRange(1, 3).Draw(g.t, "replicas")
	c.MinInSync = rapid.IntRange(1, c.Replicas).Draw(g.t, "min")
	c.HashSlots = 2
	return c
}

// registration draws a new node, a restart or a repeated registration.
func (g gen) registration() RegisterNode {
	id := g.node()
	// Nodes of a build that supports only the base version are refused unless that one is active.
	binary := rapid.SampledFrom([]string{testBinary, testBinary, testBinary, "old", "newer cluster/2-3"}).Draw(g.t, "build")
	r := RegisterNode{Binary: binary, Region: g.region(), Zone: "z", Location: g.point(), HasLocation: true, Nonce: rapid.Uint64Range(0, 3).Draw(g.t, "nonce")}
	// Names collide often: "" is an insecure node, "a" and "b" are names of several nodes.
	r.Name = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(g.t, "name")
	n, ok := g.s.Node(id)
	if !ok {
		r.Store, r.Boot = rhumb.UUID{byte(id)}, 1
		return r
	}
	if rapid.IntRange(0, 4).Draw(g.t, "own name") > 0 {
		r.Name = n.Name
	}
	at, _ := g.s.Region(n.Region)
	r.Node, r.Store, r.Region = id, n.Store, at.Name
	r.Boot = n.Boot + rhumb.BootSeq(rapid.IntRange(0, 1).Draw(g.t, "grow"))
	return r
}

// record draws a range and a version that is mostly its own.
func (g gen) record() (*rhumb.Range, uint64) {
	all := slices.Collect(g.s.Ranges())
	if len(all) == 0 {
		return &rhumb.Range{ID: rhumb.RangeID{Region: 1}}, 1
	}
	r := rapid.SampledFrom(all).Draw(g.t, "range")
	if rapid.IntRange(0, 9).Draw(g.t, "stale") == 0 {
		return r, r.Version - 1
	}
	return r, r.Version
}

func (g gen) openSlot() Command {
	id, class := g.node(), rhumb.ClassID(rapid.IntRange(1, 3).Draw(g.t, "class"))
	_, opened := g.s.ActiveSlot(id, class)
	replicas := []rhumb.NodeID{id}
	if c, ok := g.s.Class(class); ok {
		for n := range g.s.Nodes() {
			if n.ID != id && len(replicas) < c.Settings.Replicas {
				replicas = append(replicas, n.ID)
			}
		}
	}
	return OpenSlot{id, class, opened, replicas}
}

func (g gen) alterISR() Command {
	r, v := g.record()
	c := AlterISR{Range: r.ID, Epoch: r.Epoch, Version: v}
	for _, id := range r.Replicas {
		if id == r.Primary || rapid.Bool().Draw(g.t, "member") {
			c.Members = append(c.Members, Member{id, g.boot(id), rapid.Bool().Draw(g.t, "vouched")})
		}
	}
	return c
}

func (g gen) elect() Command {
	r, v := g.record()
	c := Elect{Range: r.ID, Version: v, Node: g.node()}
	if len(r.InSync) > 0 && rapid.Bool().Draw(g.t, "in sync") {
		c.Node = rapid.SampledFrom(r.InSync).Draw(g.t, "elected")
	}
	if rapid.IntRange(0, 3).Draw(g.t, "shrink") == 0 {
		c.InSync = g.nodes(3)
	}
	return c
}

func (g gen) fingerprints(label string) (out []string) {
	for _, n := range rapid.SliceOfN(rapid.IntRange(10, 14), 0, 3).Draw(g.t, label) {
		out = append(out, strings.Repeat(strconv.Itoa(n), 32))
	}
	return out
}

func (g gen) setTrust() Command {
	c := SetTrust{Distrust: g.fingerprints("distrust")}
	for _, f := range g.fingerprints("trust") {
		c.Trust = append(c.Trust, rhumb.Authority{Fingerprint: f, Cert: []byte{1}, Proof: []byte{byte(rapid.IntRange(0, 1).Draw(g.t, "proof"))}})
	}
	return c
}

func (g gen) revoke() Command {
	day := func(label string) time.Time {
		return time.Unix(86_400*rapid.Int64Range(1, 40).Draw(g.t, label), 0).UTC()
	}
	r := rhumb.Revocation{Serial: strconv.Itoa(rapid.IntRange(0, 9).Draw(g.t, "serial")), At: day("at")}
	if rapid.Bool().Draw(g.t, "bearer") {
		return RevokeBearer{rhumb.Revocation{Name: rapid.SampledFrom([]string{"user a", "user b", "operator a", "node a"}).Draw(g.t, "name"), At: r.At}}
	}
	if rapid.Bool().Draw(g.t, "expires") {
		r.NotAfter = day("not after")
	}
	return RevokeCertificate{r}
}

func (g gen) setGossipKeys() Command {
	c := SetGossipKeys{Version: g.s.Security().Gossip.Version}
	for _, n := range rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 4).Draw(g.t, "keys") {
		c.Keys = append(c.Keys, rhumb.GossipKey{ID: n, Secret: make([]byte, rhumb.GossipSecretSize)})
	}
	return c
}

func (g gen) setReplicas() Command {
	r, v := g.record()
	set := slices.Concat(r.InSync, g.nodes(2))
	slices.Sort(set)
	return SetReplicas{Range: r.ID, Version: v, Replicas: slices.Compact(set), Preferred: rapid.SampledFrom(append(set, 0)).Draw(g.t, "preferred")}
}

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// founded returns a cluster of one node at the newest version.
func founded() *State { return foundedBy(testBinary) }

// foundedBy returns a cluster whose founder runs the given build.
func foundedBy(binary string) *State {
	s, _, _ := New().Apply(Init{Cluster: rhumb.UUID{7}, First: RegisterNode{
		Binary: binary, Store: rhumb.UUID{1}, Boot: 1, Region: "fra", Zone: "z", HasLocation: true,
	}})
	return s
}

// TestInvariants applies random commands. After each it checks the invariants of the state and of
// the step, and that a decoded copy reaches the same state.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A cluster of the earlier build may be raised on the way.
		s := foundedBy(rapid.SampledFrom([]string{testBinary, ""}).Draw(t, "founder"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			cmd := genCommand(t, s)
			if rapid.IntRange(0, 4).Draw(t, "batch") == 0 {
				cmd = Batch{[]Command{cmd, genCommand(t, s)}}
			}
			before := string(s.Encode())
			next, res, changes := s.Apply(cmd)
			if err := next.Check(); err != nil {
				t.Fatalf("%#v: %v", cmd, err)
			}
			if got := string(s.Encode()); got != before {
				t.Fatalf("%#v changed the state it was applied to", cmd)
			}
			_, batch := cmd.(Batch)
			checkStep(t, s, next, changes, !batch)
			checkCopy(t, before, cmd, next, res)
			s = next
		}
	})
}

// checkStep checks the relation between a state and the next one. After a single command, a new
// primary is live and was in sync; a batch may have fenced it since.
func checkStep(t *rapid.T, old, next *State, changes Changes, single bool) {
	switch {
	case next == old && changes.Len() != 0, next != old && changes.Len() == 0:
		t.Fatalf("the state changed: %v, but %d records are listed", next != old, changes.Len())
	case next != old && next.Revision() != old.Revision()+1:
		t.Fatalf("revision %d after %d", next.Revision(), old.Revision())
	}
	for n := range old.Nodes() {
		// A name is bound once. Only a forgotten node gives its name to another.
		if now, _ := next.Node(n.ID); n.Name != "" && now.Name != n.Name || n.Forgotten && !now.Forgotten {
			t.Fatalf("%s: name %q became %q, or it was forgotten and returned", n.ID, n.Name, now.Name)
		}
	}
	for r := range next.Ranges() {
		was, ok := old.Range(r.ID)
		if !ok || was == r {
			continue
		}
		if !slices.Contains(changes.Ranges, r.ID) {
			t.Fatalf("range %s changed and is not listed", r.ID)
		}
		// A handover begins an epoch that was allocated when it was prepared, and no other.
		adopted := was.Prepared != nil && r.Epoch == was.Prepared.Epoch && r.Primary == was.Prepared.Target
		switch {
		case r.Version <= was.Version:
			t.Fatalf("version %d after %d of %s", r.Version, was.Version, r.ID)
		case r.Epoch < was.Epoch || r.Allocated < was.Allocated || r.Epoch != was.Epoch && r.Epoch <= was.Allocated && !adopted:
			t.Fatalf("epoch %d of %d after %d of %d: used before", r.Epoch, r.Allocated, was.Epoch, was.Allocated)
		case r.Primary != was.Primary && r.Epoch == was.Epoch:
			t.Fatalf("two primaries, %s and %s, in epoch %d", was.Primary, r.Primary, r.Epoch)
		case single && r.Prepared != nil && !next.IsLive(r.Prepared.Target):
			t.Fatalf("a handover to %s is prepared, which is not live", r.Prepared.Target)
		case single && r.Primary != was.Primary && !was.IsInSync(r.Primary):
			t.Fatalf("%s became primary and was not in sync (%v)", r.Primary, was.InSync)
		case single && r.Epoch != was.Epoch && !next.IsLive(r.Primary):
			t.Fatalf("%s became primary and is not live", r.Primary)
		}
	}
}

// checkCopy decodes the encoded command, applies it to the decoded state and compares.
func checkCopy(t *rapid.T, encoded string, cmd Command, next *State, res Result) {
	s, err := Decode([]byte(encoded))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	decoded, err := DecodeCommand(EncodeCommand(cmd))
	if err != nil {
		t.Fatalf("decode %#v: %v", cmd, err)
	}
	copied, resCopy, _ := s.Apply(decoded)
	if string(copied.Encode()) != string(next.Encode()) {
		t.Fatalf("a decoded copy differs after %#v", cmd)
	}
	back, err := DecodeResult(EncodeResult(res))
	if err != nil || !reflect.DeepEqual(back, resCopy) {
		t.Fatalf("results differ after %#v: %+v and %+v (%v)", cmd, back, resCopy, err)
	}
}

// TestFenceLeavesNoPrimary fences a node that holds many ranges. It remains primary only where no
// other member can be elected, and in sync only there and where the set is at its minimum.
func TestFenceLeavesNoPrimary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := founded()
		for range 30 {
			s, _, _ = s.Apply(genCommand(t, s))
		}
		id := rhumb.NodeID(rapid.IntRange(1, s.NodeCount()).Draw(t, "victim"))
		n, _ := s.Node(id)
		if n.State != rhumb.NodeLive {
			t.Skip("the victim is not live")
		}
		s, _, _ = s.Apply(FenceNode{id, n.Boot})
		for r := range s.Ranges() {
			others := slices.ContainsFunc(r.InSync, func(m rhumb.NodeID) bool { return m != id && s.IsLive(m) })
			if r.Primary == id && others {
				t.Fatalf("range %s: %s is fenced and primary, though %v could follow", r.ID, id, r.InSync)
			}
			if class, _ := s.Class(r.Class); r.Primary != id && r.IsInSync(id) && len(r.InSync) > class.Settings.MinInSync {
				t.Fatalf("range %s: %s is fenced and in sync (%v)", r.ID, id, r.InSync)
			}
		}
	})
}

// TestBlocks opens more slots than fit into one block.
func TestBlocks(t *testing.T) {
	s := founded()
	one := rhumb.DefaultClassSettings()
	one.Replicas, one.MinInSync, one.HashSlots = 1, 1, 1
	s, res, _ := s.Apply(CreateClass{one, rotate(s, one)})
	class := res.Class
	for i := range uint32(2*rhumb.BlockSlots + 1) {
		s, res, _ = s.Apply(OpenSlot{1, class, i, []rhumb.NodeID{1}})
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		if id, opened := s.ActiveSlot(1, class); id != res.Range.ID || opened != i+1 {
			t.Fatalf("active slot %s, opened %d, want %s, %d", id, opened, res.Range.ID, i+1)
		}
	}
	var blocks []string
	for b := range s.Blocks() {
		blocks = append(blocks, fmt.Sprintf("%d:%s", b.First, b.Node))
	}
	if got := strings.Join(blocks, " "); got != "0:n0 4096:n1 5120:n1 6144:n1" {
		t.Fatalf("blocks %s", got)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestHeirsShareEqually fences a node whose peers are equally near. They get its primaries in nearly equal
// parts: 16 ranges go to three nodes, which have 16 each. Then a second one fails, and two share what it has.
func TestHeirsShareEqually(t *testing.T) {
	s := founded()
	for i := range 3 {
		s, _, _ = s.Apply(RegisterNode{Binary: testBinary, Store: rhumb.UUID{byte(2 + i)}, Boot: 1, Region: "fra", Zone: "z"})
	}
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.HashSlots = 4, 64
	s, _, _ = s.Apply(CreateClass{c, rotate(s, c)})
	for i, least := range []int{19, 29} {
		s, _, _ = s.Apply(FenceNode{rhumb.NodeID(i + 1), 1})
		count := map[rhumb.NodeID]int{}
		for r := range s.Ranges() {
			count[r.Primary]++
		}
		for id := rhumb.NodeID(i + 2); id <= 4; id++ {
			if count[id] < least {
				t.Fatalf("primaries %v, want at least %d each", count, least)
			}
		}
	}
}

// placeIn returns live nodes of a region for a range of a class, fewer if there are not enough.
func placeIn(s *State, region rhumb.RegionID, class rhumb.ClassID) (out []rhumb.NodeID) {
	c, _ := s.Class(class)
	for n := range s.Nodes() {
		if n.Region == region && s.TakesCopies(n.ID) && len(out) < c.Settings.Replicas {
			out = append(out, n.ID)
		}
	}
	return out
}
