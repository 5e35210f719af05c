package replica

import "slices"

// Damaged quarantines the replica because its store has lost a part of its data. The driver calls
// it after a read met damage. Damage that the replica finds itself need not be reported.
func (r *Replica) Damaged(why string) { r.quarantine(why) }

// quarantine stops the replica for good, because its data contradicts an invariant
// (docs/replication.md#quarantine). The reason is persisted, so that a restart does not lose it,
// and reported to metadata, so that nobody elects the replica.
func (r *Replica) quarantine(why string) {
	if r.role == quarantined {
		// The first reason is the cause; later ones may only follow from it.
		return
	}
	r.stepDown()
	r.role, r.quarantineReason = quarantined, why
	r.out.Quarantine = why
	r.ackDue, r.promiseDue = false, false
	r.elect.wanted = false
	r.dirty = true
	if r.desc != nil {
		r.reconcileQuarantine()
	}
}

// reconcileQuarantine makes this replica and the record agree on whether the replica is
// quarantined.
func (r *Replica) reconcileQuarantine() {
	// A replica without a log has nothing that could be wrong, so a recorded quarantine does not bind
	// it: it started empty after its data was discarded, and asks to be readmitted.
	recorded := slices.Contains(r.desc.Quarantined, r.cfg.Self)
	switch {
	case recorded && r.role != quarantined && r.log.last().Seq > 0:
		r.quarantine("metadata lists this replica as quarantined, but its disk does not: the disk is an older copy, or `rhumb unsafe-recover range` abandoned this copy")
	case recorded == (r.role == quarantined):
		r.notice = notice{}
	case recorded:
		r.notice.kind = Readmit
		r.tellMetadata()
	default:
		r.notice.kind = Quarantine
		r.tellMetadata()
	}
}

// notice is a proposal by which a replica reports its quarantine to metadata, or the end of it;
// kind is 0 if there is nothing to report.
type notice struct {
	kind  MetaKind
	timer retry
}

// tellMetadata proposes the notice. Tick repeats it until the record shows it.
func (r *Replica) tellMetadata() {
	r.out.Meta = append(r.out.Meta, MetaProposal{
		Kind: r.notice.kind, Range: r.cfg.Range, Epoch: r.desc.Epoch, Version: r.desc.Version, Node: r.cfg.Self, Why: r.quarantineReason,
	})
	r.notice.timer.arm()
	r.dirty = true
}
