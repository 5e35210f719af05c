package catalog

import (
	"github.com/rhumbdb/rhumb"
)

// wireState is the stored form of a state. Each list is in the order of the keys of its tree, so
// that equal states have equal bytes.
type wireState struct {
	Version    uint8          `cbor:"1,keyasint,omitempty"`
	Cluster    []byte         `cbor:"2,keyasint,omitempty"`
	Revision   uint64         `cbor:"3,keyasint,omitempty"`
	LastRegion rhumb.RegionID `cbor:"4,keyasint,omitempty"`
	LastNode   rhumb.NodeID   `cbor:"5,keyasint,omitempty"`
	LastTable  rhumb.TableID  `cbor:"6,keyasint,omitempty"`
	LastClass  rhumb.ClassID  `cbor:"7,keyasint,omitempty"`
	Regions    []wireRegion   `cbor:"8,keyasint,omitempty"`
	Nodes      []wireNode     `cbor:"9,keyasint,omitempty"`
	Classes    []wireClass    `cbor:"10,keyasint,omitempty"`
	Tables     []wireTable    `cbor:"11,keyasint,omitempty"`
	Blocks     []wireBlock    `cbor:"12,keyasint,omitempty"`
	Active     []wireActive   `cbor:"13,keyasint,omitempty"`
	Ranges     []wireRange    `cbor:"14,keyasint,omitempty"`
	// Quarantines, Lives and Recoveries belong to Ranges. wireRange is an array and has no room for
	// them, and most ranges have none.
	Quarantines []wireQuarantine `cbor:"15,keyasint,omitempty"`
	Lives       []wireLives      `cbor:"16,keyasint,omitempty"`
	Recoveries  []wireRecovery   `cbor:"17,keyasint,omitempty"`
	Distances   []wireDistance   `cbor:"70,keyasint,omitempty"`
	Handovers   []wireHandover   `cbor:"40,keyasint,omitempty"` // prepared ones
	// Spans belong to Ranges, and Widths to Blocks.
	Spans  []wireSpan  `cbor:"160,keyasint,omitempty"`
	Merges []wireMerge `cbor:"164,keyasint,omitempty"`
	Widths []wireWidth `cbor:"161,keyasint,omitempty"`
	// Kept are the ranges that an operator split off.
	Kept []wireRangeID `cbor:"165,keyasint,omitempty"`

	stateAccess                   // 60 to 62
	stateOperations               // 150 to 153
	Security        *wireSecurity `cbor:"50,keyasint,omitempty"`

	// ClusterVersion is missing from states of rhumb.VersionBase, whose programs do not know the field.
	ClusterVersion rhumb.ClusterVersion `cbor:"90,keyasint,omitempty"`

	Formers []wireFormer `cbor:"180,keyasint,omitempty"`
}

// wireSpan holds the last slot and the birth of a range that has several slots or is reserved.
type wireSpan struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
	Last   rhumb.Slot
	Birth  rhumb.Epoch
}

// wireFormer holds the former node of a range that has one.
type wireFormer struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
	Node   rhumb.NodeID
}

// wireMerge holds what a range that is being merged, or was, has to say about it.
type wireMerge struct {
	_         struct{} `cbor:",toarray"`
	Region    rhumb.RegionID
	Slot      rhumb.Slot
	TakesOver uint64
	Ends      uint64
	Merged    []rhumb.Slot
}

// wireWidth holds the number of slots of a block that has more than rhumb.BlockSlots.
type wireWidth struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	First  rhumb.Slot
	Slots  uint32
}

// wireRecovery is the loss that an operator accepted for a range.
type wireRecovery struct {
	_       struct{} `cbor:",toarray"`
	Region  rhumb.RegionID
	Slot    rhumb.Slot
	Epoch   rhumb.Epoch
	Node    rhumb.NodeID
	Gone    []rhumb.NodeID
	End     rhumb.Seq
	EndTime rhumb.Timestamp
	Known   rhumb.Seq
}

func toWireRecovery(id rhumb.RangeID, r *rhumb.Recovery) *wireRecovery {
	if r == nil {
		return nil
	}
	return &wireRecovery{
		Region: id.Region, Slot: id.Slot, Epoch: r.Epoch, Node: r.Node, Gone: r.Gone, End: r.End, EndTime: r.EndTime, Known: r.Known,
	}
}

func (w *wireRecovery) toRecovery() *rhumb.Recovery {
	if w == nil {
		return nil
	}
	return &rhumb.Recovery{Epoch: w.Epoch, Node: w.Node, Gone: w.Gone, End: w.End, EndTime: w.EndTime, Known: w.Known}
}

// wireHandover is the prepared handover of a range.
type wireHandover struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
	Epoch  rhumb.Epoch
	Target rhumb.NodeID
}

func toWireHandover(id rhumb.RangeID, h *rhumb.Handover) *wireHandover {
	if h == nil {
		return nil
	}
	return &wireHandover{Region: id.Region, Slot: id.Slot, Epoch: h.Epoch, Target: h.Target}
}

func (w *wireHandover) toHandover() *rhumb.Handover {
	if w == nil {
		return nil
	}
	return &rhumb.Handover{Epoch: w.Epoch, Target: w.Target}
}

// wireLives holds the recorded lives of a range that has any.
type wireLives struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
	Lives  []wireMember
}

func toWireLives(lives []rhumb.MemberLife) (out []wireMember) {
	for _, m := range lives {
		out = append(out, wireMember{Node: m.Node, Boot: m.Life})
	}
	return out
}

func fromWireLives(lives []wireMember) (out []rhumb.MemberLife) {
	for _, m := range lives {
		out = append(out, rhumb.MemberLife{Node: m.Node, Life: m.Boot})
	}
	return out
}

// wireQuarantine holds the quarantined replicas of a range that has any.
type wireQuarantine struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
	Nodes  []rhumb.NodeID
}

type wireRegion struct {
	ID       rhumb.RegionID `cbor:"1,keyasint"`
	Name     string         `cbor:"2,keyasint"`
	Location wirePoint      `cbor:"3,keyasint"`
	Blocks   uint32         `cbor:"4,keyasint,omitempty"`
	Dead     bool           `cbor:"5,keyasint,omitempty"`
	Into     rhumb.RegionID `cbor:"150,keyasint,omitempty"`
	Removed  bool           `cbor:"151,keyasint,omitempty"`
	Lost     uint32         `cbor:"152,keyasint,omitempty"`
}

type wireNode struct {
	ID            rhumb.NodeID    `cbor:"1,keyasint"`
	Region        rhumb.RegionID  `cbor:"2,keyasint"`
	Zone          string          `cbor:"3,keyasint"`
	Addr          string          `cbor:"4,keyasint,omitempty"`
	HeartbeatAddr string          `cbor:"5,keyasint,omitempty"`
	AdminAddr     string          `cbor:"6,keyasint,omitempty"`
	Location      wirePoint       `cbor:"7,keyasint"`
	Store         []byte          `cbor:"8,keyasint"`
	Boot          rhumb.BootSeq   `cbor:"9,keyasint"`
	State         rhumb.NodeState `cbor:"10,keyasint"`
	Voter         bool            `cbor:"11,keyasint,omitempty"`
	Binary        string          `cbor:"12,keyasint,omitempty"`
	Nonce         uint64          `cbor:"13,keyasint,omitempty"`
	Short         bool            `cbor:"14,keyasint,omitempty"`
	Past          []uint64        `cbor:"15,keyasint,omitempty"` // nonces of earlier lives, oldest first
	Name          string          `cbor:"50,keyasint,omitempty"`
	Forgotten     bool            `cbor:"51,keyasint,omitempty"`
	Leaving       bool            `cbor:"150,keyasint,omitempty"`
	ReplacedBy    rhumb.NodeID    `cbor:"151,keyasint,omitempty"`
	LeftBefore    bool            `cbor:"152,keyasint,omitempty"`
	VotePinned    bool            `cbor:"80,keyasint,omitempty"`
	Witness       bool            `cbor:"81,keyasint,omitempty"`
	Relapses      uint32          `cbor:"143,keyasint,omitempty"`
	FailedAt      int64           `cbor:"144,keyasint,omitempty"` // nanoseconds since 1970
}

type wireClass struct {
	ID       rhumb.ClassID `cbor:"1,keyasint"`
	Settings wireSettings  `cbor:"2,keyasint"`
	Dropping bool          `cbor:"70,keyasint,omitempty"`
}

type wireTable struct {
	ID           rhumb.TableID `cbor:"1,keyasint"`
	Name         string        `cbor:"2,keyasint"`
	Class        rhumb.ClassID `cbor:"3,keyasint"`
	stateOptions               // 4 to 7
}

// wireBlock is a block; Node is NoNode for hash slots.
type wireBlock struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	First  rhumb.Slot
	Class  rhumb.ClassID
	Node   rhumb.NodeID
}

type wireActive struct {
	_      struct{} `cbor:",toarray"`
	Node   rhumb.NodeID
	Class  rhumb.ClassID
	First  rhumb.Slot
	Opened uint32
}

// Encode returns the stored form of the state. The indexes (names, hash blocks) are left out;
// Decode derives them.
func (s *State) Encode() []byte {
	w := wireState{
		Version: stateVersion, Cluster: fromUUID(s.cluster), Revision: s.revision,
		LastRegion: s.lastRegion, LastNode: s.lastNode, LastTable: s.lastTable, LastClass: s.lastClass,
		stateAccess: toStateAccess(s.access),
		Security:    toWireSecurity(s.Security()),

		ClusterVersion:  s.version,
		stateOperations: toStateOperations(s),
	}
	// Trees iterate in the order of their keys, which makes the encoding deterministic.
	for _, r := range s.regions.all() {
		w.Regions = append(w.Regions, wireRegion{
			ID: r.ID, Name: r.Name, Location: *toWirePoint(r.Location), Blocks: r.blocks, Dead: r.Dead, Into: r.Into, Removed: r.Removed, Lost: r.Lost,
		})
	}
	for _, n := range s.nodes.all() {
		w.Nodes = append(w.Nodes, toWireNode(n))
	}
	for c := range s.Classes() {
		w.Classes = append(w.Classes, wireClass{ID: c.ID, Settings: *toWireSettings(c.Settings), Dropping: c.Dropping})
	}
	for t := range s.Tables() {
		w.Tables = append(w.Tables, wireTable{t.ID, t.Name, t.Class, stateOptions(t.TableOptions)})
	}
	for b := range s.Blocks() {
		w.Blocks = append(w.Blocks, wireBlock{Region: b.Region, First: b.First, Class: b.Class, Node: b.Node})
		if b.Slots != 0 {
			w.Widths = append(w.Widths, wireWidth{Region: b.Region, First: b.First, Slots: b.Slots})
		}
	}
	for _, a := range s.active.all() {
		w.Active = append(w.Active, wireActive{Node: a.block.Node, Class: a.block.Class, First: a.block.First, Opened: a.opened})
	}
	for d := range s.Distances() {
		w.Distances = append(w.Distances, wireDistance{A: d.A, B: d.B, Micros: d.Micros})
	}
	// Ranges outnumber all other records, so this list alone is allocated at its full size.
	w.Ranges = make([]wireRange, 0, s.ranges.size)
	for r := range s.Ranges() {
		w.Ranges = append(w.Ranges, *toWireRange(r))
		if len(r.Quarantined) > 0 {
			w.Quarantines = append(w.Quarantines, wireQuarantine{Region: r.ID.Region, Slot: r.ID.Slot, Nodes: r.Quarantined})
		}
		if len(r.Lives) > 0 {
			w.Lives = append(w.Lives, wireLives{Region: r.ID.Region, Slot: r.ID.Slot, Lives: toWireLives(r.Lives)})
		}
		if r.Last != 0 || r.Birth != 0 {
			w.Spans = append(w.Spans, wireSpan{Region: r.ID.Region, Slot: r.ID.Slot, Last: r.Last, Birth: r.Birth})
		}
		if r.Former != rhumb.NoNode {
			w.Formers = append(w.Formers, wireFormer{Region: r.ID.Region, Slot: r.ID.Slot, Node: r.Former})
		}
		if r.IsMerging() || len(r.Merged) > 0 {
			w.Merges = append(w.Merges, wireMerge{Region: r.ID.Region, Slot: r.ID.Slot, TakesOver: r.TakesOver, Ends: r.Ends, Merged: r.Merged})
		}
		if r.Kept {
			w.Kept = append(w.Kept, *toWireRangeID(r.ID))
		}
		if r.Recovery != nil {
			w.Recoveries = append(w.Recoveries, *toWireRecovery(r.ID, r.Recovery))
		}
		if r.Prepared != nil {
			w.Handovers = append(w.Handovers, *toWireHandover(r.ID, r.Prepared))
		}
	}
	return encodeWire(w)
}

func toWireNode(n *node) wireNode {
	return wireNode{
		ID: n.ID, Region: n.Region, Zone: n.Zone, Addr: n.Addr, HeartbeatAddr: n.HeartbeatAddr, AdminAddr: n.AdminAddr,
		Location: *toWirePoint(n.Location), Store: n.Store[:], Boot: n.Boot, State: n.State, Voter: n.Voter,
		Binary: n.Binary, Nonce: n.nonce, Short: n.Short, Past: n.past, Name: n.Name, Forgotten: n.Forgotten,
		Leaving: n.Leaving, ReplacedBy: n.ReplacedBy, LeftBefore: n.leftBefore, VotePinned: n.VotePinned, Witness: n.Witness,
		Relapses: n.Relapses, FailedAt: toWireTime(n.FailedAt),
	}
}

func (w *wireNode) toNode() *node {
	return &node{nonce: w.Nonce, past: w.Past, leftBefore: w.LeftBefore, Node: rhumb.Node{
		ID: w.ID, Region: w.Region, Zone: w.Zone, Addr: w.Addr, HeartbeatAddr: w.HeartbeatAddr, AdminAddr: w.AdminAddr,
		Location: w.Location.toPoint(), Store: toUUID(w.Store), Boot: w.Boot, State: w.State, Voter: w.Voter, Binary: w.Binary,
		Short: w.Short, Name: w.Name, Forgotten: w.Forgotten, Leaving: w.Leaving, ReplacedBy: w.ReplacedBy,
		VotePinned: w.VotePinned, Witness: w.Witness,
		Relapses: w.Relapses, FailedAt: fromWireTime(w.FailedAt),
	}}
}

// Decode decodes what Encode returned and checks the invariants. The kind of an error is
// Incompatible for an unknown version or field, and Corrupt otherwise.
func Decode(b []byte) (*State, error) {
	const op rhumb.Op = "catalog.Decode"
	var w wireState
	if err := decodeWire(op, b, &w); err != nil {
		return nil, err
	}
	if err := checkVersion(op, w.Version, stateVersion); err != nil {
		return nil, err
	}
	if err := checkKnown(op, w.ClusterVersion); err != nil {
		return nil, err
	}
	s, err := w.toState()
	if err != nil {
		return nil, err
	}
	// A duplicate key would silently replace a record when the trees are built.
	if !w.hasDistinctKeys(s) {
		return nil, rhumb.E(op, rhumb.Corrupt, "two records have the same key")
	}
	// A state satisfies the invariants when it is encoded, so a violation is damage.
	if err := s.Check(); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	return s, nil
}

// toState builds the trees. It refuses only states on which Check would panic; Check finds all
// other faults.
func (w *wireState) toState() (*State, error) {
	const op rhumb.Op = "catalog.Decode"
	t := tx{owner: new(owner), State: State{
		cluster: toUUID(w.Cluster), revision: w.Revision,
		lastRegion: w.LastRegion, lastNode: w.LastNode, lastTable: w.LastTable, lastClass: w.LastClass,
		security: w.Security.toSecurity(), version: w.ClusterVersion,
	}}
	for _, r := range w.Regions {
		t.putRegion(&region{blocks: r.Blocks, Region: rhumb.Region{
			ID: r.ID, Name: r.Name, Location: r.Location.toPoint(), Dead: r.Dead, Into: r.Into, Removed: r.Removed, Lost: r.Lost,
		}})
	}
	for i := range w.Nodes {
		t.putNode(w.Nodes[i].toNode())
	}
	for _, c := range w.Classes {
		t.putClass(&rhumb.Class{ID: c.ID, Settings: c.Settings.toSettings(), Dropping: c.Dropping})
	}
	for _, table := range w.Tables {
		t.putTable(&rhumb.Table{ID: table.ID, Name: table.Name, Class: table.Class, TableOptions: rhumb.TableOptions(table.stateOptions)})
	}
	widths := make(map[uint64]uint32, len(w.Widths))
	for _, x := range w.Widths {
		widths[pairKey(x.Region, x.First)] = x.Slots
	}
	for _, b := range w.Blocks {
		block := &rhumb.Block{Region: b.Region, Class: b.Class, Node: b.Node, First: b.First, Slots: widths[pairKey(b.Region, b.First)]}
		t.putBlock(block)
		// The index refers to the same record as the tree.
		if b.Node == rhumb.NoNode {
			t.hash.set(t.owner, pairKey(b.Region, b.Class), block)
		}
	}
	// putRange drops the lives of quarantined nodes, but the lives and quarantines are added by
	// amendRanges, past putRange. Check verifies them instead.
	for i := range w.Ranges {
		t.putRange(w.Ranges[i].toRange())
	}
	if err := w.amendRanges(&t); err != nil {
		return nil, err
	}
	// An active block refers to a block that must be in the tree already.
	for _, a := range w.Active {
		n, ok := t.Node(a.Node)
		if !ok {
			return nil, rhumb.Ef(op, rhumb.Corrupt, "an active block belongs to the unknown node %s", a.Node)
		}
		block, ok := t.blocks.get(pairKey(n.Region, a.First))
		if !ok || block.Node != a.Node || block.Class != a.Class || a.Opened == 0 {
			return nil, rhumb.Ef(op, rhumb.Corrupt, "the active block %d of %s in class %s belongs to another node or class, or has no open slot", a.First, a.Node, a.Class)
		}
		t.active.set(t.owner, pairKey(a.Node, a.Class), &activeBlock{block: block, opened: a.Opened})
	}
	for _, d := range w.Distances {
		t.distances.set(t.owner, pairKey(d.A, d.B), d.Micros)
	}
	w.addOperations(&t)
	book, err := w.toBook()
	if err != nil {
		return nil, err
	}
	t.access = book
	return &t.State, nil
}

// amendRanges adds to the ranges what wireRange has no room for.
func (w *wireState) amendRanges(t *tx) error {
	amend := func(region rhumb.RegionID, slot rhumb.Slot, do func(r *rhumb.Range)) error {
		r, ok := t.Range(rhumb.RangeID{Region: region, Slot: slot})
		if !ok {
			return rhumb.Ef("catalog.Decode", rhumb.Corrupt, "a quarantine, a life, a recovery or a handover belongs to the unknown range %d/%d", region, slot)
		}
		// toState has just created the record, but a clone keeps the rule that stored records are
		// never modified.
		next := r.Clone()
		do(next)
		t.ranges.set(t.owner, rangeKey(next.ID), next)
		return nil
	}
	for _, q := range w.Quarantines {
		if err := amend(q.Region, q.Slot, func(r *rhumb.Range) { r.Quarantined = q.Nodes }); err != nil {
			return err
		}
	}
	for _, x := range w.Removals {
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Leaving, r.Removed = x.Leaving, x.Removed }); err != nil {
			return err
		}
	}
	for i := range w.Recoveries {
		x := &w.Recoveries[i]
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Recovery = x.toRecovery() }); err != nil {
			return err
		}
	}
	for i := range w.Handovers {
		x := &w.Handovers[i]
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Prepared = x.toHandover() }); err != nil {
			return err
		}
	}
	for _, x := range w.Spans {
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Last, r.Birth = x.Last, x.Birth }); err != nil {
			return err
		}
	}
	for _, x := range w.Formers {
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Former = x.Node }); err != nil {
			return err
		}
	}
	for _, x := range w.Merges {
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.TakesOver, r.Ends, r.Merged = x.TakesOver, x.Ends, x.Merged }); err != nil {
			return err
		}
	}
	for _, x := range w.Kept {
		if err := amend(x.Region, x.Slot, func(r *rhumb.Range) { r.Kept = true }); err != nil {
			return err
		}
	}
	for _, l := range w.Lives {
		if err := amend(l.Region, l.Slot, func(r *rhumb.Range) { r.Lives = fromWireLives(l.Lives) }); err != nil {
			return err
		}
	}
	return nil
}

// hasDistinctKeys reports whether every record of the encoding has its own key in s.
func (w *wireState) hasDistinctKeys(s *State) bool {
	return len(w.Regions) == s.regions.size && len(w.Nodes) == s.nodes.size && len(w.Classes) == s.classes.size &&
		len(w.Tables) == s.tables.size && len(w.Blocks) == s.blocks.size && len(w.Active) == s.active.size &&
		len(w.Ranges) == s.ranges.size && len(w.Operations) == s.operations.size && len(w.Settings) == len(s.settings) &&
		len(w.Distances) == s.distances.size
}
