package api

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodeUUID gives the sixteen bytes, or nothing for the zero UUID.
func EncodeUUID(u rhumb.UUID) []byte {
	if u.IsZero() {
		return nil
	}
	return u[:]
}

// DecodeUUID reads sixteen bytes, or the zero UUID from none.
func DecodeUUID(b []byte) (u rhumb.UUID, err error) {
	const op rhumb.Op = "api.DecodeUUID"
	switch len(b) {
	case 0:
		return u, nil
	case len(u):
		return rhumb.UUID(b), nil
	}
	return u, rhumb.Ef(op, rhumb.InvalidArgument, "an id has %d bytes, want %d", len(b), len(u))
}

// EncodeRangeID makes a message of a range's name.
func EncodeRangeID(r rhumb.RangeID) *rhumbpb.RangeID {
	return &rhumbpb.RangeID{Region: uint32(r.Region), Slot: uint32(r.Slot)}
}

// DecodeRangeID reads a range's name; nil is the zero RangeID.
func DecodeRangeID(m *rhumbpb.RangeID) rhumb.RangeID {
	return rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())}
}

// EncodePoint makes a message of a place.
func EncodePoint(p rhumb.Point) *rhumbpb.Point { return &rhumbpb.Point{Lat: p.Lat, Lon: p.Lon} }

// DecodePoint reads a place; nil is 0,0. Whether it lies on the earth is checked by Point.Validate.
func DecodePoint(m *rhumbpb.Point) rhumb.Point {
	return rhumb.Point{Lat: m.GetLat(), Lon: m.GetLon()}
}

// EncodeIdentity makes a message of one life of a node.
func EncodeIdentity(i rhumb.NodeIdentity) *rhumbpb.Identity {
	return &rhumbpb.Identity{Node: uint32(i.Node), Store: EncodeUUID(i.Store), Boot: uint64(i.Boot)}
}

// DecodeIdentity reads one life of a node.
func DecodeIdentity(m *rhumbpb.Identity) (rhumb.NodeIdentity, error) {
	store, err := DecodeUUID(m.GetStore())
	return rhumb.NodeIdentity{Node: rhumb.NodeID(m.GetNode()), Store: store, Boot: rhumb.BootSeq(m.GetBoot())}, err
}

// EncodeRegion makes a message of a region.
func EncodeRegion(r rhumb.Region) *rhumbpb.Region {
	return &rhumbpb.Region{Id: uint32(r.ID), Name: r.Name, Location: EncodePoint(r.Location), Dead: r.Dead}
}

// DecodeRegion reads a region.
func DecodeRegion(m *rhumbpb.Region) rhumb.Region {
	return rhumb.Region{ID: rhumb.RegionID(m.GetId()), Name: m.GetName(), Location: DecodePoint(m.GetLocation()), Dead: m.GetDead()}
}

// EncodeNode makes a message of a node's record.
func EncodeNode(n rhumb.Node) *rhumbpb.Node {
	return &rhumbpb.Node{
		Id: uint32(n.ID), Region: uint32(n.Region), Zone: n.Zone,
		Addr: n.Addr, HeartbeatAddr: n.HeartbeatAddr, AdminAddr: n.AdminAddr,
		Location: EncodePoint(n.Location), Store: EncodeUUID(n.Store), Boot: uint64(n.Boot),
		State: rhumbpb.NodeState(n.State), Voter: n.Voter, Binary: n.Binary, Short: n.Short,
	}
}

// DecodeNode reads a node's record. A state that this binary does not know is NodeFenced: no role is trusted to it.
func DecodeNode(m *rhumbpb.Node) (rhumb.Node, error) {
	store, err := DecodeUUID(m.GetStore())
	n := rhumb.Node{
		ID: rhumb.NodeID(m.GetId()), Region: rhumb.RegionID(m.GetRegion()), Zone: m.GetZone(),
		Addr: m.GetAddr(), HeartbeatAddr: m.GetHeartbeatAddr(), AdminAddr: m.GetAdminAddr(),
		Location: DecodePoint(m.GetLocation()), Store: store, Boot: rhumb.BootSeq(m.GetBoot()),
		Voter: m.GetVoter(), Binary: m.GetBinary(), Short: m.GetShort(),
	}
	switch s := m.GetState(); {
	case s == 0:
	case s > 0 && s <= rhumbpb.NodeState_NODE_STATE_DRAINING:
		n.State = rhumb.NodeState(s)
	default:
		n.State = rhumb.NodeFenced
	}
	return n, err
}

// EncodeSettings makes a message of a class's settings.
func EncodeSettings(c rhumb.ClassSettings) *rhumbpb.ClassSettings {
	return &rhumbpb.ClassSettings{
		Mode: rhumbpb.Mode(c.Mode), Replicas: uint32(c.Replicas), MinInSync: uint32(c.MinInSync),
		Survival: rhumbpb.Survival(c.Survival), HashSlots: uint32(c.HashSlots), ShardSize: c.ShardSize,
	}
}

// DecodeSettings reads a class's settings. Those of the wire that do not fit in their types are kept out of range, so
// that ClassSettings.Validate refuses them.
func DecodeSettings(m *rhumbpb.ClassSettings) rhumb.ClassSettings {
	return rhumb.ClassSettings{
		Mode: rhumb.Mode(small(int64(m.GetMode()))), Replicas: int(m.GetReplicas()), MinInSync: int(m.GetMinInSync()),
		Survival: rhumb.Survival(small(int64(m.GetSurvival()))), HashSlots: int(m.GetHashSlots()), ShardSize: m.GetShardSize(),
	}
}

// small narrows an enum to a byte; what does not fit becomes 255, which no enum uses.
func small(v int64) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}

// FillSettings gives settings that were left 0 their defaults: one replica then needs one in sync.
func FillSettings(c rhumb.ClassSettings) rhumb.ClassSettings {
	d := rhumb.DefaultClassSettings()
	fill(&c.Mode, d.Mode)
	fill(&c.Replicas, d.Replicas)
	fill(&c.MinInSync, min(d.MinInSync, c.Replicas))
	fill(&c.Survival, d.Survival)
	fill(&c.HashSlots, d.HashSlots)
	fill(&c.ShardSize, d.ShardSize)
	return c
}

func fill[T comparable](dst *T, def T) {
	if *dst == *new(T) {
		*dst = def
	}
}

// EncodeClass makes a message of a class.
func EncodeClass(c rhumb.Class) *rhumbpb.Class {
	return &rhumbpb.Class{Id: uint32(c.ID), Settings: EncodeSettings(c.Settings)}
}

// DecodeClass reads a class.
func DecodeClass(m *rhumbpb.Class) rhumb.Class {
	return rhumb.Class{ID: rhumb.ClassID(m.GetId()), Settings: DecodeSettings(m.GetSettings())}
}

// EncodeTable makes a message of a table.
func EncodeTable(t rhumb.Table) *rhumbpb.Table {
	m := encodeTableOptions(t.TableOptions)
	m.Id, m.Name, m.Class = uint32(t.ID), t.Name, uint32(t.Class)
	return m
}

// DecodeTable reads a table.
func DecodeTable(m *rhumbpb.Table) (rhumb.Table, error) {
	o, err := DecodeTableOptions(m)
	return rhumb.Table{ID: rhumb.TableID(m.GetId()), Name: m.GetName(), Class: rhumb.ClassID(m.GetClass()), TableOptions: o}, err
}

// EncodeBlock makes a message of a block of slots.
func EncodeBlock(b rhumb.Block) *rhumbpb.Block {
	return &rhumbpb.Block{Region: uint32(b.Region), Class: uint32(b.Class), Node: uint32(b.Node), First: uint32(b.First)}
}

// DecodeBlock reads a block of slots.
func DecodeBlock(m *rhumbpb.Block) rhumb.Block {
	return rhumb.Block{
		Region: rhumb.RegionID(m.GetRegion()), Class: rhumb.ClassID(m.GetClass()),
		Node: rhumb.NodeID(m.GetNode()), First: rhumb.Slot(m.GetFirst()),
	}
}

// EncodeRange makes a message of a range's descriptor.
func EncodeRange(r *rhumb.Range) *rhumbpb.Range {
	return &rhumbpb.Range{
		Region: uint32(r.ID.Region), Slot: uint32(r.ID.Slot), Class: uint32(r.Class),
		Epoch: uint64(r.Epoch), Allocated: uint64(r.Allocated), Version: r.Version,
		Primary: uint32(r.Primary), Preferred: uint32(r.Preferred),
		InSync: encodeNodes(r.InSync), Replicas: encodeNodes(r.Replicas), Quarantined: encodeNodes(r.Quarantined),
		Recovery: encodeRecovery(r.Recovery),
	}
}

func encodeRecovery(r *rhumb.Recovery) *rhumbpb.RangeRecovery {
	if r == nil {
		return nil
	}
	return &rhumbpb.RangeRecovery{
		Epoch: uint64(r.Epoch), Node: uint32(r.Node), Gone: encodeNodes(r.Gone), End: uint64(r.End), EndTime: uint64(r.EndTime), Known: uint64(r.Known),
	}
}

func decodeRecovery(m *rhumbpb.RangeRecovery) *rhumb.Recovery {
	if m == nil {
		return nil
	}
	return &rhumb.Recovery{
		Epoch: rhumb.Epoch(m.Epoch), Node: rhumb.NodeID(m.Node), Gone: decodeNodes(m.Gone), End: rhumb.Seq(m.End),
		EndTime: rhumb.Timestamp(m.EndTime), Known: rhumb.Seq(m.Known),
	}
}

// DecodeRange reads a range's descriptor.
func DecodeRange(m *rhumbpb.Range) *rhumb.Range {
	return &rhumb.Range{
		ID:    rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
		Class: rhumb.ClassID(m.GetClass()), Epoch: rhumb.Epoch(m.GetEpoch()), Allocated: rhumb.Epoch(m.GetAllocated()),
		Version: m.GetVersion(), Primary: rhumb.NodeID(m.GetPrimary()), Preferred: rhumb.NodeID(m.GetPreferred()),
		InSync: decodeNodes(m.GetInSync()), Replicas: decodeNodes(m.GetReplicas()), Quarantined: decodeNodes(m.GetQuarantined()),
		Recovery: decodeRecovery(m.GetRecovery()),
	}
}

func encodeNodes(ns []rhumb.NodeID) []uint32 {
	return convert(ns, func(n rhumb.NodeID) uint32 { return uint32(n) })
}

func decodeNodes(ns []uint32) []rhumb.NodeID {
	return convert(ns, func(n uint32) rhumb.NodeID { return rhumb.NodeID(n) })
}

// convert maps a slice; nil and empty become nil.
func convert[A, B any](in []A, f func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}
