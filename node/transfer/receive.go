package transfer

import (
	"errors"
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// copyRange makes one attempt to copy a range.
func (m *Manager) copyRange(s start) {
	id := s.want.Range
	m.m.started.Inc()
	m.log.Info("copying a range whose log is trimmed", "range", id.String(), "from", s.donor, "attempt", s.failed+1)
	donor, bytes, err := m.receive(s)
	m.keepLog(s.want, err)
	m.mu.Lock()
	took := m.rt.Now() - m.in[id].began
	delete(m.in, id)
	m.plan.ended(m.rt.Now(), id, donor, err)
	delete(m.errors, id)
	if err != nil {
		m.errors[id] = rhumb.Message(err)
	}
	m.mu.Unlock()
	if err != nil {
		m.m.failed.Inc()
		m.log.Warn("copying a range did not succeed; it is tried again", "range", id.String(), "from", donor, "err", err)
		return
	}
	m.m.completed.Inc()
	// The place is free at once: a node may have thousands of small ranges to copy.
	defer m.look()
	m.log.Info("copied a range", "range", id.String(), "from", donor, "bytes", bytes, "took", took)
}

// keepLog ends the work of the primary for an attempt that is over: the primary may trim its log again. If a part of a set stays here for the
// next attempt, the primary still keeps the log that follows the set, for keptMost. Otherwise it could trim that log in the pause, and the part
// would be of no use.
func (m *Manager) keepLog(w Want, failed error) {
	var set *storage.Set
	if failed != nil {
		sched.Block(m.rt, func() { set = m.cfg.Engine.Store(w.Range).Installing(w.Range) })
	}
	m.mu.Lock()
	delete(m.kept, w.Range)
	keeps := set != nil && set.Commit >= w.Least
	if keeps {
		m.kept[w.Range] = m.rt.Now() + keptMost
	}
	m.mu.Unlock()
	if !keeps {
		m.cfg.Host.SetCopying(w.Range, 0)
	}
}

// endKeptLocked returns the ranges whose primaries have kept their logs for long enough. m.mu is held.
func (m *Manager) endKeptLocked() (ended []rhumb.RangeID) {
	// The order must not depend on that of the map, so that a run of the simulator repeats.
	for _, id := range slices.SortedFunc(maps.Keys(m.kept), rhumb.RangeID.Compare) {
		if m.in[id] == nil && m.rt.Now() >= m.kept[id] {
			delete(m.kept, id)
			ended = append(ended, id)
		}
	}
	return ended
}

// receive copies a range, or continues to. It returns the donor, which a set that was begun before
// determines.
func (m *Manager) receive(s start) (donor rhumb.NodeID, bytes int64, err error) {
	donor = s.donor
	id := s.want.Range
	store := m.cfg.Engine.Store(id)
	begun := store.Installing(id)
	set := begun
	// A set that others have outrun is of no use, and neither is one whose donor does not answer.
	if set != nil && (set.Commit < s.want.Least || s.failed >= resumesMost && s.failed%2 == 1) {
		set = nil
	}
	if set != nil {
		donor = set.ID.Donor
	} else if set, err = m.open(donor, Question{Range: id, Least: s.want.Least, AsksAgain: true}); err != nil {
		return donor, 0, err
	}
	var in *storage.Install
	sched.Block(m.rt, func() { in, err = store.BeginInstall(set) })
	if err != nil {
		return donor, 0, err
	}
	if begun != nil && begun.ID != set.ID {
		m.releaseLater(begun.ID)
	}
	m.noteBegin(id, in)
	// From now on, the primary keeps the log that follows the set.
	m.cfg.Host.SetCopying(id, set.Commit)
	if err = m.fetch(donor, in); err == nil && (m.cfg.Probe == nil || !m.cfg.Probe.SkipVerify) {
		sched.Block(m.rt, func() { err = in.Verify() })
	}
	if err == nil {
		// Installing is shown, because it may take long while the bytes no longer grow.
		m.note(id, func(c *incoming) { c.installing = true })
		err = m.cfg.Host.Install(m.ctx, in)
	}
	kept := false
	switch rhumb.KindOf(err) {
	case rhumb.NotFound, rhumb.Corrupt, rhumb.Conflict, rhumb.Incompatible:
		// Nothing can be made of the set: the donor lost it, or it does not fit.
		sched.Block(m.rt, func() { err = withCleanup(err, in.Abort()) })
		m.m.abandoned.Inc()
	default:
		// What has arrived stays for the next attempt.
		if kept = err != nil; kept {
			err = withCleanup(err, in.Pause())
		}
	}
	if !kept {
		// The donor would notice by idleMost, so a lost release costs space and one of its places. A set that does not fit must not be
		// offered again.
		m.cfg.Net.Release(m.ctx, donor, set.ID)
	}
	return donor, set.Bytes(), err
}

// open asks a donor for a set until the donor has made it. The whole time has no bound, because a set takes as long as reading the range at the
// rate of the donor; the time without progress has one.
func (m *Manager) open(donor rhumb.NodeID, q Question) (*storage.Set, error) {
	const op rhumb.Op = "transfer.open"
	made, since, broken := int64(-1), m.rt.Now(), 0
	for {
		o, err := m.cfg.Net.Open(m.ctx, donor, q)
		switch {
		case o.Set != nil && err == nil:
			return o.Set, nil
		case m.ctx.Err() != nil:
			return nil, errStopping(op)
		// A request that is lost does not end the work of the donor, which has begun with an earlier one.
		case err != nil && (made < 0 || rhumb.KindOf(err) != rhumb.Unavailable || broken+1 >= readsMost):
			return nil, err
		case err != nil:
			broken++
		case !m.cfg.Host.Holds(q.Range):
			return nil, rhumb.Ef(op, rhumb.NotFound, "range %s is not on this node any more", q.Range)
		case o.Made > made:
			made, since, broken = o.Made, m.rt.Now(), 0
		case m.rt.Now()-since >= unmadeMost:
			return nil, rhumb.Ef(op, rhumb.Unavailable, "%s makes a copy of range %s and has read nothing more of it for %v, after %d bytes", donor, q.Range, unmadeMost, made)
		}
		sched.Sleep(m.rt, m.ctx, readPause)
	}
}

// releaseLater reports to the donor of a set that another set has taken its place. Nobody waits for that: the donor may be the one that does not answer.
func (m *Manager) releaseLater(id storage.SetID) {
	if m.enter() {
		m.rt.Go(func() {
			defer m.leave()
			m.cfg.Net.Release(m.ctx, id.Donor, id)
		})
	}
}

// withCleanup adds the error of cleaning up after a failure to the error of the failure, whose kind and text stay first.
func withCleanup(err, also error) error {
	if also == nil {
		return err
	}
	return rhumb.WrapKind("transfer.receive", rhumb.KindOf(err), errors.Join(err, also))
}

// note changes a transfer to this node.
func (m *Manager) note(id rhumb.RangeID, change func(c *incoming)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.in[id]; c != nil {
		change(c)
	}
}

// noteBegin records how much of a set is here already.
func (m *Manager) noteBegin(id rhumb.RangeID, in *storage.Install) {
	have := in.BytesBefore(in.Next())
	m.note(id, func(c *incoming) { c.set, c.done, c.resumed, c.began = in.Set, have, have, m.rt.Now() })
	m.m.resumed.Add(float64(have))
}

// fetch receives the missing chunks of a set. A connection that breaks is opened again a few times;
// beyond that the next attempt continues.
func (m *Manager) fetch(donor rhumb.NodeID, in *storage.Install) error {
	for tries := 0; in.Next() < in.Chunks(); tries++ {
		before := in.Next()
		err := m.cfg.Net.Read(m.ctx, donor, in.ID, before, func(chunk int, b []byte) error {
			if err := m.pace(m.ctx, &m.inRate, len(b)); err != nil {
				return err
			}
			if m.cfg.Probe != nil {
				b = m.cfg.Probe.Chunk(chunk, b)
			}
			m.m.received.Add(float64(len(b)))
			// Nothing ends a transfer of a range that was dropped meanwhile, and it may be large.
			if !m.cfg.Host.Holds(in.ID.Range) {
				return rhumb.Ef("transfer.fetch", rhumb.NotFound, "range %s is not on this node any more", in.ID.Range)
			}
			if err := in.Add(chunk, b); err != nil {
				return err
			}
			m.note(in.ID.Range, func(c *incoming) { c.done += int64(len(b)) })
			return nil
		})
		// Progress resets the count: only attempts without a new chunk are bounded.
		if in.Next() > before {
			tries = 0
		}
		switch rhumb.KindOf(err) {
		case rhumb.NotFound, rhumb.DiskFull:
			return err
		case rhumb.Corrupt:
			m.m.damaged.Inc() // a chunk that was damaged on the way is read again
		}
		if in.Next() >= in.Chunks() {
			break
		}
		if err == nil {
			err = rhumb.Ef("transfer.fetch", rhumb.Unavailable, "%s ended before chunk %d of set %s", donor, in.Next(), in.ID)
		}
		if tries+1 >= readsMost || m.ctx.Err() != nil {
			return err
		}
		sched.Sleep(m.rt, m.ctx, readPause)
	}
	return nil
}
