package raftmeta

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// TestRelievedPrimary lets a primary ask for its relief: the leader finds a successor that is fit,
// and refuses where there is none. A request that was decided on an older record is refused and
// counts for nothing.
func TestRelievedPrimary(t *testing.T) {
	registry := prometheus.NewRegistry()
	adjust := func(c *Config) {
		if c.Node == 1 {
			c.Registerer = registry
		}
	}
	inBubble(t, 3, adjust, func(c *cluster) {
		res := c.propose(1, catalog.CreateTable{Name: "t", Settings: smallClass()})
		c.await("n1 leads", func() bool { return c.groups[1].IsLeader() })
		r, _ := c.groups[1].State().Range(rhumb.RangeID{Region: 1})
		if r == nil {
			t.Fatalf("no range of table %s", res.Table)
		}
		elect := func(version uint64) catalog.Result {
			res, err := c.groups[2].Propose(c.t.Context(), catalog.Elect{Range: r.ID, Version: version})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if res := elect(r.Version - 1); rhumb.KindOf(res.Err()) != rhumb.Conflict || res.Range.Version != r.Version {
			t.Errorf("an older version: %v", res.Err())
		}
		res = elect(r.Version)
		if res.Err() != nil || res.Range.Primary == r.Primary || res.Range.Epoch <= r.Epoch {
			t.Fatalf("relieved %s: %+v, %v", r.Primary, res.Range, res.Err())
		}
		if n := counterValue(t, registry, "rhumb_meta_yields_total"); n != 1 {
			t.Errorf("%v ranges were counted as moved, want 1", n)
		}
		for id := rhumb.NodeID(1); id <= 3; id++ { // nobody is fit
			if err := c.groups[id].Report(c.t.Context(), place.Report{From: id, Boot: 1, Unfit: true}); err != nil {
				t.Fatal(err)
			}
		}
		if res := elect(res.Range.Version); rhumb.KindOf(res.Err()) != rhumb.Conflict {
			t.Errorf("nobody is fit: %+v, %v", res.Range, res.Err())
		}
	})
}

// TestStoppedGroup: no call waits for a replica that has stopped, and each says why it stopped.
func TestStoppedGroup(t *testing.T) {
	inBubble(t, 1, nil, func(c *cluster) {
		g := c.groups[1]
		w := g.Watch()
		if _, err := w.Next(c.t.Context()); err != nil {
			t.Fatal(err)
		}
		revision := c.propose(1, catalog.AddRegion{Name: "last"}).Revision
		c.kill(1)
		if u, err := w.Next(c.t.Context()); err != nil || u.State.Revision() != revision {
			t.Errorf("the watch loses the last state: %+v, %v", u, err)
		}
		_, proposed := g.Propose(c.t.Context(), catalog.AddRegion{Name: "late"})
		_, read := g.Linearize(c.t.Context())
		_, status := g.Status(c.t.Context())
		_, watched := w.Next(c.t.Context())
		late := g.Watch()
		if u, err := late.Next(c.t.Context()); err != nil || u.State.Revision() != revision {
			t.Errorf("a watch that begins afterwards does not get the state: %+v, %v", u, err)
		}
		_, lateErr := late.Next(c.t.Context())
		for name, err := range map[string]error{
			"Propose": proposed, "Linearize": read, "Status": status, "Watch": watched, "late Watch": lateErr, "Err": g.Err(),
			"AwaitRevision": g.AwaitRevision(c.t.Context(), revision+1),
		} {
			if err == nil || !strings.Contains(err.Error(), "stopping") {
				t.Errorf("%s: %v, want the reason", name, err)
			}
		}
		if err := g.AwaitRevision(c.t.Context(), revision); err != nil {
			t.Errorf("a revision that was applied: %v", err)
		}
	})
}

// TestWaitEndsWithContext: a call that waits for what does not come ends with its context.
func TestWaitEndsWithContext(t *testing.T) {
	inBubble(t, 2, nil, func(c *cluster) {
		leader := c.leader()
		other := c.ids(leader)[0]
		c.kill(leader)
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		defer cancel()
		g := c.groups[other]
		_, read := g.Linearize(ctx)
		_, proposed := g.Propose(ctx, catalog.AddRegion{Name: "late"})
		for name, err := range map[string]error{
			"Linearize": read, "AwaitRevision": g.AwaitRevision(ctx, 1<<40), "Report": g.Report(ctx, place.Report{From: other, Boot: 1}),
			"Propose": proposed,
		} {
			if k := rhumb.KindOf(err); k != rhumb.Unavailable && k != rhumb.Unknown && k != rhumb.DeadlineExceeded {
				t.Errorf("%s: %v", name, err)
			}
		}
		w := g.Watch()
		defer w.Close()
		if _, err := w.Next(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Next(ctx); rhumb.KindOf(err) != rhumb.Canceled {
			t.Errorf("Watch: %v", err)
		}
	})
}

// TestStepAsideAlone: the only voter has nobody to hand over to, and a node that drains must not
// wait for that.
func TestStepAsideAlone(t *testing.T) {
	inBubble(t, 1, nil, func(c *cluster) {
		c.leader()
		if err := c.groups[1].StepAside(c.t.Context()); err != nil || !c.groups[1].IsLeader() {
			t.Errorf("%v; leads %v", err, c.groups[1].IsLeader())
		}
	})
}

// TestLostTransfer drops the first state transfers on the way to a node that needs one: Raft alone
// waits for the acknowledgement of the first, so the driver has to report it as lost.
func TestLostTransfer(t *testing.T) {
	inBubble(t, 4, func(c *Config) { c.LogSize, c.LogKeep = 4<<10, 5 }, func(c *cluster) {
		c.awaitVoters(3)
		lost := 0
		c.net.filter(func(to rhumb.NodeID, b []byte) bool {
			var m raftpb.Message
			if to == 4 && b[0] == messageWhole && proto.Unmarshal(b[1:], &m) == nil && m.GetType() == raftpb.MsgSnap && lost < 2 {
				lost++
				return false
			}
			return true
		})
		c.net.isolate(4, c.ids(4), true)
		c.regions(1, strings.Repeat("r", 50), 200)
		behind := c.status(4).Last
		c.await("the log is cut", func() bool { return c.status(c.leader()).First > behind+1 })
		c.net.isolate(4, c.ids(4), false)
		c.await("n4 has the state", func() bool { return c.groups[4].State().Revision() == c.groups[1].State().Revision() })
		if lost != 2 {
			t.Errorf("%d state transfers were lost, want 2", lost)
		}
	})
}

// TestSurvivorWithOpenChange: the log of a survivor holds changes of membership and commands after
// its last state. All of them count, since voters that are gone may have decided them.
func TestSurvivorWithOpenChange(t *testing.T) {
	kv := founded(t, 2)
	log, _, err := openState(kv)
	if err != nil {
		t.Fatal(err)
	}
	v1 := &raftpb.ConfChange{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: proto.Uint64(2)}
	v2 := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{memberChange(raftpb.ConfChangeAddNode, 3), memberChange(raftpb.ConfChangeAddNode, 4)}}
	added := encodeProposal(proposalID{2, 1}, catalog.AddRegion{Name: "kept"})
	var entries []*raftpb.Entry
	for _, e := range []*raftpb.Entry{
		{Type: raftpb.EntryConfChangeV2.Enum(), Data: mustMarshal(v2)},
		{Type: raftpb.EntryNormal.Enum(), Data: added},
		{Type: raftpb.EntryConfChange.Enum(), Data: mustMarshal(v1)},
		{Type: raftpb.EntryNormal.Enum()},
	} {
		e.Index, e.Term = proto.Uint64(uint64(len(entries))+3), proto.Uint64(2)
		entries = append(entries, e)
	}
	hard := &raftpb.HardState{Term: proto.Uint64(2), Commit: proto.Uint64(2)}
	if err := log.saveReady(hard, entries, nil, true); err != nil {
		t.Fatal(err)
	}
	s, err := Recover(kv, 1, time.Now())
	if err != nil || len(s.Voters) != 3 || s.Voters[1] != 3 || s.Last != 6 || s.Commit != 2 || len(s.Recovered.Lost) != 2 {
		t.Fatalf("%+v, %v; want the voters 1, 3, 4 and the last entry 6", s, err)
	}
	d, _ := newTestDriver(t, kv, nil)
	if _, ok := d.state.RegionByName("kept"); !ok || !d.proof.isAlone(d.conf.GetVoters()) {
		t.Errorf("the region is there: %v; voters %v", ok, d.conf.GetVoters())
	}
	if d.lastPosition().less(position{2 + recoverTerms, 6 + recoverEntries}) {
		t.Errorf("the log goes on at %v, where another survivor may be", d.lastPosition())
	}
}

// TestSurvivorIsUnreadable: a survivor whose log cannot be read is refused, and stays as it is.
func TestSurvivorIsUnreadable(t *testing.T) {
	for name, data := range map[string]*raftpb.Entry{
		"a change of membership": {Type: raftpb.EntryConfChangeV2.Enum(), Data: []byte{0xff}},
		"a command":              {Type: raftpb.EntryNormal.Enum(), Data: []byte{proposalVersion, 1, 2}},
	} {
		kv := founded(t, 1)
		log, _, err := openState(kv)
		if err != nil {
			t.Fatal(err)
		}
		data.Index, data.Term = proto.Uint64(3), proto.Uint64(1)
		if err := log.saveReady(nil, []*raftpb.Entry{data}, nil, true); err != nil {
			t.Fatal(err)
		}
		before := len(kv.current)
		if _, err := Recover(kv, 1, time.Now()); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("%s: got %v, want kind corrupt", name, err)
		}
		if len(kv.current) != before {
			t.Errorf("%s: the log was changed", name)
		}
	}
	if _, err := Inspect(newMemKV(), 1); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("an empty disk: got %v, want kind not_found", err)
	}
}

// TestResponses: an error crosses the wire with its kind and its whole text, and is told from a
// result that is a refusal.
func TestResponses(t *testing.T) {
	cause := rhumb.WrapKind("outer", rhumb.Overloaded, rhumb.E("inner", rhumb.Other, "too many wait"))
	_, err := decodeResponse(encodeResponse(catalog.Result{}, cause))
	if rhumb.KindOf(err) != rhumb.Overloaded || !strings.Contains(rhumb.Message(err), "too many wait") {
		t.Errorf("an error: %v", err)
	}
	refused := catalog.Result{Revision: 3, Failure: rhumb.E("catalog.Elect", rhumb.Conflict, "changed")}
	if res, err := decodeResponse(encodeResponse(refused, nil)); err != nil || rhumb.KindOf(res.Err()) != rhumb.Conflict || res.Revision != 3 {
		t.Errorf("a refusal: %+v, %v", res, err)
	}
	done := encodeResponse(catalog.Result{Revision: 4}, nil)
	for name, b := range map[string][]byte{
		"empty": nil, "unknown form": append([]byte{9}, done[1:]...), "no result": done[:1],
		"an error without a reason": append([]byte{responseRefused}, done[1:]...),
	} {
		if _, err := decodeResponse(b); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("%s: got %v, want kind corrupt", name, err)
		}
	}
}

// TestHandleElsewhere: a node that does not lead refuses what is forwarded to it, as certainly not
// handled, so that the caller asks the leader.
func TestHandleElsewhere(t *testing.T) {
	inBubble(t, 2, nil, func(c *cluster) {
		other := c.ids(c.leader())[0]
		for name, request := range map[string][]byte{
			"proposal": append([]byte{requestPropose}, catalog.EncodeCommand(catalog.AddRegion{Name: "r"})...),
			"report":   encodeReport(place.Report{From: 1, Boot: 1}),
		} {
			response, err := c.groups[other].Handle(c.t.Context(), 1, request)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeResponse(response); rhumb.KindOf(err) != rhumb.Unavailable {
				t.Errorf("%s: got %v, want kind unavailable", name, err)
			}
		}
		long := place.Report{From: 1, Boot: 1, Suspects: make([]place.Suspect, rhumb.NodesMax+1)}
		response, err := c.groups[c.leader()].Handle(c.t.Context(), 1, encodeReport(long))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeResponse(response); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("a report of more nodes than there can be: got %v, want kind corrupt", err)
		}
	})
}

// TestRaftEvents: what Raft calls an error is a warning here, what it calls a warning an event, and
// the rest is for debugging. A broken invariant of Raft ends the process.
func TestRaftEvents(t *testing.T) {
	var out bytes.Buffer
	l := raftLogger{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for want, log := range map[string]func(){
		"DEBUG": func() { l.Info("x", 1); l.Infof("x%d", 1); l.Debug("x1"); l.Debugf("x%d", 1) },
		"INFO":  func() { l.Warning("x", 1); l.Warningf("x%d", 1) },
		"WARN":  func() { l.Error("x", 1); l.Errorf("x%d", 1) },
	} {
		out.Reset()
		log()
		for line := range strings.Lines(out.String()) {
			if !strings.Contains(line, "level="+want+" ") || !strings.Contains(line, "x1") {
				t.Errorf("%q, want level %s and the text", line, want)
			}
		}
	}
	for name, log := range map[string]func(){
		"Fatal": func() { l.Fatal("x") }, "Fatalf": func() { l.Fatalf("%s", "x") }, "Panic": func() { l.Panic("x") }, "Panicf": func() { l.Panicf("%s", "x") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s goes on", name)
				}
			}()
			log()
		}()
	}
}

// TestTooLargeThroughFollower proposes a command that no log may hold on a node that does not lead.
// The size is known there, so the caller learns it at once and as the reason.
func TestTooLargeThroughFollower(t *testing.T) {
	inBubble(t, 2, nil, func(c *cluster) {
		follower := c.ids(c.leader())[0]
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
		defer cancel()
		if _, err := c.groups[follower].Propose(ctx, hugeCommand()); rhumb.KindOf(err) != rhumb.TooLarge {
			c.t.Errorf("got %v, want kind too_large", err)
		}
	})
}

// TestRefusedPlans proposes a plan of which the catalog refuses a part: the refusals are counted and noted, only the rest counts as applied, and
// the round goes on.
func TestRefusedPlans(t *testing.T) {
	registry := prometheus.NewRegistry()
	inBubble(t, 1, func(c *Config) { c.Registerer = registry }, func(c *cluster) {
		control := newController(c.groups[1])
		control.planner = place.NewPlanner(place.DefaultConfig())
		good, bad := catalog.AddRegion{Name: "far"}, catalog.StartOperation{Kind: rhumb.OperationMerge, Range: rhumb.RangeID{Region: 1}}
		var refusals place.Refusals
		var applied []catalog.Command
		if !control.proposeBatch(c.t.Context(), []catalog.Command{bad, good}, func(cmd catalog.Command) { applied = append(applied, cmd) }, &refusals) {
			t.Fatal("the round ends")
		}
		if n := counterValue(t, registry, "rhumb_meta_plan_refused_total"); n != 1 || len(applied) != 1 || applied[0] != good {
			t.Errorf("%v commands count as refused, and %v as applied", n, applied)
		}
		control.planner.Heed(refusals)
		res := c.propose(1, good)
		if res.Failure = rhumb.Ef("catalog.StartOperation", rhumb.NotFound, "range 1/0 does not exist"); !control.planner.KnowsRefusal(bad, res) {
			t.Errorf("the planner took no note: %+v", refusals)
		}
	})
}

// TestFullDisksReachPlans reports a full disk to the leader, as a node does. New ranges are placed on other nodes of the region, and a copy that is lost
// is made on the full node only when it has room again.
func TestFullDisksReachPlans(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.await("n1 leads", func() bool { return c.groups[1].IsLeader() })
		report := func(full bool) {
			if err := c.groups[2].Report(c.t.Context(), place.Report{From: 2, Boot: 1, Unfit: full, Full: full}); err != nil {
				t.Fatal(err)
			}
		}
		report(true)
		settings := smallClass()
		settings.Replicas, settings.MinInSync = 2, 1
		c.propose(1, catalog.CreateTable{Name: "t", Settings: settings})
		onFull := func() (copies int) {
			for r := range c.groups[1].State().Ranges() {
				if r.IsReplica(2) {
					copies++
				}
			}
			return copies
		}
		if n := onFull(); n > 0 {
			t.Fatalf("%d new ranges have a copy on n2, whose disk is full", n)
		}
		c.propose(1, catalog.FenceNode{Node: 3, Boot: 1})
		// No copy may come for longer than a dead node is waited for. The time is that of the bubble, and reports expire.
		for begin := time.Now(); time.Since(begin) < 2*place.DefaultConfig().ReplaceAfter; time.Sleep(time.Second) {
			if report(true); onFull() > 0 {
				t.Fatalf("%d ranges got a copy on n2, whose disk is full", onFull())
			}
		}
		c.await("copies on n2, which has room again", func() bool {
			report(false)
			return onFull() == settings.HashSlots
		})
	})
}
