package raftmeta

import (
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// This file executes proof in the driver: a replica that has started is silent until it has learned
// about its earlier promises.

// Waiting times of a leader that hears from a replica that lost data, in ticks.
const (
	// readmitAfter is how long a short replica asks before the leader readmits it. Usually the
	// answers of all voters come sooner and make that unnecessary.
	readmitAfter = 20
	// readmitAgain is how long a readmitted replica may stay silent before it is readmitted again.
	readmitAgain = 100
	// warnEvery is the interval at which a replica that cannot return logs a warning.
	warnEvery = 300
)

// asker holds the facts that a leader remembers about a replica that asks.
type asker struct {
	life  uint64
	since uint64 // the tick of its first question
	lost  bool   // it must be readmitted
}

// beginLife begins a new life of the replica and makes it durable.
func (d *driver) beginLife() error {
	if d.config.Short || d.log.lost != nil {
		d.log.fresh = false
		d.config.logger().Error("this replica of the metadata lacks data that it had made durable; it does not vote until it has the data again",
			"last", d.lastPosition().Index, "error", d.log.lost)
	}
	// An empty KV on a node that has started before is an older copy of its disk, not a fresh one.
	if d.config.Restarted {
		d.log.fresh = false
	}
	if r := d.log.record.Recovered; r != nil {
		d.metrics.recovered.Set(float64(r.At.Unix()))
		d.config.logger().Warn("the metadata was recovered by force from this node: changes that only the lost voters had are lost",
			"at", r.At, "last", r.Last, "term", r.Term, "lost", r.Lost)
	}
	fresh := d.log.fresh || d.config.Hasty
	// 0 means "no life" in records and answers.
	life := d.rt.Rand() | 1
	if err := d.log.beginLife(life, d.config.Short); err != nil {
		return err
	}
	d.proof = newProof(uint64(d.config.Node), d.log.record, fresh, d.ownStanding())
	// A replica that takes part at once must record that, or its next start would present the wrong
	// former lives.
	return d.storeRecord(ruling{Store: !d.proof.silent})
}

// leadAlone makes a sole voter the leader at once, since nobody else can be. A log that lost its
// end may name fewer voters than there are; in that case the floor keeps the replica from leading.
func (d *driver) leadAlone() error {
	if !d.proof.mayCampaign() || !d.proof.isAlone(d.conf.GetVoters()) {
		return nil
	}
	return d.node.Campaign()
}

// lastPosition returns the position of the last entry.
func (d *driver) lastPosition() position {
	index, _ := d.log.LastIndex()
	term, _ := d.log.Term(index)
	return position{term, index}
}

// ownStanding returns the state of the replica's own log.
func (d *driver) ownStanding() standing {
	return standing{Last: d.lastPosition(), Applied: d.applied, Voters: votingMembers(d.conf), Learners: d.conf.GetLearners()}
}

// handleInbound handles a received message.
func (d *driver) handleInbound(in inbound) error {
	switch {
	case in.question != nil:
		return d.answerQuestion(uint64(in.from), *in.question)
	case in.answer != nil:
		_, known := d.proof.answers[uint64(in.from)]
		if err := d.storeRecord(d.proof.hearAnswer(uint64(in.from), *in.answer, d.ownStanding())); err != nil {
			return err
		}
		// The other replica may have just started, and answered before it had anything to ask.
		// Asking now saves a tick in a full restart.
		if !known && in.answer.Silent && d.proof.silent {
			d.askNodes(d.proof.nodesToAsk(0, d.ownStanding()))
		}
	default:
		// The sender may know newer voters, or be the only node that this one hears from. A
		// pre-vote request shows only that the sender knows of no leader.
		news := in.message.GetType() != raftpb.MsgPreVote || d.proof.isAlone(d.conf.GetVoters())
		if _, ok := d.proof.answers[uint64(in.from)]; d.proof.silent && !ok && news {
			d.askNodes([]uint64{uint64(in.from)})
		}
		d.stepMessage(in)
	}
	return nil
}

// tickProof advances the proof by a tick: it asks those that have to be asked, and warns while the
// replica cannot vote.
func (d *driver) tickProof() {
	p := d.proof
	// The order matters: questions sent below carry the state after this tick.
	p.tick(d.lead != 0)
	d.askNodes(p.nodesToAsk(d.ticks, d.ownStanding()))
	d.metrics.setProof(p.silent, p.record.Short)
	if p.silent && p.waited%warnEvery == 0 {
		d.config.logger().Warn("this replica of the metadata does not vote yet: it waits for the answers of the other voters, or for a leader that readmits it; "+
			"start the missing voters, or if most are lost for good see rhumb unsafe-recover metadata --help",
			"short", p.record.Short, "voters", p.newestVoters(d.ownStanding()), "answered", len(p.answers))
	}
}

// askNodes sends the present question to the given nodes.
func (d *driver) askNodes(nodes []uint64) {
	if len(nodes) == 0 {
		return
	}
	b := encodeMessage(messageQuestion, d.proof.newQuestion(d.lastPosition()))
	for _, id := range nodes {
		d.config.Transport.Send(rhumb.NodeID(id), d.config.Group, [][]byte{b})
	}
}

// advanceProof executes the next ruling of the proof. It reports whether it replaced the raft node.
func (d *driver) advanceProof() (changed bool, err error) {
	silent := d.proof.silent
	r := d.proof.nextRuling(d.ownStanding())
	if r == (ruling{}) {
		return false, nil
	}
	if err := d.storeRecord(r); err != nil || r.Vote == 0 {
		return false, err
	}
	// The raft node has the old term and vote in memory. A new one reads those that storeRecord
	// made durable.
	if err := d.makeNode(); err != nil {
		return false, err
	}
	if silent && !d.proof.silent {
		// Nobody leads, so nobody has to wait for a leader's silence.
		if !d.proof.leaderAnswered() {
			d.campaign.noteLeaderless()
		}
		d.config.logger().Info("this replica of the metadata takes part", "last", d.lastPosition().Index, "floor", d.proof.floor.Index, "answered", len(d.proof.answers))
	}
	// The new node may have a Ready that no message announces.
	d.wakeDriver()
	return true, d.leadAlone()
}

// storeRecord executes the Store and Vote parts of a ruling. A term to store includes a vote for
// the replica itself.
func (d *driver) storeRecord(r ruling) error {
	if r == (ruling{}) {
		return nil
	}
	d.log.record = d.proof.record
	d.log.record.Voters = votingMembers(d.conf)
	var hard *raftpb.HardState
	if r.Vote != 0 {
		old, _, err := d.log.InitialState()
		if err != nil {
			return err
		}
		// The term never goes back: the replica may have promised a later one since it asked.
		hard = &raftpb.HardState{
			Term: proto.Uint64(max(old.GetTerm(), r.Vote)), Vote: proto.Uint64(uint64(d.config.Node)), Commit: proto.Uint64(old.GetCommit()),
		}
	}
	return d.log.saveRecord(hard)
}

// answerQuestion answers a question. The asker's life is durable before the answer is sent: an
// asker that counts as known must still be known after a restart of this node.
func (d *driver) answerQuestion(from uint64, q question) error {
	before := d.others[from]
	met, verdict := before.compareLife(q)
	// Lives are stored for at most NodesEverMax nodes. Senders are not checked against the catalog,
	// which may be too old to know them.
	if met != before && (len(d.others) < rhumb.NodesEverMax || before.Life != 0) {
		if err := d.log.saveOther(from, met); err != nil {
			return err
		}
		d.others[from] = met
	}
	hard, _, err := d.log.InitialState()
	if err != nil {
		return err
	}
	a := answer{
		Life: q.Life, Verdict: verdict, Term: hard.GetTerm(), Last: d.lastPosition(), Leads: d.isLead, Applied: d.applied,
		Voters: votingMembers(d.conf), Admitted: met.Admitted, Silent: d.proof.silent,
	}
	if d.isLead {
		a.Match = d.matchOf(from)
		d.judgeAsker(from, q, a.Match, met.Admitted.Life == q.Life)
	}
	d.config.Transport.Send(rhumb.NodeID(from), d.config.Group, [][]byte{encodeMessage(messageAnswer, a)})
	// The asker has just started. Its answer may be the one that this replica lacks.
	if _, ok := d.proof.answers[from]; d.proof.silent && !ok && slices.Contains(d.proof.newestVoters(d.ownStanding()), from) {
		d.askNodes([]uint64{from})
	}
	return nil
}

// matchOf returns the index up to which this leader counts on a node's log, or 0 for a node that is
// not a member.
func (d *driver) matchOf(id uint64) uint64 { return d.node.Status().Progress[id].Match }

// judgeAsker decides whether a replica has to be readmitted: because this leader counts on entries
// that it lacks, or because it is short and cannot hear all the others
// (docs/replication.md#rule-voter-admit).
func (d *driver) judgeAsker(id uint64, q question, match uint64, admitted bool) {
	a := d.askers[id]
	// A new life starts the clock again. Questions of the previous life say nothing about it.
	if a.life != q.Life {
		a = asker{life: q.Life, since: d.ticks}
	}
	waited, lacks := d.ticks-a.since, q.Last.Index < match
	switch {
	// The replica takes part, so its acknowledgements are true.
	case !q.Silent:
	// This life was admitted already. It is readmitted only if it stays silent for a long time, for
	// instance because a delayed acknowledgement of an earlier life was counted
	// (docs/replication.md#rule-voter-messages).
	case admitted:
		a.lost = a.lost || waited >= readmitAgain && (lacks || slices.Contains(d.conf.GetVoters(), id))
	default:
		a.lost = a.lost || lacks || q.Short && waited >= readmitAfter
	}
	if a.lost || q.Silent || d.askers[id] != (asker{}) {
		d.askers[id] = a
	}
}

// lostReplica returns a member to be readmitted, or 0. It returns a member only if the other voters
// that are in contact can decide its removal.
func (d *driver) lostReplica() uint64 {
	progress := d.node.Status().Progress
	voters := d.conf.GetVoters()
	for _, id := range slices.Sorted(maps.Keys(d.askers)) {
		if _, member := progress[id]; !member || !d.askers[id].lost || id == uint64(d.config.Node) {
			continue
		}
		active := 0
		for _, v := range voters {
			if v != id && (v == uint64(d.config.Node) || progress[v].RecentActive) {
				active++
			}
		}
		if active > len(voters)/2 {
			return id
		}
		if d.ticks%warnEvery == 0 {
			d.config.logger().Warn("a replica of the metadata lost entries and cannot be readmitted: too few other voters answer; start them",
				"replica", id, "voters", voters, "active", active)
		}
	}
	return 0
}

// replicasToReadmit returns the replicas that lost entries and have not been readmitted yet.
func (d *driver) replicasToReadmit() (nodes []uint64) {
	for _, id := range slices.Sorted(maps.Keys(d.askers)) {
		if d.askers[id].lost {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

// noteAdmissions stores whom an applied change of membership admitted, and restarts the clock of
// askers that the change concerns.
func (d *driver) noteAdmissions(index uint64, cc *raftpb.ConfChangeV2) error {
	for _, c := range cc.GetChanges() {
		if a := d.askers[c.GetNodeId()]; a.lost || a.since != 0 {
			d.askers[c.GetNodeId()] = asker{life: a.life, since: d.ticks}
		}
	}
	for _, one := range decodeAdmitted(cc) {
		a := d.others[one.node]
		if index <= a.Admitted.Index {
			continue // it was applied before the restart
		}
		if a.Life == 0 {
			a.Life = one.life
		}
		a.Admitted = admission{Life: one.life, Index: index, Learner: !slices.Contains(d.conf.GetVoters(), one.node)}
		if err := d.log.saveOther(one.node, a); err != nil {
			return err
		}
		d.others[one.node] = a
		// A promoted replica learns of its own promotion from its log, like an answer from itself.
		if own := uint64(d.config.Node); one.node == own && !a.Admitted.Learner {
			d.proof.answers[own] = answer{Life: one.life, Admitted: a.Admitted}
		}
	}
	// New voters must know this life before it ends, or the next one cannot prove itself to them.
	d.askNodes(d.proof.nodesToAsk(0, d.ownStanding()))
	return nil
}

// admissionContext returns the context of a change of membership: the lives of the members that it
// admits.
func (d *driver) admissionContext(changes []*raftpb.ConfChangeSingle) []byte {
	var a admittedLives
	for _, c := range changes {
		// A node whose life is unknown is added without an admission. Its first question makes its
		// life known.
		if life := d.others[c.GetNodeId()].Life; life != 0 && c.GetType() != raftpb.ConfChangeRemoveNode {
			a = append(a, struct{ node, life uint64 }{c.GetNodeId(), life})
		}
	}
	return a.encode()
}

// mayReceive reports whether Raft may receive a message. It also repairs heartbeats on which Raft
// would panic.
func (d *driver) mayReceive(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		return d.proof.mayVote(position{m.GetLogTerm(), m.GetIndex()})
	// A leader that transfers its leadership makes the recipient campaign without any timeout.
	case raftpb.MsgTimeoutNow:
		return d.proof.mayCampaign()
	case raftpb.MsgHeartbeat:
		// The leader counts on entries that were lost, and Raft would panic on the commit index.
		// The heartbeat itself is kept, because without it the replica would not know its leader.
		if m.GetCommit() > d.lastPosition().Index {
			m.Commit = proto.Uint64(0)
		}
	}
	return true
}

// maySend reports whether the replica may send a message.
func (d *driver) maySend(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgPreVote:
		return d.proof.mayCampaign() && d.campaign.mayAsk(uint64(d.config.Node), votingMembers(d.conf))
	case raftpb.MsgVote:
		return d.proof.mayCampaign()
	case raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		return !d.proof.silent
	// Responses to heartbeats count as well: ReadIndex takes them as confirmations of the leader.
	case raftpb.MsgAppResp, raftpb.MsgHeartbeatResp:
		return d.proof.mayAcknowledge()
	}
	return true
}
