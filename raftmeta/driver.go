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

// Limits of Raft. An append holds about one mebibyte, and at most appendInflight of them are in
// flight to a follower. A leader refuses proposals while more than uncommittedMax bytes wait for a
// majority.
//
// Committed entries are applied applySize bytes at a time, about a thousand small ones. In between the driver answers
// messages and shows how far it is. With 4 MiB a step of a start took seconds, in which the node was fenced for its
// silence, again in each of its lives.
const (
	appendSize     = 1 << 20
	appendInflight = 64
	applySize      = 64 << 10
	uncommittedMax = 64 << 20
)

// driver owns raft.RawNode, the log and the applied state. Only its own process touches them, so it
// needs no locks. Everything else reaches it through the queues of Group and a token in wake.
//
// The order of work in handleReady is what makes the group safe: entries, votes and terms are
// durable before a message that promises them is sent, and committed entries are applied in the
// order of the log, one Ready at a time.
type driver struct {
	*Group
	node *raft.RawNode
	log  *logStore

	state   *catalog.State
	applied uint64
	conf    *raftpb.ConfState
	// confChanged reports that the log must be compacted because of a change of membership.
	confChanged bool
	lead        uint64
	term        uint64
	isLead      bool
	// confIndex is at least the index of the last change of membership that this leader proposed,
	// as an estimate from the end of its log. The next change waits until it is applied.
	confIndex uint64

	// pending holds the proposals of this leader by id. It is bounded by PendingMax.
	pending map[proposalID]*proposal
	nextID  uint64

	// reading is the batch of reads that waits for the leader's answer. readQueue holds the reads
	// that arrived since; they need a question of their own, because the answer to the earlier one
	// may be older than they are.
	reading   *readBatch
	readQueue []*read

	// transfers holds the state transfers that were sent and not yet acknowledged, by recipient.
	transfers map[uint64]sentTransfer

	// proof decides whether this replica takes part. others holds the stored facts about the lives
	// of other members, askers the facts that a leader remembers about members that ask.
	proof  *proof
	others map[uint64]acquaintance
	askers map[uint64]asker
	// cutting reports that a worker is encoding a state to compact the log.
	cutting bool
	ticks   uint64

	campaign campaign
	// pace is the current length of a tick, and stopTicks stops its timer.
	pace      time.Duration
	stopTicks func()
}

// newDriver opens the log, begins a new life of the replica and creates the raft node.
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
	// The new life is durable before anything can be sent: no peer may learn of a life that the
	// disk does not know.
	if err := d.beginLife(); err != nil {
		return nil, err
	}
	if err := d.makeNode(); err != nil {
		return nil, err
	}
	g.view.Store(&view{state: d.state, newer: make(chan struct{})})
	return d, d.leadAlone()
}

// openState opens the log and decodes the catalog that precedes its first entry.
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
	// An unreadable state makes the whole log useless. If other voters have it, the replica starts
	// over empty. An incompatible one is not damage, so it is kept.
	if rhumb.KindOf(err) == rhumb.Corrupt {
		if log, err = emptyLog(kv, err); err == nil {
			state = catalog.New()
		}
	}
	return log, state, err
}

// makeNode creates the raft node from the contents of the log. It is called again when the proof
// ends the silence: the library reads vote and term only when a node is created.
func (d *driver) makeNode() (err error) {
	// CheckQuorum makes a leader that is cut off step down. PreVote keeps a voter that was cut off
	// from deposing the leader when it returns. Forwarding is disabled because a leader completes
	// commands before it appends them (proposeToRaft).
	d.node, err = raft.NewRawNode(&raft.Config{
		ID: uint64(d.config.Node), ElectionTick: d.config.ElectionTicks, HeartbeatTick: 1, Storage: d.log, Applied: d.applied,
		MaxSizePerMsg: appendSize, MaxInflightMsgs: appendInflight, MaxCommittedSizePerReady: applySize,
		MaxUncommittedEntriesSize: uncommittedMax, PreVote: true, CheckQuorum: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, StepDownOnRemoval: true, Logger: raftLogger{d.config.logger()},
	})
	return rhumb.WrapKind("raftmeta.makeNode", rhumb.Internal, err)
}

// run is the driver's loop. Each round takes everything that waits before it handles what Raft
// makes of it, so that concurrent proposals share one write.
func (d *driver) run(ctx context.Context) {
	d.setPace()
	defer func() { d.stopTicks() }()
	d.askNodes(d.proof.nodesToAsk(0, d.ownStanding()))
	defer d.abandonProposals(rhumb.E("raftmeta.Group", rhumb.Unavailable, "the node is stopping"))
	for {
		// A storage error ends the driver. Continuing would promise entries that are not durable.
		if err := d.handleReady(); err != nil {
			d.config.logger().Error("the metadata replica stops", "error", err)
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

// drainQueues takes everything that waits, without waiting for more. Messages come first, because
// they may name a new leader. It does not select among the queues: select chooses at random, and a
// simulation must repeat exactly from its seed.
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
	// At most one encoded state waits, since startCut starts one at a time.
	select {
	case transfer := <-d.cuts:
		return d.cutLog(transfer)
	default:
		return nil
	}
}

// takeAll takes what waits in a queue, but no more than its capacity: a fast producer must not
// starve the other queues. Whatever arrives later has left a token in wake.
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

// tick advances Raft, the turns of candidates, the proof and everything that waits for a time.
func (d *driver) tick() {
	d.ticks++
	// Raft's own timer elects a sole voter without any message, so no filter of messages could stop
	// it below its floor.
	if d.proof.mayCampaign() || !d.proof.isAlone(d.conf.GetVoters()) {
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

// stepMessage passes a message to Raft if the replica may receive it.
func (d *driver) stepMessage(in inbound) {
	if !d.mayReceive(in.message) {
		return
	}
	if err := d.node.Step(in.message); err != nil {
		d.config.logger().Debug("raft refused a message", "from", in.from, "type", in.message.GetType(), "error", err)
	}
	// Only leaders send these messages. Noting them after Step uses the leader that Raft believes
	// in now.
	switch in.message.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		d.noteLeader(uint64(in.from))
	}
}

// handleReady does what Raft asks for until it asks for nothing more. For each Ready it:
//
//  1. sends the messages that need not wait for the disk,
//  2. makes entries and hard state durable,
//  3. sends the remaining messages, which depend on them,
//  4. announces a new leader,
//  5. applies committed entries.
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
		// A leader's appends overlap with its own write. The write of a vote or an acknowledgement
		// must come first.
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
		// The cut must precede the next Ready, which may send a state transfer to a new member.
		if err := d.cutForMembers(); err != nil {
			return err
		}
		for _, rs := range rd.ReadStates {
			d.readConfirmed(rs)
		}
		// Advance allows the next Ready, so everything of this one must be done by now.
		d.node.Advance(rd)
		d.finishReads()
	}
	// The proof may replace the raft node, which is safe only here: no Ready is outstanding, so the
	// log holds everything that the old node knew. A new node may have a Ready at once;
	// advanceProof wakes the driver for it.
	if changed, err := d.advanceProof(); err != nil || changed {
		return err
	}
	d.startCut()
	return nil
}

// sortMessages separates the messages that a leader may send before its own entries are durable
// (Raft thesis, section 10.2.1): appends and heartbeats. Votes and acknowledgements have to wait.
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

// announceLeader publishes a change of leader, and abandons pending proposals if this node does not
// lead.
func (d *driver) announceLeader() {
	old := d.leadership.Load()
	lead := rhumb.NodeID(d.lead)
	if old.leader == lead && (old.term == d.term || lead == rhumb.NoNode) {
		return
	}
	now := d.rt.Now()
	// Reports to an earlier leadership of this node are old.
	if d.isLead {
		d.evidence.reset()
	}
	// The group is usually without a leader between two, so the last known one is kept.
	before := old.leader
	if before == rhumb.NoNode || before == lead {
		before = old.before
	}
	d.leadership.Store(&leadership{leader: lead, before: before, term: d.term, since: now, changed: make(chan struct{})})
	close(old.changed)
	d.metrics.setLeader(d.isLead, lead != rhumb.NoNode)
	// A change of membership that an earlier leader proposed counts only once it is applied.
	d.confIndex = 0
	d.config.logger().Info("metadata leader", "leader", lead, "term", d.term)
	if !d.isLead {
		// Their ages in ticks are those of this leadership. A next one starts again.
		clear(d.askers)
		d.abandonProposals(rhumb.E("raftmeta.Propose", rhumb.Unknown, "the metadata leader changed before the command was decided"))
	}
}

// abandonProposals completes every pending proposal with an error.
func (d *driver) abandonProposals(err error) {
	// Map order is random. Callers that wake in a random order would make a simulation
	// unrepeatable.
	byNumber := func(a, b proposalID) int { return cmp.Compare(a.number, b.number) }
	for _, id := range slices.SortedFunc(maps.Keys(d.pending), byNumber) {
		p := d.pending[id]
		delete(d.pending, id)
		p.finish(catalog.Result{}, err)
	}
}

// replicaStatus describes the replica.
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

// roleName returns "leader", "follower", "candidate" or "learner".
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

// transferLead asks Raft to transfer the leadership to the voter with the longest log of those that may have it, and returns
// that voter. Voters whose clocks are right, and which lack little, come first. It returns NoNode if no such voter is active.
func (d *driver) transferLead(may func(rhumb.NodeID) bool) rhumb.NodeID {
	var heir, match uint64
	clocks, ready, right := d.clocks(), d.readyNodes(), false
	d.node.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if id == uint64(d.config.Node) || typ != raft.ProgressTypePeer || !pr.RecentActive || pr.Match == 0 || !may(rhumb.NodeID(id)) {
			return
		}
		if is := ready[id] && clocks.IsRight(rhumb.NodeID(id)); heir == 0 || is && !right || is == right && pr.Match > match {
			heir, match, right = id, pr.Match, is
		}
	})
	if heir != 0 {
		d.node.TransferLeader(heir)
	}
	return rhumb.NodeID(heir)
}
