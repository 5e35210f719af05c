package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// NewSettings returns the settings of a class that is created now: those that a command left to the
// cluster are filled in.
func (s *State) NewSettings(c rhumb.ClassSettings) rhumb.ClassSettings {
	// Builds without ranges of several slots would compute other homes.
	if !s.hasWideRanges() {
		c.Buckets = 0
	} else if c.Buckets == 0 {
		c.Buckets = rhumb.BucketsDefault
	}
	return c
}

// hasWideRanges reports whether all builds of the cluster know ranges of several slots.
func (s *State) hasWideRanges() bool { return s.Version().Has(rhumb.FeatureSplit) }

func (c CreateClass) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CreateClass"
	c.Settings = t.NewSettings(c.Settings)
	if class, ok := t.ClassBySettings(c.Settings); ok {
		return Result{Class: class.ID}
	}
	if err := t.checkNewClass(c.Settings, c.Placements); err != nil {
		return refuseErr(op, err)
	}
	return Result{Class: t.addClass(c.Settings, c.Placements)}
}

// applyTo creates the table. In order: a table of that name decides the result; the arguments must
// be valid; the class of the settings is found or created; the table is stored.
func (c CreateTable) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CreateTable"
	// The defaults are filled in first, so that a repeated command matches the table that it created.
	c.TableOptions.SetDefaults()
	// The name decides before anything else is checked: a repetition must succeed even if, for
	// instance, the nodes of its placements have died since.
	if table, ok := t.TableByName(c.Name); ok {
		return c.matchExisting(t, table)
	}
	if err := c.validateArgs(); err != nil {
		return refuseErr(op, err)
	}
	if t.tables.size >= rhumb.TablesMax {
		return refuse(op, rhumb.TooLarge, "table %q was not created: the cluster has %d tables, which is the limit", c.Name, t.tables.size)
	}
	c.Settings = t.NewSettings(c.Settings)
	var id rhumb.ClassID
	// Tables with equal settings share a class and therefore its ranges.
	if class, ok := t.ClassBySettings(c.Settings); ok {
		id = class.ID
	} else {
		if err := t.checkNewClass(c.Settings, c.Placements); err != nil {
			return refuseErr(op, err)
		}
		id = t.addClass(c.Settings, c.Placements)
	}
	t.lastTable++
	t.putTable(&rhumb.Table{ID: t.lastTable, Name: c.Name, Class: id, TableOptions: c.TableOptions})
	return Result{Table: t.lastTable, Class: id}
}

// validateArgs returns an error if the table is wrong in any state.
func (c CreateTable) validateArgs() error {
	if err := rhumb.ValidateTableName(c.Name); err != nil {
		return err
	}
	return c.TableOptions.Validate()
}

// matchExisting returns the table of the same name as the result if it has the same settings, and
// otherwise refuses.
func (c CreateTable) matchExisting(t *tx, table *rhumb.Table) Result {
	const op rhumb.Op = "catalog.CreateTable"
	class, _ := t.Class(table.Class)
	// The ID and the class are those of the existing table. The comparison covers everything else.
	want := rhumb.Table{ID: table.ID, Name: c.Name, Class: table.Class, TableOptions: c.TableOptions}
	// A command may leave the number of buckets to the cluster.
	if c.Settings.Buckets == 0 {
		c.Settings.Buckets = class.Settings.Buckets
	}
	if class.Settings != c.Settings || *table != want {
		return refuse(op, rhumb.AlreadyExists, "table %q already exists with other settings", c.Name)
	}
	return Result{Table: table.ID, Class: table.Class}
}

// checkNewClass returns an error if a class cannot be created.
func (t *tx) checkNewClass(settings rhumb.ClassSettings, placements []Placement) error {
	const op rhumb.Op = "catalog.Class"
	if err := settings.Validate(); err != nil {
		return err
	}
	// Classes serve tables, so more classes than tables would be of no use.
	if t.classes.size >= rhumb.TablesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "the settings need a new class, but the cluster has %d classes, which is the limit", t.classes.size)
	}
	// The leader places slots in every region with enough live nodes. No placement means that no
	// region has them.
	if len(placements) == 0 && (settings.Survival == rhumb.SurviveRegion || settings.Regions != "") {
		return rhumb.E(op, rhumb.InvalidArgument, t.ExplainSpread(settings))
	}
	if len(placements) == 0 {
		return rhumb.E(op, rhumb.InvalidArgument, t.explainShortage(settings.Replicas))
	}
	return t.checkPlacements(settings, placements)
}

// explainShortage returns why no region can hold a class with this number of replicas, and what can
// be done.
func (s *State) explainShortage(replicas int) string {
	live := make(map[rhumb.RegionID]int)
	for n := range s.Nodes() {
		if n.State == rhumb.NodeLive && !n.Witness {
			live[n.Region]++
		}
	}
	most, parts := 0, []string(nil)
	// All replicas of a range are in one region, so each region is counted separately.
	for r := range s.Regions() {
		most = max(most, live[r.ID])
		parts = append(parts, fmt.Sprintf("%s has %d", r.Name, live[r.ID]))
	}
	// Suggesting --replicas 0 would be of no help.
	if most == 0 {
		return fmt.Sprintf("%d replicas need %d live nodes in one region, but no node is live; start nodes", replicas, replicas)
	}
	return fmt.Sprintf("%d replicas need %d live nodes in one region, but %s; use --replicas %d, or add nodes",
		replicas, replicas, strings.Join(parts, ", "), most)
}

// checkPlacements returns an error if placements do not satisfy the settings of the class. The kind
// is Conflict if the state may have changed since the proposer chose the placements, so that the
// proposer tries again.
func (t *tx) checkPlacements(settings rhumb.ClassSettings, placements []Placement) error {
	const op rhumb.Op = "catalog.Placement"
	seen := make(map[rhumb.RegionID]bool)
	for _, p := range placements {
		// Records of regions are never removed, so an unknown one is an error of the proposer.
		r, ok := t.Region(p.Region)
		if !ok || seen[p.Region] {
			return rhumb.Ef(op, rhumb.InvalidArgument, "region %s does not exist or is placed twice", p.Region)
		}
		if r.Into != 0 {
			return rhumb.Ef(op, rhumb.Conflict, "region %s is being removed and gets no new ranges", r.Name)
		}
		seen[p.Region] = true
		if len(p.Replicas) != settings.HashSlots {
			return rhumb.Ef(op, rhumb.InvalidArgument, "region %s has placements for %d slots, but the class has %d", p.Region, len(p.Replicas), settings.HashSlots)
		}
		for _, replicas := range p.Replicas {
			if err := t.checkReplicas(p.Region, settings, replicas); err != nil {
				return err
			}
		}
	}
	// One check for all placements: the command creates all ranges or none.
	if t.ranges.size+len(placements)*settings.HashSlots > rhumb.RangesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "%d new ranges are needed, but the cluster already has %d of at most %d", len(placements)*settings.HashSlots, t.ranges.size, rhumb.RangesMax)
	}
	return nil
}

// checkReplicas returns an error if the nodes cannot hold a new range of a region. Survival goal
// zone keeps all replicas within the region. Goal region begins with a primary in it.
func (t *tx) checkReplicas(in rhumb.RegionID, settings rhumb.ClassSettings, replicas []rhumb.NodeID) error {
	const op rhumb.Op = "catalog.Placement"
	set, distinct := sortedSet(replicas, func(n rhumb.NodeID) rhumb.NodeID { return n })
	if !distinct || len(set) != settings.Replicas {
		return rhumb.Ef(op, rhumb.InvalidArgument, "replicas on %s in region %s are not %d different nodes", rhumb.NodeList(replicas), in, settings.Replicas)
	}
	for _, id := range set {
		n, ok := t.Node(id)
		// The region of a node never changes, so this is an error of the proposer.
		if !ok || n.Region != in && (settings.Survival == rhumb.SurviveZone || id == replicas[0]) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is not a node of region %s", id, in)
		}
		if n.Witness {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is a witness and holds no data", id)
		}
		// The state may have changed after the proposer chose the node.
		if n.State != rhumb.NodeLive {
			return rhumb.Ef(op, rhumb.Conflict, "%s is %s and cannot hold a new range", id, n.State)
		}
	}
	return t.checkSpread(settings, set, 0)
}

// addClass creates a class with its hash slots and ranges, and returns its id. The placements have
// been checked.
func (t *tx) addClass(settings rhumb.ClassSettings, placements []Placement) rhumb.ClassID {
	t.lastClass++
	t.putClass(&rhumb.Class{ID: t.lastClass, Settings: settings})
	for _, p := range placements {
		t.addHashBlock(t.lastClass, p)
	}
	return t.lastClass
}

// addHashBlock creates the hash slots of a class in one region, with their ranges.
func (t *tx) addHashBlock(class rhumb.ClassID, p Placement) {
	c, _ := t.Class(class)
	b := t.newBlock(p.Region, class, rhumb.NoNode, max(c.Settings.Buckets, rhumb.BlockSlots))
	t.hash.set(t.owner, pairKey(p.Region, class), b)
	for i, replicas := range p.Replicas {
		// The slots of a block are consecutive, so a hash slot needs no table: it is First plus the
		// slot, and its range is the last one that begins there or before.
		first, last := c.Settings.FirstSlots(i)
		t.newRange(rhumb.RangeID{Region: p.Region, Slot: b.First + first}, b.First+last, class, replicas)
	}
}

// applyTo adds hash slots of the class in each region that has none yet.
func (c EnsureRegionBlocks) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.EnsureRegionBlocks"
	class, ok := t.Class(c.Class)
	if !ok || class.Dropping {
		return refuse(op, rhumb.NotFound, "class %s does not exist, or its last table was dropped", c.Class)
	}
	// Regions that got their slots in the meantime are skipped, so a repeated command is done
	// already.
	missing := slices.DeleteFunc(slices.Clone(c.Placements), func(p Placement) bool {
		_, has := t.HashBlock(p.Region, c.Class)
		return has
	})
	if err := t.checkPlacements(class.Settings, missing); err != nil {
		return refuseErr(op, err)
	}
	for _, p := range missing {
		t.addHashBlock(c.Class, p)
	}
	return Result{Class: c.Class}
}

// applyTo opens a slot unless the node has opened more than the proposer knows.
func (c OpenSlot) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.OpenSlot"
	n, ok := t.Node(c.Node)
	if !ok {
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	}
	class, ok := t.Class(c.Class)
	if !ok || class.Dropping {
		return refuse(op, rhumb.NotFound, "class %s does not exist, or its last table was dropped", c.Class)
	}
	// Opened makes the command a compare-and-set: a repetition finds more open slots than it
	// expects and gets the newest one instead of opening another.
	id, opened := t.ActiveSlot(c.Node, c.Class)
	switch {
	case opened > c.Opened:
		r, _ := t.Range(id)
		return Result{Range: r, Node: c.Node, Class: c.Class}
	// The proposer counts from this catalog, so a larger count is an error and not a race.
	case opened < c.Opened:
		return refuse(op, rhumb.InvalidArgument, "%s has opened %d slots of class %s, not %d", c.Node, opened, c.Class, c.Opened)
	case t.ranges.size >= rhumb.RangesMax:
		return refuse(op, rhumb.TooLarge, "the cluster has %d ranges, which is the limit", t.ranges.size)
	// The metadata leader places the copies. While a node is away, it may find no place, which passes.
	case len(c.Replicas) == 0:
		return refuse(op, rhumb.Unavailable, "too few nodes are live for the copies of a new range of %s; retry when more are, or use another node", c.Node)
	case c.Replicas[0] != c.Node:
		return refuse(op, rhumb.InvalidArgument, "replicas on %s do not begin with %s", rhumb.NodeList(c.Replicas), c.Node)
	}
	if err := t.checkReplicas(n.Region, class.Settings, c.Replicas); err != nil {
		return refuseErr(op, err)
	}
	return Result{Range: t.openSlot(c, n.Region), Node: c.Node, Class: c.Class}
}

// openSlot creates the range of the node's next slot. It allocates a new block if the present one
// is used up.
func (t *tx) openSlot(c OpenSlot, in rhumb.RegionID) *rhumb.Range {
	key := pairKey(c.Node, c.Class)
	// Readers share the old record, so a copy is changed.
	next := new(activeBlock)
	if a, ok := t.active.get(key); ok {
		*next = *a
	}
	// opened counts across blocks, so a multiple of BlockSlots means that all slots of the last
	// block are open.
	if next.opened%rhumb.BlockSlots == 0 {
		next.block = t.newBlock(in, c.Class, c.Node, rhumb.BlockSlots)
	}
	next.opened++
	t.active.set(t.owner, key, next)
	return t.newRange(next.newestSlot(), 0, c.Class, c.Replicas)
}
