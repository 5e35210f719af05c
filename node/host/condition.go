package host

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// failedCondition returns the error of a batch with a condition that the committed state does not meet, and nil if the
// replica has to decide. The failure is a strong read, by rule L: it reads at the commit position and then checks lease
// and epoch. So it needs no entry in the log, in place of the one whose commit the replica would wait for. The pass of a
// primary calls it.
//
// base is what storage holds, entries without a commit included. A condition that base meets is not looked at again, so
// batches whose conditions hold cost nothing here.
//
// A repetition gets the answer of its first try all the same: once the first try is applied, proposal finds its result
// and does not come here, and until then, within one pass, both see the same state.
func (h *Host) failedCondition(s *slot, b *rhumb.Batch, base []replica.Base) error {
	st := s.read.Load()
	if st == nil || st.epoch != s.r.Epoch() {
		return nil
	}
	var failed error
	for i := range base {
		m := &b.Mutations[i]
		if meets(&m.Cond, base[i].Version) {
			continue
		}
		current, err := s.versionAt(m, st.at)
		if err != nil {
			return nil // collected meanwhile, or a fault of the disk that the write will meet
		}
		if !meets(&m.Cond, current) {
			failed = conditionFailed(s.id, i, m, current)
			break
		}
	}
	if failed == nil || !h.leases.holds(s.id, st.epoch, st.grants) { // after the read, as for every strong read
		return nil
	}
	h.m.conditionReads.Inc()
	return failed
}

// versionAt returns the version that a key had at a timestamp, zero if it did not exist.
func (s *slot) versionAt(m *rhumb.Mutation, at rhumb.Timestamp) (rhumb.Version, error) {
	found, err := s.store.Lookup(rhumb.Key{Table: m.Table, Home: s.id, Name: m.Name}, at)
	if err != nil || found.Tombstone {
		return rhumb.Version{}, err
	}
	return found.Version, nil
}

// meets reports whether a key with that version, zero for none, meets a condition. IfNewer never fails a batch.
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

func conditionFailed(id rhumb.RangeID, i int, m *rhumb.Mutation, current rhumb.Version) error {
	state := "it does not exist"
	if !current.IsZero() {
		state = "its version is " + current.String()
	}
	return &rhumb.Error{
		Op: "host.Host.Propose", Kind: rhumb.ConditionFailed, Range: id, Current: current,
		Msg: fmt.Sprintf("mutation %d: %s does not hold for key %s of table %s, %s", i, m.Cond.Kind, rhumb.NameString(m.Name), m.Table, state),
	}
}
