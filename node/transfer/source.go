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

// order identifies a set that is being made: a node has one of a range at a time.
type order struct {
	id rhumb.RangeID
	to rhumb.NodeID
}

// making is a set that is being made for another node. Manager.mu guards it, except done.
type making struct {
	number uint64
	// commit is the position that the set will hold at least.
	commit storage.Commit
	// made counts the bytes that were read for it.
	made int64
	// asked is when the other node last asked for it, and waiters counts the questions that wait for it now.
	asked   time.Duration
	waiters int
	// done closes when set or err is there. A failure is kept until the other node asks again.
	done chan struct{}
	set  *storage.Set
	err  error
	// over is set when done is closed.
	over bool
	// cancel ends the work.
	cancel context.CancelFunc
}

// Open answers the question of another node. It makes a set, which takes as long as reading the range at the rate allows, or returns the one
// that it made for the same node before. A node that asks again gets an answer after openPatience: an offer without a set means that the set
// is being made. The work continues between two questions, and ends if none comes for idleLeast. Overloaded means that outMost sets are in use.
func (m *Manager) Open(ctx context.Context, from rhumb.NodeID, q Question) (Offer, error) {
	const op rhumb.Op = "transfer.Manager.Open"
	if !m.enter() {
		return Offer{}, errStopping(op)
	}
	defer m.leave()
	// The position is read before the set is made, so the set holds at least everything up to it.
	commit, err := m.cfg.Host.MayDonate(q.Range)
	if err != nil {
		return Offer{}, rhumb.Wrap(op, err)
	}
	if commit.Seq < q.Least {
		return Offer{}, rhumb.Ef(op, rhumb.Unavailable, "the copy of range %s here is committed up to %d, and %d is needed; ask later, or another replica", q.Range, commit.Seq, q.Least)
	}
	set, w, err := m.findPlace(op, order{q.Range, from}, q.Least, commit)
	if set != nil || err != nil {
		return Offer{Set: set}, err
	}
	defer func() {
		m.mu.Lock()
		w.waiters--
		w.asked = m.rt.Now()
		m.mu.Unlock()
	}()
	if q.AsksAgain {
		var cancel context.CancelFunc
		ctx, cancel = m.rt.WithTimeout(ctx, openPatience)
		defer cancel()
	}
	if m.rt.Await(w.done, ctx.Done(), nil) == 0 {
		return m.takeMade(op, order{q.Range, from}, w)
	}
	if !q.AsksAgain {
		return Offer{}, rhumb.WrapKind(op, rhumb.Unavailable, ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return Offer{Made: w.made}, nil
}

// takeMade returns what became of a set that was made. A failure is reported once: the next question begins another set.
func (m *Manager) takeMade(op rhumb.Op, o order, w *making) (Offer, error) {
	m.mu.Lock()
	if m.making[o] == w {
		delete(m.making, o)
	}
	m.mu.Unlock()
	return Offer{Set: w.set}, rhumb.Wrap(op, w.err)
}

// makeSet makes a set for another node.
func (m *Manager) makeSet(ctx context.Context, o order, w *making) {
	const op rhumb.Op = "transfer.Manager.makeSet"
	e, err := m.cfg.Engine.Store(o.id).Export(ctx, o.id, storage.ExportOptions{
		Donor: m.cfg.Self.Node, Life: m.cfg.Self.Boot, Number: w.number, Commit: w.commit,
		Pace: func(ctx context.Context, bytes int) error {
			m.mu.Lock()
			w.made += int64(bytes)
			m.mu.Unlock()
			return m.pace(ctx, &m.makeRate, bytes)
		},
	})
	if rhumb.KindOf(err) == rhumb.Corrupt {
		// A damaged copy is never a source. The replica is quarantined if another one is intact.
		m.cfg.Host.ReportDamage(o.id)
		err = rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	m.mu.Lock()
	switch {
	case err != nil:
		w.err = err
	// The other node has outrun the set, or asked for it no more.
	case m.making[o] != w:
		w.err = rhumb.E(op, rhumb.Unavailable, "the set is not needed any more")
		m.dropped = append(m.dropped, e)
	default:
		// Its place among making is now one among out.
		delete(m.making, o)
		w.set = &e.Set
		m.out[e.ID] = &outgoing{export: e, to: o.to, used: m.rt.Now()}
	}
	w.over = true
	close(w.done)
	m.mu.Unlock()
	m.closeDropped()
	w.cancel()
	if w.err == nil {
		m.m.exported.Add(float64(e.Bytes()))
		m.log.Info("made a copy of a range for another node", "range", o.id.String(), "to", o.to, "bytes", e.Bytes(), "keys", e.Keys)
	}
}

// errStopping is the error of calls after Close.
func errStopping(op rhumb.Op) error { return rhumb.E(op, rhumb.Unavailable, "the node is stopping") }

// findPlace returns the set that this node made for the same question, or the one that it makes. It begins to make one if there is none. The
// caller waits for the latter, and then counts itself out of its waiters.
func (m *Manager) findPlace(op rhumb.Op, o order, least rhumb.Seq, commit storage.Commit) (*storage.Set, *making, error) {
	defer m.closeDropped()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.outSets() {
		x := m.out[id]
		if x.to != o.to && x.to != rhumb.NoNode || id.Range != o.id {
			continue
		}
		if x.export.Commit >= least {
			x.to, x.used = o.to, m.rt.Now()
			return &x.export.Set, nil, nil
		}
		// The receiver has outrun it. A set of an earlier start may have a reader that has not asked again yet: that
		// one learns with its next question that the set is gone.
		m.dropLocked(id)
	}
	if w := m.making[o]; w != nil {
		if w.over || w.commit.Seq >= least {
			w.waiters++
			return nil, w, nil
		}
		w.cancel()
		delete(m.making, o)
	}
	// The longer time is tried by every look; here another node waits.
	if len(m.out)+m.unmadeLocked() >= outMost {
		m.dropIdleLocked(idleLeast)
	}
	if len(m.out)+m.unmadeLocked() >= outMost {
		return nil, nil, rhumb.Ef(op, rhumb.Overloaded, "this node sends %d ranges at the moment; ask later, or another replica", outMost)
	}
	m.number++
	// The work outlives the question, and ends with the manager at the latest.
	ctx, cancel := context.WithCancel(m.ctx)
	w := &making{number: m.number, commit: commit, asked: m.rt.Now(), waiters: 1, done: make(chan struct{}), cancel: cancel}
	m.making[o] = w
	m.busy++
	m.rt.Go(func() {
		defer m.leave()
		m.makeSet(ctx, o, w)
	})
	return nil, w, nil
}

// unmadeLocked counts the sets that are being made. m.mu is held.
func (m *Manager) unmadeLocked() (n int) {
	for _, w := range m.making {
		if !w.over {
			n++
		}
	}
	return n
}

// cancelIdleLocked ends the making of sets that nobody has asked for lately. m.mu is held.
func (m *Manager) cancelIdleLocked() {
	now := m.rt.Now()
	maps.DeleteFunc(m.making, func(_ order, w *making) bool {
		idle := w.waiters == 0 && now-w.asked >= idleLeast
		if idle {
			w.cancel()
		}
		return idle
	})
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

// dropLocked forgets a set. Its files are removed by closeDropped, now or when its last reader ends. m.mu is held.
func (m *Manager) dropLocked(id storage.SetID) {
	o := m.out[id]
	delete(m.out, id)
	o.dropped = true
	m.endLocked(o)
}

// endLocked lets closeDropped remove the files of a set that is dropped and that nobody reads. m.mu is held.
func (m *Manager) endLocked(o *outgoing) {
	if o.dropped && o.readers == 0 {
		m.dropped = append(m.dropped, o.export)
	}
}

// closeDropped removes the files of the sets that were dropped. m.mu is not held, because a disk may stall, and every call of the manager
// needs m.mu.
func (m *Manager) closeDropped() {
	m.mu.Lock()
	exports := m.dropped
	m.dropped = nil
	m.mu.Unlock()
	for _, e := range exports {
		// The next start removes the remaining ones.
		if err := e.Close(); err != nil {
			m.log.Warn("the files of a finished transfer were not removed; the next start removes them", "set", e.ID.String(), "err", err)
		}
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
		m.endLocked(o)
		m.mu.Unlock()
		m.closeDropped()
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

// Release removes a set that its receiver has installed or given up. A node that stops leaves it to the next start, which offers it until it was
// not read for a while.
func (m *Manager) Release(id storage.SetID) {
	if !m.enter() {
		return
	}
	defer m.leave()
	m.mu.Lock()
	if m.out[id] != nil {
		m.dropLocked(id)
	}
	m.mu.Unlock()
	m.closeDropped()
}
