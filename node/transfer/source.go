package transfer

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// Open answers the question of another node. It makes a set, which takes as long as reading the
// range at the rate allows, or returns the one that it made for the same node before. Overloaded
// means that outMost sets are in use.
func (m *Manager) Open(ctx context.Context, from rhumb.NodeID, q Question) (*storage.Set, error) {
	const op rhumb.Op = "transfer.Manager.Open"
	if !m.enter() {
		return nil, errStopping(op)
	}
	defer m.leave()
	// The position is read before the set is made, so the set holds at least everything up to it.
	commit, err := m.cfg.Host.MayDonate(q.Range)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if commit.Seq < q.Least {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "the copy of range %s here is committed up to %d, and %d is needed; ask later, or another replica", q.Range, commit.Seq, q.Least)
	}
	set, number, err := m.findPlace(op, from, q)
	if set != nil || err != nil {
		return set, err
	}
	e, err := m.cfg.Engine.Store(q.Range).Export(ctx, q.Range, storage.ExportOptions{
		Donor: m.cfg.Self.Node, Life: m.cfg.Self.Boot, Number: number, Commit: commit,
		Pace: func(ctx context.Context, bytes int) error { return m.pace(ctx, &m.makeRate, bytes) },
	})
	m.mu.Lock()
	// The place is free again, or taken by the set that was made.
	m.opening--
	if err == nil {
		m.out[e.ID] = &outgoing{export: e, to: from, used: m.rt.Now()}
	}
	m.mu.Unlock()
	switch {
	case rhumb.KindOf(err) == rhumb.Corrupt:
		// A damaged copy is never a source. The replica is quarantined if another one is intact.
		m.cfg.Host.ReportDamage(q.Range)
		return nil, rhumb.WrapKind(op, rhumb.Unavailable, err)
	case err != nil:
		return nil, rhumb.Wrap(op, err)
	}
	m.m.exported.Add(float64(e.Bytes()))
	m.log.Info("made a copy of a range for another node", "range", q.Range.String(), "to", from, "bytes", e.Bytes(), "keys", e.Keys)
	return &e.Set, nil
}

// errStopping is the error of calls after Close.
func errStopping(op rhumb.Op) error { return rhumb.E(op, rhumb.Unavailable, "the node is stopping") }

// findPlace returns the set that this node made for the same question, or the number of a new one.
func (m *Manager) findPlace(op rhumb.Op, from rhumb.NodeID, q Question) (*storage.Set, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.outSets() {
		o := m.out[id]
		if o.to != from && o.to != rhumb.NoNode || id.Range != q.Range {
			continue
		}
		if o.export.Commit >= q.Least {
			o.to, o.used = from, m.rt.Now()
			return &o.export.Set, 0, nil
		}
		// The receiver has outrun it. A set of an earlier start may have a reader that has not asked again yet: that
		// one learns with its next question that the set is gone.
		m.dropLocked(id)
	}
	// The longer time is tried by every look; here another node waits.
	if len(m.out)+m.opening >= outMost {
		m.dropIdleLocked(idleLeast)
	}
	if len(m.out)+m.opening >= outMost {
		return nil, 0, rhumb.Ef(op, rhumb.Overloaded, "this node sends %d ranges at the moment; ask later, or another replica", outMost)
	}
	m.opening++
	m.number++
	return nil, m.number, nil
}

// outSets returns the sets in a fixed order. m.mu is held.
func (m *Manager) outSets() []storage.SetID {
	return slices.SortedFunc(maps.Keys(m.out), func(a, b storage.SetID) int { return cmp.Compare(a.Number, b.Number) })
}

// dropIdleLocked drops the sets that were not read for a while. m.mu is held.
func (m *Manager) dropIdleLocked(idle time.Duration) {
	now := m.rt.Now()
	for _, id := range m.outSets() {
		if m.out[id].isIdle(now, idle) {
			m.dropLocked(id)
		}
	}
}

// isIdle reports whether a set was not read for a while: idleLeast if another node waits for its place, and idleMost otherwise.
func (o *outgoing) isIdle(now, idle time.Duration) bool {
	if o.to == rhumb.NoNode && idle == idleLeast {
		idle = idleKept
	}
	return o.readers == 0 && now-o.used >= idle
}

// dropLocked forgets a set and removes its files, now or when its last reader ends. m.mu is held.
func (m *Manager) dropLocked(id storage.SetID) {
	o := m.out[id]
	delete(m.out, id)
	o.dropped = true
	m.closeDropped(o)
}

// closeDropped removes the files of a set that is dropped and that nobody reads.
func (m *Manager) closeDropped(o *outgoing) {
	if !o.dropped || o.readers > 0 {
		return
	}
	// Removing files is quick, and the next start removes the remaining ones.
	if err := o.export.Close(); err != nil {
		m.log.Warn("the files of a finished transfer were not removed; the next start removes them", "set", o.export.ID.String(), "err", err)
	}
}

// Read sends the chunks of a set from one on, in order.
func (m *Manager) Read(ctx context.Context, id storage.SetID, from int, send func(chunk int, b []byte) error) error {
	const op rhumb.Op = "transfer.Manager.Read"
	if !m.enter() {
		return errStopping(op)
	}
	defer m.leave()
	m.mu.Lock()
	o := m.out[id]
	if o != nil {
		o.readers++
	}
	m.mu.Unlock()
	if o == nil {
		return rhumb.Ef(op, rhumb.NotFound, "this node does not have set %s any more", id)
	}
	defer func() {
		m.mu.Lock()
		o.readers--
		o.used = m.rt.Now()
		m.closeDropped(o)
		m.mu.Unlock()
	}()
	for chunk := from; chunk < o.export.Chunks(); chunk++ {
		b, err := o.export.Chunk(chunk)
		if err != nil {
			m.log.Error("a set that was made for another node is damaged; it is made again", "set", id.String(), "err", err)
			m.mu.Lock()
			if m.out[id] == o {
				m.dropLocked(id)
			}
			m.mu.Unlock()
			return rhumb.WrapKind(op, rhumb.NotFound, err)
		}
		if err := m.pace(ctx, &m.outRate, len(b)); err != nil {
			return err
		}
		if err := send(chunk, b); err != nil {
			return rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		m.m.sent.Add(float64(len(b)))
	}
	return nil
}

// Release removes a set that its receiver has installed or given up.
func (m *Manager) Release(id storage.SetID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.out[id] != nil {
		m.dropLocked(id)
	}
}
