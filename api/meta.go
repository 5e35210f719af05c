package api

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodeUUID returns the sixteen bytes of a UUID, or nil for the zero UUID.
func EncodeUUID(u rhumb.UUID) []byte {
	if u.IsZero() {
		return nil
	}
	return u[:]
}

// DecodeUUID returns a UUID from sixteen bytes, or the zero UUID from none.
func DecodeUUID(b []byte) (u rhumb.UUID, err error) {
	const op rhumb.Op = "api.DecodeUUID"
	switch len(b) {
	case 0:
		return u, nil
	case len(u):
		return rhumb.UUID(b), nil
	}
	return u, rhumb.Ef(op, rhumb.InvalidArgument, "an ID has %d bytes, want %d", len(b), len(u))
}

// EncodeRangeID returns the message for a range ID.
func EncodeRangeID(r rhumb.RangeID) *rhumbpb.RangeID {
	return &rhumbpb.RangeID{Region: uint32(r.Region), Slot: uint32(r.Slot)}
}

// DecodeRangeID returns a range ID; for nil, the zero RangeID.
func DecodeRangeID(m *rhumbpb.RangeID) rhumb.RangeID {
	return rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())}
}

// EncodePoint returns the message for a point.
func EncodePoint(p rhumb.Point) *rhumbpb.Point { return &rhumbpb.Point{Lat: p.Lat, Lon: p.Lon} }

// DecodePoint returns a point; for nil, 0,0. Point.Validate checks whether it is on the earth.
func DecodePoint(m *rhumbpb.Point) rhumb.Point {
	return rhumb.Point{Lat: m.GetLat(), Lon: m.GetLon()}
}

// EncodeIdentity returns the message for one life of a node.
func EncodeIdentity(i rhumb.NodeIdentity) *rhumbpb.Identity {
	return &rhumbpb.Identity{Node: uint32(i.Node), Store: EncodeUUID(i.Store), Boot: uint64(i.Boot)}
}

// DecodeIdentity returns one life of a node.
func DecodeIdentity(m *rhumbpb.Identity) (rhumb.NodeIdentity, error) {
	store, err := DecodeUUID(m.GetStore())
	return rhumb.NodeIdentity{Node: rhumb.NodeID(m.GetNode()), Store: store, Boot: rhumb.BootSeq(m.GetBoot())}, err
}

// EncodeRegion returns the message for a region.
func EncodeRegion(r rhumb.Region) *rhumbpb.Region {
	return &rhumbpb.Region{Id: uint32(r.ID), Name: r.Name, Location: EncodePoint(r.Location), Dead: r.Dead, Into: uint32(r.Into), Removed: r.Removed, Lost: r.Lost}
}

// DecodeRegion returns a region.
func DecodeRegion(m *rhumbpb.Region) rhumb.Region {
	return rhumb.Region{
		ID: rhumb.RegionID(m.GetId()), Name: m.GetName(), Location: DecodePoint(m.GetLocation()), Dead: m.GetDead(),
		Into: rhumb.RegionID(m.GetInto()), Removed: m.GetRemoved(), Lost: m.GetLost(),
	}
}

// EncodeNode returns the message for the record of a node.
func EncodeNode(n rhumb.Node) *rhumbpb.Node {
	return &rhumbpb.Node{
		Id: uint32(n.ID), Region: uint32(n.Region), Zone: n.Zone,
		Addr: n.Addr, HeartbeatAddr: n.HeartbeatAddr, AdminAddr: n.AdminAddr,
		Location: EncodePoint(n.Location), Store: EncodeUUID(n.Store), Boot: uint64(n.Boot),
		State: rhumbpb.NodeState(n.State), Voter: n.Voter, Binary: n.Binary, Short: n.Short,
		Name: n.Name, Forgotten: n.Forgotten, Leaving: n.Leaving, ReplacedBy: uint32(n.ReplacedBy),
		VotePinned: n.VotePinned, Witness: n.Witness, Relapses: n.Relapses, FailedAtNs: encodeTime(n.FailedAt),
	}
}

// DecodeNode returns the record of a node. A state that this binary does not know becomes
// NodeFenced, so that the node gets no role.
func DecodeNode(m *rhumbpb.Node) (rhumb.Node, error) {
	store, err := DecodeUUID(m.GetStore())
	n := rhumb.Node{
		ID: rhumb.NodeID(m.GetId()), Region: rhumb.RegionID(m.GetRegion()), Zone: m.GetZone(),
		Addr: m.GetAddr(), HeartbeatAddr: m.GetHeartbeatAddr(), AdminAddr: m.GetAdminAddr(),
		Location: DecodePoint(m.GetLocation()), Store: store, Boot: rhumb.BootSeq(m.GetBoot()),
		Voter: m.GetVoter(), Binary: m.GetBinary(), Short: m.GetShort(),
		Name: m.GetName(), Forgotten: m.GetForgotten(), Leaving: m.GetLeaving(), ReplacedBy: rhumb.NodeID(m.GetReplacedBy()),
		VotePinned: m.GetVotePinned(), Witness: m.GetWitness(), Relapses: m.GetRelapses(), FailedAt: decodeTime(m.GetFailedAtNs()),
	}
	// 0 is not on the wire and means that the sender left the state to the receiver, as in a
	// JoinRequest.
	switch s := m.GetState(); {
	case s == 0:
	case s > 0 && s <= rhumbpb.NodeState_NODE_STATE_DECOMMISSIONING:
		n.State = rhumb.NodeState(s)
	default:
		n.State = rhumb.NodeFenced
	}
	return n, err
}

// EncodeSettings returns the message for the settings of a class.
func EncodeSettings(c rhumb.ClassSettings) *rhumbpb.ClassSettings {
	return &rhumbpb.ClassSettings{
		Mode: rhumbpb.Mode(c.Mode), Replicas: uint32(c.Replicas), MinInSync: uint32(c.MinInSync),
		Survival: rhumbpb.Survival(c.Survival), HashSlots: uint32(c.HashSlots), ShardSize: c.ShardSize, Buckets: uint32(c.Buckets), Regions: c.Regions.Names(),
		DeferredNs: int64(c.Durability),
	}
}

// DecodeSettings returns the settings of a class. A value that does not fit its type becomes one
// that ClassSettings.Validate rejects.
func DecodeSettings(m *rhumbpb.ClassSettings) rhumb.ClassSettings {
	return rhumb.ClassSettings{
		Mode: rhumb.Mode(clampToByte(int64(m.GetMode()))), Replicas: int(m.GetReplicas()), MinInSync: int(m.GetMinInSync()),
		Survival: rhumb.Survival(clampToByte(int64(m.GetSurvival()))), HashSlots: int(m.GetHashSlots()), ShardSize: m.GetShardSize(), Buckets: int(m.GetBuckets()),
		Regions: rhumb.NewRegionSet(m.GetRegions()...), Durability: rhumb.Durability(m.GetDeferredNs()),
	}
}

// clampToByte converts an enumeration to a byte. Values that do not fit become 255, which no
// enumeration uses: truncation could turn an unknown value into a known one.
func clampToByte(v int64) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}

// FillSettings sets each setting that is 0 to its default.
func FillSettings(c rhumb.ClassSettings) rhumb.ClassSettings {
	d := rhumb.DefaultClassSettings()
	fillDefault(&c.Mode, d.Mode)
	fillDefault(&c.Replicas, d.Replicas)
	fillDefault(&c.Survival, d.Survival)
	// With one replica only one can be in sync, whatever the default. With survival goal region, a majority lets
	// one region hold as many replicas as possible: 2 + 2 + 1 of 5.
	inSync := min(d.MinInSync, c.Replicas)
	if c.Survival == rhumb.SurviveRegion {
		inSync = c.Replicas/2 + 1
	}
	fillDefault(&c.MinInSync, inSync)
	fillDefault(&c.HashSlots, d.HashSlots)
	fillDefault(&c.ShardSize, d.ShardSize)
	return c
}

// fillDefault sets dst to def if it has its zero value.
func fillDefault[T comparable](dst *T, def T) {
	if *dst == *new(T) {
		*dst = def
	}
}

// EncodeClass returns the message for a class.
func EncodeClass(c rhumb.Class) *rhumbpb.Class {
	return &rhumbpb.Class{Id: uint32(c.ID), Settings: EncodeSettings(c.Settings)}
}

// DecodeClass returns a class.
func DecodeClass(m *rhumbpb.Class) rhumb.Class {
	return rhumb.Class{ID: rhumb.ClassID(m.GetId()), Settings: DecodeSettings(m.GetSettings())}
}

// EncodeTable returns the message for a table.
func EncodeTable(t rhumb.Table) *rhumbpb.Table {
	m := encodeTableOptions(t.TableOptions)
	m.Id, m.Name, m.Class = uint32(t.ID), t.Name, uint32(t.Class)
	return m
}

// DecodeTable returns a table.
func DecodeTable(m *rhumbpb.Table) (rhumb.Table, error) {
	o, err := DecodeTableOptions(m)
	return rhumb.Table{ID: rhumb.TableID(m.GetId()), Name: m.GetName(), Class: rhumb.ClassID(m.GetClass()), TableOptions: o}, err
}

// EncodeBlock returns the message for a block of slots.
func EncodeBlock(b rhumb.Block) *rhumbpb.Block {
	return &rhumbpb.Block{Region: uint32(b.Region), Class: uint32(b.Class), Node: uint32(b.Node), First: uint32(b.First), Slots: b.Slots}
}

// DecodeBlock returns a block of slots.
func DecodeBlock(m *rhumbpb.Block) rhumb.Block {
	return rhumb.Block{
		Region: rhumb.RegionID(m.GetRegion()), Class: rhumb.ClassID(m.GetClass()),
		Node: rhumb.NodeID(m.GetNode()), First: rhumb.Slot(m.GetFirst()), Slots: m.GetSlots(),
	}
}

// EncodeRange returns the message for the descriptor of a range.
func EncodeRange(r *rhumb.Range) *rhumbpb.Range {
	m := &rhumbpb.Range{
		Region: uint32(r.ID.Region), Slot: uint32(r.ID.Slot), Class: uint32(r.Class),
		Epoch: uint64(r.Epoch), Allocated: uint64(r.Allocated), Version: r.Version,
		Primary: uint32(r.Primary), Preferred: uint32(r.Preferred),
		InSync: encodeNodes(r.InSync), Replicas: encodeNodes(r.Replicas), Quarantined: encodeNodes(r.Quarantined),
		Recovery: encodeRecovery(r.Recovery), Last: uint32(r.Last), Birth: uint64(r.Birth), Leaving: encodeNodes(r.Leaving),
		Former: uint32(r.Former), TakesOver: r.TakesOver, Ends: r.Ends, Kept: r.Kept,
	}
	if h := r.Prepared; h != nil {
		m.PreparedEpoch, m.PreparedTarget = uint64(h.Epoch), uint32(h.Target)
	}
	return m
}

// encodeRecovery returns the message for a recovery, or nil.
func encodeRecovery(r *rhumb.Recovery) *rhumbpb.RangeRecovery {
	if r == nil {
		return nil
	}
	return &rhumbpb.RangeRecovery{
		Epoch: uint64(r.Epoch), Node: uint32(r.Node), Gone: encodeNodes(r.Gone), End: uint64(r.End), EndTime: uint64(r.EndTime), Known: uint64(r.Known),
	}
}

// decodeRecovery returns a recovery, or nil.
func decodeRecovery(m *rhumbpb.RangeRecovery) *rhumb.Recovery {
	if m == nil {
		return nil
	}
	return &rhumb.Recovery{
		Epoch: rhumb.Epoch(m.Epoch), Node: rhumb.NodeID(m.Node), Gone: decodeNodes(m.Gone), End: rhumb.Seq(m.End),
		EndTime: rhumb.Timestamp(m.EndTime), Known: rhumb.Seq(m.Known),
	}
}

// DecodeRange returns the descriptor of a range.
func DecodeRange(m *rhumbpb.Range) *rhumb.Range {
	r := &rhumb.Range{
		ID:    rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
		Class: rhumb.ClassID(m.GetClass()), Epoch: rhumb.Epoch(m.GetEpoch()), Allocated: rhumb.Epoch(m.GetAllocated()),
		Version: m.GetVersion(), Primary: rhumb.NodeID(m.GetPrimary()), Preferred: rhumb.NodeID(m.GetPreferred()),
		InSync: decodeNodes(m.GetInSync()), Replicas: decodeNodes(m.GetReplicas()), Quarantined: decodeNodes(m.GetQuarantined()),
		Recovery: decodeRecovery(m.GetRecovery()), Last: rhumb.Slot(m.GetLast()), Birth: rhumb.Epoch(m.GetBirth()), Leaving: decodeNodes(m.GetLeaving()),
		Former: rhumb.NodeID(m.GetFormer()), TakesOver: m.GetTakesOver(), Ends: m.GetEnds(), Kept: m.GetKept(),
	}
	if e := m.GetPreparedEpoch(); e > 0 {
		r.Prepared = &rhumb.Handover{Epoch: rhumb.Epoch(e), Target: rhumb.NodeID(m.GetPreparedTarget())}
	}
	return r
}

// encodeNodes returns node ids as the numbers of a message.
func encodeNodes(ns []rhumb.NodeID) []uint32 {
	return mapSlice(ns, func(n rhumb.NodeID) uint32 { return uint32(n) })
}

// decodeNodes is the inverse of encodeNodes.
func decodeNodes(ns []uint32) []rhumb.NodeID {
	return mapSlice(ns, func(n uint32) rhumb.NodeID { return rhumb.NodeID(n) })
}

// mapSlice returns f applied to each element. It returns nil for an empty slice, so that a value
// that was encoded and decoded equals the original.
func mapSlice[A, B any](in []A, f func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}
