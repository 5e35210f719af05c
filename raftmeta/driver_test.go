package raftmeta

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// recorder is a transport that keeps what it is given.
type recorder struct {
	sent []sentMessage
}

type sentMessage struct {
	to      rhumb.NodeID
	message []byte
}

func (r *recorder) Send(to rhumb.NodeID, _ GroupID, messages [][]byte) {
	for _, m := range messages {
		r.sent = append(r.sent, sentMessage{to, m})
	}
}

func (r *recorder) Forward(context.Context, rhumb.NodeID, GroupID, []byte) ([]byte, error) {
	return nil, rhumb.E("test.Forward", rhumb.Unavailable, "nobody is there")
}

// take returns the recorded messages and forgets them.
func (r *recorder) take() []sentMessage {
	out := r.sent
	r.sent = nil
	return out
}

// founded returns a KV whose log begins with a catalog of n nodes, all of them voters.
func founded(t *testing.T, n int) *memKV {
	t.Helper()
	kv := newMemKV()
	if _, err := Bootstrap(kv, catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)}); err != nil {
		t.Fatal(err)
	}
	log, state, err := openState(kv)
	if err != nil {
		t.Fatal(err)
	}
	voters := []uint64{1}
	for id := rhumb.NodeID(2); int(id) <= n; id++ {
		state, _, _ = state.Apply(registration(id, 1))
		voters = append(voters, uint64(id))
	}
	transfer := &raftpb.Snapshot{Data: state.Encode(), Metadata: &raftpb.SnapshotMetadata{
		Index: proto.Uint64(2), Term: proto.Uint64(1), ConfState: &raftpb.ConfState{Voters: voters},
	}}
	hard := &raftpb.HardState{Term: proto.Uint64(1), Commit: proto.Uint64(2)}
	if err := log.saveReady(hard, nil, transfer, true); err != nil {
		t.Fatal(err)
	}
	return kv
}

// newTestDriver returns the driver of node 1, which nothing but the test runs.
func newTestDriver(t *testing.T, kv KV, adjust func(*Config)) (*driver, *recorder) {
	t.Helper()
	sent := &recorder{}
	config := DefaultConfig()
	config.Node, config.KV, config.Transport = 1, kv, sent
	if adjust != nil {
		adjust(&config)
	}
	g := &Group{
		config: config, rt: sched.System, metrics: newMetrics(nil, 0), done: make(chan struct{}), wake: make(chan struct{}, 1),
		cuts: make(chan *raftpb.Snapshot, 1), start: sched.System.Now(),
	}
	g.watches.metrics, g.watches.rt = g.metrics, g.rt
	g.leadership.Store(&leadership{changed: make(chan struct{})})
	d, err := newDriver(g)
	if err != nil {
		t.Fatal(err)
	}
	return d, sent
}

// TestFullQueues checks that each queue of a group refuses or drops what exceeds its bound instead
// of blocking the caller.
func TestFullQueues(t *testing.T) {
	registry := prometheus.NewRegistry()
	g := &Group{
		rt: sched.System, metrics: newMetrics(registry, 0), done: make(chan struct{}), wake: make(chan struct{}, 1),
		inbox: make(chan inbound), proposals: make(chan *proposal), reads: make(chan *read), asks: make(chan func(*driver)),
	}
	_, proposeErr := g.proposeHere(t.Context(), catalog.AddRegion{Name: "a"})
	_, readErr := g.Linearize(t.Context())
	_, statusErr := g.Status(t.Context())
	for name, err := range map[string]error{"proposals": proposeErr, "reads": readErr, "asks": statusErr} {
		if rhumb.KindOf(err) != rhumb.Overloaded {
			t.Errorf("%s: got %v, want kind overloaded", name, err)
		}
	}
	g.queueInbound(inbound{})
	if n := counterValue(t, registry, "rhumb_meta_messages_dropped_total"); n != 1 {
		t.Errorf("%v messages count as dropped, want 1", n)
	}
}

// TestTakeAllIsBounded guards that a producer which is as fast as the driver does not starve the
// other queues.
func TestTakeAllIsBounded(t *testing.T) {
	queue := make(chan int, 3)
	queue <- 0
	taken := 0
	takeAll(queue, func(int) {
		if taken++; taken > 10 {
			t.Fatal("takeAll does not end while somebody adds")
		}
		queue <- taken
	})
	if taken != cap(queue) {
		t.Errorf("took %d, want the capacity, %d", taken, cap(queue))
	}
}

// TestPendingIsBounded fills the proposals that wait at a leader: the next one is refused and not
// appended.
func TestPendingIsBounded(t *testing.T) {
	d := leadingDriver(t)
	for i := range PendingMax {
		d.pending[proposalID{99, uint64(i)}] = nil
	}
	before := d.lastPosition()
	p := newTestProposal(d, catalog.AddRegion{Name: "late"})
	d.proposeToRaft(p)
	if rhumb.KindOf(p.err) != rhumb.Overloaded || d.node.HasReady() || d.lastPosition() != before {
		t.Errorf("got %v, and the raft node has something to do: %v", p.err, d.node.HasReady())
	}
}

// TestCommandSizeIsBounded proposes a command that no log may hold.
func TestCommandSizeIsBounded(t *testing.T) {
	d := leadingDriver(t)
	p := newTestProposal(d, hugeCommand())
	d.proposeToRaft(p)
	if rhumb.KindOf(p.err) != rhumb.TooLarge || len(d.pending) != 0 {
		t.Errorf("got %v with %d pending, want kind too_large and none", p.err, len(d.pending))
	}
}

// hugeCommand encodes to more than CommandSizeMax.
func hugeCommand() catalog.Command {
	voters := make([]rhumb.NodeID, CommandSizeMax/4)
	for i := range voters {
		voters[i] = 1<<24 + rhumb.NodeID(i)
	}
	return catalog.SetVoters{Voters: voters}
}

// leadingDriver returns the driver of a sole voter, which leads.
func leadingDriver(t *testing.T) *driver {
	t.Helper()
	d, _ := newTestDriver(t, founded(t, 1), nil)
	if err := d.handleReady(); err != nil || !d.isLead {
		t.Fatalf("the sole voter leads: %v, %v", d.isLead, err)
	}
	return d
}

func newTestProposal(d *driver, cmd catalog.Command) *proposal {
	return &proposal{command: cmd, done: make(chan struct{}), metrics: d.metrics, now: d.rt.Now}
}

// TestAbandonedProposals ends the wait of every proposal with an error, and with an outcome that
// allows for an application.
func TestAbandonedProposals(t *testing.T) {
	d := leadingDriver(t)
	var waiting []*proposal
	for _, name := range []string{"a", "b", "c"} {
		p := newTestProposal(d, catalog.AddRegion{Name: name})
		d.proposeToRaft(p)
		waiting = append(waiting, p)
	}
	d.isLead, d.lead, d.term = false, 2, d.term+1
	d.announceLeader()
	for i, p := range waiting {
		select {
		case <-p.done:
		default:
			t.Fatalf("proposal %d still waits", i)
		}
		if rhumb.KindOf(p.err) != rhumb.Unknown {
			t.Errorf("proposal %d: %v, want kind unknown_outcome: the next leader may commit it", i, p.err)
		}
	}
	if len(d.pending) != 0 {
		t.Errorf("%d proposals are left", len(d.pending))
	}
}

// TestReadsAreBounded fills the reads that wait for the next question to the leader.
func TestReadsAreBounded(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	d.readQueue = make([]*read, ReadsMax)
	r := &read{done: make(chan struct{})}
	d.queueRead(r)
	select {
	case <-r.done:
	default:
		t.Fatal("the read waits")
	}
	if rhumb.KindOf(r.err) != rhumb.Overloaded || len(d.readQueue) != ReadsMax {
		t.Errorf("got %v with %d waiting, want kind overloaded and %d", r.err, len(d.readQueue), ReadsMax)
	}
}

// TestReadsShareQuestions checks which reads an answer of the leader completes: those that began
// before the question, and only once the answer's index is applied. A read that came later waits
// for a question of its own.
func TestReadsShareQuestions(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	reads := make([]*read, 3)
	for i := range reads {
		reads[i] = &read{done: make(chan struct{})}
		d.queueRead(reads[i])
	}
	done := func() (n int) {
		for _, r := range reads {
			select {
			case <-r.done:
				n++
			default:
			}
		}
		return n
	}
	first := d.reading.context
	d.readConfirmed(readState([]byte("another"), d.applied))
	d.finishReads()
	if n := done(); n != 0 {
		t.Fatalf("the answer to another question completes %d reads", n)
	}
	d.readConfirmed(readState(first, d.applied+1))
	d.finishReads()
	if n := done(); n != 0 {
		t.Fatalf("%d reads are completed before their index is applied", n)
	}
	d.applied++
	d.finishReads()
	if n := done(); n != 1 || d.reading == nil || len(d.reading.reads) != 2 {
		t.Fatalf("%d reads are completed by the first answer, want 1; next question %+v", n, d.reading)
	}
	if slices.Equal(d.reading.context, first) {
		t.Error("the next question has the context of the first: a late answer would complete it")
	}
	d.readConfirmed(readState(d.reading.context, d.applied))
	d.finishReads()
	if n := done(); n != 3 || d.reading != nil {
		t.Errorf("%d reads are completed, want 3", n)
	}
}

// TestReadIsAskedAgain repeats a question that nobody answers.
func TestReadIsAskedAgain(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	d.queueRead(&read{done: make(chan struct{})})
	asked := d.reading.asked
	for range readRetryTicks - 1 {
		d.ticks++
		d.retryReads()
	}
	if d.reading.asked != asked {
		t.Error("the question was repeated early")
	}
	d.ticks++
	d.retryReads()
	if d.reading.asked != d.ticks {
		t.Error("the question was not repeated")
	}
}

// TestPredecessorIsRemembered: the leader counts the silence of the leader before it from that
// leader's last message, so it must be known across the time without a leader.
func TestPredecessorIsRemembered(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	for _, step := range []struct{ lead, term, before uint64 }{{2, 2, 0}, {0, 3, 2}, {3, 3, 2}, {3, 4, 2}, {0, 5, 3}, {1, 5, 3}} {
		d.lead, d.term, d.isLead = step.lead, step.term, step.lead == 1
		d.announceLeader()
		l := d.leadership.Load()
		if uint64(l.leader) != step.lead || uint64(l.before) != step.before {
			t.Fatalf("leader %d of term %d: %+v, want the leader before it to be %d", step.lead, step.term, l, step.before)
		}
	}
}

// TestOldReportsAreDropped: reports of an earlier leadership of this node say nothing about the
// present.
func TestOldReportsAreDropped(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	d.evidence.addReport(0, place.Report{From: 2, Boot: 1, Suspects: []place.Suspect{{Node: 3, Boot: 1}}})
	d.lead, d.term, d.isLead = 1, 2, true
	d.announceLeader()
	if !d.evidence.e.IsEmpty() {
		t.Error("a report outlives the beginning of a leadership")
	}
}

// TestEarlyMessages: only what promises nothing may leave before the disk has it.
func TestEarlyMessages(t *testing.T) {
	d := &driver{}
	early := []raftpb.MessageType{raftpb.MsgApp, raftpb.MsgHeartbeat}
	for typ := range raftpb.MessageType_name {
		m := &raftpb.Message{Type: raftpb.MessageType(typ).Enum()}
		first, last := d.sortMessages([]*raftpb.Message{m})
		if want := slices.Contains(early, m.GetType()); want != (len(first) == 1) || len(first)+len(last) != 1 {
			t.Errorf("%s: %d early, %d late", m.GetType(), len(first), len(last))
		}
	}
}

// TestNearVoters checks when Raft's tick may be short: all other voters whose round trip is known
// are near.
func TestNearVoters(t *testing.T) {
	far, near := NearMax+time.Millisecond, time.Millisecond
	for name, c := range map[string]struct {
		rtt  map[rhumb.NodeID]time.Duration
		want bool
	}{
		"nothing known":    {nil, false},
		"only itself":      {map[rhumb.NodeID]time.Duration{1: near}, false},
		"one near":         {map[rhumb.NodeID]time.Duration{2: near}, true},
		"both near":        {map[rhumb.NodeID]time.Duration{2: near, 3: NearMax}, true},
		"one far":          {map[rhumb.NodeID]time.Duration{2: near, 3: far}, false},
		"a learner is far": {map[rhumb.NodeID]time.Duration{2: near, 4: far}, true},
	} {
		d, _ := newTestDriver(t, founded(t, 3), func(config *Config) {
			config.RTT = func(id rhumb.NodeID) (time.Duration, bool) { rtt, ok := c.rtt[id]; return rtt, ok }
		})
		if d.isNear() != c.want {
			t.Errorf("%s: near %v, want %v", name, d.isNear(), c.want)
		}
	}
	d, _ := newTestDriver(t, founded(t, 3), nil)
	if d.isNear() {
		t.Error("voters are near without a measure")
	}
}

// TestDeposedLeaderIsNotHeard: messages of a leader that was replaced do not put off an election.
func TestDeposedLeaderIsNotHeard(t *testing.T) {
	d := &driver{lead: 2}
	d.campaign.quiet = 5
	d.noteLeader(3)
	if d.campaign.quiet != 5 {
		t.Error("a node that does not lead was heard as the leader")
	}
	d.noteLeader(2)
	if d.campaign.quiet != 0 || d.campaign.leader != 2 {
		t.Errorf("the leader was not heard: %+v", d.campaign)
	}
}

// TestRoles names what a replica is.
func TestRoles(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	if s := d.replicaStatus(); s.Role != "follower" || s.Match != nil || !s.Silent {
		t.Errorf("a voter that has started: %+v", s)
	}
	d.conf = &raftpb.ConfState{Voters: []uint64{2, 3}, Learners: []uint64{1}}
	if s := d.replicaStatus(); s.Role != "learner" {
		t.Errorf("a learner is a %s", s.Role)
	}
	if s := leadingDriver(t).replicaStatus(); s.Role != "leader" || s.Match[1] == 0 || s.Silent {
		t.Errorf("a leader: %+v", s)
	}
}

// TestStorageErrorInReady: a Ready that cannot be stored ends the driver, and nothing that depends
// on it is sent.
func TestStorageErrorInReady(t *testing.T) {
	for _, failure := range []error{nil, errors.New("the disk is gone")} {
		kv := founded(t, 3)
		d, sent := newTestDriver(t, kv, func(c *Config) { c.Hasty = true }) // takes part at once
		if err := d.handleReady(); err != nil {
			t.Fatal(err)
		}
		sent.take()
		kv.failure = failure
		d.stepMessage(inbound{from: 2, message: &raftpb.Message{
			Type: raftpb.MsgVote.Enum(), From: proto.Uint64(2), To: proto.Uint64(1), Term: proto.Uint64(9), LogTerm: proto.Uint64(9), Index: proto.Uint64(9),
		}})
		err := d.handleReady()
		if got := sent.take(); (failure == nil) != (err == nil) || (failure == nil) != (len(got) == 1) {
			t.Errorf("with the failure %v: error %v, and %d messages were sent", failure, err, len(got))
		}
	}
}

// TestDroppedChangeStopsNothing lets Raft refuse a change of membership, because the leadership is being transferred to a node that never takes
// it. The change counted as proposed all the same: the controller waited for an entry that never came, and made no plan in this leadership.
func TestDroppedChangeStopsNothing(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 1), nil)
	if err := d.handleReady(); err != nil || !d.isLead {
		t.Fatalf("the sole voter leads: %v, %v", d.isLead, err)
	}
	d.state, _, _ = d.state.Apply(registration(2, 1))
	planner := place.NewPlanner(place.DefaultConfig())
	settle := func() {
		for d.applied < d.confIndex {
			if err := d.handleReady(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Node 2 becomes a voter, so that there is somebody to transfer the leadership to.
	if !d.changeMembers(planner, 0) {
		t.Fatal("the new node is not added")
	}
	settle()
	d.proposeMembers(memberChange(raftpb.ConfChangeAddNode, 2))
	settle()
	d.state, _, _ = d.state.Apply(registration(3, 1))
	d.node.TransferLeader(2)
	before := d.confIndex
	if d.changeMembers(planner, 0) || d.confIndex != before {
		t.Errorf("a change that Raft dropped counts as proposed, up to entry %d of %d", d.confIndex, d.applied)
	}
}
