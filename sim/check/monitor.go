package check

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Monitor checks the invariants of the replication protocol while the replicas of ranges run, and
// returns an error at the first step that breaks one. Its methods must be called in the order of
// true time. The zero value is ready to use.
type Monitor struct {
	// MinInSync is the least size of an in-sync set (I8).
	MinInSync int
	// Unregistered, if set, reports whether a record may have admitted a node in a life before its disk
	// was damaged: a change of the in-sync set that names the earlier life may be applied until the
	// metadata shows that the node has begun a new one.
	Unregistered func(*rhumb.Range, rhumb.NodeID) bool
	ranges       map[rhumb.RangeID]*watched
}

// watched holds the observations of one range.
type watched struct {
	config *rhumb.Range
	// primaries are the nodes that acted as primary, by epoch (I1).
	primaries map[rhumb.Epoch]acting
	// serving is the greatest epoch whose primary could serve a read, servedBy that primary.
	serving  rhumb.Epoch
	servedBy rhumb.NodeID
	// seen are the hashes seen at each log position, one per epoch (I2). seen[0] is sequence number
	// 1.
	seen [][]position
	// committed are the entries that any replica reported as committed, without gaps from the
	// first.
	committed []*entry.Entry
	// acked is the greatest sequence number acknowledged to a client, ackedHLC its timestamp.
	acked    rhumb.Seq
	ackedHLC rhumb.Timestamp
	// lost are the members whose disks forgot synced data, each with the last sequence number that
	// had been synced.
	lost map[rhumb.NodeID]rhumb.Seq
	// closed is the greatest timestamp up to which any node reported the range closed, closedBy
	// that node.
	closed   rhumb.Timestamp
	closedBy rhumb.NodeID
	// merged are the ranges that this one took over. into is the range that took over this one, and intoAt the entry that did; zero if
	// there is none.
	merged []Merged
	into   rhumb.RangeID
	intoAt rhumb.Seq
}

// acting is a node in the life in which it acts as primary.
type acting struct {
	node rhumb.NodeID
	life rhumb.BootSeq
}

// position identifies an entry at a known sequence number.
type position struct {
	epoch rhumb.Epoch
	hash  entry.Hash
}

// Replica is the view of the monitor on the disk of a replica.
type Replica interface {
	// Durable returns the position of the entry that is certainly on disk at a sequence number. It
	// reports false if there is none.
	Durable(seq rhumb.Seq) (pos entry.Position, ok bool)
}

// watchRange returns the observations of a range.
func (m *Monitor) watchRange(r rhumb.RangeID) *watched {
	if m.ranges == nil {
		m.ranges = map[rhumb.RangeID]*watched{}
	}
	w := m.ranges[r]
	if w == nil {
		w = &watched{primaries: map[rhumb.Epoch]acting{}, lost: map[rhumb.NodeID]rhumb.Seq{}}
		m.ranges[r] = w
	}
	return w
}

// Config records a change of the metadata record of a range. It checks I8, that epoch and version
// only grow, and that no quarantined node is elected.
func (m *Monitor) Config(r *rhumb.Range) error {
	w := m.watchRange(r.ID)
	old := w.config
	w.config = r
	for _, n := range r.InSync {
		if old != nil && !old.IsInSync(n) && (m.Unregistered == nil || !m.Unregistered(r, n)) {
			// A member that joins has proved that it holds everything, whatever its disk forgot
			// before; the proof must be from a life after the damage.
			delete(w.lost, n)
		}
	}
	switch {
	// A quarantined primary may stay for a while, but a quarantined node must not be elected.
	case old != nil && r.Primary != old.Primary && old.IsQuarantined(r.Primary) && r.IsQuarantined(r.Primary):
		return fmt.Errorf("range %s: %s is quarantined and was elected for epoch %d", r.ID, r.Primary, r.Epoch)
	case len(r.InSync) < m.MinInSync:
		return fmt.Errorf("I8: range %s: the in-sync set %v has fewer than %d members", r.ID, r.InSync, m.MinInSync)
	case !r.IsInSync(r.Primary):
		return fmt.Errorf("I8: range %s: primary %s is not in the in-sync set %v", r.ID, r.Primary, r.InSync)
	// Each command names the version it was decided on, so the record cannot go back.
	case old != nil && (r.Epoch < old.Epoch || r.Version < old.Version):
		return fmt.Errorf("range %s: epoch or version went back from %d/%d to %d/%d", r.ID, old.Epoch, old.Version, r.Epoch, r.Version)
	case old != nil && r.Epoch == old.Epoch && r.Primary != old.Primary:
		return fmt.Errorf("I1: range %s: the metadata assigned epoch %d to %s and to %s", r.ID, r.Epoch, old.Primary, r.Primary)
	}
	return nil
}

// Primary records that a node acts as primary of an epoch in one of its lives, serving or not (I1). An epoch is begun once,
// so a later life of the node is as wrong as another node.
func (m *Monitor) Primary(r rhumb.RangeID, e rhumb.Epoch, n rhumb.NodeID, life rhumb.BootSeq) error {
	w := m.watchRange(r)
	// Being primary is enough: a second one could append, even without serving reads.
	switch other, ok := w.primaries[e]; {
	case ok && other.node != n:
		return fmt.Errorf("I1: range %s: %s and %s are both primary of epoch %d", r, other.node, n, e)
	case ok && other.life != life:
		return fmt.Errorf("I1: range %s: %s begins epoch %d in life %d and in life %d", r, n, e, other.life, life)
	}
	w.primaries[e] = acting{n, life}
	return nil
}

// Appended records that a replica appended an entry (I2). A hash covers the entry before, so equal
// hashes mean equal logs up to there, and comparing single entries suffices.
func (m *Monitor) Appended(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry) error {
	w := m.watchRange(r)
	for len(w.seen) < int(e.Seq) {
		w.seen = append(w.seen, nil)
	}
	at := w.seen[e.Seq-1]
	for _, p := range at {
		// Entries of different epochs may share a position: the later epoch undoes the earlier
		// entry.
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

// Split records that a replica has divided its copy of a range by the entry at seq, which is the first of all to do so: the log of
// the new range continues the old one after that entry.
func (m *Monitor) Split(old, born rhumb.RangeID, seq rhumb.Seq) error {
	from, to := m.watchRange(old), m.watchRange(born)
	if seq == 0 || int(seq) > len(from.committed) {
		return fmt.Errorf("range %s was divided by entry %d, only %d are committed", old, seq, len(from.committed))
	}
	if len(to.committed)+len(to.primaries) > 0 {
		return fmt.Errorf("range %s has entries or a primary before range %s was divided", born, old)
	}
	at := from.committed[seq-1]
	to.committed, to.seen = slices.Clone(from.committed[:seq]), slices.Clone(from.seen[:seq])
	// Later acknowledgements and closed timestamps concern the old range.
	if to.acked = min(from.acked, seq); to.acked > 0 {
		to.ackedHLC = from.committed[to.acked-1].LastHLC()
	}
	to.closed, to.closedBy = min(from.closed, at.LastHLC()), from.closedBy
	for _, part := range from.merged {
		if part.At <= seq {
			to.merged = append(to.merged, part)
		}
	}
	for n, upTo := range from.lost {
		to.lost[n] = min(upTo, seq)
	}
	return nil
}

// Merge records that a replica has united its copies of two ranges by the entry at seq of the left one, which is the first of all to do so. The
// end that the entry names must be committed, and nothing may have been ordered after it.
func (m *Monitor) Merge(left, right rhumb.RangeID, seq rhumb.Seq) error {
	l, r := m.watchRange(left), m.watchRange(right)
	if seq == 0 || int(seq) > len(l.committed) {
		return fmt.Errorf("range %s takes over %s by entry %d, only %d are committed", left, right, seq, len(l.committed))
	}
	e := l.committed[seq-1]
	take := e.Take()
	switch {
	case take.Slot != right.Slot || int(take.Seq) > len(r.committed):
		return fmt.Errorf("range %s takes over %s by %v, before the end at %d is committed (%d are)", left, right, e.Position(), take.Seq, len(r.committed))
	case !r.committed[take.Seq-1].Ends() || r.committed[take.Seq-1].Epoch != take.Epoch:
		return fmt.Errorf("range %s takes over %s by %v, but its entry %d:%d is no end", left, right, e.Position(), take.Epoch, take.Seq)
	case firstHLC(e) <= max(r.closed, r.committed[take.Seq-1].LastHLC()):
		return fmt.Errorf("I7: range %s takes over %s by %v with timestamp %d, which is not above its end %d and its closed timestamp %d", left, right, e.Position(), firstHLC(e), r.committed[take.Seq-1].LastHLC(), r.closed)
	case !r.into.IsZero():
		return fmt.Errorf("range %s takes over %s, which %s has taken over", left, right, r.into)
	}
	for _, after := range r.committed[take.Seq:] {
		if len(after.Requests) > 0 {
			return fmt.Errorf("range %s ordered %v after its end", right, after.Position())
		}
	}
	r.into, r.intoAt = left, seq
	l.merged = append(l.merged, Merged{At: seq, Log: Log{Range: right, Entries: slices.Clone(r.committed[:take.Seq]), Merged: r.merged}})
	// Whoever counts as in sync with the left range answers for the other one too.
	if seq > l.acked {
		l.acked, l.ackedHLC = seq, e.LastHLC()
	}
	for n, upTo := range r.lost {
		if upTo >= min(r.acked, take.Seq) {
			l.lost[n] = max(l.lost[n], seq)
		}
	}
	return nil
}

// Undone records that a replica with the given commit position removed an entry from its log (I5).
// A learner may undo entries that others have committed (seed 6350): its copy counts for nothing,
// and a message of an earlier epoch may still convince a learner that has not heard of the later
// one.
func (m *Monitor) Undone(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry, commit rhumb.Seq) error {
	w := m.watchRange(r)
	// Rule T: a log loses entries only above its commit position.
	if e.Seq <= commit {
		return fmt.Errorf("I5: range %s: %s undid %v, which it knew to be committed", r, n, e.Position())
	}
	member := w.config != nil && w.config.IsInSync(n)
	// The node may not know of the commit, but as an in-sync member it was waited for.
	if member && int(e.Seq) <= len(w.committed) && w.committed[e.Seq-1].Hash == e.Hash {
		return fmt.Errorf("I5: range %s: %s is in sync and undid the committed entry %v", r, n, e.Position())
	}
	return nil
}

// Committed records that a replica regards an entry of its log as committed. Entries arrive in
// order and without gaps from the previous commit position of the replica (I2, I5).
func (m *Monitor) Committed(r rhumb.RangeID, n rhumb.NodeID, e *entry.Entry) error {
	w := m.watchRange(r)
	// The first replica that commits an entry extends the log; all others are compared with it.
	switch next := rhumb.Seq(len(w.committed) + 1); {
	case e.Seq > next:
		return fmt.Errorf("I5: range %s: %s commits %v, but %d is not committed yet", r, n, e.Position(), next)
	case e.Seq < next:
		// Committed on both sides of a divergence: two clients may have got contradicting answers.
		if was := w.committed[e.Seq-1]; was.Hash != e.Hash {
			return fmt.Errorf("I5: range %s: %s commits %v where %v was committed", r, n, e.Position(), was.Position())
		}
		return nil
	}
	// A reader of a closed timestamp has taken the log as complete up to there.
	if first := firstHLC(e); first <= w.closed {
		return fmt.Errorf("I7: range %s: %s commits %v with timestamp %d, but %s reported the range closed up to %d", r, n, e.Position(), first, w.closedBy, w.closed)
	}
	if !w.into.IsZero() && len(e.Requests) > 0 {
		return fmt.Errorf("range %s: %s commits %v, but %s has taken over its slots", r, n, e.Position(), w.into)
	}
	w.committed = append(w.committed, e)
	return nil
}

// firstHLC returns the least timestamp in an entry.
func firstHLC(e *entry.Entry) rhumb.Timestamp {
	if len(e.Requests) == 0 {
		return e.Start
	}
	return e.Requests[0].HLC
}

// Closed records that a node reports a range closed up to a timestamp while it has committed and
// applied the log up to commit. The node must have everything up to the timestamp, and nothing may
// be added there later (I7).
func (m *Monitor) Closed(r rhumb.RangeID, n rhumb.NodeID, at rhumb.Timestamp, commit rhumb.Seq) error {
	w := m.watchRange(r)
	if int(commit) < len(w.committed) {
		// The next committed entry is enough, since timestamps grow along the log.
		if next := w.committed[commit]; firstHLC(next) <= at {
			return fmt.Errorf("I7: range %s: %s reports it closed up to %d and has committed %d, but not %v with timestamp %d", r, n, at, commit, next.Position(), firstHLC(next))
		}
	}
	if at > w.closed {
		w.closed, w.closedBy = at, n
	}
	return nil
}

// Acked records that an answer revealed the log up to seq to a client. From then on every in-sync
// member must have it on disk (I3).
func (m *Monitor) Acked(r rhumb.RangeID, seq rhumb.Seq, disk func(rhumb.NodeID) Replica) error {
	w := m.watchRange(r)
	// An answer that reveals an entry must wait for its commit (rule W).
	if int(seq) > len(w.committed) {
		return fmt.Errorf("I3: range %s: an answer reveals entry %d, only %d are committed", r, seq, len(w.committed))
	}
	if seq > w.acked {
		w.acked, w.ackedHLC = seq, w.committed[seq-1].LastHLC()
	}
	return m.Held(r, disk)
}

// Held checks I3: every member of the in-sync set in the metadata has every acknowledged entry on
// disk.
func (m *Monitor) Held(r rhumb.RangeID, disk func(rhumb.NodeID) Replica) error {
	w := m.watchRange(r)
	// Whoever took over the range answers for it.
	if w.acked == 0 || w.config == nil || !w.into.IsZero() {
		return nil
	}
	// The hash of the last acknowledged entry covers all entries below it.
	want := w.committed[w.acked-1].Position()
	for _, n := range w.config.InSync {
		got, ok := disk(n).Durable(w.acked)
		if ok && got.Hash == want.Hash {
			// The member has the entries again and counts from now on. Entries above w.acked that it
			// lost may still be acknowledged later, on the strength of an earlier life (seed 2087).
			if w.acked >= w.lost[n] {
				delete(w.lost, n)
			}
			continue
		}
		// Damage excuses only entries that the disk held before it.
		if upTo, ok := w.lost[n]; !ok || w.acked > upTo {
			return fmt.Errorf("I3: range %s: %s is in sync but its disk lacks the acknowledged entry %v (it has %v)", r, n, want, got)
		}
	}
	return nil
}

// Lost records that the disk of a node forgot synced entries of a range, up to a sequence number.
// I3 then exempts the node from entries up to there, until the node holds them again or joins the
// in-sync set.
func (m *Monitor) Lost(r rhumb.RangeID, n rhumb.NodeID, upTo rhumb.Seq) {
	w := m.watchRange(r)
	w.lost[n] = max(w.lost[n], upTo)
	if !w.into.IsZero() {
		m.Lost(w.into, n, w.intoAt)
	}
}

// Whole reports whether a node is in sync and holds every committed entry. Acknowledged entries
// would suffice for the guarantee of rule P, but no committed entry may be replaced either: if all
// disks lose the first entry of an epoch, which no answer reveals, the next epoch commits another
// one in its place (seed 873).
func (m *Monitor) Whole(r rhumb.RangeID, n rhumb.NodeID, disk func(rhumb.NodeID) Replica) bool {
	w := m.watchRange(r)
	// A quarantined copy does not count, whatever it holds.
	if w.config == nil || !w.config.IsInSync(n) || w.config.IsQuarantined(n) {
		return false
	}
	last := rhumb.Seq(len(w.committed))
	if last == 0 {
		return true
	}
	got, ok := disk(n).Durable(last)
	return ok && got.Hash == w.committed[last-1].Hash
}

// Acknowledged returns the greatest sequence number that was acknowledged to a client, and its
// timestamp.
func (m *Monitor) Acknowledged(r rhumb.RangeID) (rhumb.Seq, rhumb.Timestamp) {
	w := m.watchRange(r)
	return w.acked, w.ackedHLC
}

// Serving records that the primary of an epoch could answer a read now, with the given commit
// position (I4, I9). The caller must call it only while the node holds its lease.
func (m *Monitor) Serving(r rhumb.RangeID, e rhumb.Epoch, n rhumb.NodeID, commit rhumb.Seq) error {
	w := m.watchRange(r)
	// serving and acked only grow, so one comparison covers all earlier primaries.
	switch {
	case !w.into.IsZero():
		return fmt.Errorf("range %s: %s serves epoch %d, but %s has taken over its slots", r, n, e, w.into)
	case e < w.serving:
		return fmt.Errorf("I9: range %s: %s believes in its lease of epoch %d, but %s has served in epoch %d", r, n, e, w.servedBy, w.serving)
	case commit < w.acked:
		return fmt.Errorf("I4: range %s: %s serves epoch %d at commit position %d, below the acknowledged %d", r, n, e, commit, w.acked)
	}
	w.serving, w.servedBy = e, n
	return nil
}

// Read records that a lease read was answered at timestamp at. acked is the result of Acknowledged
// when the read began (I6).
func (m *Monitor) Read(r rhumb.RangeID, n rhumb.NodeID, at, acked rhumb.Timestamp) error {
	// The timestamp of a read bounds the entries that it can see.
	if at < acked {
		return fmt.Errorf("I6: range %s: %s read at %d, but %d was acknowledged before", r, n, at, acked)
	}
	return nil
}

// Log returns the committed log of a range.
func (m *Monitor) Log(r rhumb.RangeID) Log {
	w := m.watchRange(r)
	return Log{Range: r, Entries: w.committed, Merged: w.merged}
}

// Accept records that an operator lets a range continue with the log of one copy, whatever that lacks. The entries that it shares with the
// committed log stay committed, and all others count as if they had never been. It returns the log up to here, how many of its entries
// stay, and whether acknowledged ones do not.
func (m *Monitor) Accept(r rhumb.RangeID, log []*entry.Entry) (before Log, kept int, lost bool) {
	w := m.watchRange(r)
	before = Log{Range: r, Entries: w.committed, Merged: w.merged}
	for kept < min(len(w.committed), len(log)) && w.committed[kept].Hash == log[kept].Hash {
		kept++
	}
	if kept == len(w.committed) {
		return before, kept, false
	}
	lost = rhumb.Seq(kept) < w.acked
	// A new slice: before keeps the array. What was closed above the last entry that stays is not closed any more, since other entries follow it.
	w.committed = slices.Clone(w.committed[:kept])
	last := rhumb.Timestamp(0)
	if kept > 0 {
		last = w.committed[kept-1].LastHLC()
	}
	w.acked, w.closed = min(w.acked, rhumb.Seq(kept)), min(w.closed, last)
	if w.ackedHLC = 0; w.acked > 0 {
		w.ackedHLC = w.committed[w.acked-1].LastHLC()
	}
	clear(w.lost)
	return before, kept, lost
}
