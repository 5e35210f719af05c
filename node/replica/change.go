package replica

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// change is the pending change of rule R: the in-sync set that this primary wants and whose fate is
// unknown. Once proposed, only a record with a higher version ends it. A copy of the unchanged
// record proves nothing, because the proposal may still be under way.
type change struct {
	// life is that of the joining node whose acknowledgements the proposal is based on; 0 before it is proposed.
	life rhumb.BootSeq
	// members is the wanted set, nil if no change is pending.
	members []rhumb.NodeID
	// node is the node that joins (expand is set) or leaves.
	node   rhumb.NodeID
	expand bool
	// unsent reports that the set is in force but not proposed yet. The joining node has to catch up
	// first, and commits wait for it meanwhile: otherwise it could never catch up under load. A change
	// that was not sent may be dropped.
	unsent bool
	// unhurried reports that nothing stands still until the change is decided.
	unhurried bool
	// retracted reports that the present set was proposed under the same version as well. Whichever
	// proposal commits first moves the version, so the change is settled either way.
	retracted bool
	timer     retry
}

// isActive reports whether a change is pending.
func (c *change) isActive() bool { return c.members != nil }

// reconfigure advances a pending change of the in-sync set, or begins one if needed. There is one
// change at a time: two could be decided on one version, and only one of them would happen.
func (r *Replica) reconfigure() {
	if r.change.isActive() && r.change.expand {
		r.advanceJoin()
	}
	// The record of an epoch that was handed over refuses changes until it names the epoch.
	if r.change.isActive() || !r.isAdopted() {
		return
	}
	// Removing comes before adding: commits may stand still because of the unfit member.
	if p := r.memberToRemove(); p != nil {
		members := slices.DeleteFunc(slices.Clone(r.inSync), func(n rhumb.NodeID) bool { return n == p.node })
		r.beginChange(change{members: members, node: p.node, unhurried: p.slow && p.isFit()})
		r.alterISR(members)
	} else if p := r.learnerToAdd(); p != nil && len(r.splits) == 0 {
		// While an entry that divides the range is not committed, nobody joins: see maySplit.
		members := append(slices.Clone(r.inSync), p.node)
		slices.Sort(members)
		// Added to the pending set at once, and proposed only when caught up (see advanceJoin).
		r.beginChange(change{members: members, node: p.node, expand: true, unsent: true})
		r.advanceJoin()
	} else if r.vouching.ripe {
		r.vouching = vouching{}
		// Recording lives proposes the unchanged set. It is an ordinary change, so that it cannot be
		// decided at the same time as another one.
		if r.wantsToVouch() {
			r.beginChange(change{members: slices.Clone(r.inSync)})
			r.alterISR(r.inSync)
		}
	}
}

// advanceJoin proposes an expansion once the joining node holds everything that may have been
// acknowledged and has agreed to the closed timestamp. If the node becomes unfit, advanceJoin drops
// the change, or settles it if it was proposed.
func (r *Replica) advanceJoin() {
	p := r.peer(r.change.node)
	fit := p.connected && p.isFit()
	leaves := r.desc.IsLeaving(p.node)
	switch {
	case r.change.retracted:
	// Nobody else knows of the change, so it can be dropped. It also yields to a removal, since
	// commits wait for the member that should leave.
	case r.change.unsent && (!fit || leaves || p.slow || r.isUnneeded(p) || r.memberToRemove() != nil):
		if !fit {
			// A node that fails while it joins holds up commits like a member that fails.
			r.noteDeparture(p.node)
		}
		r.change = change{}
		r.rebuildPeers()
		// Entries may have waited only for the node that does not join now.
		r.advanceCommit()
	// commit alone would not do. The commit position of a new primary is a lower bound; entries below
	// its epoch-start entry may have been acknowledged in the epoch before. The model breaks the
	// weaker rule in five steps (TestJoinAtStart). And a node that has not agreed to the closed
	// timestamp could write below it once elected (docs/replication.md#closed).
	case r.change.unsent && p.match >= max(r.commit, r.start) && p.agreed >= r.closed:
		r.change.unsent, r.change.life = false, p.life
		r.alterISR(r.change.members)
	// The proposal may be applied at any time, so both sets keep counting until the version moves. A later life of
	// the node has acknowledged nothing yet: the proposal must not be repeated for it.
	case !r.change.unsent && (!fit || p.life != r.change.life):
		r.change.retracted = true
		r.alterISR(r.inSync)
	}
}

// beginChange puts the wanted set in force together with the present one: from now on commits and
// leases need the members of both.
func (r *Replica) beginChange(c change) {
	if len(c.members) < r.cfg.MinInSync || !slices.Contains(c.members, r.cfg.Self) {
		panic(fmt.Sprintf("replica: invariant I8: in-sync set %v wanted at %s, min_insync is %d", c.members, r.cfg.Self, r.cfg.MinInSync))
	}
	r.change = c
	r.rebuildPeers()
}

// alterISR proposes an in-sync set to metadata. It names the life of each member, since metadata
// must not admit a life that is over, and the members that this primary vouches for.
func (r *Replica) alterISR(members []rhumb.NodeID) {
	lives, vouched := make([]rhumb.BootSeq, len(members)), make([]bool, len(members))
	for i, n := range members {
		lives[i], vouched[i] = r.lifeOf(n)
		// A repetition names the life of the first proposal, which metadata refuses once it is over.
		if c := &r.change; c.life != 0 && n == c.node && lives[i] != c.life {
			lives[i], vouched[i] = c.life, false
		}
	}
	r.out.Meta = append(r.out.Meta, MetaProposal{
		Kind: AlterISR, Range: r.cfg.Range, Epoch: r.promised, Version: r.version, New: slices.Clone(members), Lives: lives,
		// A proposal of the unchanged set that settles nothing is only for recording lives.
		Vouched: vouched, Unhurried: r.change.unhurried || slices.Equal(members, r.inSync) && !r.change.retracted,
	})
	r.change.timer.arm()
}

// tickChange repeats a proposal that has had no effect for ChangeRetry, because it may have been
// lost. If it was not, the compare-and-set on the version rejects the copy.
func (r *Replica) tickChange() {
	if !r.change.isActive() || r.change.unsent || !r.change.timer.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	members := r.change.members
	if r.change.retracted {
		members = r.inSync
	}
	r.alterISR(members)
	r.dirty = true
}

// memberToRemove returns an in-sync peer that should leave, or nil. A peer should leave if it is
// suspected, quarantined, has lost log that it acknowledged, refuses entries, makes no progress, or is slow.
func (r *Replica) memberToRemove() *progress {
	// If too few of the remaining members are fit, a smaller set could not commit either. The set then
	// stays whole, because only its members can be elected. Removing suspects regardless of who is
	// left would let an isolated primary empty the set of everyone who could take over. The same goes
	// for members that refuse this primary's timestamps because its own clock is wrong.
	if len(r.inSync) <= r.cfg.MinInSync || !r.hasFitSet() || r.isClockBlamed() {
		return nil
	}
	for _, p := range r.peers {
		if p.inSync && !p.isFit() {
			return p
		}
	}
	// Then those whose copies are to go (docs/replication.md#rule-removal), as long as enough fit members stay.
	for _, p := range r.peers {
		if p.inSync && r.desc.IsLeaving(p.node) && r.fitMembers() > r.cfg.MinInSync && r.staysSpread(p.node) {
			return p
		}
	}
	return r.slowMember()
}

// staysSpread reports whether metadata accepts the in-sync set without a member that leaves. Metadata
// would never accept a set in one region, and while that change is pending, nobody joins who could
// mend the set.
func (r *Replica) staysSpread(leaving rhumb.NodeID) bool {
	if r.cfg.Spans == nil {
		return true
	}
	rest := slices.DeleteFunc(slices.Clone(r.inSync), func(n rhumb.NodeID) bool { return n == leaving })
	// A set that is in one region already may shrink.
	return r.cfg.Spans(rest) || !r.cfg.Spans(r.inSync)
}

// learnerToAdd returns a learner that may join, or nil.
func (r *Replica) learnerToAdd() *progress {
	for _, p := range r.peers {
		if !p.inSync && r.whyNotJoin(p) == "" {
			return p
		}
	}
	return nil
}

// whyNotJoin returns the reason why a learner may not join the in-sync set now, or "". Operators
// see the reason, and docs/runbooks/stuck-learner.md explains it by its first words.
func (r *Replica) whyNotJoin(p *progress) string {
	switch {
	case !slices.Contains(r.desc.Replicas, p.node):
		return "the record does not list it as a replica of the range"
	case slices.Contains(r.desc.Quarantined, p.node):
		return "it is quarantined"
	case r.desc.IsLeaving(p.node):
		return "its copy is being removed"
	case p.flow == flowLost:
		return r.whyLost(p)
	case p.flow == flowQuarantined:
		return "it is quarantined"
	case !p.connected:
		return "no stream: the primary has no connection to it"
	case p.suspect:
		return "suspected: the primary gets no answering heartbeats from it"
	case p.flow == flowProbe:
		return "its log is still being compared with the primary's"
	case r.isHeldOff(p.node):
		return "held off: it left the in-sync set recently, and rejoins after a pause"
	case p.slow:
		return "slow: it acknowledges much later than the others"
	case r.isUnneeded(p):
		return "it drains, and enough others are in sync"
	// Commits and leases need a node from when the change begins. One that has just started has
	// granted no lease yet: each read would ask the metadata group instead, which may be on another
	// continent. Agreements and grants arrive in the same answer to a heartbeat.
	case p.agreed == 0 && r.closed > 0:
		return "it has answered no heartbeat in its present life"
	case r.lagBytes(p) > int64(r.cfg.JoinWithinBytes):
		return fmt.Sprintf("it is %d bytes behind and joins within %d", r.lagBytes(p), r.cfg.JoinWithinBytes)
	}
	return ""
}

// isUnneeded reports whether a learner drains and the range can be written without it. If another
// member is dead, metadata lets a node that drains join all the same.
func (r *Replica) isUnneeded(p *progress) bool { return p.drains && r.hasFitSetWithout(p.node) }

// lagBytes returns the approximate number of bytes that a peer lacks, rounded up to an index point.
func (r *Replica) lagBytes(p *progress) int64 {
	// Exactly zero when the peer has everything, although the index rounds up.
	if p.match == r.log.last().Seq {
		return 0
	}
	return r.log.bytes.total - r.log.bytes.pointAt(p.match).bytes
}
