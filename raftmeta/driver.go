package raftmeta

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
)

// Raft's settings. An append holds about a mebibyte, and at most this many are under way to one follower; a leader that
// has more than uncommittedMax bytes that no majority has refuses proposals.
const (
	appendSize     = 1 << 20
	appendInflight = 64
	applySize      = 4 << 20
	uncommittedMax = 64 << 20
)

// driver owns raft.RawNode. Its process alone touches it.
type driver struct {
	*Group
	node *raft.RawNode
	log  *logStore

	state   *catalog.State
	applied uint64
	conf    *raftpb.ConfState
	// confChanged is true until the log is cut behind the last change of membership.
	confChanged bool
	lead        uint64
	term        uint64
	isLead      bool
	// confIndex is the last entry when this leader proposed a change of members; the next waits until it is applied.
	confIndex uint64

	pending map[proposalID]*proposal
	nextID  uint64

	reading   *readBatch
	readQueue []*read

	transfers map[uint64]sentTransfer

	// proof says whether this replica takes part. others is what is stored of the lives of other members, and askers what
	// they asked last.
	proof  *proof
	others map[uint64]acquaintance
	askers map[uint64]asker
	// cutting is true while a state is encoded to cut the log.
	cutting bool
	ticks   uint64

	campaign campaign
	// pace is the present length of a tick, stopTicks ends the timer.
	pace      time.Duration
	stopTicks func()
}

// newDriver opens the log, begins a new life of the replica and makes the raft node.
func newDriver(g *Group) (*driver, error) {
	log, state, err := openState(g.config.KV)
	if err != nil {
		return nil, err
	}
	transfer, err := log.Snapshot()
	if err != nil {
		return nil, err
	}
	d := &driver{
		Group: g, log: log, state: state, conf: transfer.GetMetadata().GetConfState(),
		applied: transfer.GetMetadata().GetIndex(), pending: make(map[proposalID]*proposal), nextID: g.rt.Rand(),
		transfers: make(map[uint64]sentTransfer), askers: make(map[uint64]asker), campaign: campaign{timeout: g.config.ElectionTicks},
	}
	if d.others, err = log.readOthers(); err != nil {
		return nil, err
	}
	if err := d.beginLife(); err != nil {
		return nil, err
	}
	if err := d.makeNode(); err != nil {
		return nil, err
	}
	g.view.Store(&view{state: d.state, newer: make(chan struct{})})
	return d, d.leadAlone()
}

// openState opens the log and decodes the catalog behind which it begins.
func openState(kv KV) (*logStore, *catalog.State, error) {
	log, err := openLog(kv)
	if err != nil {
		return nil, nil, err
	}
	transfer, err := log.Snapshot()
	if err != nil || raft.IsEmptySnap(transfer) {
		return log, catalog.New(), err
	}
	state, err := catalog.Decode(transfer.GetData())
	if rhumb.KindOf(err) == rhumb.Corrupt {
		if log, err = emptyLog(kv, err); err == nil {
			state = catalog.New()
		}
	}
	return log, state, err
}

// makeNode makes the raft node from what the log holds.
func (d *driver) makeNode() (err error) {
	d.node, err = raft.NewRawNode(&raft.Config{
		ID: uint64(d.config.Node), ElectionTick: d.config.ElectionTicks, HeartbeatTick: 1, Storage: d.log, Applied: d.applied,
		MaxSizePerMsg: appendSize, MaxInflightMsgs: appendInflight, MaxCommittedSizePerReady: applySize,
		MaxUncommittedEntriesSize: uncommittedMax, PreVote: true, CheckQuorum: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, StepDownOnRemoval: true, Logger: raftLogger{d.config.logger()},
	})
	return rhumb.WrapKind("raftmeta.makeNode", rhumb.Internal, err)
}

// run is the driver's loop. It takes what waits, as much as there is, before it handles what Raft makes of it, so that
// concurrent proposals share one write.
func (d *driver) run(ctx context.Context) {
	d.setPace()
	defer func() { d.stopTicks() }()
	d.askNodes(d.proof.nodesToAsk(0, d.ownStanding()))
	defer d.abandonProposals(rhumb.E("raftmeta.Group", rhumb.Unavailable, "the node is stopping"))
	for {
		if err := d.handleReady(); err != nil {
			d.config.logger().Error("metadata group stops", "error", err)
			d.stopWith(err)
			return
		}
		if d.rt.Await(ctx.Done(), d.wake, nil) == 0 {
			return
		}
		if err := d.drainQueues(); err != nil {
			d.stopWith(err)
			return
		}
	}
}

// drain takes what waits without waiting for more: messages first, since they may tell who leads. It does not choose among
// kinds by select, which would choose at random.
func (d *driver) drainQueues() error {
	if d.due.Swap(false) {
		d.tick()
	}
	var err error
	takeAll(d.inbox, func(in inbound) { err = cmp.Or(err, d.handleInbound(in)) })
	if err != nil {
		return err
	}
	takeAll(d.asks, func(f func(*driver)) { f(d) })
	takeAll(d.proposals, d.proposeToRaft)
	takeAll(d.reads, d.queueRead)
	select {
	case transfer := <-d.cuts:
		return d.cutLog(transfer)
	default:
		return nil
	}
}

// takeAll takes what waits in a queue, at most as much as the queue holds: what comes meanwhile has given a signal.
func takeAll[T any](queue <-chan T, take func(T)) {
	for range cap(queue) {
		select {
		case v := <-queue:
			take(v)
		default:
			return
		}
	}
}

func (d *driver) tick() {
	d.ticks++
	if d.proof.mayCampaign() || !d.proof.isAlone(d.conf.GetVoters()) { // Raft elects the only voter without a message
		d.node.Tick()
	}
	d.campaignOnTurn()
	if d.ticks%paceEvery == 0 {
		d.setPace()
	}
	d.tickProof()
	d.checkTransfers()
	d.retryReads()
}

// step gives a message to Raft, if the replica may take it.
func (d *driver) stepMessage(in inbound) {
	if !d.mayReceive(in.message) {
		return
	}
	if err := d.node.Step(in.message); err != nil {
		d.config.logger().Debug("message refused", "from", in.from, "type", in.message.GetType(), "error", err)
	}
	switch in.message.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		d.noteLeader(uint64(in.from))
	}
}

// handleReady does what Raft asks for, until it asks for nothing: keep, send, apply.
func (d *driver) handleReady() error {
	for d.node.HasReady() {
		rd := d.node.Ready()
		if rd.SoftState != nil {
			d.isLead = rd.SoftState.RaftState == raft.StateLeader
			d.lead = rd.SoftState.Lead
		}
		if !raft.IsEmptyHardState(rd.HardState) && d.term != rd.HardState.GetTerm() {
			d.term = rd.HardState.GetTerm()
			d.campaign.noteTerm()
		}
		early, late := d.sortMessages(rd.Messages)
		d.sendMessages(early)
		var err error
		sched.Block(d.rt, func() { err = d.log.saveReady(rd.HardState, rd.Entries, rd.Snapshot, rd.MustSync) })
		if err != nil {
			return rhumb.Wrap("raftmeta.save", err)
		}
		d.sendMessages(late)
		d.announceLeader()
		if err := d.applyReady(rd); err != nil {
			return err
		}
		if err := d.cutForMembers(); err != nil {
			return err
		}
		for _, rs := range rd.ReadStates {
			d.readConfirmed(rs)
		}
		d.node.Advance(rd)
		d.finishReads()
	}
	if changed, err := d.advanceProof(); err != nil || changed {
		return err
	}
	d.startCut()
	return nil
}

// sortMessages splits off the messages that a leader may send before its own entries are durable (Raft thesis, section
// 10.2.1): those that ask followers to append, and heartbeats. Votes and acknowledgements wait.
func (d *driver) sortMessages(messages []*raftpb.Message) (early, late []*raftpb.Message) {
	for _, m := range messages {
		switch m.GetType() {
		case raftpb.MsgApp, raftpb.MsgHeartbeat:
			early = append(early, m)
		default:
			late = append(late, m)
		}
	}
	return early, late
}

// announce publishes a change of leader.
func (d *driver) announceLeader() {
	old := d.leadership.Load()
	lead := rhumb.NodeID(d.lead)
	if old.leader == lead && (old.term == d.term || lead == rhumb.NoNode) {
		return
	}
	now := d.rt.Now()
	if d.isLead { // what was reported to an earlier leadership of this node is old
		d.evidence.reset()
	}
	before := old.leader
	if before == rhumb.NoNode || before == lead {
		before = old.before
	}
	d.leadership.Store(&leadership{leader: lead, before: before, term: d.term, since: now, changed: make(chan struct{})})
	close(old.changed)
	d.metrics.setLeader(d.isLead, lead != rhumb.NoNode)
	d.confIndex = 0
	d.config.logger().Info("metadata leader", "leader", lead, "term", d.term)
	if !d.isLead {
		clear(d.askers)
		d.abandonProposals(rhumb.E("raftmeta.Propose", rhumb.Unknown, "the leader lost its place before the command was decided"))
	}
}

// abandon answers every pending proposal with an error.
func (d *driver) abandonProposals(err error) {
	byNumber := func(a, b proposalID) int { return cmp.Compare(a.number, b.number) }
	for _, id := range slices.SortedFunc(maps.Keys(d.pending), byNumber) {
		p := d.pending[id]
		delete(d.pending, id)
		p.finish(catalog.Result{}, err)
	}
}

// status describes the replica.
func (d *driver) replicaStatus() Status {
	st := d.node.Status()
	first, _ := d.log.FirstIndex()
	last, _ := d.log.LastIndex()
	s := Status{
		Group: d.config.Group, Node: d.config.Node, Leader: rhumb.NodeID(st.Lead), Term: st.HardState.GetTerm(),
		Role: roleName(st.RaftState, d.conf, uint64(d.config.Node)), Commit: st.HardState.GetCommit(), Applied: d.applied, First: first, Last: last,
		Voters: nodeIDs(d.conf.GetVoters()), Learners: nodeIDs(d.conf.GetLearners()),
		Outgoing: nodeIDs(d.conf.GetVotersOutgoing()), Silent: d.proof.silent, Short: d.proof.record.Short, Floor: d.proof.floor.Index,
		Waits: nodeIDs(d.proof.unansweredVoters(d.ownStanding())), Recovered: d.log.record.Recovered,
	}
	if d.isLead {
		s.Readmits = nodeIDs(d.replicasToReadmit())
		s.Match = make(map[rhumb.NodeID]uint64)
		for id, pr := range st.Progress {
			s.Match[rhumb.NodeID(id)] = pr.Match
		}
	}
	return s
}

// roleName gives "leader", "follower", "candidate" or "learner".
func roleName(state raft.StateType, conf *raftpb.ConfState, self uint64) string {
	switch {
	case state == raft.StateLeader:
		return "leader"
	case state == raft.StateCandidate || state == raft.StatePreCandidate:
		return "candidate"
	case slices.Contains(conf.GetVoters(), self):
		return "follower"
	}
	return "learner"
}

// transfer asks Raft to hand the lead to the voter that is furthest along, and gives it; NoNode when there is no other.
func (d *driver) transferLead() rhumb.NodeID {
	var heir, match uint64
	d.node.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if id != uint64(d.config.Node) && typ == raft.ProgressTypePeer && pr.RecentActive && pr.Match > match {
			heir, match = id, pr.Match
		}
	})
	if heir != 0 {
		d.node.TransferLeader(heir)
	}
	return rhumb.NodeID(heir)
}
