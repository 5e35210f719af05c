package catalog

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

// TestTranscripts replays testdata. Each line is a command; the output is its result and the
// records that it touched.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := New()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			// The directive reset begins with another cluster.
			if d.Cmd == "reset" {
				s = New()
			}
			for line := range strings.Lines(d.Input) {
				words := strings.Fields(line)
				if len(words) == 0 {
					continue
				}
				cmd := parseCommand(t, s, words[0], words[1:])
				var res Result
				var changes Changes
				s, res, changes = s.Apply(cmd)
				writeResult(&out, res)
				writeChanges(&out, s, changes)
				if err := s.Check(); err != nil {
					d.Fatalf(t, "after %q: %v", line, err)
				}
			}
			return out.String()
		})
	})
}

// args are the key=value words of a command.
type args struct {
	t      *testing.T
	values map[string]string
}

func (a args) has(key string) bool { _, ok := a.values[key]; return ok }

func (a args) num(key string) uint64 {
	v, ok := a.values[key]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		a.t.Fatalf("%s=%s: %v", key, v, err)
	}
	return n
}

func (a args) nodes(key string) []rhumb.NodeID {
	var out []rhumb.NodeID
	for part := range strings.SplitSeq(a.values[key], ",") {
		if part == "" {
			continue
		}
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			a.t.Fatalf("%s=%s: %v", key, part, err)
		}
		out = append(out, rhumb.NodeID(n))
	}
	return out
}

// gossipKeys returns a key for each number in keys.
func (a args) gossipKeys() (out []rhumb.GossipKey) {
	for _, id := range a.nodes("keys") {
		out = append(out, rhumb.GossipKey{ID: uint32(id), Secret: bytes.Repeat([]byte{byte(id)}, rhumb.GossipSecretSize)})
	}
	return out
}

// fingerprints returns a fingerprint for each pair of digits under a key.
func (a args) fingerprints(key string) (out []string) {
	for part := range strings.SplitSeq(a.values[key], ",") {
		if part != "" {
			out = append(out, strings.Repeat(part, 32))
		}
	}
	return out
}

func (a args) authorities(key string) (out []rhumb.Authority) {
	for _, f := range a.fingerprints(key) {
		out = append(out, rhumb.Authority{Fingerprint: f, Cert: []byte(f[:2]), Proof: []byte(a.values["proof"])})
	}
	return out
}

func (a args) rangeID() rhumb.RangeID {
	id, err := rhumb.ParseRangeID(a.values["range"])
	if err != nil {
		a.t.Fatal(err)
	}
	return id
}

func (a args) words(key string) (out []string) {
	if a.has(key) {
		out = strings.Split(a.values[key], ",")
	}
	return out
}

// verifier returns the verifier of password=N, which is none for 0.
func (a args) verifier() access.Verifier {
	if n := a.num("password"); n > 0 {
		return someVerifier(byte(n))
	}
	return access.Verifier{}
}

func (a args) point() (p rhumb.Point) {
	if a.has("at") {
		if _, err := fmt.Sscanf(a.values["at"], "%g,%g", &p.Lat, &p.Lon); err != nil {
			a.t.Fatal(err)
		}
	}
	return p
}

func (a args) settings() rhumb.ClassSettings {
	c := rhumb.DefaultClassSettings()
	c.HashSlots = 2
	if a.has("slots") {
		c.HashSlots = int(a.num("slots"))
	}
	if a.has("replicas") {
		c.Replicas = int(a.num("replicas"))
		c.MinInSync = min(c.MinInSync, c.Replicas)
	}
	if a.has("min") {
		c.MinInSync = int(a.num("min"))
	}
	return c
}

func (a args) registration() RegisterNode {
	r := RegisterNode{
		Binary: testBinary, Addr: a.values["addr"], Node: rhumb.NodeID(a.num("node")), Boot: rhumb.BootSeq(max(a.num("boot"), 1)), Nonce: a.num("nonce"), Previous: a.num("previous"),
		Region: a.values["region"], Zone: "z" + strconv.FormatUint(a.num("zone"), 10), Location: a.point(), HasLocation: a.has("at"),
		Name: a.values["name"],
	}
	// build=0.14/1-2 is a build that supports two versions, build=0.13 an older one.
	if program, versions, ok := strings.Cut(a.values["build"], "/"); a.has("build") {
		r.Binary = program
		if ok {
			r.Binary += " cluster/" + versions
		}
	}
	if a.has("store") {
		r.Store = rhumb.UUID{15: byte(a.num("store"))}
	}
	if a.has("cluster") {
		r.Cluster = rhumb.UUID{15: byte(a.num("cluster"))}
	}
	return r
}

// rotate places slots on the live nodes of every region that has enough of them, in turn.
func rotate(s *State, settings rhumb.ClassSettings) []Placement {
	var out []Placement
	for r := range s.Regions() {
		var live []rhumb.NodeID
		for n := range s.Nodes() {
			if n.Region == r.ID && n.State == rhumb.NodeLive {
				live = append(live, n.ID)
			}
		}
		if len(live) < settings.Replicas {
			continue
		}
		p := Placement{Region: r.ID}
		for i := range settings.HashSlots {
			turned := slices.Concat(live[i%len(live):], live[:i%len(live)])
			p.Replicas = append(p.Replicas, turned[:settings.Replicas])
		}
		out = append(out, p)
	}
	return out
}

func parseCommand(t *testing.T, s *State, name string, words []string) Command {
	a := args{t, make(map[string]string)}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		a.values[k] = v
	}
	node, boot := rhumb.NodeID(a.num("node")), rhumb.BootSeq(a.num("boot"))
	switch name {
	case "init":
		first := a.registration()
		first.Cluster = rhumb.UUID{}
		return Init{Cluster: rhumb.UUID{15: byte(a.num("cluster"))}, First: first, Gossip: a.gossipKeys()}
	case "add-region":
		return AddRegion{Name: a.values["name"], Location: a.point()}
	case "register":
		return a.registration()
	case "create-class":
		return CreateClass{Settings: a.settings(), Placements: rotate(s, a.settings())}
	case "create-table":
		return CreateTable{
			Name: a.values["name"], Settings: a.settings(), Placements: rotate(s, a.settings()),
			TableOptions: rhumb.TableOptions{Colocate: byte(a.num("colocate"))},
		}
	case "ensure-regions":
		class, _ := s.Class(rhumb.ClassID(a.num("class")))
		return EnsureRegionBlocks{Class: class.ID, Placements: rotate(s, class.Settings)}
	case "open-slot":
		return OpenSlot{Node: node, Class: rhumb.ClassID(a.num("class")), Opened: uint32(a.num("opened")), Replicas: a.nodes("replicas")}
	case "alter-isr":
		c := AlterISR{Range: a.rangeID(), Epoch: rhumb.Epoch(a.num("epoch")), Version: a.num("version")}
		for _, id := range a.nodes("members") {
			m := Member{Node: id, Boot: boot}
			if n, ok := s.Node(id); ok && boot == 0 {
				m.Boot = n.Boot
			}
			c.Members = append(c.Members, m)
		}
		return c
	case "elect":
		return Elect{Range: a.rangeID(), Version: a.num("version"), Node: node, InSync: a.nodes("insync")}
	case "prepare":
		return PrepareHandover{Range: a.rangeID(), Version: a.num("version"), Target: node}
	case "adopt":
		return AdoptHandover{Range: a.rangeID(), Epoch: rhumb.Epoch(a.num("epoch")), Boot: max(boot, 1)}
	case "cancel-handover":
		return CancelHandover{Range: a.rangeID(), Version: a.num("version")}
	case "recover":
		return RecoverRange{Range: a.rangeID(), Version: a.num("version"), Node: rhumb.NodeID(a.num("node"))}
	case "quarantine":
		return QuarantineReplica{Range: a.rangeID(), Node: rhumb.NodeID(a.num("node"))}
	case "readmit":
		return ReadmitReplica{Range: a.rangeID(), Node: rhumb.NodeID(a.num("node"))}
	case "fence":
		return FenceNode{Node: node, Boot: boot}
	case "set-version":
		return SetClusterVersion{rhumb.ClusterVersion(a.num("version")), rhumb.ClusterVersion(a.num("previous")), a.nodes("without")}
	case "set-state":
		state := map[string]rhumb.NodeState{"live": rhumb.NodeLive, "draining": rhumb.NodeDraining, "fenced": rhumb.NodeFenced}[a.values["state"]]
		return SetNodeState{Node: node, Boot: boot, State: state}
	case "set-replicas":
		return SetReplicas{Range: a.rangeID(), Version: a.num("version"), Replicas: a.nodes("replicas"), Preferred: rhumb.NodeID(a.num("preferred"))}
	case "forget":
		return ForgetNode{Node: node, Boot: boot, Empty: a.has("empty")}
	case "start":
		kinds := map[string]rhumb.OperationKind{"decommission": 1, "replace": 2, "move": 3, "repair": 4, "remove-region": 5, "move-vote": 7}
		c := StartOperation{Kind: kinds[a.values["kind"]], Node: node, Target: rhumb.NodeID(a.num("target")), By: "ann", At: time.Unix(int64(a.num("at")), 0)}
		c.Region, c.Into = rhumb.RegionID(a.num("region")), rhumb.RegionID(a.num("into"))
		if a.has("range") {
			c.Range = a.rangeID()
		}
		return c
	case "update":
		o, _ := s.Operation(rhumb.OperationID(a.num("op")))
		state := map[string]rhumb.OperationState{"": rhumb.OperationRunning, "done": rhumb.OperationDone, "failed": rhumb.OperationFailed}[a.values["state"]]
		c := UpdateOperation{ID: o.ID, Version: a.num("version"), State: state, Steps: o.Steps, At: time.Unix(int64(a.num("at")), 0), Waits: a.values["waits"]}
		c.Progress = rhumb.Progress{Done: a.num("done"), Total: a.num("total")}
		return c
	case "pause", "resume", "cancel":
		action := map[string]OperationAction{"pause": PauseOperation, "resume": ResumeOperation, "cancel": CancelOperation}[name]
		return ControlOperation{ID: rhumb.OperationID(a.num("op")), Action: action, At: time.Unix(int64(a.num("at")), 0)}
	case "set-region-dead":
		return SetRegionDead{rhumb.RegionID(a.num("region"))}
	case "remove-region":
		return RemoveRegion{
			Region: rhumb.RegionID(a.num("region")), Into: rhumb.RegionID(a.num("into")), Force: a.has("force"), Lost: uint32(a.num("lost")),
			By: "ann", At: time.Unix(int64(a.num("at")), 0),
		}
	case "set-leaving":
		return SetLeaving{Range: a.rangeID(), Version: a.num("version"), Leaving: a.nodes("leaving")}
	case "set-setting":
		return SetSetting{a.values["name"], a.values["value"]}
	case "set-trust":
		return SetTrust{Trust: a.authorities("trust"), Distrust: a.fingerprints("distrust")}
	case "revoke":
		day := func(key string) (at time.Time) {
			if a.has(key) {
				at = time.Unix(int64(a.num(key))*86_400, 0).UTC()
			}
			return at
		}
		if !a.has("serial") {
			return RevokeBearer{rhumb.Revocation{Name: strings.ReplaceAll(a.values["name"], ".", " "), Why: a.values["why"], At: day("day")}}
		}
		return RevokeCertificate{rhumb.Revocation{
			Serial: a.values["serial"], Authority: strings.Join(a.fingerprints("issuer"), ""), Name: strings.ReplaceAll(a.values["name"], ".", " "), Why: a.values["why"], NotAfter: day("expires"), At: day("day"),
		}}
	case "set-gossip-keys":
		return SetGossipKeys{Version: a.num("version"), Keys: a.gossipKeys()}
	case "set-voters":
		return SetVoters{Voters: a.nodes("voters")}
	case "unpin-votes":
		return UnpinVotes{a.nodes("nodes")}
	case "create-user":
		return CreateUser{Name: a.values["name"], Verifier: a.verifier(), Roles: a.words("roles")}
	case "set-user":
		c := SetUser{Name: a.values["name"]}
		if a.has("password") {
			c.Verifier = new(a.verifier())
		}
		if a.has("disabled") {
			c.Disabled = new(a.values["disabled"] == "true")
		}
		return c
	case "drop-user":
		return DropUser{a.values["name"]}
	case "create-role":
		return CreateRole{a.values["name"]}
	case "drop-role":
		return DropRole{a.values["name"], a.has("cascade")}
	case "assign":
		return AssignRole{a.values["user"], a.values["role"], false}
	case "unassign":
		return AssignRole{a.values["user"], a.values["role"], true}
	case "drop-table":
		return DropTable{Name: a.values["name"], Table: rhumb.TableID(a.num("table"))}
	case "remove-class":
		return RemoveClass{rhumb.ClassID(a.num("class"))}
	case "refuse-snapshot":
		return RefuseSnapshot{a.values["table"]}
	case "grant", "ungrant":
		c := AlterGrant{Role: a.values["role"], Scope: access.Scope{Cluster: a.has("cluster"), Table: a.values["table"], Prefix: a.values["prefix"]}}
		rights, err := access.ParseRights(a.values["rights"])
		if err != nil {
			t.Fatal(err)
		}
		if c.Add = rights; name == "ungrant" {
			c.Add, c.Remove = 0, rights
		}
		return c
	}
	t.Fatalf("unknown command %q", name)
	return nil
}

func writeResult(out *strings.Builder, res Result) {
	if res.Failure != nil {
		fmt.Fprintf(out, "refused %s: %s\n", res.Failure.Kind, res.Failure.Msg)
		if res.Range != nil {
			fmt.Fprintf(out, "  in the way: %s\n", rangeString(res.Range))
		}
		return
	}
	fmt.Fprintf(out, "done at revision %d", res.Revision)
	if res.Region != 0 {
		fmt.Fprintf(out, " region=%s", res.Region)
	}
	if res.Node != 0 {
		fmt.Fprintf(out, " node=%s", res.Node)
	}
	if res.Class != 0 {
		fmt.Fprintf(out, " class=%s", res.Class)
	}
	if res.Table != 0 {
		fmt.Fprintf(out, " table=%s", res.Table)
	}
	if res.Range != nil {
		fmt.Fprintf(out, " range=%s", res.Range.ID)
	}
	if res.Operation != 0 {
		fmt.Fprintf(out, " operation=%s", res.Operation)
	}
	out.WriteByte('\n')
}

func writeChanges(out *strings.Builder, s *State, c Changes) {
	if c.Version {
		fmt.Fprintf(out, "  version %d\n", s.Version())
	}
	for _, id := range c.Regions {
		r, _ := s.Region(id)
		fmt.Fprintf(out, "  region %s %s at %v", id, r.Name, r.Location)
		if r.Into != 0 {
			fmt.Fprintf(out, " into=%s", r.Into)
		}
		if r.Removed {
			fmt.Fprintf(out, " removed lost=%d", r.Lost)
		}
		out.WriteString("\n")
	}
	for _, id := range c.Nodes {
		n, _ := s.Node(id)
		fmt.Fprintf(out, "  node %s region=%s zone=%s boot=%d %s", id, n.Region, n.Zone, n.Boot, n.State)
		if n.Voter {
			out.WriteString(" voter")
		}
		if n.Witness {
			out.WriteString(" witness")
		}
		if n.VotePinned {
			out.WriteString(" pinned")
		}
		if n.Short {
			out.WriteString(" short")
		}
		if n.Name != "" {
			fmt.Fprintf(out, " name=%s", n.Name)
		}
		if n.Forgotten {
			out.WriteString(" forgotten")
		}
		if n.Leaving {
			out.WriteString(" leaving")
		}
		if n.ReplacedBy != 0 {
			fmt.Fprintf(out, " replaced-by=%s", n.ReplacedBy)
		}
		out.WriteByte('\n')
	}
	for _, id := range c.Classes {
		class, ok := s.Class(id)
		if !ok {
			fmt.Fprintf(out, "  class %s removed\n", id)
			continue
		}
		if class.Dropping {
			fmt.Fprintf(out, "  class %s is being removed\n", id)
			continue
		}
		fmt.Fprintf(out, "  class %s replicas=%d min=%d slots=%d\n", id, class.Settings.Replicas, class.Settings.MinInSync, class.Settings.HashSlots)
	}
	for _, id := range c.Tables {
		table, ok := s.Table(id)
		if !ok {
			fmt.Fprintf(out, "  table %s removed\n", id)
			continue
		}
		fmt.Fprintf(out, "  table %s %s class=%s colocate=%d location=%s\n", id, table.Name, table.Class, table.Colocate, table.LocationField)
	}
	for _, id := range c.Blocks {
		b, ok := s.BlockOf(id)
		if !ok {
			fmt.Fprintf(out, "  block %s removed\n", id)
			continue
		}
		fmt.Fprintf(out, "  block %s class=%s node=%s\n", id, b.Class, b.Node)
	}
	for _, id := range c.Ranges {
		r, ok := s.Range(id)
		if !ok {
			fmt.Fprintf(out, "  range %s removed\n", id)
			continue
		}
		fmt.Fprintf(out, "  range %s\n", rangeString(r))
	}
	for _, id := range c.Operations {
		if o, ok := s.Operation(id); ok {
			now := o.Started.Add(time.Minute)
			fmt.Fprintf(out, "  operation %s %s %s version=%d node=%s target=%s by=%s done=%d/%d ran=%v waits=%s\n",
				id, o.Kind, o.State, o.Version, o.Node, o.Target, o.By, o.Progress.Done, o.Progress.Total, o.Running(now), o.Waits)
		} else {
			fmt.Fprintf(out, "  operation %s trimmed\n", id)
		}
	}
	if c.Settings {
		fmt.Fprintf(out, "  settings %v\n", s.settings)
	}
	if c.Access {
		writeAccess(out, s)
	}
	if c.Security {
		writeSecurity(out, s.Security())
	}
}

// writeAccess writes all users and roles.
func writeAccess(out *strings.Builder, s *State) {
	fmt.Fprintf(out, "  access of revision %d\n", s.Access().Revision())
	for u := range s.Users() {
		fmt.Fprintf(out, "    user %s roles=%v password=%v disabled=%v credentials=%d\n", u.Name, u.Roles, !u.Verifier.IsZero(), u.Disabled, u.Credentials)
	}
	for r := range s.Roles() {
		fmt.Fprintf(out, "    role %s\n", r.Name)
		for _, g := range r.Grants {
			fmt.Fprintf(out, "      %s in %s\n", g.Rights, g.Scope)
		}
	}
}

func writeSecurity(out *strings.Builder, x *Security) {
	out.WriteString("  security")
	for _, a := range x.Authorities {
		fmt.Fprintf(out, " trusts=%.2s@%d", a.Fingerprint, a.Revision)
	}
	for i, f := range x.Distrusted {
		fmt.Fprintf(out, " distrusts=%.2s@%d", f, x.DistrustedAt[i])
	}
	for _, a := range x.Retired {
		fmt.Fprintf(out, " retired=%.2s@%d", a.Fingerprint, a.Revision)
	}
	for _, r := range x.Revoked {
		if r.Serial == "" {
			r.Serial = fmt.Sprintf("%s<%d@%d", strings.ReplaceAll(r.Name, " ", "."), r.At.Unix()/86_400, r.Revision)
		}
		fmt.Fprintf(out, " revoked=%s", r.Serial)
		if r.Authority != "" {
			fmt.Fprintf(out, "/%.2s", r.Authority)
		}
	}
	fmt.Fprintf(out, " gossip=%d", x.Gossip.Version)
	for _, k := range x.Gossip.Keys {
		// Through the formats that logs use: none of them may show a key.
		fmt.Fprintf(out, " %d:%v", k.ID, k.Secret)
	}
	out.WriteByte('\n')
}

func rangeString(r *rhumb.Range) string {
	s := fmt.Sprintf("%s class=%s epoch=%d/%d version=%d primary=%s preferred=%s insync=%v replicas=%v",
		r.ID, r.Class, r.Epoch, r.Allocated, r.Version, r.Primary, r.Preferred, r.InSync, r.Replicas)
	if len(r.Quarantined) > 0 {
		s += fmt.Sprintf(" quarantined=%v", r.Quarantined)
	}
	if r.Prepared != nil {
		s += fmt.Sprintf(" prepared=%s@%d", r.Prepared.Target, r.Prepared.Epoch)
	}
	if len(r.Leaving) > 0 {
		s += fmt.Sprintf(" leaving=%v", r.Leaving)
	}
	if len(r.Removed) > 0 {
		s += fmt.Sprintf(" removed=%v", r.Removed)
	}
	return s
}
