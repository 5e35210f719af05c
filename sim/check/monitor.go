package check

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Monitor watches the replicas of ranges while they run and reports the first step that breaks an invariant of the
// replication protocol. Feed it every step in the order of true time. The zero value is ready.
type Monitor struct {
	// MinInSync is the least size of an in-sync set (I8).
	MinInSync int
	// Unregistered, if set, reports whether metadata does not know yet that a node begins a new life since its disk was damaged:
	// a change that names the life before may still take it in.
	Unregistered func(rhumb.NodeID) bool
	ranges       map[rhumb.RangeID]*watched
}

// watched is what the monitor knows of one range.
type watched struct {
	config *rhumb.Range
	// primaries says who acted as primary in each epoch (I1).
	primaries map[rhumb.Epoch]rhumb.NodeID
	// serving is the greatest epoch whose primary has served, servedBy that primary.
	serving  rhumb.Epoch
	servedBy rhumb.NodeID
	// seen are the hashes seen at each place of the log, one for each epoch (I2); seen[0] is place 1.
	seen [][]position
	// committed are the entries that any replica called committed, without gaps from the first.
	committed []*entry.Entry
	// acked is the greatest place that was acknowledged to a client, ackedHLC its timestamp.
	acked    rhumb.Seq
	ackedHLC rhumb.Timestamp
	// lost are the members whose disks forgot what they had synced, each with the last place that it had synced then.
	lost map[rhumb.NodeID]rhumb.Seq
	// closed is the greatest timestamp up to which any node called the range closed, closedBy that node.
	closed   rhumb.Timestamp
	closedBy rhumb.NodeID
}

type position struct {
	epoch rhumb.Epoch
	hash  entry.Hash
}

// Replica is what the monitor asks a replica's disk.
type Replica interface {
	// Durable gives the entry that is certainly on the disk at a place of the log, and ok false when there is none.
	Durable(seq rhumb.Seq) (pos entry.Position, ok bool)
}

func (m *Monitor) watch(r rhumb.RangeID) *watched {
	if m.ranges == nil {
		m.ranges = map[rhumb.RangeID]*watched{}
	}
	w := m.ranges[r]
	if w == nil {
		w = &watched{primaries: map[rhumb.Epoch]rhumb.NodeID{}, lost: map[rhumb.NodeID]rhumb.Seq{}}
		m.ranges[r] = w
	}
	return w
}

// Config reports a change of the range's metadata record. It checks I8, that epoch and version only grow, and that nobody is
// elected who is quarantined. Who joins the in-sync set holds everything, whatever its disk forgot before.
func (m *Monitor) Config(r *rhumb.Range) error {
	w := m.watch(r.ID)
	old := w.config
	w.config = r
	for _, n := range r.InSync {
		if old != nil && !old.IsInSync(n) && (m.Unregistered == nil || !m.Unregistered(n)) {
			delete(w.lost, n)
		}
	}
	switch {
	case old != nil && r.Primary != old.Primary && old.IsQuarantined(r.Primary) && r.IsQuarantined(r.Primary):
		return fmt.Errorf("range %s: %s is quarantined and was elected for epoch %d", r.ID, r.Primary, r.Epoch)
	case len(r.InSync) < m.MinInSync:
		return fmt.Errorf("I8: range %s: the in-sync set %v has fewer than %d members", r.ID, r.InSync, m.MinInSync)
	case !r.IsInSync(r.Primary):
		return fmt.Errorf("I8: range %s: primary %s is not in the in-sync set %v", r.ID, r.Primary, r.InSync)
	case old != nil && (r.Epoch < old.Epoch || r.Version < old.Version):
		return fmt.Errorf("range %s: epoch or version went back from %d/%d to %d/%d", r.ID, old.Epoch, old.Version, r.Epoch, r.Version)
	case old != nil && r.Epoch == old.Epoch && r.Primary != old.Primary:
		return fmt.Errorf("I1: range %s: metadata gave epoch %d to %s and to %s", r.ID, r.Epoch, old.Primary, r.Primary)
	}
	return nil
}

// Primary reports that a node acts as primary of an epoch, serving or not (I1).
func (m *Monitor) Primary(r rhumb.RangeID, e rhumb.Epoch, n rhumb.NodeID) error {
	w := m.watch(r)
	if other, ok := w.primaries[e]; ok && other != n {
		return fmt.Errorf("I1: range %s: %s and %s are both primary of epoch %d", r, other, n, e)
	}
	w.primaries[e] = n
	return nil
}

// Appended reports that a replica put e into its log (I2). Prev chains entries, so equal hashes mean equal prefixes.
func (m *Monitor) Appended(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry) error {
	w := m.watch(r)
	for len(w.seen) < int(e.Seq) {
		w.seen = append(w.seen, nil)
	}
	at := w.seen[e.Seq-1]
	for _, p := range at {
		if p.epoch == e.Epoch {
			if p.hash != e.Hash {
				return fmt.Errorf("I2: range %s: %s holds %v, another replica %x at the same place and epoch", r, n, e.Position(), p.hash)
			}
			return nil
		}
	}
	w.seen[e.Seq-1] = append(at, position{e.Epoch, e.Hash})
	return nil
}

// Undone reports that a replica removed an entry from its log, with the commit position that it knew (I5). A learner may
// undo what others have committed: its copy counted for nothing, and a message of an epoch that is over, which it had not
// heard to be over, may still convince it.
func (m *Monitor) Undone(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry, commit rhumb.Seq) error {
	w := m.watch(r)
	if e.Seq <= commit {
		return fmt.Errorf("I5: range %s: %s undid %v, which it knew to be committed", r, n, e.Position())
	}
	member := w.config != nil && w.config.IsInSync(n)
	if member && int(e.Seq) <= len(w.committed) && w.committed[e.Seq-1].Hash == e.Hash {
		return fmt.Errorf("I5: range %s: %s is in sync and undid the committed entry %v", r, n, e.Position())
	}
	return nil
}

// Committed reports that a replica calls an entry of its log committed. Entries come in order, without gaps, from where
// the replica's commit position was (I2, I5).
func (m *Monitor) Committed(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry) error {
	w := m.watch(r)
	switch next := rhumb.Seq(len(w.committed) + 1); {
	case e.Seq > next:
		return fmt.Errorf("I5: range %s: %s commits %v, but %d is not committed yet", r, n, e.Position(), next)
	case e.Seq < next:
		if was := w.committed[e.Seq-1]; was.Hash != e.Hash {
			return fmt.Errorf("I5: range %s: %s commits %v where %v was committed", r, n, e.Position(), was.Position())
		}
		return nil
	}
	if first := firstHLC(e); first <= w.closed {
		return fmt.Errorf("I7: range %s: %s commits %v of %d, but %s called the range closed up to %d", r, n, e.Position(), first, w.closedBy, w.closed)
	}
	w.committed = append(w.committed, e)
	return nil
}

// firstHLC gives the lowest timestamp in an entry.
func firstHLC(e *entry.Entry) rhumb.Timestamp {
	if len(e.Requests) == 0 {
		return e.Start
	}
	return e.Requests[0].HLC
}

// Closed reports that a node calls a range closed up to a timestamp, having committed and applied it up to commit: it must
// have everything up to there, and nothing may be added (I7, ruling 6).
func (m *Monitor) Closed(r rhumb.RangeID, n rhumb.NodeID, at rhumb.Timestamp, commit rhumb.Seq) error {
	w := m.watch(r)
	if int(commit) < len(w.committed) {
		if next := w.committed[commit]; firstHLC(next) <= at {
			return fmt.Errorf("I7: range %s: %s calls it closed up to %d and has committed %d, but not %v of %d", r, n, at, commit, next.Position(), firstHLC(next))
		}
	}
	if at > w.closed {
		w.closed, w.closedBy = at, n
	}
	return nil
}

// Acked reports that a client is told of the effect of the log up to seq (I3: every in-sync member has it on disk).
func (m *Monitor) Acked(r rhumb.RangeID, seq rhumb.Seq, disk func(rhumb.NodeID) Replica) error {
	w := m.watch(r)
	if int(seq) > len(w.committed) {
		return fmt.Errorf("I3: range %s: an answer reveals entry %d, only %d are committed", r, seq, len(w.committed))
	}
	if seq > w.acked {
		w.acked, w.ackedHLC = seq, w.committed[seq-1].LastHLC()
	}
	return m.Held(r, disk)
}

// Held checks I3: every member of metadata's in-sync set has everything that was acknowledged on its disk.
func (m *Monitor) Held(r rhumb.RangeID, disk func(rhumb.NodeID) Replica) error {
	w := m.watch(r)
	if w.acked == 0 || w.config == nil {
		return nil
	}
	want := w.committed[w.acked-1].Position()
	for _, n := range w.config.InSync {
		got, ok := disk(n).Durable(w.acked)
		if ok && got.Hash == want.Hash {
			delete(w.lost, n)
			continue
		}
		if upTo, ok := w.lost[n]; !ok || w.acked > upTo {
			return fmt.Errorf("I3: range %s: %s is in sync but has not %v on its disk, which was acknowledged (it has %v)", r, n, want, got)
		}
	}
	return nil
}

// Lost reports that the disk of a node forgot what it had synced of a range, up to a place: from now on I3 does not count the
// node for what was acknowledged up to there, until it holds it again or joins the in-sync set.
func (m *Monitor) Lost(r rhumb.RangeID, n rhumb.NodeID, upTo rhumb.Seq) {
	w := m.watch(r)
	w.lost[n] = max(w.lost[n], upTo)
}

// Whole reports whether a node is in sync and holds everything that was acknowledged.
func (m *Monitor) Whole(r rhumb.RangeID, n rhumb.NodeID, disk func(rhumb.NodeID) Replica) bool {
	w := m.watch(r)
	if w.config == nil || !w.config.IsInSync(n) || w.config.IsQuarantined(n) {
		return false
	}
	if w.acked == 0 {
		return true
	}
	got, ok := disk(n).Durable(w.acked)
	return ok && got.Hash == w.committed[w.acked-1].Hash
}

// Acknowledged gives the greatest place that a client was told of, and its timestamp.
func (m *Monitor) Acknowledged(r rhumb.RangeID) (rhumb.Seq, rhumb.Timestamp) {
	w := m.watch(r)
	return w.acked, w.ackedHLC
}

// Serving reports that the primary of epoch e could answer a read now, having committed up to commit (I4, I9). The
// caller feeds it only when the node holds its lease.
func (m *Monitor) Serving(r rhumb.RangeID, e rhumb.Epoch, n rhumb.NodeID, commit rhumb.Seq) error {
	w := m.watch(r)
	switch {
	case e < w.serving:
		return fmt.Errorf("I9: range %s: %s believes in its lease of epoch %d, but %s has served in epoch %d", r, n, e, w.servedBy, w.serving)
	case commit < w.acked:
		return fmt.Errorf("I4: range %s: %s serves epoch %d at commit %d, behind the acknowledged %d", r, n, e, commit, w.acked)
	}
	w.serving, w.servedBy = e, n
	return nil
}

// Read reports that a lease read was answered at timestamp at; acked is what Acknowledged gave when the read began (I6).
func (m *Monitor) Read(r rhumb.RangeID, n rhumb.NodeID, at, acked rhumb.Timestamp) error {
	if at < acked {
		return fmt.Errorf("I6: range %s: %s read at %d what %d had been acknowledged before", r, n, at, acked)
	}
	return nil
}

// Log gives the committed log of a range.
func (m *Monitor) Log(r rhumb.RangeID) Log { return Log{r, m.watch(r).committed} }
