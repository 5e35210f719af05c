package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// Rule P accepts one answer of a recorded life (docs/replication.md#rule-one-answer). The record
// names, for members of the in-sync set, the life in which the member holds every acknowledged
// write. A disk that forgets does so at a start, and each start is a new life. An answer from a
// recorded life is thus about an intact copy, and an election needs no other: a range at its
// smallest in-sync set survives the loss of all members but one. This file decides for which lives
// a primary vouches.

// vouching is the delay before a primary has metadata record lives that the record does not name.
// Correctness does not depend on the delay. It leaves the metadata group to urgent commands while
// many ranges have just got new primaries.
type vouching struct {
	lasted time.Duration
	ripe   bool
}

// lifeOf returns the life of a member as known to this primary, and whether the primary vouches for
// it. It vouches for a member that has, in that life, acknowledged everything that may have been
// acknowledged to clients, and has agreed to the closed timestamp.
func (r *Replica) lifeOf(n rhumb.NodeID) (life rhumb.BootSeq, vouched bool) {
	// As for joining (see advanceJoin): the commit position of a new primary is only a lower bound.
	needed := max(r.commit, r.start)
	p := r.peer(n)
	switch {
	// This node itself. Its own agreement is implied: its clock has passed the closed timestamp.
	case p == nil:
		return r.cfg.Life, r.durable >= needed
	// An operator may make the node drop its copy without a new life, so the life would not prove that
	// the copy is intact.
	case r.desc.IsQuarantined(n):
		return p.life, false
	}
	return p.life, p.life > 0 && p.match >= needed && p.agreed >= r.closed
}

// wantsToVouch reports whether this primary vouches for a member's life that the record does not
// name. Recorded lives that it does not vouch for are harmless: those members held everything when
// they were recorded, and a disk that forgets does so in a later life.
func (r *Replica) wantsToVouch() bool {
	for _, n := range r.inSync {
		if life, vouched := r.lifeOf(n); vouched && r.desc.LifeOf(n) != life {
			return true
		}
	}
	return false
}

// tickVouching advances the delay. It starts again whenever there is nothing to record, or a change
// is pending, because every change records lives, too.
func (r *Replica) tickVouching(step time.Duration) {
	if r.change.isActive() || !r.wantsToVouch() {
		r.vouching = vouching{}
		return
	}
	r.vouching.lasted += step
	if !r.vouching.ripe && r.vouching.lasted >= r.cfg.VouchAfter {
		r.vouching.ripe, r.dirty = true, true
	}
}

// oneAnswerSuffices reports whether this elected replica, or a member that has answered it, is in
// its recorded life.
func (r *Replica) oneAnswerSuffices() bool {
	if r.isRecorded(r.cfg.Self, r.cfg.Life) {
		return true
	}
	for i := range r.prep.answers {
		if a := &r.prep.answers[i]; r.isRecorded(a.node, a.life) {
			return true
		}
	}
	return false
}

// isRecorded reports whether the record names this life of an in-sync member.
func (r *Replica) isRecorded(n rhumb.NodeID, life rhumb.BootSeq) bool {
	return life > 0 && r.desc.IsInSync(n) && r.desc.LifeOf(n) == life
}
