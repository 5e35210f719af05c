package replica

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// change is the pending proposal of rule R: the in-sync set that was asked for and whose fate is not known. Only a
// record with a higher version ends it.
type change struct {
	// members is the set asked for, nil when nothing is pending.
	members []rhumb.NodeID
	// node joins (expand) or leaves.
	node   rhumb.NodeID
	expand bool
	// unsent says that the set is in force but not proposed yet: the joining node has to catch up first, and commits
	// wait for it so that under load it ever can. Until then it may be dropped (ruling 7).
	unsent bool
	// retracted says that the present set was proposed as well, to settle the change (ruling 7).
	retracted bool
	timer     retry
}

func (c *change) active() bool { return c.members != nil }

// reconfigure begins a change of the in-sync set when one is called for and none is pending, and goes on with one that
// is.
func (r *Replica) reconfigure() {
	if r.change.active() && r.change.expand {
		r.pursue()
	}
	if r.change.active() {
		return
	}
	if p := r.toShrink(); p != nil {
		members := slices.DeleteFunc(slices.Clone(r.inSync), func(n rhumb.NodeID) bool { return n == p.node })
		r.begin(change{members: members, node: p.node})
		r.alterISR(members)
	} else if p := r.toExpand(); p != nil {
		members := append(slices.Clone(r.inSync), p.node)
		slices.Sort(members)
		r.begin(change{members: members, node: p.node, expand: true, unsent: true})
		r.pursue()
	} else if r.vouching.ripe {
		r.vouching = vouching{}
		if r.wantsToVouch() {
			r.begin(change{members: slices.Clone(r.inSync)})
			r.alterISR(r.inSync)
		}
	}
}

// pursue proposes an expansion once the joining node has all that may be acknowledged and has agreed to what is closed
// (ruling 6), and takes it back when that node is not fit any more.
func (r *Replica) pursue() {
	p := r.peer(r.change.node)
	fit := p.connected && p.fit()
	switch {
	case r.change.retracted:
	case r.change.unsent && (!fit || r.toShrink() != nil):
		if !fit {
			r.left(p.node)
		}
		r.change = change{}
		r.configure()
		r.advanceCommit()
	case r.change.unsent && p.match >= max(r.commit, r.start) && p.agreed >= r.closed:
		r.change.unsent = false
		r.alterISR(r.change.members)
	case !r.change.unsent && !fit:
		r.change.retracted = true
		r.alterISR(r.inSync)
	}
}

// begin puts the wanted set in force beside the present one: from now on commits and leases need both.
func (r *Replica) begin(c change) {
	if len(c.members) < r.cfg.MinInSync || !slices.Contains(c.members, r.cfg.Self) {
		panic(fmt.Sprintf("replica: invariant I8: in-sync set %v wanted at %s, min_insync is %d", c.members, r.cfg.Self, r.cfg.MinInSync))
	}
	r.change = c
	r.configure()
}

func (r *Replica) alterISR(members []rhumb.NodeID) {
	lives, vouched := make([]rhumb.BootSeq, len(members)), make([]bool, len(members))
	for i, n := range members {
		lives[i], vouched[i] = r.lifeOf(n)
	}
	r.out.Meta = append(r.out.Meta, MetaProposal{
		Kind: AlterISR, Range: r.cfg.Range, Epoch: r.promised, Version: r.version, New: slices.Clone(members), Lives: lives,
		Vouched: vouched, Unhurried: slices.Equal(members, r.inSync) && !r.change.retracted,
	})
	r.change.timer.arm()
}

// tickChange repeats a proposal that has had no effect for ChangeRetry. It may have been lost; if it was not, the
// compare-and-set refuses the copy.
func (r *Replica) tickChange() {
	if !r.change.active() || r.change.unsent || !r.change.timer.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	members := r.change.members
	if r.change.retracted {
		members = r.inSync
	}
	r.alterISR(members)
	r.dirty = true
}

// toShrink returns an in-sync peer that should leave, or nil: it is suspected, quarantined, has lost log that it
// acknowledged, refuses entries, or has made no progress, and enough remain. When too few of those that remain are fit, a
// smaller set could not commit either; then the set stays whole, so that as many as possible can be elected.
func (r *Replica) toShrink() *progress {
	if len(r.inSync) <= r.cfg.MinInSync || r.fitMembers() < r.cfg.MinInSync || r.blamed() {
		return nil
	}
	for _, p := range r.peers {
		if p.inSync && !p.fit() {
			return p
		}
	}
	return nil
}

// toExpand gives a learner that may join, or nil.
func (r *Replica) toExpand() *progress {
	for _, p := range r.peers {
		if !p.inSync && r.whyNot(p) == "" {
			return p
		}
	}
	return nil
}

// whyNot says why a learner may not join the in-sync set now; "" when it may.
func (r *Replica) whyNot(p *progress) string {
	switch {
	case !slices.Contains(r.desc.Replicas, p.node):
		return "it is no replica of the range"
	case slices.Contains(r.desc.Quarantined, p.node):
		return "it is quarantined"
	case p.flow == flowLost:
		return fmt.Sprintf("log trimmed: it needs what lay below %d, and so a state transfer", r.log.trim)
	case p.flow == flowQuarantined:
		return "it is quarantined"
	case !p.connected:
		return "there is no stream to it"
	case p.suspect:
		return "it is suspected"
	case p.flow == flowProbe:
		return "its log is being compared"
	case r.held(p.node):
		return "it left the in-sync set of late and is held off for a while"
	case r.lagBytes(p) > int64(r.cfg.JoinWithinBytes):
		return fmt.Sprintf("it is %d bytes behind, at most %d are allowed", r.lagBytes(p), r.cfg.JoinWithinBytes)
	}
	return ""
}

// lagBytes gives about how much a peer misses, rounded up.
func (r *Replica) lagBytes(p *progress) int64 {
	if p.match == r.log.last().Seq {
		return 0
	}
	return r.log.bytes.total - r.log.bytes.point(p.match).bytes
}
