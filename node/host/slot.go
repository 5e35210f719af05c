package host

import (
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// slot is one range on this node. The replica belongs to the pass; the rest is atomic.
type slot struct {
	id    rhumb.RangeID
	store *storage.Store
	r     *replica.Replica
	dirty bool // waits in Host.dirty
	// active says that the slot is in Host.active.
	active bool
	made   bool // the store knows the range; until then its first commit makes it

	quarantined bool        // has been told
	floor       rhumb.Epoch // promised when the slot was made; goes into the range's state when its first commit makes it
	gone        bool        // the copy was discarded: another slot takes its place

	weight  weight // what the host's budgets count of it
	logKeep int64  // what boundLogs told the replica to keep of its log

	committed rhumb.Seq // what Config.Committed was told last
	// recent are the last entries that were appended and are not committed, without a gap, for Config.Committed.
	recent []*entry.Entry

	// held are proposals that wait for the replica to be active, the first of them since heldSince.
	held      []*proposeEvent
	heldSince time.Duration

	// clients holds the greatest request number seen of each client while this replica is primary of clientsEpoch. A
	// request above it was never seen, here or in an earlier epoch, and need not be looked up.
	clients      map[rhumb.UUID]uint64
	clientsEpoch rhumb.Epoch

	// names counts the names that this replica gave as primary of namesEpoch.
	names      uint64
	namesEpoch rhumb.Epoch

	// histories are the tables with history that collection has met in this range since the node started. Only the
	// collector's goroutine uses it.
	histories map[rhumb.TableID]*historyWalk

	// desc is the newest metadata record; nil until the first arrives.
	desc atomic.Pointer[rhumb.Range]
	// read is what a strong read needs; nil while this replica serves none.
	read atomic.Pointer[readState]
}

// readState is the authority under which reads are answered, and the committed state that they see.
type readState struct {
	epoch  rhumb.Epoch
	at     rhumb.Timestamp
	grants []rhumb.NodeID
}

func (h *Host) slot(id rhumb.RangeID) (*slot, bool) {
	v, ok := h.slots.Load(id)
	if !ok {
		return nil, false
	}
	return v.(*slot), true
}

func (h *Host) eachSlot(do func(*slot)) {
	h.slots.Range(func(_, v any) bool {
		do(v.(*slot))
		return true
	})
}

// addSlot starts the replica of a range from what its store holds, if it holds anything.
func (h *Host) addSlot(st storage.RangeState, made bool) (s *slot, err error) {
	s = &slot{id: st.Range, store: h.cfg.Engine.Store(st.Range), made: made, logKeep: rhumb.LogKeepRange}
	var d replica.Durable
	if s.store.RangeDamaged(st.Range) {
		d = replica.Durable{Promised: st.Promised, Quarantine: damageReason(s.store)}
	} else if d, err = durable(s.store, st); rhumb.KindOf(err) == rhumb.Corrupt {
		d = replica.Durable{Promised: st.Promised, Quarantine: rhumb.Message(err)}
	} else if err != nil {
		return nil, err
	}
	d.Promised = max(d.Promised, st.Promised, h.relearned(st.Range))
	s.floor = st.Promised
	cfg := h.cfg.Replica
	cfg.Range, cfg.Self, cfg.Life = st.Range, h.cfg.Self.Node, h.cfg.Self.Boot
	if c, ok := h.cfg.Settings(st.Range); ok {
		cfg.MinInSync = c.MinInSync
	}
	s.r = replica.New(cfg, d)
	s.r.SetUnfit(!h.fit.Load().of(s))
	h.slots.Store(st.Range, s)
	h.all = append(h.all, s)
	return s, nil
}

// relearned returns the least epoch that this node may promise in this life: that of the record before this life was
// registered (ruling 16a). An older copy of the disk has forgotten promises; to act in an epoch again, or to answer in one
// that is over, would undo what they were for. A range whose primary this node is has got its epoch by the registration.
func (h *Host) relearned(id rhumb.RangeID) rhumb.Epoch {
	d := h.known[id]
	switch {
	case d == nil:
		return 0
	case d.Primary == h.cfg.Self.Node:
		return d.Epoch - 1
	}
	return d.Epoch
}

// durable reads what a replica needs to know of its stored log: the positions from the commit position to the end.
func durable(store *storage.Store, st storage.RangeState) (replica.Durable, error) {
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
	if st.Last.Seq == 0 {
		return d, nil
	}
	first := max(st.Commit, 1)
	marks, err := store.Marks(st.Range, first, st.Last.Seq)
	if err != nil {
		return d, err
	}
	if want := int(st.Last.Seq - first + 1); len(marks) != want {
		return d, rhumb.Ef("host.durable", rhumb.Corrupt, "range %s: %d entries are missing from a log that goes from %d to %d", st.Range, want-len(marks), first, st.Last.Seq)
	}
	for _, m := range marks {
		d.Tail = append(d.Tail, replica.Mark(m))
	}
	return d, nil
}

// newName returns a name that nobody ever gives again in this range: an epoch has one primary, which counts (ruling 20).
// The pass of a primary calls it.
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

// clientsMax bounds the clients remembered per range; beyond it they are forgotten, which costs a look-up each.
const clientsMax = 4_096

// seen gives the stored result of a request, if the request was applied before; expired says that this cannot be known
// any more: its client has since sent a request that it sends only once this one was answered, or the result was
// collected. The pass of a primary calls it.
func (s *slot) seen(id rhumb.RequestID) (seen *replica.Dedup, expired bool, err error) {
	if epoch := s.r.Epoch(); s.clientsEpoch != epoch || len(s.clients) >= clientsMax {
		s.clients, s.clientsEpoch = map[rhumb.UUID]uint64{}, epoch
	}
	last, known := s.clients[id.Client]
	if !known {
		if last, err = s.store.LastRequest(s.id, id.Client); err != nil {
			return nil, false, err
		}
	}
	s.clients[id.Client] = max(last, id.Seq)
	if id.Seq > last {
		return nil, false, nil
	}
	stored, found, err := s.store.Dedup(s.id, id)
	switch {
	case err != nil:
		return nil, false, err
	case found:
		o := &stored.Outcome
		return &replica.Dedup{Seq: stored.Seq, Version: o.Version, Applied: o.Applied, Existed: o.Existed, Names: o.Names}, false, nil
	case last-id.Seq >= rhumb.DedupWindow:
		return nil, true, nil
	}
	floor, err := s.store.RequestFloor(s.id, id.Client) // after Dedup: collection deletes the result as it raises the floor
	return nil, id.Seq <= floor, err
}

// Update takes the newest metadata records of ranges that this node holds, held, or is to hold.
func (h *Host) Update(ranges []*rhumb.Range) { h.post(updateEvent{ranges}) }

// SetPeers tells the leases which nodes there are and how far they are.
func (h *Host) SetPeers(peers []lease.PeerInfo) { h.leases.setPeers(peers) }

func (h *Host) update(ranges []*rhumb.Range) {
	for _, d := range ranges {
		s, ok := h.slot(d.ID)
		switch {
		case !ok && !d.IsReplica(h.cfg.Self.Node):
			continue
		case !ok:
			// A range that this node has never held. Its record rides with its first commit: a crash before that leaves no
			// trace, and metadata tells of the range again.
			s, _ = h.addSlot(storage.RangeState{Range: d.ID}, false) // nothing is read, so nothing fails
		}
		h.describe(s, d)
	}
}

func (h *Host) describe(s *slot, d *rhumb.Range) {
	if old := s.desc.Load(); old != nil && old.Version > d.Version {
		return
	}
	s.desc.Store(d)
	s.r.Describe(d)
	now := h.rt.Now()
	for _, n := range d.Replicas {
		if p, ok := h.nodes[n]; ok && n != h.cfg.Self.Node {
			s.r.Peer(now, n, p.connected, p.suspect)
		}
	}
	h.touch(s)
}

// tryActivate lets an elected replica serve once every grant that this node gave to others for the range is over.
func (h *Host) tryActivate(s *slot) {
	epoch, ok := s.r.AwaitsActivation()
	if !ok {
		return
	}
	over := h.leases.waitedOut(s.id, epoch)
	if h.cfg.Probe != nil {
		over = h.cfg.Probe.WaitedOut(s.id, over)
	}
	if !over {
		return
	}
	ts, err := h.cfg.Clock.Now()
	if err != nil {
		h.log.Warn("the clock has no ceiling: cannot activate", "range", s.id.String(), "err", err)
		return
	}
	h.log.Debug("range activated", "range", s.id.String(), "epoch", epoch)
	s.r.Activate(ts)
	h.touch(s)
}

// Replica returns the replica of a range. Only who runs the host on one goroutine may look at it, between passes.
func (h *Host) Replica(id rhumb.RangeID) (*replica.Replica, bool) {
	s, ok := h.slot(id)
	if !ok {
		return nil, false
	}
	return s.r, true
}

// Range gives the newest metadata record of a range that this node holds.
func (h *Host) Range(id rhumb.RangeID) (*rhumb.Range, bool) {
	s, ok := h.slot(id)
	if !ok {
		return nil, false
	}
	d := s.desc.Load()
	return d, d != nil
}
