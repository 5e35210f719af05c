package host

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// carryOut carries out the decisions of one replica. Writes are staged in the pass's commit of the
// range's store; everything else happens now.
//
// The order matters:
//   - Exclusions come before any message that could carry the promise, so that no grant leaves
//     without them (docs/replication.md#exclusions).
//   - The read state is published before callers are answered, so that a caller reads its own
//     write.
func (h *Host) carryOut(s *slot, rd replica.Ready, commits []*commit) []*commit {
	if h.cfg.Probe != nil {
		rd = h.cfg.Probe.Ready(s.id, rd)
	}
	if rd.Promised != 0 {
		// Only a node that is to begin the epoch waits for the confirmations.
		h.excluded = h.excluded || rd.PromisedTo == h.cfg.Self.Node
		if rd.Handed {
			h.leases.takeOver(s.id, rd.Promised)
		} else {
			h.leases.excludeRange(s.id, rd.Promised, rd.PromisedTo)
		}
	}
	if rd.MustSync || rd.Trim != 0 || len(rd.AfterSync) > 0 || len(rd.Born)+len(rd.Taken) > 0 {
		commits = h.stageWrites(s, &rd, commits)
	}
	if h.abandoned {
		return commits
	}
	if rd.Unsure || rd.GivenUp > 0 {
		h.noteLoss(s, &rd)
	}
	h.publishReadState(s)
	h.noteRole(s)
	h.notifyCommitted(s, &rd)
	h.sendAll(rd.Messages)
	h.noteSent(&rd)
	for i := range rd.Answers {
		h.answerProposal(rd.Answers[i])
	}
	for _, p := range rd.Meta {
		h.proposeChange(p)
	}
	for _, f := range rd.Fetch {
		h.fetchLog(s, f)
	}
	return commits
}

// stageWrites adds one replica's writes to the pass's commit of its store.
func (h *Host) stageWrites(s *slot, rd *replica.Ready, commits []*commit) []*commit {
	i := findCommit(commits, s)
	if i >= 0 && rd.UndoAbove != nil && commits[i].hasSlot(s) {
		// Undo reads the stored entries, so it must find those that this pass appended.
		h.applyCommit(commits[i])
		if h.abandoned {
			return commits
		}
		i = -1
	}
	if i < 0 {
		commits = append(commits, &commit{batch: s.store.NewBatch()})
		i = len(commits) - 1
	}
	c := commits[i]
	// The range is created in the same batch as its first writes, so a crash leaves either all or
	// nothing of it.
	if !s.made {
		c.batch.CreateRange(storage.RangeState{Range: s.id, LastSlot: s.last, Promised: s.floor})
		s.made = true
	}
	if rd.Promised != 0 {
		c.batch.SetPromised(s.id, rd.Promised)
	}
	if rd.UndoAbove != nil {
		if err := c.batch.Undo(s.id, *rd.UndoAbove); err != nil {
			h.cfg.Fatal(rhumb.Wrap("host.Host.write", err))
		}
	}
	// The commit position accompanies every append, not only when it has moved: all commits of a
	// lone writer fall between its appends, and storage trims only up to the position that it
	// knows.
	at, seq, _ := s.r.Readable()
	commit := storage.Commit{Seq: seq, HLC: at}
	h.noteAppended(s, rd.Append)
	appends := rd.Append
	if len(rd.Born)+len(rd.Taken) > 0 {
		var ok bool
		if appends, commits, ok = h.reshape(s, rd, c, commits); h.abandoned {
			return commits
		}
		c = commits[len(commits)-1]
		// The replica is quarantined, and storage must not know a commit position up to the entry.
		if !ok {
			appends, rd.Trim = nil, 0
		}
	}
	for _, e := range appends {
		c.batch.Append(s.id, e, commit)
	}
	if rd.Trim != 0 {
		c.batch.SetCommit(s.id, commit)
		c.batch.Trim(s.id, rd.Trim)
	}
	if rd.Quarantine != "" {
		c.batch.SetQuarantine(s.id, rd.Quarantine)
	}
	part := commitPart{s: s, mustSync: rd.MustSync, deferred: rd.Deferred, reshapes: len(rd.Born)+len(rd.Taken) > 0, number: rd.Batch, after: rd.AfterSync}
	// Storage must know the commit position before it trims up to it.
	if rd.Trim != 0 {
		// Collection works at the commit timestamp of the trim, below which no read begins any
		// more.
		part.collect = at
	}
	c.parts = append(c.parts, part)
	return commits
}

// findCommit returns the index of the pass's commit of a range's store that is not applied yet, or
// -1.
func findCommit(commits []*commit, s *slot) int {
	for i, c := range commits {
		if c.batch.Store() == s.store && !c.applied {
			return i
		}
	}
	return -1
}

// hasSlot reports whether the commit has writes of a slot.
func (c *commit) hasSlot(s *slot) bool {
	for i := range c.parts {
		if c.parts[i].s == s {
			return true
		}
	}
	return false
}

// diskFullPause is how long a commit waits between attempts if the disk is completely full.
// Writable rejects writes long before that; until there is room nothing accepted is dropped.
const diskFullPause = 100 * time.Millisecond

// applyCommit makes a commit visible. If the disk is completely full, it blocks all passes until
// there is room or the host closes: accepted writes are not undone. Client batches and entries of
// peers are rejected long before that (Writable), so only the writes of the pass during which the
// disk filled up wait here, and those of an election.
func (h *Host) applyCommit(c *commit) {
	if c.applied {
		return
	}
	h.m.commitRanges.Observe(float64(len(c.parts)))
	c.at = h.passAt
	if c.deferred = h.mayDefer(c); c.deferred {
		c.batch.Defer()
	}
	for {
		err := c.batch.Apply()
		if err == nil {
			c.applied = true
			// Collection relies on what storage knows to be trimmed, so it starts only now.
			for i := range c.parts {
				if p := &c.parts[i]; p.collect != 0 {
					h.collector.addRange(p.s, p.collect)
					if p.s.unswept {
						h.beginSweep(p.s)
					}
				}
			}
			return
		}
		// Any other error leaves memory and disk in different states.
		if rhumb.KindOf(err) != rhumb.DiskFull {
			h.cfg.Fatal(rhumb.Wrap("host.Host.apply", err))
			return
		}
		h.m.diskFull.Inc()
		h.log.Error("the disk is full: writes wait until there is room", "dir", c.batch.Store().Dir(), "err", err)
		select {
		case <-h.ctx.Done():
			h.abandoned = true
			return
		case <-time.After(diskFullPause):
		}
	}
}

// publishReadState makes committed entries visible to reads, before any caller learns that they are
// committed.
func (h *Host) publishReadState(s *slot) {
	at, _, ok := s.r.Readable()
	old := s.read.Load()
	switch {
	case !ok:
		// Without a read state, reads are rejected at once.
		if old != nil {
			s.read.Store(nil)
		}
	case old == nil || old.at != at || old.epoch != s.r.Epoch() || old.last != s.last || !slices.Equal(old.grants, s.r.LeaseSet()):
		s.read.Store(&readState{epoch: s.r.Epoch(), at: at, grants: s.r.LeaseSet(), last: s.last})
	}
}

// notifyCommitted passes the commit position to Config.Committed, and keeps appended entries until
// they are committed.
func (h *Host) notifyCommitted(s *slot, rd *replica.Ready) {
	if h.cfg.Committed == nil {
		return
	}
	// Undo comes before the appends, which take the place of the undone entries (rule T).
	if rd.UndoAbove != nil {
		// Undone entries are replaced by others with the same numbers.
		s.recent = slices.DeleteFunc(s.recent, func(e *entry.Entry) bool { return e.Seq > *rd.UndoAbove })
	}
	s.recent = append(s.recent, rd.Append...)
	at, seq, _ := s.r.Readable()
	if seq > s.committed {
		s.committed = seq
		n := 0
		for n < len(s.recent) && s.recent[n].Seq <= seq {
			n++
		}
		c := Committed{Range: s.id, Seq: seq, HLC: at}
		// Entries are passed only if they reach up to the commit position. The third index keeps a
		// receiver's append from overwriting entries here.
		if n > 0 && s.recent[n-1].Seq == seq {
			c.Entries = s.recent[:n:n]
		}
		h.cfg.Committed(c)
		// A copy, so that the array of the committed entries can be freed.
		s.recent = slices.Clone(s.recent[n:])
	}
	h.updateRecentWeight(s)
	// Entries that stay uncommitted would fill the list. The receiver then reads them from storage.
	if len(s.recent) > recentMax || len(s.recent) > 0 && h.cfg.Budgets.Recent.Full() {
		s.recent = nil
		h.updateRecentWeight(s)
	}
}

// outgoing are the messages of a pass to one node.
type outgoing struct {
	to   rhumb.NodeID
	msgs []replica.Message
}

// outgoingKept bounds the messages for which memory is kept between passes, for each node.
const outgoingKept = 512

// sendAll adds messages to those that the pass sends. They leave together, one call for each node: sent one by one, each would
// wake the goroutine that writes to the node, and the first would have a frame of its own.
func (h *Host) sendAll(msgs []replica.Message) {
	for i := range msgs {
		if msgs[i].Kind == replica.Promise {
			// The clock is past every timestamp that this node has acknowledged, since it has
			// accepted them all (docs/replication.md#rule-prepare-answer).
			msgs[i].Clock = h.cfg.Clock.Read()
		}
	}
	for _, m := range h.readable(msgs) {
		i := slices.IndexFunc(h.outbox, func(o outgoing) bool { return o.to == m.To })
		if i < 0 {
			i = len(h.outbox)
			h.outbox = append(h.outbox, outgoing{to: m.To})
		}
		h.outbox[i].msgs = append(h.outbox[i].msgs, m)
	}
}

// flushMessages sends the messages of the pass.
func (h *Host) flushMessages() {
	for i := range h.outbox {
		o := &h.outbox[i]
		if len(o.msgs) == 0 {
			continue
		}
		h.cfg.Net.Send(o.to, o.msgs)
		clear(o.msgs) // frees the entries
		if o.msgs = o.msgs[:0]; cap(o.msgs) > outgoingKept {
			o.msgs = nil
		}
	}
}

// readable leaves out the messages that a program without transfers cannot read, while one may be in the cluster. Such
// a program does not ignore them: it closes the stream, and with it every range that the two nodes share
// (docs/changing.md#a-new-feature). They are repeated for as long as they are needed, so nothing is lost when the
// version is raised.
func (h *Host) readable(msgs []replica.Message) []replica.Message {
	if h.mayTransfer() {
		return msgs
	}
	return slices.DeleteFunc(msgs, func(m replica.Message) bool { return m.Kind == replica.LogTrimmed || m.Kind == replica.Copying })
}

// mayTransfer reports whether the cluster copies ranges whole.
func (h *Host) mayTransfer() bool { return h.cfg.Transfers == nil || h.cfg.Transfers() }

// proposeChange sends a replica's proposal to the metadata group. If too many proposals are in
// flight, it is dropped: the replica proposes again.
func (h *Host) proposeChange(p replica.MetaProposal) {
	places := int32(metaInFlightMax)
	// Unhurried proposals leave half of the places to those that a failover waits for.
	if p.Unhurried {
		places /= 2
	}
	// Counted before the check, since the count is decreased by other goroutines.
	if h.changes.Add(1) > places {
		h.changes.Add(-1)
		h.m.metaDropped.Inc()
		return
	}
	if p.Kind == replica.CancelMerge {
		h.m.mergesGivenUp.Inc()
		h.log.Warn("a merge that cannot be carried out is given up; both ranges stay", "right", p.Range.String())
	}
	if p.Kind == replica.CancelSplit {
		h.m.splitsGivenUp.Inc()
		h.log.Warn("a split that cannot be carried out is given up; the range stays whole", "new", p.Range.String())
	}
	h.cfg.Meta.Change(p, func(err error) {
		h.changes.Add(-1)
		// A conflict is normal: the record has changed since the proposal, and the news of it is on
		// its way.
		if k := rhumb.KindOf(err); err != nil && p.Kind == replica.ElectMe && (k == rhumb.Conflict || k == rhumb.InvalidArgument) {
			h.post(refusedElection{p.Range, p.Epoch})
		}
		if err != nil && rhumb.KindOf(err) != rhumb.Conflict {
			h.log.Debug("metadata change failed", "range", p.Range.String(), "err", err)
		}
	})
}

// refusedElection is the news that metadata has refused to elect a replica of this node.
type refusedElection struct {
	id    rhumb.RangeID
	epoch rhumb.Epoch
}

// applyTo passes the news to the replica. Its next tick acts on it.
func (ev refusedElection) applyTo(h *Host) {
	if s, ok := h.findSlot(ev.id); ok && !s.gone {
		s.r.ElectionRefused(ev.epoch)
	}
}

// fetchLog reads older entries for a lagging peer, outside the pass. A replica has at most one such
// read in flight per peer and waits for its result, which bounds the reads that wait for one of the
// fetchersMax places.
func (h *Host) fetchLog(s *slot, f replica.LogRead) {
	h.fetches = append(h.fetches, fetchedEvent{s: s, f: f})
	h.startFetches()
}

// startFetches starts reads while there are free places.
func (h *Host) startFetches() {
	for len(h.fetches) > 0 && h.fetching < fetchersMax {
		ev := h.fetches[0]
		h.fetches = h.fetches[1:]
		h.fetching++
		// Close waits for this count before the engine is closed.
		h.reads.Add(1)
		h.rt.Disk(true, func() {
			var err error
			ev.entries, err = ev.s.store.Entries(ev.s.id, ev.f.From, ev.f.Until, ev.f.BytesMax)
			// The peer then stays a learner, as if the log were trimmed, and its status says so.
			if err != nil {
				h.log.Error("reading the log for a lagging replica failed", "range", ev.s.id.String(), "from", ev.f.From, "err", err)
				h.m.fetchFailed.Inc()
			}
		}, func() {
			h.reads.Add(-1)
			h.post(ev)
		})
	}
}
