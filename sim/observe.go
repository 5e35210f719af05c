package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sim/check"
	"github.com/rhumbdb/rhumb/storage"
)

// observation holds the knowledge of the judges about one life of a node, by range, together with
// the memory of planted bugs. It is replaced with each life.
type observation struct {
	// primary is the last epoch in which the node was seen as primary.
	primary []rhumb.Epoch
	closed  []rhumb.Timestamp
	probed  time.Duration
	told    *catalog.State
	// asked is the last Close that each other node sent, agreed the greatest Agreed (AgreeOnly,
	// CloseUnfenced).
	asked, agreed []rhumb.Timestamp
	// names counts the names generated in namesEpoch (NamesWithoutEpoch).
	names      []uint64
	namesEpoch []rhumb.Epoch
	// handed is the last epoch that was handed over to the node (ServeBeforeLast), and waiting are the writes without an
	// answer (AckAfterHandover).
	handed  []rhumb.Epoch
	waiting map[rhumb.RequestID]func(replica.Answer)
	// undone are entries that the present event removes from logs. Their results must be removed
	// too.
	undone []undoneEntry
	// conform is the memory of the check against the model.
	conform conformance
	// births are those of the Ready before (DivideTwice).
	births []replica.Birth
}

// undoneEntry is an entry that was undone in a range, by range index.
type undoneEntry struct {
	rng   int
	entry *entry.Entry
}

// newObservation returns the observation of a life that begins now.
func newObservation(n *node) observation {
	ranges, nodes := len(n.w.ranges), len(n.w.nodes)
	return observation{
		primary: make([]rhumb.Epoch, ranges), closed: make([]rhumb.Timestamp, ranges),
		asked: make([]rhumb.Timestamp, nodes), agreed: make([]rhumb.Timestamp, nodes),
		names: make([]uint64, ranges), namesEpoch: make([]rhumb.Epoch, ranges),
		handed: make([]rhumb.Epoch, ranges), waiting: map[rhumb.RequestID]func(replica.Answer){},
	}
}

// probeEvery is how often the judges examine possible answers of a node, whether or not a client
// asks.
const probeEvery = 25 * time.Millisecond

// observeReplicas passes the present state of the replicas to the judges. It runs after each event
// of the node.
func (n *node) observeReplicas() {
	w := n.w
	if n.group == nil {
		return
	}
	if st := n.group.State(); st != n.seen.told {
		n.seen.told = st
		w.learnState(st)
	}
	// A life that is not registered yet has no replicas.
	if n.host == nil {
		return
	}
	n.checkUndone()
	// The expensive probes run at intervals; the cheap checks run after every event.
	look := w.now-n.seen.probed >= probeEvery
	if look {
		n.seen.probed = w.now
		n.checkClock()
	}
	for i, id := range w.ranges {
		r, ok := n.host.Replica(id)
		// The host may not have the range yet, and the observation may predate the ranges.
		if !ok || len(n.seen.primary) <= i {
			n.noteDiscarded(i)
			continue
		}
		n.noteRemoval(i, id, r)
		n.checkQuarantine(i, r)
		switch r.State() {
		case replica.Primary:
			// A node reports each epoch once, when it begins to act as primary.
			if e := r.Epoch(); n.seen.primary[i] != e {
				n.seen.primary[i] = e
				w.judge(w.monitor.Primary(id, e, n.id, n.identity().Boot))
			}
			if look {
				n.probeServing(id, r)
			}
		case replica.Quarantined:
			// A damaged disk, or data that was damaged on purpose, justifies a quarantine. Anything
			// else is a broken invariant.
			if n.wasDamaged || n.spoiled[i] > 0 {
				continue
			}
			// The copy that held the slots was replaced by one that was divided elsewhere.
			if w.origin[i].parent >= 0 && strings.Contains(r.Status().Quarantine, "before it was divided") {
				w.monitor.Lost(id, n.id, w.origin[i].born)
				continue
			}
			// The copy that held the slots was discarded, filled again and then divided (seed 856).
			if slices.Contains(w.origin[i].quarantined, n.id) {
				n.spoiled[i] = w.now
				continue
			}
			w.failf("%s quarantined %s: %s", n.id, id, r.Status().Quarantine)
		}
		if look {
			n.observeClosed(i, id)
		}
	}
}

// checkQuarantine checks that a replica that is quarantined on disk serves nothing until it is
// discarded.
func (n *node) checkQuarantine(i int, r *replica.Replica) {
	if n.disk.quarantined[i] && n.discarding[i] == nil && r.State() != replica.Quarantined {
		n.w.failf("%s: %s is quarantined on disk but is a %s", n.id, n.w.ranges[i], r.State())
	}
}

// checkClock checks that a correct clock is not driven ahead by a wrong one.
func (n *node) checkClock() {
	if lead := n.hlc.Stats().Lead; n.w.p.strict && n.index != n.w.p.wrong && n != n.w.misled && lead > rhumb.ClockAheadMax {
		n.w.failf("%s: its clock is %v ahead of true time, but its wall clock was never wrong", n.id, lead)
	}
}

// probeServing lets the judges examine the result of a read at this moment. Clients read too rarely
// to catch each moment at which two nodes believe in their leases.
func (n *node) probeServing(id rhumb.RangeID, r *replica.Replica) {
	n.delayClock()
	leased := n.host.Serves(id) && n.host.Leased(id) || n.w.cfg.Bug == ReadWithoutLease
	// The bug concerns reads only; the clock must be right again for everything else.
	n.late = 0
	if _, commit, ok := r.Readable(); ok && leased {
		n.w.judge(n.w.monitor.Serving(id, r.Epoch(), n.id, commit))
	}
}

// delayClock delays the clock of the node for one read (ReadLate).
func (n *node) delayClock() {
	if n.w.cfg.Bug == ReadLate {
		n.late = 400 * time.Millisecond
	}
}

// observeClosed passes to the judges how far the node may call a range closed.
func (n *node) observeClosed(i int, id rhumb.RangeID) {
	c := n.disk.copies[i]
	if c == nil {
		return
	}
	// A secondary may call closed only entries that it has committed.
	upTo := c.commit
	if n.w.cfg.Bug == CloseAhead {
		upTo = ^rhumb.Seq(0)
	}
	// Only a later timestamp says anything new.
	if at := n.host.Closed(id, upTo); at > n.seen.closed[i] {
		n.seen.closed[i] = at
		n.w.stats.Closed++
		n.w.judge(n.w.monitor.Closed(id, n.id, at, c.commit))
	}
}

// hostProbe returns the Probe that feeds the judges and plants bugs.
func (n *node) hostProbe() *host.Probe {
	return &host.Probe{Ready: n.seeReady, Proposal: n.seeProposal, Agreed: n.seeAgreed, WaitedOut: n.seeWaitedOut, Merge: n.seeMerge, Install: n.seeInstall, Installed: n.noteInstalled, Refused: n.seeRefused, Deferred: n.noteDeferred}
}

// seeRefused hides refused reads from the host (StayUnreadable).
func (n *node) seeRefused(refused bool) bool { return refused && n.w.cfg.Bug != StayUnreadable }

// noteDeferred marks the work of the disk that follows as one that syncs nothing.
func (n *node) noteDeferred() { n.disk.deferring = true }

// seeReady maintains the judges' copy of a log and passes its changes to the judges. It runs before
// the host carries out rd.
func (n *node) seeReady(id rhumb.RangeID, rd replica.Ready) replica.Ready {
	w := n.w
	i := w.rangeIndex(id)
	if w.conforms() {
		n.conformStep(i, id, &rd)
	}
	if w.cfg.Bug == MissTheSplit {
		if r, ok := n.host.Replica(id); ok && r.State() != replica.Primary {
			rd.Born = nil
		}
	}
	if w.cfg.Bug == MissTheUnion {
		if r, ok := n.host.Replica(id); ok && r.State() != replica.Primary {
			rd.Taken = nil
		}
	}
	n.noteDiscarded(i)
	c := n.disk.copies[i]
	// The host carries out what the replica of a merged range had left to do, and drops its copy.
	if n.disk.merged[i] {
		return rd
	}
	if c == nil {
		c = &rangeCopy{}
		n.disk.copies[i] = c
	}
	if w.tracing() {
		// Undoing comes before appending, as in the host.
		w.traceReady(n, id, &rd)
	}
	if rd.UndoAbove != nil {
		n.undoEntries(id, c, *rd.UndoAbove)
	}
	n.appendEntries(id, c, rd.Append)
	// The copy advances entry by entry, because the monitor checks committed entries one at a time.
	for c.commit < rd.Commit && w.err == nil {
		if int(c.commit) >= len(c.entries) {
			w.failf("%s: range %s: commit position %d is beyond the end of the log %d", n.id, id, rd.Commit, len(c.entries))
			break
		}
		c.commit++
		w.judge(w.monitor.Committed(id, n.id, c.entries[c.commit-1]))
	}
	// After the commit, which the births follow, and before a planted bug changes them.
	n.noteReshaped(id, rd.Born, rd.Taken)
	// Planted bugs change the work of the host, after the judges have seen the wishes of the
	// replica.
	switch w.cfg.Bug {
	case SkipAsking, NoRefusal:
		n.answerPrepare(id, &rd)
	case KeepConflicts:
		rd.UndoAbove = nil
	case DivideTwice:
		rd.Born, n.seen.births = append(n.seen.births, rd.Born...), rd.Born
	case AckAfterHandover:
		if slices.ContainsFunc(rd.AfterSync, func(m replica.Message) bool { return m.Kind == replica.Handover }) {
			n.answerWaiting(c)
		}
	case AckBeforeSync:
		rd.Messages, rd.AfterSync = append(rd.Messages, rd.AfterSync...), nil
	}
	return rd
}

// undoEntries removes the entries above a position from the judges' copy.
func (n *node) undoEntries(id rhumb.RangeID, c *rangeCopy, above rhumb.Seq) {
	if int(above) >= len(c.entries) {
		return
	}
	for _, e := range c.entries[above:] {
		// The monitor decides whether the entry was committed anywhere.
		n.w.judge(n.w.monitor.Undone(id, n.id, e, c.commit))
		n.seen.undone = append(n.seen.undone, undoneEntry{n.w.rangeIndex(id), e})
	}
	n.disk.noteChange(c, above)
	// A new slice, because the copies that openEngine keeps share the array.
	c.entries = append([]*entry.Entry(nil), c.entries[:above]...)
}

// checkUndone checks that no result of a request outlives its entry: a repeated request would be
// answered with the result of a write that never happened.
func (n *node) checkUndone() {
	for _, u := range n.seen.undone {
		c := n.disk.copies[u.rng]
		for i := range u.entry.Requests {
			id := u.entry.Requests[i].ID
			at, kept, err := n.storedResult(u.rng, id)
			n.w.judge(err)
			// The request may have been appended again in the meantime, at the position of the
			// result.
			if kept && (int(at) > len(c.entries) || !holdsRequest(c.entries[at-1], id)) {
				n.w.failf("%s: range %s: the result of request %s is stored but its entry %v was undone", n.id, n.w.ranges[u.rng], id, u.entry.Position())
			}
		}
	}
	n.seen.undone = nil
}

// holdsRequest reports whether an entry contains a request.
func holdsRequest(e *entry.Entry, id rhumb.RequestID) bool {
	return slices.ContainsFunc(e.Requests, func(r entry.Request) bool { return r.ID == id })
}

// storedResult returns the position of the entry whose result the node has stored for a request.
func (n *node) storedResult(rng int, id rhumb.RequestID) (at rhumb.Seq, ok bool, err error) {
	if seen, ok := n.disk.results[id]; ok {
		return seen.Seq, true, nil
	}
	if id.IsZero() {
		return 0, false, nil
	}
	var stored storage.Seen
	n.disk.judged(func() { stored, ok, err = n.disk.engine.Store(n.w.ranges[rng]).Dedup(n.w.ranges[rng], id) })
	return stored.Seq, ok, err
}

// appendEntries adds entries to the judges' copy.
func (n *node) appendEntries(id rhumb.RangeID, c *rangeCopy, entries []*entry.Entry) {
	if len(entries) == 0 {
		return
	}
	n.disk.noteChange(c, rhumb.Seq(len(c.entries)))
	for _, e := range entries {
		n.w.judge(n.w.monitor.Appended(id, n.id, e))
		c.entries = append(c.entries, e)
		for j := range e.Requests {
			q := &e.Requests[j]
			if n.w.cfg.Bug == KeepResults && !q.ID.IsZero() {
				n.disk.results[q.ID] = replica.Dedup{Seq: e.Seq, Version: e.Version(q), Applied: !q.Noop, Existed: q.Existed, Names: q.Names}
			}
		}
	}
}

// seeProposal plants the bugs of a proposal.
func (n *node) seeProposal(id rhumb.RangeID, p replica.Proposal) replica.Proposal {
	switch n.w.cfg.Bug {
	case NoDedup:
		if p.Seen != nil && p.Batch.Mutations[0].Kind != rhumb.Insert {
			p.Seen = nil
			p.Base = make([]replica.Base, len(p.Batch.Mutations))
			n.rebaseConditions(id, &p, storage.Newest)
		}
	case SplitForgetsResults:
		if p.Seen != nil && p.Seen.Seq <= n.w.origin[n.w.rangeIndex(id)].born && p.Batch.Mutations[0].Kind != rhumb.Insert {
			p.Seen = nil
			p.Base = make([]replica.Base, len(p.Batch.Mutations))
			n.rebaseConditions(id, &p, storage.Newest)
		}
	case MergeForgetsResults:
		merged := func(t taken) bool { return p.Seen != nil && t.at == p.Seen.Seq }
		if slices.ContainsFunc(n.w.origin[n.w.rangeIndex(id)].takes, merged) && p.Batch.Mutations[0].Kind != rhumb.Insert {
			p.Seen = nil
			p.Base = make([]replica.Base, len(p.Batch.Mutations))
			n.rebaseConditions(id, &p, storage.Newest)
		}
	case KeepResults:
		if seen, ok := n.disk.results[p.Batch.ID]; ok && p.Seen == nil {
			p.Seen = &seen
		}
	case NamesWithoutEpoch:
		n.nameWithoutEpoch(id, &p)
	// Evaluate against the committed state, not the appended one.
	case StaleBase:
		r, _ := n.host.Replica(id)
		at, _, _ := r.Readable()
		n.rebaseConditions(id, &p, at)
	}
	return p
}

// nameWithoutEpoch generates names from the counter alone (NamesWithoutEpoch).
func (n *node) nameWithoutEpoch(id rhumb.RangeID, p *replica.Proposal) {
	i := n.w.rangeIndex(id)
	r, _ := n.host.Replica(id)
	if e := r.Epoch(); n.seen.namesEpoch[i] != e {
		n.seen.namesEpoch[i], n.seen.names[i] = e, 0
	}
	for k := range p.Names {
		n.seen.names[i]++
		seq, err := rhumb.MakeSequence(1, n.seen.names[i])
		n.w.judge(err)
		p.Names[k] = rhumb.SequenceName(seq)
	}
}

// rebaseConditions replaces the base values of a proposal by those at a timestamp.
func (n *node) rebaseConditions(id rhumb.RangeID, p *replica.Proposal, at rhumb.Timestamp) {
	for i := range p.Base {
		m := &p.Batch.Mutations[i]
		found, err := n.disk.engine.Store(id).Lookup(rhumb.Key{Table: m.Table, Home: n.member.homeIn(id, m.Table, m.Name), Name: m.Name}, at)
		if err != nil {
			continue
		}
		p.Base[i] = replica.Base{}
		if !found.Tombstone {
			p.Base[i] = replica.Base{Version: found.Version, Value: found.Value}
		}
	}
}

// seeAgreed plants the bugs of agreements to closed timestamps.
func (n *node) seeAgreed(of rhumb.NodeID, _ rhumb.RangeID, _ rhumb.Epoch, at rhumb.Timestamp) rhumb.Timestamp {
	switch n.w.cfg.Bug {
	case CloseAlone:
		return n.hlc.Read()
	case CloseUnfenced:
		return max(at, n.seen.agreed[of-1])
	}
	return at
}

// seeWaitedOut plants ActivateAtOnce.
func (n *node) seeWaitedOut(_ rhumb.RangeID, over bool) bool {
	return over || n.w.cfg.Bug == ActivateAtOnce
}

// spoilFrame changes a frame that the node sends.
func (n *node) spoilFrame(to *node, f *lease.Frame) {
	switch n.w.cfg.Bug {
	case IgnoreExclusions:
		f.Exclusions, f.ExclusionSeq = nil, 0
	case AgreeOnly:
		f.Agreed = max(f.Agreed, n.seen.asked[to.index])
	}
}

// misreadFrame changes a frame that the node receives.
func (n *node) misreadFrame(from *node, f *lease.Frame) {
	n.seen.agreed[from.index] = max(n.seen.agreed[from.index], f.Agreed)
	switch n.w.cfg.Bug {
	case GrantOfOldLife:
		f.EchoBoot = n.identity().Boot
	case TakeAnyFrame:
		f.Closed.Base = 0
	case AgreeOnly:
		n.seen.asked[from.index] = max(n.seen.asked[from.index], f.Close)
		f.Close = 0
	}
}

// forgetLog drops all ranges of a node that has crashed but keeps its identity (ForgetLog,
// faultEmpty).
func (n *node) forgetLog() {
	states, err := n.disk.engine.Ranges()
	n.w.judge(err)
	for _, st := range states {
		b := n.disk.engine.Store(st.Range).NewBatch()
		b.DropRange(st.Range)
		n.w.judge(b.Apply())
		n.w.judge(b.Sync())
		if i := n.w.rangeIndex(st.Range); i >= 0 {
			n.disk.copies[i] = nil
		}
	}
	n.disk.settleAll()
}

// storedState returns the records that the engine holds of a range, as of the last commit in the
// judges' copy. A later commit may be in the engine already.
func (n *node) storedState(i int) (check.State, error) {
	s := check.State{}
	c := n.disk.copies[i]
	if c == nil || c.commit == 0 {
		return s, nil
	}
	id := n.w.ranges[i]
	at := c.entries[c.commit-1].LastHLC()
	for it, err := range n.disk.engine.Store(id).Scan(id, n.w.tableOf(id), nil, nil, at, 0) {
		if err != nil {
			return nil, fmt.Errorf("%s: range %s: %w", n.id, id, err)
		}
		s[check.StateKey{Table: it.Key.Table, Name: string(it.Key.Name)}] = check.Item{Version: it.Version, Value: it.Value}
	}
	return s, nil
}

// readRecords answers a strong read of several keys. It runs as a process of the node.
func (n *node) readRecords(id rhumb.RangeID, names [][]byte) (items []check.Item, at rhumb.Timestamp, by rhumb.RangeID, err error) {
	if n.host == nil {
		return nil, 0, id, rhumb.E("sim.read", rhumb.Unavailable, "the node is joining its cluster")
	}
	ctx, cancel := n.rt.WithTimeout(n.ctx, attemptMax)
	defer cancel()
	tooSoon := n.w.cfg.Bug == ReadTooSoon
	// Bugs of reads are planted in runs without splits.
	rt := n.w.rootOf(id)
	whole := n.w.ranges[rt]
	if r, ok := n.host.Replica(whole); ok && n.w.cfg.Bug == ServeBeforeLast && r.State() == replica.Primary && r.Epoch() == n.seen.handed[rt] {
		// The request would wait until the node serves the epoch that it was handed.
		if tooSoon = !n.host.Serves(whole); tooSoon {
			cancel()
		}
	}
	n.delayClock()
	found, receipt, err := n.host.Get(ctx, id, n.w.tableOf(id), names)
	n.late = 0
	// The bug answers where the host refuses.
	if err != nil && tooSoon {
		if found, receipt.Timestamp, err = n.readTooSoon(whole, names); err != nil {
			return nil, 0, id, err
		}
	}
	if err != nil {
		return nil, 0, id, err
	}
	if n.w.cfg.Bug == NoBug {
		n.w.judge(n.checkScan(ctx, receipt.Range))
	}
	for _, it := range found {
		if n.w.cfg.Bug == ReadUncommitted {
			it = n.lookUp(id, it.Key, storage.Newest)
		}
		items = append(items, check.Item{Version: it.Version, Value: it.Value})
	}
	return items, receipt.Timestamp, receipt.Range, nil
}

// scanLimit is the number of records of a scan that is checked.
const scanLimit = 16

// checkScan compares a page that the host merges, by the names that the store keeps in memory, with the keys of the range.
func (n *node) checkScan(ctx context.Context, id rhumb.RangeID) error {
	page, receipt, err := n.host.Scan(ctx, rhumb.ScanQuery{Ranges: []rhumb.RangeID{id}, Table: n.w.tableOf(id), Limit: scanLimit, BytesMax: rhumb.ScanPageBytes})
	// A range that loses its lease, or is divided at this moment, is not covered.
	if err != nil || page.Ends[0] == 0 {
		return nil //nolint:nilerr // the client would ask the range alone
	}
	// The judge could not read either.
	if n.disk.refusing {
		return nil
	}
	var want []string
	for it, err := range n.disk.engine.Store(id).Scan(id, n.w.tableOf(id), nil, nil, receipt.Timestamp, scanLimit) {
		if err != nil {
			return fmt.Errorf("%s: range %s: %w", n.id, id, err)
		}
		want = append(want, fmt.Sprintf("%s %s", it.Key, it.Version))
	}
	for i, it := range page.Items {
		if got := fmt.Sprintf("%s %s", it.Key, it.Version); i >= len(want) || got != want[i] {
			return fmt.Errorf("%s: range %s at %s: record %d of a scan by names is %s, want %v", n.id, id, receipt.Timestamp, i, got, want)
		}
	}
	if len(page.Items) < len(want) {
		return fmt.Errorf("%s: range %s at %s: a scan by names has %d records, want %v", n.id, id, receipt.Timestamp, len(page.Items), want)
	}
	return nil
}

// lookUp reads one record of a range from the engine.
func (n *node) lookUp(id rhumb.RangeID, key rhumb.Key, at rhumb.Timestamp) rhumb.Item {
	it := rhumb.Item{Key: key}
	found, err := n.disk.engine.Store(id).Lookup(key, at)
	if err == nil && !found.Tombstone {
		it.Value, it.Version = found.Value, found.Version
	}
	return it
}

// answerWaiting answers the writes whose entries are in a log but not committed, as if the primary could still commit them
// (AckAfterHandover). The host answers them again later, and clients ignore the second answer.
func (n *node) answerWaiting(c *rangeCopy) {
	for _, e := range c.entries[c.commit:] {
		for i := range e.Requests {
			q := &e.Requests[i]
			if answer := n.seen.waiting[q.ID]; answer != nil {
				delete(n.seen.waiting, q.ID)
				answer(replica.Answer{Outcome: rhumb.Outcome{Applied: true, Seq: e.Seq, Version: e.Version(q), Names: q.Names}})
			}
		}
	}
}

// readTooSoon reads at a primary whose epoch-start entry is not committed (ReadTooSoon).
func (n *node) readTooSoon(id rhumb.RangeID, names [][]byte) (items []rhumb.Item, at rhumb.Timestamp, err error) {
	r, ok := n.host.Replica(id)
	if !ok || r.State() != replica.Primary {
		return nil, 0, rhumb.E("sim.read", rhumb.NotPrimary, "the node is not primary")
	}
	at = r.Status().CommitHLC
	for _, name := range names {
		items = append(items, n.lookUp(id, rhumb.Key{Table: n.w.tableOf(id), Home: n.member.homeIn(id, theTable, name), Name: name}, at))
	}
	return items, at, nil
}

// propose proposes a batch of a client. answer is called once, unless the life ends first.
func (n *node) propose(b *rhumb.Batch, answer func(replica.Answer)) {
	if n.host == nil {
		answer(replica.Answer{Err: rhumb.E("sim.propose", rhumb.Unavailable, "the node is joining its cluster")})
		return
	}
	if err := n.refuseLater(b); err != nil {
		answer(replica.Answer{Err: err})
		return
	}
	if n.w.cfg.Bug == AckAfterHandover && !b.ID.IsZero() {
		n.seen.waiting[b.ID] = answer
	}
	n.host.Propose(b, func(o rhumb.Outcome, err error) {
		delete(n.seen.waiting, b.ID)
		answer(replica.Answer{Outcome: o, Err: err})
	})
	n.host.Drive()
}
