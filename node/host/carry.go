package host

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// carryOut does what a replica wants done: writes go into the pass's commit of the range's store, the rest happens now.
func (h *Host) carryOut(s *slot, rd replica.Ready, commits []*commit) []*commit {
	if h.cfg.Probe != nil {
		rd = h.cfg.Probe.Ready(s.id, rd)
	}
	if rd.Promised != 0 {
		h.leases.exclude(s.id, rd.Promised, rd.PromisedTo)
	}
	if rd.MustSync || rd.Trim != 0 || len(rd.AfterSync) > 0 {
		commits = h.write(s, &rd, commits)
	}
	if h.abandoned {
		return commits
	}
	h.publish(s)
	h.tellCommitted(s, &rd)
	h.sendAll(rd.Messages)
	for i := range rd.Answers {
		h.answer(rd.Answers[i])
	}
	for _, p := range rd.Meta {
		h.change(p)
	}
	for _, f := range rd.Fetch {
		h.fetchLog(s, f)
	}
	return commits
}

// write puts one replica's writes into the pass's commit of its store.
func (h *Host) write(s *slot, rd *replica.Ready, commits []*commit) []*commit {
	i := commitOf(commits, s)
	if i >= 0 && rd.UndoAbove != nil && commits[i].touches(s) {
		h.apply(commits[i]) // undo reads what is stored, and must find what this pass appended
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
	if !s.made {
		c.batch.CreateRange(storage.RangeState{Range: s.id, Promised: s.floor})
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
	// Not only when it moved: a lone writer's commits all fall between its appends, and storage trims up to what it knows.
	at, seq, _ := s.r.Readable()
	commit := storage.Commit{Seq: seq, HLC: at}
	for _, e := range rd.Append {
		c.batch.Append(s.id, e, commit)
	}
	if rd.Trim != 0 {
		c.batch.SetCommit(s.id, commit)
		c.batch.Trim(s.id, rd.Trim)
	}
	if rd.Quarantine != "" {
		c.batch.SetQuarantine(s.id, rd.Quarantine)
	}
	part := commitPart{s: s, mustSync: rd.MustSync, number: rd.Batch, after: rd.AfterSync}
	if rd.Trim != 0 {
		part.collect = at
	}
	c.parts = append(c.parts, part)
	return commits
}

// commitOf finds the pass's commit of a range's store that is not applied yet.
func commitOf(commits []*commit, s *slot) int {
	for i, c := range commits {
		if c.batch.Store() == s.store && !c.applied {
			return i
		}
	}
	return -1
}

func (c *commit) touches(s *slot) bool {
	for i := range c.parts {
		if c.parts[i].s == s {
			return true
		}
	}
	return false
}

// diskFullPause is how long a commit waits between tries when the disk is full to the last byte. Writable refuses long
// before; until then nothing that was accepted is dropped.
const diskFullPause = 100 * time.Millisecond

// apply makes a commit visible. A disk that is full to the last byte holds up all passes until there is room, or the host closes:
// what was accepted is not undone. Long before, client batches are refused and entries of peers are not taken (Writable), so
// that only what a pass had taken in when the disk filled up gets here, and what an election has to write.
func (h *Host) apply(c *commit) {
	if c.applied {
		return
	}
	h.m.commitRanges.Observe(float64(len(c.parts)))
	for {
		err := c.batch.Apply()
		if err == nil {
			c.applied = true
			for i := range c.parts { // not before: collection goes by what storage knows to be trimmed
				if p := &c.parts[i]; p.collect != 0 {
					h.collector.add(p.s, p.collect)
				}
			}
			return
		}
		if rhumb.KindOf(err) != rhumb.DiskFull {
			h.cfg.Fatal(rhumb.Wrap("host.Host.apply", err))
			return
		}
		h.m.diskFull.Inc()
		h.log.Error("the disk is full: no write goes on until there is room", "dir", c.batch.Store().Dir(), "err", err)
		select {
		case <-h.ctx.Done():
			h.abandoned = true
			return
		case <-time.After(diskFullPause):
		}
	}
}

// publish lets reads see what is committed, before anybody is told that it is.
func (h *Host) publish(s *slot) {
	at, _, ok := s.r.Readable()
	old := s.read.Load()
	switch {
	case !ok:
		if old != nil {
			s.read.Store(nil)
		}
	case old == nil || old.at != at || old.epoch != s.r.Epoch() || !equalNodes(old.grants, s.r.LeaseSet()):
		s.read.Store(&readState{epoch: s.r.Epoch(), at: at, grants: s.r.LeaseSet()})
	}
}

// tellCommitted tells Config.Committed how far the range is committed. It keeps what was appended until then.
func (h *Host) tellCommitted(s *slot, rd *replica.Ready) {
	if h.cfg.Committed == nil {
		return
	}
	if rd.UndoAbove != nil {
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
		if n > 0 && s.recent[n-1].Seq == seq {
			c.Entries = s.recent[:n:n]
		}
		h.cfg.Committed(c)
		s.recent = slices.Clone(s.recent[n:])
	}
	h.weighRecent(s)
	if len(s.recent) > recentMax || len(s.recent) > 0 && h.cfg.Budgets.Recent.Full() {
		s.recent = nil
		h.weighRecent(s)
	}
}

func equalNodes(a, b []rhumb.NodeID) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (h *Host) sendAll(msgs []replica.Message) {
	for i := range msgs {
		if msgs[i].Kind == replica.Promise {
			// Past all that this node has acknowledged: its clock has taken in every timestamp it met.
			msgs[i].Clock = h.cfg.Clock.Read()
		}
	}
	for from := 0; from < len(msgs); {
		to := from + 1
		for to < len(msgs) && msgs[to].To == msgs[from].To {
			to++
		}
		h.cfg.Net.Send(msgs[from].To, msgs[from:to])
		from = to
	}
}

// change proposes to the metadata group what a replica wants. When too many proposals are under way it is dropped: the
// replica asks again.
func (h *Host) change(p replica.MetaProposal) {
	places := int32(metaInFlightMax)
	if p.Unhurried {
		places /= 2
	}
	if h.changes.Add(1) > places {
		h.changes.Add(-1)
		h.m.metaDropped.Inc()
		return
	}
	h.cfg.Meta.Change(p, func(err error) {
		h.changes.Add(-1)
		if err != nil && rhumb.KindOf(err) != rhumb.Conflict {
			h.log.Debug("metadata change failed", "range", p.Range.String(), "err", err)
		}
	})
}

// fetchLog reads older entries for a lagging peer, away from the pass. A replica has at most one such read under way for
// each peer, and waits for its answer; that bounds those that wait for one of the fetchersMax places.
func (h *Host) fetchLog(s *slot, f replica.LogRead) {
	h.fetches = append(h.fetches, fetchedEvent{s: s, f: f})
	h.fetchNext()
}

// fetchNext begins the reads that there are places for.
func (h *Host) fetchNext() {
	for len(h.fetches) > 0 && h.fetching < fetchersMax {
		ev := h.fetches[0]
		h.fetches = h.fetches[1:]
		h.fetching++
		h.reads.Add(1)
		h.rt.Disk(true, func() {
			var err error
			ev.entries, err = ev.s.store.Entries(ev.s.id, ev.f.From, ev.f.Until, ev.f.BytesMax)
			if err != nil { // the peer then stays a learner, as if the log were trimmed away, and says so
				h.log.Error("the log cannot be read", "range", ev.s.id.String(), "from", ev.f.From, "err", err)
				h.m.fetchFailed.Inc()
			}
		}, func() {
			h.reads.Add(-1)
			h.post(ev)
		})
	}
}
