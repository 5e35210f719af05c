package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// The rule of one answer (ruling 17a): the record names the life in which a member holds everything that clients were told.
// A disk that forgets does so at a start, and each start is a new life. So an answer from a recorded life is an intact copy,
// and an election needs no other: a range at its least in-sync set survives the loss of all members but one.

// vouching is the wait before a primary has metadata record lives that the record does not name. Nothing depends on when
// that happens: a range that has just got its primary leaves the metadata group to what is urgent.
type vouching struct {
	lasted time.Duration
	ripe   bool
}

// lifeOf returns the life of a member that this primary speaks of, and whether the primary vouches for it: the member has, in
// that life, everything that may be acknowledged, and has agreed to what is closed. A quarantined member may be told to give
// up its copy without a new life.
func (r *Replica) lifeOf(n rhumb.NodeID) (life rhumb.BootSeq, vouched bool) {
	needed := max(r.commit, r.start)
	p := r.peer(n)
	switch {
	case p == nil:
		return r.cfg.Life, r.durable >= needed
	case r.desc.IsQuarantined(n):
		return p.life, false
	}
	return p.life, p.life > 0 && p.match >= needed && p.agreed >= r.closed
}

// wantsToVouch reports whether this primary vouches for a member's life that the record does not name. Lives of which the
// record names too many do no harm.
func (r *Replica) wantsToVouch() bool {
	for _, n := range r.inSync {
		if life, vouched := r.lifeOf(n); vouched && r.desc.LifeOf(n) != life {
			return true
		}
	}
	return false
}

// tickVouching lets the wait ripen.
func (r *Replica) tickVouching(step time.Duration) {
	if r.change.active() || !r.wantsToVouch() {
		r.vouching = vouching{}
		return
	}
	r.vouching.lasted += step
	if !r.vouching.ripe && r.vouching.lasted >= r.cfg.VouchAfter {
		r.vouching.ripe, r.dirty = true, true
	}
}

// oneAnswerSuffices reports whether this elected replica, or a member that has answered it, is in its recorded life.
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

func (r *Replica) isRecorded(n rhumb.NodeID, life rhumb.BootSeq) bool {
	return life > 0 && r.desc.IsInSync(n) && r.desc.LifeOf(n) == life
}
