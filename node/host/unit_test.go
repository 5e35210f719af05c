package host

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// TestCheckDiscard guards a copy that is still needed: only a quarantined copy is discarded, and
// one that counts as in sync only if no intact copy does and the operator accepts the loss.
func TestCheckDiscard(t *testing.T) {
	const self = 2
	record := func(quarantined bool, inSync ...rhumb.NodeID) *rhumb.Range {
		d := &rhumb.Range{ID: testRange, Replicas: []rhumb.NodeID{1, 2, 3}, InSync: inSync}
		if quarantined {
			d.Quarantined = []rhumb.NodeID{self}
		}
		return d
	}
	for _, tc := range []struct {
		name       string
		state      replica.State
		record     *rhumb.Range
		acceptLoss bool
		want       rhumb.Kind // 0 if the copy may be discarded
		says       string
	}{
		{"no record yet", replica.Quarantined, nil, true, rhumb.Unavailable, "retry"},
		{"a healthy secondary", replica.Follower, record(false, 1, 2, 3), true, rhumb.Conflict, "not quarantined"},
		{"the primary", replica.Primary, record(false, 1, 2, 3), true, rhumb.Conflict, "not quarantined"},
		{"metadata does not know", replica.Quarantined, record(false, 1, 3), true, rhumb.Unavailable, "retry"},
		{"out of the in-sync set", replica.Quarantined, record(true, 1, 3), false, 0, ""},
		{"in sync with intact copies", replica.Quarantined, record(true, 1, 2), true, rhumb.Conflict, "copies on n1 do not suffice"},
		{"the last in-sync copy", replica.Quarantined, record(true, 2), false, rhumb.Conflict, "unsafe-recover range"},
		{"the last in-sync copy, loss accepted", replica.Quarantined, record(true, 2), true, 0, ""},
		{"discarded before", replica.Follower, record(true, 2), true, 0, ""},
	} {
		err := checkDiscard(self, tc.state, tc.record, tc.acceptLoss)
		switch {
		case tc.want == 0 && err != nil:
			t.Errorf("%s: %v, want no error", tc.name, err)
		case tc.want != 0 && (rhumb.KindOf(err) != tc.want || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: %v, want %v and %q", tc.name, err, tc.want, tc.says)
		}
	}
}

// TestFitness guards what makes replicas yield: a wrong clock concerns every slot, a full disk the
// slots of its store, and a changed text none.
func TestFitness(t *testing.T) {
	full, roomy := &storage.Store{}, &storage.Store{}
	onFull, onRoomy := &slot{store: full}, &slot{store: roomy}
	well := &fitness{}
	fast := &fitness{clock: "9s ahead"}
	faster := &fitness{clock: "10s ahead"}
	noRoom := &fitness{full: map[*storage.Store]bool{full: true}}
	for _, tc := range []struct {
		name            string
		f               *fitness
		onFull, onRoomy bool
	}{{"well", well, true, true}, {"wrong clock", fast, false, false}, {"full disk", noRoom, false, true}} {
		if tc.f.allowsPrimary(onFull) != tc.onFull || tc.f.allowsPrimary(onRoomy) != tc.onRoomy {
			t.Errorf("%s: allowed %v and %v, want %v and %v", tc.name, tc.f.allowsPrimary(onFull), tc.f.allowsPrimary(onRoomy), tc.onFull, tc.onRoomy)
		}
	}
	all := []*fitness{well, fast, noRoom, {full: map[*storage.Store]bool{roomy: true}}}
	for i, f := range all {
		for j, g := range all {
			if f.equal(g) != (i == j) {
				t.Errorf("fitness %d and %d: equal is %v", i, j, f.equal(g))
			}
		}
	}
	if !fast.equal(faster) {
		t.Error("another offset of a wrong clock counts as a change, and replicas would be informed ten times a second")
	}
}

// TestCommand guards that each wish of a replica becomes the command that metadata expects for it.
func TestCommand(t *testing.T) {
	p := replica.MetaProposal{
		Range: testRange, Epoch: 5, Version: 9, Node: 3,
		New: []rhumb.NodeID{1, 3}, Lives: []rhumb.BootSeq{4, 7}, Vouched: []bool{true, false},
	}
	for kind, want := range map[replica.MetaKind]catalog.Command{
		replica.AlterISR: catalog.AlterISR{Range: testRange, Epoch: 5, Version: 9, Members: []catalog.Member{
			{Node: 1, Boot: 4, Vouched: true}, {Node: 3, Boot: 7},
		}},
		replica.ElectMe:    catalog.Elect{Range: testRange, Version: 9, Node: 2},
		replica.ElectOther: catalog.Elect{Range: testRange, Version: 9, Node: 3},
		replica.Yield:      catalog.Elect{Range: testRange, Version: 9},
		replica.Quarantine: catalog.QuarantineReplica{Range: testRange, Node: 3, Epoch: 5},
		replica.Readmit:    catalog.ReadmitReplica{Range: testRange, Node: 3, Epoch: 5},
	} {
		p.Kind = kind
		if got := Command(2, p); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
}

// TestRelearnedEpoch guards docs/replication.md#rule-relearn: after a start a replica promises at least the epoch that
// metadata knew before this life.
func TestRelearnedEpoch(t *testing.T) {
	h := &Host{cfg: Config{Self: rhumb.NodeIdentity{Node: 2}}, known: map[rhumb.RangeID]*rhumb.Range{
		{Slot: 1}: {Epoch: 7, Primary: 1},
		{Slot: 2}: {Epoch: 7, Primary: 2},
	}}
	for slot, want := range map[rhumb.Slot]rhumb.Epoch{
		1: 7, // another node is primary of epoch 7
		2: 6, // this node's registration began epoch 7, which it may therefore enter
		3: 0, // metadata has no record
	} {
		if got := h.relearnedEpoch(rhumb.RangeID{Slot: slot}); got != want {
			t.Errorf("slot %d: epoch %d, want %d", slot, got, want)
		}
	}
}

// TestMeets guards the conditions of writes.
func TestMeets(t *testing.T) {
	none, one, two := rhumb.Version{}, rhumb.Version{HLC: 1, Node: 1}, rhumb.Version{HLC: 2, Node: 1}
	for _, tc := range []struct {
		cond           rhumb.Condition
		none, one, two bool
	}{
		{rhumb.Condition{}, true, true, true},
		{rhumb.Condition{Kind: rhumb.IfAbsent}, true, false, false},
		{rhumb.Condition{Kind: rhumb.IfPresent}, false, true, true},
		{rhumb.Condition{Kind: rhumb.IfVersion, Version: one}, false, true, false},
		{rhumb.Condition{Kind: rhumb.IfNewer, Version: one}, true, true, true},
	} {
		got := [3]bool{meets(&tc.cond, none), meets(&tc.cond, one), meets(&tc.cond, two)}
		if want := [3]bool{tc.none, tc.one, tc.two}; got != want {
			t.Errorf("%+v: %v for no version, version 1 and 2, want %v", tc.cond, got, want)
		}
	}
}

// sent is a transport that records the calls of Send.
type sent []string

func (s *sent) Send(to rhumb.NodeID, msgs []replica.Message) {
	text := fmt.Sprintf("%s:", to)
	for i := range msgs {
		text += fmt.Sprintf(" %s", msgs[i].Kind)
		if msgs[i].Clock != 0 {
			text += "@clock"
		}
	}
	*s = append(*s, text)
}

func (s *sent) SendHeartbeat(rhumb.NodeID, *lease.Frame) {}

// TestSendAll guards the order of messages to each peer, one call for each peer and pass,
// and the clock that a promise must carry (rule P).
func TestSendAll(t *testing.T) {
	clock, err := hlc.New(hlc.Config{Persist: func(rhumb.Timestamp) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clock.Now(); err != nil {
		t.Fatal(err)
	}
	var calls sent
	h := &Host{cfg: Config{Net: &calls, Clock: clock}}
	h.sendAll(nil)
	h.sendAll([]replica.Message{
		{To: 2, Kind: replica.Append},
		{To: 2, Kind: replica.Ack},
		{To: 3, Kind: replica.Promise},
	})
	h.sendAll([]replica.Message{{To: 2, Kind: replica.Nack}})
	if len(calls) > 0 {
		t.Errorf("sent %q before the end of the pass", calls)
	}
	h.flushMessages()
	h.flushMessages()
	want := sent{"n2: append ack nack", "n3: promise@clock"}
	if !slices.Equal(calls, want) {
		t.Errorf("sent %q, want %q", calls, want)
	}
}

// held is a metadata group that answers no proposal before the test does.
type held struct {
	frozenRecord
	answers []func(error)
}

func (m *held) Change(_ replica.MetaProposal, done func(error)) { m.answers = append(m.answers, done) }

// TestProposalsInFlight guards metaInFlightMax, and that proposals that can wait leave half of the
// places to those of a failover.
func TestProposalsInFlight(t *testing.T) {
	meta := &held{}
	h := &Host{m: newMetrics(), cfg: Config{Meta: meta}}
	for range metaInFlightMax {
		h.proposeChange(replica.MetaProposal{Unhurried: true})
	}
	if n := len(meta.answers); n != metaInFlightMax/2 {
		t.Errorf("%d unhurried proposals are in flight, want %d", n, metaInFlightMax/2)
	}
	for range metaInFlightMax {
		h.proposeChange(replica.MetaProposal{})
	}
	if n := len(meta.answers); n != metaInFlightMax {
		t.Errorf("%d proposals are in flight, want %d", n, metaInFlightMax)
	}
	meta.answers[0](nil)
	h.proposeChange(replica.MetaProposal{})
	h.proposeChange(replica.MetaProposal{})
	if n := len(meta.answers); n != metaInFlightMax+1 {
		t.Errorf("%d proposals were made, want one more for one answer", n)
	}
}

// TestHeldProposals guards heldMax and waitingBytesMax over all slots, and that the places are free
// again once a slot is served.
func TestHeldProposals(t *testing.T) {
	h := &Host{rt: &manual{now: time.Hour}}
	one, other := &slot{}, &slot{}
	fill := func(s *slot, n, size int) (taken int) {
		for range n {
			if h.holdProposal(s, &proposeEvent{size: size}) {
				taken++
			}
		}
		return taken
	}
	if n := fill(one, heldMax, 1); n != heldMax {
		t.Errorf("%d proposals are held, want %d", n, heldMax)
	}
	if n := fill(other, 1, 1); n != 0 {
		t.Error("another slot holds a proposal beyond heldMax")
	}
	if n := len(h.takeHeld(one)); n != heldMax || h.heldTotal.events != 0 || h.heldTotal.size != 0 {
		t.Errorf("%d proposals are taken back and %+v remain, want all and none", n, h.heldTotal)
	}
	// One proposal is always held, however large; then bytes count.
	if large, more := fill(other, 1, waitingBytesMax+1), fill(one, 1, 1); large != 1 || more != 0 {
		t.Errorf("%d large proposals and %d more are held, want 1 and 0", large, more)
	}
}

// TestCollectorQueue guards that each range waits once, in the order of its first trim, with its
// newest timestamp, and that a trim during the work queues it again.
func TestCollectorQueue(t *testing.T) {
	var woken wakes
	c := &collector{waits: map[*slot]rhumb.Timestamp{}, worker: &woken}
	one, two := &slot{}, &slot{}
	want := func(s *slot, before rhumb.Timestamp) {
		t.Helper()
		if got, at, ok := c.takeRange(); !ok || got != s || at != before {
			t.Fatalf("takes %p at %d (%v), want %p at %d", got, at, ok, s, before)
		}
	}
	c.addRange(one, 10)
	c.addRange(two, 5)
	c.addRange(one, 30)
	c.addRange(one, 20)
	if woken != 4 {
		t.Errorf("the worker is woken %d times, want 4", woken)
	}
	want(one, 30)
	c.addRange(one, 40)
	want(two, 5)
	want(one, 40)
	if s, _, ok := c.takeRange(); ok {
		t.Errorf("takes %p from an empty queue", s)
	}
}

// disk is a runtime whose disk answers when the test says so.
type disk struct {
	sched.Runtime
	works []func()
	dones []func()
}

func (d *disk) Disk(_ bool, work, done func()) {
	d.works, d.dones = append(d.works, work), append(d.dones, done)
}

// TestFetchersAreBounded guards fetchersMax, and that reads of the log begin in the order in which
// replicas ask for them.
func TestFetchersAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	s, _ := w.hosts[1].findSlot(testRange)
	d := &disk{Runtime: sched.System}
	h := &Host{rt: d, m: newMetrics(), closed: true} // closed: the results are dropped
	for i := range fetchersMax + 2 {
		h.fetchLog(s, replica.LogRead{From: rhumb.Seq(i + 1), Until: rhumb.Seq(i + 1), BytesMax: 1})
	}
	if len(d.works) != fetchersMax || h.reads.Load() != fetchersMax {
		t.Fatalf("%d reads run, and Close would wait for %d, want %d", len(d.works), h.reads.Load(), fetchersMax)
	}
	d.works[0]()
	d.dones[0]()
	if n := h.reads.Load(); n != fetchersMax-1 {
		t.Errorf("Close would wait for %d reads after one ended, want %d", n, fetchersMax-1)
	}
	// The pass learns of the end, and begins the next.
	h.fetching--
	h.startFetches()
	if len(d.works) != fetchersMax+1 || len(h.fetches) != 1 || h.fetches[0].f.From != fetchersMax+2 {
		t.Errorf("%d reads have begun and %v wait, want the oldest to begin", len(d.works), h.fetches)
	}
}

// TestSyncHealth guards that a disk that does not sync makes the node unhealthy, busy or idle.
func TestSyncHealth(t *testing.T) {
	var outstanding time.Duration
	h := &Host{rt: &manual{}, cfg: Config{SyncOutstanding: func() time.Duration { return outstanding }}}
	for at, want := range map[time.Duration]bool{0: true, syncStallMax: true, syncStallMax + 1: false} {
		outstanding = at
		if ok, why := h.checkHealth(); ok != want || ok != (why == "") {
			t.Errorf("with a sync outstanding for %v: healthy is %v because of %q, want %v", at, ok, why, want)
		}
	}
}
