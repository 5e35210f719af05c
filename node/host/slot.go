package host

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// slot is one range on this node.
//
// The pass owns the replica and the plain fields, except histories. desc and read are atomic: reads
// of clients and the heartbeat goroutine load them without a lock. A slot that is gone stays in no
// list of the host, but events that still refer to it may arrive.
type slot struct {
	id rhumb.RangeID
	// last is the last slot of the range. Other goroutines see it in Host.wide and in read.
	last  rhumb.Slot
	store *storage.Store
	r     *replica.Replica
	// dirty is true while the slot is in Host.dirtySlots, and active while it is in
	// Host.activeSlots.
	dirty bool
	// awaits reports that the slot is in Host.awaitingSlots.
	awaits bool
	active bool
	// made is true if the store knows the range. Until then its first commit creates it.
	made bool
	// window is that of a table that defers syncs, else 0.
	window time.Duration

	// quarantined is true once the quarantine is logged and counted.
	quarantined bool
	// quarantinedAt is when the node first looked at a quarantined copy in order to replace it.
	quarantinedAt time.Duration
	// floor is the epoch promised when the slot was created. The range's state gets it when the
	// first commit creates the range.
	floor rhumb.Epoch
	// gone is true once the copy is being discarded or replaced; another slot takes its place.
	// installing is true while it is replaced, which may fail.
	gone, installing bool
	// dropped is true if metadata dropped the range while the copy was installed. The slot that takes its place is
	// dropped then.
	dropped bool

	// sweep is the running search for records of dropped tables, or nil. unswept is true if some had to
	// stay until the log is trimmed further.
	sweep   *sweep
	unswept bool

	// weight is the slot's share of the host's budgets.
	weight weight
	// logKeep is the bound that boundLogs last set for the replica's log.
	logKeep int64

	// committed is the position last passed to Config.Committed.
	committed rhumb.Seq
	// recent holds the last appended entries that are not committed, without a gap, for
	// Config.Committed.
	recent []*entry.Entry

	// held are proposals that wait until the replica is active. heldSince is when the first of them
	// arrived.
	held      []*proposeEvent
	heldSince time.Duration

	// requests recognises repeated requests while this replica is primary.
	requests requests

	// names counts the names that this replica assigned as primary of namesEpoch.
	names      uint64
	namesEpoch rhumb.Epoch

	// histories holds the tables with history that collection has found in this range since the
	// node started. Only the collector's goroutine uses it.
	histories map[rhumb.TableID]*historyWalk

	// desc is the newest metadata record, or nil until the first arrives.
	desc atomic.Pointer[rhumb.Range]
	// read holds the authority of strong reads, or nil while this replica serves none.
	read atomic.Pointer[readState]
	// role is what requests see of the replica's role, and awaited those that wait for another.
	role    atomic.Pointer[slotRole]
	awaited awaited
}

// readState is the authority under which reads are answered, and the committed state that they see.
// It is immutable: publishReadState replaces it as a whole, so a read can compare pointers to
// notice a change.
type readState struct {
	epoch  rhumb.Epoch
	at     rhumb.Timestamp
	grants []rhumb.NodeID
	last   rhumb.Slot // keys beyond this slot are in another range by now
}

// wideSlot is the slot of a range of several slots of the keyspace.
type wideSlot struct {
	id   rhumb.RangeID
	last rhumb.Slot
	s    *slot
}

// homeSlot returns the slot of the range that holds a home.
func (h *Host) homeSlot(home rhumb.RangeID) (*slot, bool) {
	if s, ok := h.findSlot(home); ok {
		return s, true
	}
	wide := h.wide.Load()
	if wide == nil {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(*wide, home, func(w wideSlot, home rhumb.RangeID) int { return w.id.Compare(home) })
	if i == 0 {
		return nil, false
	}
	w := (*wide)[i-1]
	return w.s, w.id.Region == home.Region && home.Slot <= w.last
}

// indexSlots makes homeSlot find the slots by their present bounds. The pass calls it after a change.
func (h *Host) indexSlots() {
	var wide []wideSlot
	for _, s := range h.allSlots {
		if s.last > s.id.Slot && !s.gone {
			wide = append(wide, wideSlot{s.id, s.last, s})
		}
	}
	slices.SortFunc(wide, func(a, b wideSlot) int { return a.id.Compare(b.id) })
	h.wide.Store(&wide)
}

// homeOf returns the home of a key that belongs, or belonged, to a range.
func (h *Host) homeOf(id rhumb.RangeID, table rhumb.TableID, name []byte) rhumb.RangeID {
	if h.cfg.HomeIn == nil {
		return id
	}
	return h.cfg.HomeIn(id, table, name)
}

// keyOf returns a key of the range. It fails if the key belongs to another range, which may hold keys
// that this range held before.
func (h *Host) keyOf(op rhumb.Op, s *slot, last rhumb.Slot, table rhumb.TableID, name []byte) (rhumb.Key, error) {
	home := h.homeOf(s.id, table, name)
	if home.Slot < s.id.Slot || home.Slot > last {
		return rhumb.Key{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: home, Node: h.cfg.Self.Node, Msg: fmt.Sprintf(
			"key %s has the home %s, which is not in range %s; the range was split: retry", rhumb.NameString(name), home, s.id)}
	}
	return rhumb.Key{Table: table, Home: home, Name: name}, nil
}

// findSlot returns the slot of a range.
func (h *Host) findSlot(id rhumb.RangeID) (*slot, bool) {
	v, ok := h.slots.Load(id)
	if !ok {
		return nil, false
	}
	return v.(*slot), true
}

// eachSlot calls do for every slot. Any goroutine may call it.
func (h *Host) eachSlot(do func(*slot)) {
	h.slots.Range(func(_, v any) bool {
		do(v.(*slot))
		return true
	})
}

// addSlot starts the replica of a range from the stored state. made is true if the store knows the
// range.
func (h *Host) addSlot(st storage.RangeState, made bool) (s *slot, err error) {
	s = &slot{id: st.Range, last: max(st.Range.Slot, st.LastSlot), store: h.cfg.Engine.Store(st.Range), made: made, logKeep: h.logKeepRange()}
	var d replica.Durable
	// A damaged copy starts quarantined instead of failing the node: the other ranges of the node
	// are not affected (docs/replication.md#storage-faults).
	if s.store.RangeDamaged(st.Range) {
		d = replica.Durable{Promised: st.Promised, Quarantine: damageReason(s.store)}
	} else if d, err = loadDurable(s.store, st); rhumb.KindOf(err) == rhumb.Corrupt {
		d = replica.Durable{Promised: st.Promised, Quarantine: rhumb.Message(err)}
	} else if err != nil {
		return nil, err
	}
	// The disk may have forgotten promises, so the largest of all sources counts.
	d.Promised = max(d.Promised, st.Promised, h.relearnedEpoch(st.Range))
	s.floor = st.Promised
	cfg := h.cfg.Replica
	cfg.Range, cfg.Self, cfg.Life = st.Range, h.cfg.Self.Node, h.cfg.Self.Boot
	// A range whose class is not known yet keeps the default.
	if c, ok := h.cfg.Settings(st.Range); ok {
		cfg.MinInSync = c.MinInSync
		s.window = c.Durability.Window()
		cfg.Deferred = s.window
		// Metadata knows the class by now, and a class never changes its goal.
		if c.Survival == rhumb.SurviveRegion && h.cfg.Spans != nil {
			cfg.Spans = func(members []rhumb.NodeID) bool { return h.cfg.Spans(st.Range, members) }
		}
	}
	s.r = replica.New(cfg, d)
	s.r.SetUnfit(!h.fit.Load().allowsPrimary(s))
	h.slots.Store(st.Range, s)
	h.allSlots = append(h.allSlots, s)
	// New indexes all slots at once.
	if h.known == nil && s.last > s.id.Slot {
		h.indexSlots()
	}
	return s, nil
}

// relearnedEpoch returns the least epoch that this node may promise in this life: the epoch of the
// record before this life was registered (docs/replication.md#rule-relearn). An older copy of the disk has forgotten
// promises. To act again in such an epoch, or to answer in one that is over, would break them. If
// this node is the primary of the record, the registration created the record's epoch, so the one
// before counts.
func (h *Host) relearnedEpoch(id rhumb.RangeID) rhumb.Epoch {
	d := h.known[id]
	switch {
	case d == nil:
		return 0
	case d.Primary == h.cfg.Self.Node:
		return d.Epoch - 1
	}
	return d.Epoch
}

// loadDurable reads the stored state that a replica needs: the positions of its log from the commit
// position to the end.
func loadDurable(store *storage.Store, st storage.RangeState) (replica.Durable, error) {
	d := replica.Durable{
		Promised: st.Promised, Last: st.Last, LastHLC: st.LastHLC,
		Commit: st.Commit, CommitHLC: st.CommitHLC, Trim: st.Trim, Quarantine: st.Quarantine,
	}
	if size, ok := store.Size(st.Range); ok {
		d.LogBytes = size.Log
	}
	for _, l := range st.Lineage {
		d.Lineage = append(d.Lineage, replica.EpochStart{Epoch: l.Epoch, First: l.First})
	}
	d.LastSlot, d.End = st.LastSlot, replica.End(st.End)
	if st.Last.Seq == 0 {
		return d, nil
	}
	// Committed entries are never undone, so positions below the commit position are not needed in
	// memory.
	first := max(st.Commit, 1)
	marks, err := store.Marks(st.Range, first, st.Last.Seq)
	if err != nil {
		return d, err
	}
	// A gap means damage. The error quarantines the copy.
	if want := int(st.Last.Seq - first + 1); len(marks) != want {
		return d, rhumb.Ef("host.durable", rhumb.Corrupt, "range %s: %d entries are missing in the log from %d to %d", st.Range, want-len(marks), first, st.Last.Seq)
	}
	for _, m := range marks {
		d.Tail = append(d.Tail, replica.Mark(m))
	}
	return d, nil
}

// newName returns a name that is never assigned again in this range: an epoch has one primary,
// which counts its names (docs/replication.md#rule-names). The pass of a primary calls it.
func (s *slot) newName() ([]byte, error) {
	if epoch := s.r.Epoch(); s.namesEpoch != epoch {
		s.names, s.namesEpoch = 0, epoch
	}
	s.names++
	seq, err := rhumb.MakeSequence(s.namesEpoch, s.names)
	if err != nil {
		return nil, err
	}
	return rhumb.SequenceName(seq), nil
}

// Update takes the newest metadata records of ranges that this node holds, held, or is to hold.
func (h *Host) Update(ranges []*rhumb.Range) { h.post(updateEvent{ranges}) }

// SetPeers sets the nodes of the cluster and the timing of each pair.
func (h *Host) SetPeers(peers []lease.PeerInfo) { h.leases.setPeers(peers) }

// updateRanges passes records to the replicas, and creates those that metadata has placed on this
// node.
func (h *Host) updateRanges(ranges []*rhumb.Range) {
	for _, d := range ranges {
		s, ok := h.findSlot(d.ID)
		placed := d.IsReplica(h.cfg.Self.Node)
		switch {
		case !ok && !placed:
			h.forgetUnborn(d.ID)
			continue
		case !ok && h.isUnborn(d):
			h.noteUnborn(d)
			continue
		case ok && !placed:
			// News may arrive out of order: only a record that the replica does not know yet removes it.
			if old := s.desc.Load(); old == nil || old.Version < d.Version {
				h.moveAway(s, d)
			}
			continue
		case !ok:
			// This node never held the range. The first commit of the range creates its stored
			// state. A crash before that leaves no trace, and metadata announces the range again.
			// Nothing is read here, so nothing fails.
			s = h.startUnborn(d)
		}
		h.setRecord(s, d)
	}
}

// setRecord passes a record to a replica, unless the replica has a newer one: news may arrive out
// of order.
func (h *Host) setRecord(s *slot, d *rhumb.Range) {
	if old := s.desc.Load(); old != nil && old.Version > d.Version {
		return
	}
	s.desc.Store(d)
	// A copy that is being dropped takes no part any more. What replaces it gets the record.
	if s.gone {
		return
	}
	// An empty copy has nothing to divide.
	if last := h.freeLast(s, d); !s.made && s.last != last {
		s.last = last
		s.r.SetLastSlot(last)
		h.indexSlots()
		h.settleUnborn()
	}
	s.r.Describe(d)
	now := h.rt.Now()
	for _, n := range d.Replicas {
		// The replica may see this peer for the first time, and events about its connection arrive
		// only when it changes.
		if p, ok := h.nodes[n]; ok && n != h.cfg.Self.Node {
			s.r.Peer(now, n, p.connected, p.suspect)
			s.r.SetSlow(n, h.slow.isPeerSlow(n))
			s.r.SetDraining(n, p.drains)
		}
	}
	h.markDirty(s)
}

// confirmedEvent tries the elected replicas again whose grants to others were not over. It follows a frame of a peer.
//
// Ticks try them as well, every tickInterval. But in a handover all writes of the range wait for this moment, and
// a round trip between machines of a region is a small part of a tick.
type confirmedEvent struct{}

func (confirmedEvent) applyTo(h *Host) {
	slots := h.awaitingSlots
	h.awaitingSlots = nil
	for _, s := range slots {
		s.awaits = false
		if !s.gone {
			h.tryActivate(s)
		}
	}
}

// tryActivate lets an elected replica serve once every grant of this node to others for the range
// is over (rule E).
func (h *Host) tryActivate(s *slot) {
	epoch, ok := s.r.AwaitsActivation()
	if !ok {
		return
	}
	over := h.leases.waitedOut(s.id, epoch)
	// No lease of an earlier epoch can exist, because there was none.
	if d := s.desc.Load(); d != nil && replica.BeginsWithoutAsking(d, epoch) {
		over = true
	}
	if h.cfg.Probe != nil {
		over = h.cfg.Probe.WaitedOut(s.id, over)
	}
	if !over {
		// Tried again with the next frame of a peer, which may confirm the exclusion, and with the next tick.
		if !s.awaits {
			s.awaits = true
			h.awaitingSlots = append(h.awaitingSlots, s)
		}
		h.leases.awaited.Store(true)
		return
	}
	// The replica also keeps the epoch above the clocks in the answers of rule P.
	ts, err := h.cfg.Clock.Now()
	if err != nil {
		h.log.Warn("cannot activate a range: the clock has no ceiling", "range", s.id.String(), "err", err)
		return
	}
	h.log.Debug("activated a range", "range", s.id.String(), "epoch", epoch)
	s.r.Activate(ts)
	h.markDirty(s)
}

// Replica returns the replica of a range. Only a caller that runs the host on one goroutine may
// look at it, between passes.
func (h *Host) Replica(id rhumb.RangeID) (*replica.Replica, bool) {
	s, ok := h.findSlot(id)
	if !ok {
		return nil, false
	}
	return s.r, true
}

// Range returns the newest metadata record of a range that this node holds.
func (h *Host) Range(id rhumb.RangeID) (*rhumb.Range, bool) {
	s, ok := h.findSlot(id)
	if !ok {
		return nil, false
	}
	d := s.desc.Load()
	return d, d != nil
}
