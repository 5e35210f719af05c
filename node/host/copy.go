package host

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/storage"
)

const opInstall rhumb.Op = "host.Host.Install"

// Host implements transfer.Host with the methods below.
var _ transfer.Host = (*Host)(nil)

// distanceUnknown orders donors without a measured round trip after all others.
const distanceUnknown = time.Hour

// noteLag keeps the list of replicas that need a copy of their range. The pass calls it.
func (h *Host) noteLag(s *slot) {
	b, ok := s.r.NeedsCopy()
	h.lagsMu.Lock()
	defer h.lagsMu.Unlock()
	if ok && !s.gone {
		h.lags[s.id] = b
	} else {
		delete(h.lags, s.id)
	}
}

// CopiesWanted returns the replicas that need a copy of their range. Any goroutine may call it.
func (h *Host) CopiesWanted() (out []transfer.Want) {
	h.lagsMu.Lock()
	wants := make(map[rhumb.RangeID]replica.Lag, len(h.lags))
	for id, b := range h.lags {
		wants[id] = b
	}
	h.lagsMu.Unlock()
	for id, b := range wants {
		s, ok := h.findSlot(id)
		if !ok {
			continue
		}
		d := s.desc.Load()
		// A copy that is about to leave, or that metadata lists as damaged, takes nothing.
		if d == nil || !d.IsReplica(h.cfg.Self.Node) || d.IsQuarantined(h.cfg.Self.Node) {
			continue
		}
		w := transfer.Want{Range: id, Least: b.Least, InSync: len(d.InSync)}
		for _, n := range d.InSync {
			if n == h.cfg.Self.Node || d.IsQuarantined(n) {
				continue
			}
			rtt, known := h.leases.RTT(n)
			if !known {
				rtt = distanceUnknown
			}
			w.Donors = append(w.Donors, transfer.Donor{Node: n, Distance: rtt})
		}
		out = append(out, w)
	}
	return out
}

// SetCopying makes the primary of a range keep its log from a position on, because a copy that this
// node receives continues there; 0 ends that.
func (h *Host) SetCopying(id rhumb.RangeID, at rhumb.Seq) {
	h.postAsync(peersEvent{func(h *Host) {
		if s, ok := h.findSlot(id); ok && !s.gone {
			s.r.SetCopying(at)
			h.markDirty(s)
		}
	}})
}

// ask runs a query in the pass and waits for it. Only a process may call it.
func (h *Host) ask(op rhumb.Op, ctx context.Context, query func(h *Host)) error {
	done := make(chan struct{})
	if !h.post(askEvent{func(h *Host) { query(h); close(done) }}) {
		return errStopping(op)
	}
	if h.rt.Await(done, ctx.Done(), nil) == 1 {
		return rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	}
	return nil
}

// MayDonate returns the commit position of a replica that other nodes may copy. A replica outside of
// the in-sync set would be as safe, but it may lack much.
func (h *Host) MayDonate(id rhumb.RangeID) (c storage.Commit, err error) {
	const op rhumb.Op = "host.Host.MayDonate"
	refused := func(why string) error {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: why}
	}
	s, ok := h.findSlot(id)
	if !ok {
		return c, refused("this node holds no copy of the range")
	}
	asked := h.ask(op, h.ctx, func(h *Host) {
		d := s.desc.Load()
		switch {
		case s.gone || !s.made || s.r.State() == replica.Quarantined || d != nil && d.IsQuarantined(h.cfg.Self.Node):
			err = refused("the copy on this node is not intact")
		case d == nil || !d.IsInSync(h.cfg.Self.Node):
			err = refused("the copy on this node is not in sync")
		}
		c.HLC, c.Seq, _ = s.r.Readable()
	})
	if asked != nil {
		return c, asked
	}
	return c, err
}

// ReportDamage makes the host look at a copy that could not be read: the store lists it as damaged
// soon, and the replica is quarantined if another in-sync copy is intact.
func (h *Host) ReportDamage(id rhumb.RangeID) {
	h.log.Error("a copy could not be read while another node copied it", "range", id.String())
	h.postAsync(damagedEvent{})
}

// Install puts a complete copy in the place of a replica. The replica takes no part in the protocol
// meanwhile: it acknowledges and promises nothing, and its messages are lost. Afterwards it continues
// from the copy as after a restart, with a promise that is not lower than before.
//
// Conflict means that the copy ends before something that the replica holds; it is of no use then.
// Unavailable means that the replica must not be replaced now. A crash at any moment leaves either the
// old copy or the whole new one.
func (h *Host) Install(_ context.Context, in *storage.Install) error {
	done := make(chan struct{})
	var result error
	answer := func(err error) { result = err; close(done) }
	if !h.post(installEvent{in, answer}) {
		return errStopping(opInstall)
	}
	// The answer always comes, and the context must not end the wait: the disk still uses in.
	h.rt.Await(done, nil, nil)
	return result
}

// installEvent takes a replica out of service for its replacement, and installedEvent starts the new
// one. Two events, because the disk is used between them, outside the pass.
type (
	installEvent struct {
		in     *storage.Install
		answer func(error)
	}
	installedEvent struct {
		installEvent
		s *slot
		// merged are copies of ranges that were merged into the range: the new copy has their slots.
		merged []*slot
		st     storage.RangeState
		err    error
	}
)

// checkInstall returns why a copy must not be installed, or nil.
func (h *Host) checkInstall(s *slot, in *storage.Install) error {
	d := s.desc.Load()
	refuse := func(kind rhumb.Kind, why string) error {
		return &rhumb.Error{Op: opInstall, Kind: kind, Range: s.id, Node: h.cfg.Self.Node, Msg: why}
	}
	switch {
	case s.gone:
		return refuse(rhumb.Unavailable, "the copy is being replaced or discarded already")
	case d == nil || !d.IsReplica(h.cfg.Self.Node):
		return refuse(rhumb.Conflict, "metadata does not place the range on this node any more")
	case d.IsQuarantined(h.cfg.Self.Node) || !s.r.MayReplace():
		return refuse(rhumb.Unavailable, "the replica is "+s.r.State().String()+" and takes no copy now")
	case len(h.mergedIn(s, in.LastSlot())) != len(h.slotsIn(s, in.LastSlot())):
		return refuse(rhumb.Conflict, "the copy has slots of another range of this node")
	case in.Commit < s.r.Least():
		return refuse(rhumb.Conflict, "the copy ends before something that the replica holds")
	}
	return nil
}

// applyTo leaves the work to the end of the pass: earlier decisions of the replica, such as answers
// to callers, are carried out first.
func (ev installEvent) applyTo(h *Host) { h.installs = append(h.installs, ev) }

// begin takes the replica out of service and installs the copy outside of the pass. The pass calls it
// when nothing is left to carry out.
func (ev installEvent) begin(h *Host) {
	s, ok := h.findSlot(ev.in.ID.Range)
	if !ok {
		ev.answer(&rhumb.Error{Op: opInstall, Kind: rhumb.Conflict, Range: ev.in.ID.Range, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"})
		return
	}
	if err := h.checkInstall(s, ev.in); err != nil {
		ev.answer(err)
		return
	}
	// Nothing that the replica decides from here on is carried out. Promises so far are in its
	// epoch, whether or not they are durable.
	promised, least := s.r.Epoch(), s.r.Least()
	if p := h.cfg.Probe; p != nil && p.Install != nil {
		promised, least = p.Install(s.id, promised, least)
	}
	s.gone, s.installing = true, true
	done := installedEvent{installEvent: ev, s: s, merged: h.mergedIn(s, ev.in.LastSlot())}
	var absorbed []rhumb.RangeID
	for _, o := range done.merged {
		o.gone = true
		if o.made && o.store == s.store {
			absorbed = append(absorbed, o.id)
		}
	}
	ev.in.Absorb(absorbed)
	// The count keeps the engine open until the disk is done.
	h.reads.Add(1)
	h.rt.Disk(true, func() {
		done.st, done.err = ev.in.Finish(promised, least)
		if p := h.cfg.Probe; done.err == nil && p != nil && p.Installed != nil {
			p.Installed(s.id)
		}
	}, func() {
		h.reads.Add(-1)
		if !h.post(done) {
			ev.answer(errStopping(opInstall))
		}
	})
}

// applyTo starts the replica of the new copy, or returns the old one to service.
func (ev installedEvent) applyTo(h *Host) {
	s := ev.s
	if ev.err != nil && !ev.in.Installed() {
		s.installing = false
		for _, o := range ev.merged {
			h.resumeSlot(o)
		}
		h.resumeSlot(s)
		h.markDirty(s)
		ev.answer(rhumb.Wrap(opInstall, ev.err))
		h.dropInstalled(s)
		return
	}
	// From here on the store has the new copy. A start reads it again if this fails.
	err := ev.err
	if err == nil {
		err = h.replaceSlot(s, ev.st)
	}
	// After the new copy is there. If it is from before a split, it holds the slots of a range that waits to be born, as a merged copy did.
	// Without either, the range would begin with an empty copy in the slots of the new one (seed 20048 of sim).
	for _, o := range ev.merged {
		if o.made && o.store != s.store {
			// Nobody asks for the copy in the other store any more. A start drops it if this one does not.
			o.gone = false
			dropRangesEvent{[]rhumb.RangeID{o.id}}.applyTo(h)
			continue
		}
		h.retireSlot(o)
	}
	if err != nil {
		h.cfg.Fatal(rhumb.Wrap(opInstall, err))
	}
	ev.answer(nil)
	h.dropInstalled(s)
}

// dropInstalled drops the copy that a finished install left, if metadata dropped the range meanwhile.
func (h *Host) dropInstalled(s *slot) {
	if s.dropped {
		dropRangesEvent{[]rhumb.RangeID{s.id}}.applyTo(h)
	}
}

// Holds reports whether this node has a replica of a range.
func (h *Host) Holds(id rhumb.RangeID) bool {
	_, ok := h.findSlot(id)
	return ok
}

// replaceSlot puts a new slot with the stored state in the place of an old one.
func (h *Host) replaceSlot(old *slot, st storage.RangeState) error {
	fresh, err := h.addSlot(st, true)
	if err != nil {
		return err
	}
	// The record says what the new copy lacks.
	fresh.desc.Store(old.desc.Load())
	h.forgetSlot(old)
	h.m.installed.Inc()
	h.reserveAll()
	// The promise of the new slot holds for grants too.
	h.leases.excludeRange(fresh.id, fresh.r.Epoch(), rhumb.NoNode)
	h.resumeSlot(fresh)
	h.noteLag(fresh)
	// The image of the node learns of the new position. Its log does not lead there, so it reads the
	// range as a whole.
	at, seq, _ := fresh.r.Readable()
	if fresh.committed = seq; h.cfg.Committed != nil && seq > 0 {
		h.cfg.Committed(Committed{Range: fresh.id, Seq: seq, HLC: at})
	}
	for _, ev := range h.takeHeld(old) {
		ev.applyTo(h)
	}
	return nil
}
