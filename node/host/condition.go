package host

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// failedCondition returns the error of a batch with a condition that the committed state does not
// meet, or nil if the replica must decide. The failure is a strong read by rule L: it reads at the
// commit position and then checks the lease and the epoch. So it needs no log entry, whereas a
// failure decided by the replica waits for the commit of one. The pass of a primary calls it.
//
// base holds the stored values, including those of uncommitted entries. A condition that base meets
// is not checked again, so batches whose conditions hold cost nothing here.
//
// A repeated request still gets the answer of its first attempt. Once the first attempt is applied,
// proposal finds its result and does not call failedCondition. Before that, within one pass, both
// attempts see the same state.
func (h *Host) failedCondition(s *slot, b *rhumb.Batch, base []replica.Base) error {
	st := s.read.Load()
	// The pass may have moved the replica to another epoch after it last published its read state.
	if st == nil || st.epoch != s.r.Epoch() {
		return nil
	}
	var failed error
	for i := range base {
		m := &b.Mutations[i]
		if meets(&m.Cond, base[i].Version) {
			continue
		}
		current, err := s.versionAt(h.homeOf(s.id, m.Table, m.Name), m, st.at)
		if err != nil {
			// The version was collected meanwhile, or the disk failed. The replica decides, and the
			// write meets the fault again.
			return nil
		}
		// base and the committed state may differ by uncommitted entries. Only if both fail the
		// condition is the failure certain.
		if !meets(&m.Cond, current) {
			failed = h.conditionFailed(s.id, m, current)
			break
		}
	}
	// The lease is checked after the read, as for every strong read.
	if failed == nil || !h.leases.holdsLease(s.id, st.epoch, st.grants) {
		return nil
	}
	h.m.conditionReads.Inc()
	return failed
}

// versionAt returns the version that a key had at a timestamp, or zero if it did not exist.
func (s *slot) versionAt(home rhumb.RangeID, m *rhumb.Mutation, at rhumb.Timestamp) (rhumb.Version, error) {
	found, err := s.store.LookupForWrite(rhumb.Key{Table: m.Table, Home: home, Name: m.Name}, at, false)
	if err != nil || found.Tombstone {
		return rhumb.Version{}, err
	}
	return found.Version, nil
}

// meets reports whether a key with the given version, zero for none, meets a condition. IfNewer
// never fails a batch.
func meets(c *rhumb.Condition, current rhumb.Version) bool {
	switch c.Kind {
	case rhumb.IfAbsent:
		return current.IsZero()
	case rhumb.IfPresent:
		return !current.IsZero()
	case rhumb.IfVersion:
		return current == c.Version
	}
	return true
}

// conditionFailed returns the error of a mutation, with the version that the caller can build on.
func (h *Host) conditionFailed(id rhumb.RangeID, m *rhumb.Mutation, current rhumb.Version) error {
	return &rhumb.Error{
		Op: "host.Host.Propose", Kind: rhumb.ConditionFailed, Range: id, Current: current, Msg: h.cfg.Replica.FailedCondition(m, current),
	}
}
