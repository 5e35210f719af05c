package raftmeta

import (
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// The part of the driver that carries out proof: a replica that has started is silent until it has heard what it may have
// promised.

// Waiting times of a leader that hears of a replica which lost data, in ticks.
const (
	// readmitAfter is how long a short replica asks before the leader takes it in anew: the answers of all voters are enough
	// otherwise.
	readmitAfter = 20
	// readmitAgain is after how long a replica that was taken in and is still silent is taken in again.
	readmitAgain = 100
	// warnEvery is how often a replica that cannot come back says so.
	warnEvery = 300
)

// asker is what a leader remembers of a replica that asks.
type asker struct {
	life  uint64
	since uint64 // the tick of its first question
	lost  bool   // it must be taken in anew
}

// beginLife begins a new life of the replica, durably.
func (d *driver) beginLife() error {
	if d.config.Short || d.log.lost != nil {
		d.log.fresh = false
		d.config.logger().Error("this replica of the metadata lacks what it had made durable; it does not vote until it has that again",
			"last", d.lastPosition().Index, "error", d.log.lost)
	}
	if d.config.Restarted {
		d.log.fresh = false
	}
	if r := d.log.record.Recovered; r != nil {
		d.metrics.recovered.Set(float64(r.At.Unix()))
		d.config.logger().Warn("the metadata was recovered by force from this node: what only the lost voters had is lost",
			"at", r.At, "last", r.Last, "term", r.Term, "lost", r.Lost)
	}
	fresh := d.log.fresh || d.config.Hasty
	life := d.rt.Rand() | 1 // never 0
	if err := d.log.beginLife(life, d.config.Short); err != nil {
		return err
	}
	d.proof = newProof(uint64(d.config.Node), d.log.record, fresh, d.ownStanding())
	return d.storeRecord(ruling{Store: !d.proof.silent})
}

// leadAlone makes the only voter the leader: nobody else could be. A log that lost its end may name fewer voters than there are,
// and a floor says so.
func (d *driver) leadAlone() error {
	if !d.proof.mayCampaign() || !d.proof.isAlone(d.conf.GetVoters()) {
		return nil
	}
	return d.node.Campaign()
}

// last returns the position of the last entry.
func (d *driver) lastPosition() position {
	index, _ := d.log.LastIndex()
	term, _ := d.log.Term(index)
	return position{term, index}
}

func (d *driver) ownStanding() standing {
	return standing{Last: d.lastPosition(), Applied: d.applied, Voters: votingMembers(d.conf), Learners: d.conf.GetLearners()}
}

// take handles a received message.
func (d *driver) handleInbound(in inbound) error {
	switch {
	case in.question != nil:
		return d.answerQuestion(uint64(in.from), *in.question)
	case in.answer != nil:
		_, known := d.proof.answers[uint64(in.from)]
		if err := d.storeRecord(d.proof.hearAnswer(uint64(in.from), *in.answer)); err != nil {
			return err
		}
		if !known && in.answer.Silent && d.proof.silent { // it may have started just now
			d.askNodes(d.proof.nodesToAsk(0, d.ownStanding()))
		}
	default:
		// The sender may know newer voters, or be the only node that this one hears of.
		news := in.message.GetType() != raftpb.MsgPreVote || d.proof.isAlone(d.conf.GetVoters())
		if _, ok := d.proof.answers[uint64(in.from)]; d.proof.silent && !ok && news {
			d.askNodes([]uint64{uint64(in.from)})
		}
		d.stepMessage(in)
	}
	return nil
}

// prove does what a tick asks of a replica that proves its log.
func (d *driver) tickProof() {
	p := d.proof
	p.tick(d.lead != 0)
	d.askNodes(p.nodesToAsk(d.ticks, d.ownStanding()))
	d.metrics.setProof(p.silent, p.record.Short)
	if p.silent && p.waited%warnEvery == 0 {
		d.config.logger().Warn("this replica of the metadata does not vote yet: it waits for the answers of the other voters, or for a leader that takes it in anew; "+
			"start the missing voters, or if most are lost for good see rhumb unsafe-recover metadata --help",
			"short", p.record.Short, "voters", p.newestVoters(d.ownStanding()), "answered", len(p.answers))
	}
}

func (d *driver) askNodes(nodes []uint64) {
	if len(nodes) == 0 {
		return
	}
	b := encodeMessage(messageQuestion, d.proof.newQuestion(d.lastPosition()))
	for _, id := range nodes {
		d.config.Transport.Send(rhumb.NodeID(id), d.config.Group, [][]byte{b})
	}
}

// settle carries out what the proof rules, and reports whether there is a new raft node.
func (d *driver) advanceProof() (changed bool, err error) {
	silent := d.proof.silent
	r := d.proof.nextRuling(d.ownStanding())
	if r == (ruling{}) {
		return false, nil
	}
	if err := d.storeRecord(r); err != nil || r.Vote == 0 {
		return false, err
	}
	if err := d.makeNode(); err != nil {
		return false, err
	}
	if silent && !d.proof.silent {
		if !d.proof.leaderAnswered() {
			d.campaign.noteLeaderless()
		}
		d.config.logger().Info("this replica of the metadata takes part", "last", d.lastPosition().Index, "floor", d.proof.floor.Index, "answered", len(d.proof.answers))
	}
	d.wakeDriver()
	return true, d.leadAlone()
}

// storeRecord makes durable what a ruling says. A term for the hard state comes with a vote for the replica itself.
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
		hard = &raftpb.HardState{
			Term: proto.Uint64(max(old.GetTerm(), r.Vote)), Vote: proto.Uint64(uint64(d.config.Node)), Commit: proto.Uint64(old.GetCommit()),
		}
	}
	return d.log.saveRecord(hard)
}

// answer answers a question. The asker's life is durable before it is told that it is known.
func (d *driver) answerQuestion(from uint64, q question) error {
	before := d.others[from]
	met, verdict := before.compareLife(q)
	if met != before && (len(d.others) < rhumb.NodesMax || before.Life != 0) {
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
	if _, ok := d.proof.answers[from]; d.proof.silent && !ok && slices.Contains(d.proof.newestVoters(d.ownStanding()), from) {
		d.askNodes([]uint64{from}) // it is up now
	}
	return nil
}

// match returns up to where a leader counts on the log of a node; 0 for one that is no member.
func (d *driver) matchOf(id uint64) uint64 { return d.node.Status().Progress[id].Match }

// judgeAsker notes whether a replica has to be taken in anew: the leader counts on entries that it does not have, or it is
// short and cannot hear all the others.
func (d *driver) judgeAsker(id uint64, q question, match uint64, admitted bool) {
	a := d.askers[id]
	if a.life != q.Life {
		a = asker{life: q.Life, since: d.ticks}
	}
	waited, lacks := d.ticks-a.since, q.Last.Index < match
	switch {
	case !q.Silent:
	case admitted:
		a.lost = a.lost || waited >= readmitAgain && (lacks || slices.Contains(d.conf.GetVoters(), id))
	default:
		a.lost = a.lost || lacks || q.Short && waited >= readmitAfter
	}
	if a.lost || q.Silent || d.askers[id] != (asker{}) {
		d.askers[id] = a
	}
}

// lostReplica returns a member to be taken in anew, or 0. Those of the others that are in touch must be able to decide it.
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
			d.config.logger().Warn("a replica of the metadata lost entries and cannot be taken in anew: too few other voters answer; start them",
				"replica", id, "voters", voters, "active", active)
		}
	}
	return 0
}

// readmits returns the replicas that lost entries and have not been taken in anew yet.
func (d *driver) replicasToReadmit() (nodes []uint64) {
	for _, id := range slices.Sorted(maps.Keys(d.askers)) {
		if d.askers[id].lost {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

// noteAdmissions notes whom an applied change of members took in, and forgets what was asked before it.
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
		if own := uint64(d.config.Node); one.node == own && !a.Admitted.Learner {
			d.proof.answers[own] = answer{Life: one.life, Admitted: a.Admitted}
		}
	}
	d.askNodes(d.proof.nodesToAsk(0, d.ownStanding())) // new voters shall know this life before it ends
	return nil
}

// admitting returns the context of a change of members: the lives of those that it takes in.
func (d *driver) admissionContext(changes []*raftpb.ConfChangeSingle) []byte {
	var a admittedLives
	for _, c := range changes {
		if life := d.others[c.GetNodeId()].Life; life != 0 && c.GetType() != raftpb.ConfChangeRemoveNode {
			a = append(a, struct{ node, life uint64 }{c.GetNodeId(), life})
		}
	}
	return a.encode()
}

// admits reports whether the replica may take a message.
func (d *driver) mayReceive(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		return d.proof.mayVote(position{m.GetLogTerm(), m.GetIndex()})
	case raftpb.MsgTimeoutNow:
		return d.proof.mayCampaign()
	case raftpb.MsgHeartbeat:
		if m.GetCommit() > d.lastPosition().Index { // the leader counts on entries that were lost; Raft would panic
			m.Commit = proto.Uint64(0)
		}
	}
	return true
}

// maySend reports whether the replica may send a message.
func (d *driver) maySend(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		return d.proof.mayCampaign()
	case raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		return !d.proof.silent
	case raftpb.MsgAppResp, raftpb.MsgHeartbeatResp:
		return d.proof.mayAcknowledge()
	}
	return true
}
