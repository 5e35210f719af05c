package rhumb

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is how the replicas of a range are kept consistent.
type Mode uint8

// The modes. They are stored on disk: append only.
const (
	// Strong acknowledges a write when every in-sync replica has it, on disk unless the table defers syncs (Durability). No
	// acknowledged write is lost.
	Strong Mode = 1
	// Available lets both sides of a partition accept writes and merges them afterwards (TippyDB's
	// choice).
	Available Mode = 2
)

// String returns the stable name of the mode.
func (m Mode) String() string {
	switch m {
	case Strong:
		return "strong"
	case Available:
		return "available"
	}
	return fmt.Sprintf("mode_%d", uint8(m))
}

// Survival is the failure that a class survives without restoring data first.
type Survival uint8

// The survival goals. They are stored on disk: append only.
const (
	// SurviveZone keeps all replicas in the home region, spread over its zones.
	SurviveZone Survival = 1
	// SurviveRegion keeps replicas in several regions.
	SurviveRegion Survival = 2
)

// String returns the stable name of the goal.
func (s Survival) String() string {
	switch s {
	case SurviveZone:
		return "zone"
	case SurviveRegion:
		return "region"
	}
	return fmt.Sprintf("survival_%d", uint8(s))
}

// ParseSurvival parses the name of a goal. "" is 0, which means the default.
func ParseSurvival(s string) (Survival, error) {
	switch s {
	case "":
		return 0, nil
	case SurviveZone.String():
		return SurviveZone, nil
	case SurviveRegion.String():
		return SurviveRegion, nil
	}
	return 0, Ef("rhumb.ParseSurvival", InvalidArgument, "the survival goal %q is unknown; want zone or region", s)
}

// ClassSettings describe how the ranges of a class are replicated. Tables with equal settings share
// a class; the settings of a table are fixed when it is created. The type is comparable on purpose.
type ClassSettings struct {
	// Mode is Strong by default.
	Mode Mode `json:"mode"`
	// Replicas is the replication factor, 1 to ReplicasMax; default ReplicasDefault.
	Replicas int `json:"replicas"`
	// MinInSync is the minimum size of an in-sync set, 1 to Replicas; default MinInSyncDefault, or
	// 1 for one replica.
	MinInSync int `json:"min_in_sync"`
	// Survival is SurviveZone by default.
	Survival Survival `json:"survival"`
	// HashSlots is the number of ranges for named keys with which the class begins in each region, 1 to
	// BlockSlots; default HashSlotsDefault.
	HashSlots int `json:"hash_slots"`
	// Buckets is the number of slots over which the hash of a name is spread in each region: a multiple of
	// BlockSlots, at least HashSlots. Ranges begin and end between slots, so it bounds how often they can be
	// split. 0 in a class means that it has HashSlots slots, each with a range of its own, which are never
	// split. 0 in a command that creates a class leaves the number to the cluster (BucketsDefault).
	Buckets int `json:"buckets,omitempty"`
	// ShardSize is the size in bytes that makes the active slot of a node count as full; default
	// ShardSizeDefault.
	ShardSize int64 `json:"shard_size"`
	// Regions, if not empty, confines the tables of the class: no copy of a record leaves these regions, and
	// no record has its home elsewhere.
	Regions RegionSet `json:"regions,omitempty"`
	// Durability says whether a write is acknowledged before it is synced; default Synced. It is a setting of the class, so tables
	// of different durability never share a range or a log.
	Durability Durability `json:"durability,omitempty"`
}

// RegionReplicasMax returns how many replicas of a range one region may hold. With survival goal region, a
// region must be dispensable in two ways: without it, MinInSync replicas are left, so the range continues;
// and MinInSync replicas do not fit into it, so that every acknowledged write is in another region. It is 0
// if no number satisfies both. With twice as many replicas as MinInSync, half of them may be in one region: two regions are enough
// then, and the in-sync set is in both of them until one is lost.
func (c ClassSettings) RegionReplicasMax() int {
	if c.Survival != SurviveRegion {
		return ReplicasMax
	}
	// A single member would be the whole set, and the only one to know a write.
	if c.MinInSync >= 2 && c.Replicas == 2*c.MinInSync {
		return c.MinInSync
	}
	return max(0, min(c.Replicas-c.MinInSync, c.MinInSync-1))
}

// RegionsMin returns how many regions the replicas of a range need, which is 1 for survival goal zone.
func (c ClassSettings) RegionsMin() int {
	// Settings that Validate rejects must not divide by zero.
	most := max(c.RegionReplicasMax(), 1)
	return (c.Replicas + most - 1) / most
}

// MayHold reports whether a node of a region may hold a copy of a range, given the region where the range
// has its home.
func (c ClassSettings) MayHold(home, region string) bool {
	return c.Regions.Has(region) && (c.Survival == SurviveRegion || home == region)
}

// DefaultClassSettings returns the settings of a table that is created without options.
func DefaultClassSettings() ClassSettings {
	return ClassSettings{
		Mode: Strong, Replicas: ReplicasDefault, MinInSync: MinInSyncDefault, Survival: SurviveZone,
		HashSlots: HashSlotsDefault, ShardSize: ShardSizeDefault,
	}
}

// NameSlots returns the number of slots over which the hash of a name is spread.
func (c ClassSettings) NameSlots() int {
	if c.Buckets > 0 {
		return c.Buckets
	}
	return c.HashSlots
}

// FirstSlots returns the slots, counted from the first of the block, of the i-th of the ranges with which
// the class begins in a region.
func (c ClassSettings) FirstSlots(i int) (first, last Slot) {
	n := c.NameSlots()
	return Slot(i * n / c.HashSlots), Slot((i+1)*n/c.HashSlots) - 1
}

// Validate returns an error that lists every fault of the settings.
func (c ClassSettings) Validate() error {
	const op Op = "rhumb.ClassSettings"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	// Reserved on disk and on the wire; no replica implements it.
	fault(c.Mode != Strong, "mode %s is not offered yet; use strong", c.Mode)
	fault(c.Replicas < 1 || c.Replicas > ReplicasMax, "replicas is %d, but must be 1 to %d", c.Replicas, ReplicasMax)
	// The inner max keeps the message meaningful when replicas is wrong as well.
	fault(c.MinInSync < 1 || c.MinInSync > max(c.Replicas, 1), "min_in_sync is %d, but must be 1 to %d", c.MinInSync, c.Replicas)
	fault(c.HashSlots < 1 || c.HashSlots > BlockSlots, "hash_slots is %d, but must be 1 to %d", c.HashSlots, BlockSlots)
	fault(c.Buckets != 0 && (c.Buckets < c.HashSlots || c.Buckets > BucketsMax || c.Buckets%BlockSlots != 0),
		"buckets is %d, but must be a multiple of %d from hash_slots to %d", c.Buckets, BlockSlots, BucketsMax)
	fault(c.ShardSize < 1<<20 || c.ShardSize > RangeSizeMax, "shard_size is %d bytes, but must be 1 MiB to %d", c.ShardSize, RangeSizeMax)
	fault(c.Survival != SurviveZone && c.Survival != SurviveRegion, "survival goal %s is unknown; use zone or region", c.Survival)
	for _, err := range []error{c.Regions.Validate(), c.Durability.Validate()} {
		if err != nil {
			faults = append(faults, Message(err))
		}
	}
	// The faults above would make these misleading.
	if len(faults) == 0 && c.Survival == SurviveRegion {
		fault(c.RegionReplicasMax() < 1, "%d replicas with min_in_sync %d cannot survive the loss of a region; use 3 replicas with min_in_sync 2, or 5 with 3", c.Replicas, c.MinInSync)
		n := len(c.Regions.Names())
		fault(c.RegionReplicasMax() > 0 && n > 0 && n < c.RegionsMin(),
			"survival goal region with %d replicas needs %d regions, but the table is confined to %d (%s); allow more regions, or use survival goal zone",
			c.Replicas, c.RegionsMin(), n, c.Regions)
	}
	if len(faults) > 0 {
		return E(op, InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Class is a set of tables with equal replication settings.
type Class struct {
	ID       ClassID       `json:"id"`
	Settings ClassSettings `json:"settings"`
	// Dropping reports that the last table of the class was dropped and its ranges are being removed.
	Dropping bool `json:"dropping,omitempty"`
}

// TableNameSizeMax is the largest size of a table's name, in bytes.
const TableNameSizeMax = 128

// LocationFieldDefault is the field that holds the location of a record unless the table names
// another.
const LocationFieldDefault = "location"

// Table is a named set of records.
type Table struct {
	ID    TableID `json:"id"`
	Name  string  `json:"name"`
	Class ClassID `json:"class"`
	TableOptions
}

// TableOptions are the properties of a table that are fixed when it is created and that its class does
// not share. Table, the catalog command that creates a table, and the client's options embed the type,
// so that an option is declared and documented once. The type is comparable on purpose.
type TableOptions struct {
	// Colocate, if not 0, is the byte that ends the hashed part of a name. Names with the same part
	// before it share a range in all tables of the class, so one batch can write them. 0 hashes the
	// whole name.
	Colocate byte `json:"colocate,omitempty"`
	// LocationField names the field that holds a record's location (point or box).
	LocationField string `json:"location_field"`
	// History is how long superseded versions are kept. 0 keeps only those that replication needs.
	History time.Duration `json:"history,omitempty"`
	// Snapshot selects how nodes publish the table in shared memory. 0 does not publish it.
	Snapshot SnapshotFeatures `json:"snapshot,omitempty"`
}

// SetDefaults sets the options that were left out.
func (o *TableOptions) SetDefaults() {
	if o.LocationField == "" {
		o.LocationField = LocationFieldDefault
	}
}

// Validate rejects options that are wrong whatever the state of the cluster.
func (o TableOptions) Validate() error {
	const op Op = "rhumb.TableOptions"
	if len(o.LocationField) > FieldNameSizeMax {
		return Ef(op, TooLarge, "the name of the location field has %d bytes; the limit is %d", len(o.LocationField), FieldNameSizeMax)
	}
	if o.History < 0 {
		return Ef(op, InvalidArgument, "history is %v, but must not be negative", o.History)
	}
	// An image in shared memory stores the name in a field of fixed size.
	if o.Snapshot != 0 && len(o.LocationField) > SnapshotFieldSizeMax {
		return Ef(op, TooLarge, "the name of the location field has %d bytes; the limit for a table in shared memory is %d", len(o.LocationField), SnapshotFieldSizeMax)
	}
	return o.Snapshot.Validate()
}

// SnapshotFeatures are properties of a table in the images that nodes publish, as bits. They are
// stored on disk: append only.
type SnapshotFeatures uint8

// The features. All others require SnapshotOn.
const (
	// SnapshotOn publishes the table.
	SnapshotOn SnapshotFeatures = 1
	// SnapshotSpatial indexes records by their location.
	SnapshotSpatial SnapshotFeatures = 2
	// SnapshotOrdered allows scans by prefix.
	SnapshotOrdered SnapshotFeatures = 4
	// SnapshotSummed adds a checksum to every record.
	SnapshotSummed SnapshotFeatures = 8
	// SnapshotNever refuses publication for good. It excludes all other features.
	SnapshotNever SnapshotFeatures = 16
)

// SnapshotNameSizeMax is the largest name of a record in a published table, SnapshotFieldSizeMax
// the largest name of its location field, in bytes.
const (
	SnapshotNameSizeMax  = 254
	SnapshotFieldSizeMax = 63
)

// snapshotNeverName is the text form of SnapshotNever.
const snapshotNeverName = "never"

var snapshotFeatureNames = [...]string{"plain", "spatial", "ordered", "summed"}

// Has reports whether s has all features of o.
func (s SnapshotFeatures) Has(o SnapshotFeatures) bool { return s&o == o }

// String lists the features. It returns "plain" for a table published without further features,
// "never" for one that must not be published, and "" for one that is not published.
func (s SnapshotFeatures) String() string {
	switch {
	case s == SnapshotNever:
		return snapshotNeverName
	case s&SnapshotOn == 0:
		return ""
	}
	var names []string
	// Names and bits have the same order, so the position of a name is the position of its bit.
	for i, name := range snapshotFeatureNames[1:] {
		if s&(SnapshotSpatial<<i) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return snapshotFeatureNames[0]
	}
	return strings.Join(names, ",")
}

// ParseSnapshotFeatures parses the format of SnapshotFeatures.String.
func ParseSnapshotFeatures(s string) (f SnapshotFeatures, err error) {
	const op Op = "rhumb.ParseSnapshotFeatures"
	switch s {
	case "":
		return 0, nil
	case snapshotNeverName:
		return SnapshotNever, nil
	}
	f = SnapshotOn
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(snapshotFeatureNames[:], name)
		if i < 0 {
			return 0, Ef(op, InvalidArgument, "%q is not a feature of a snapshot; use %s, separated by commas", name, strings.Join(snapshotFeatureNames[:], ", "))
		}
		f |= 1 << i
	}
	return f, nil
}

// Validate rejects unknown bits, and features of a table that is not published.
func (s SnapshotFeatures) Validate() error {
	if s == SnapshotNever {
		return nil
	}
	// Never with another feature would contradict itself.
	if s >= SnapshotNever || s != 0 && s&SnapshotOn == 0 {
		return Ef("rhumb.SnapshotFeatures", InvalidArgument, "snapshot features %#x are unknown; this binary may be older than the sender", uint8(s))
	}
	return nil
}

// ValidateNewName rejects the names "." and ".." for a new table, region or zone, which the other checks
// of names accept. Paths and URLs contain these names, and there the two mean folders. The catalog does not check this, because every build has to apply its
// commands with the same result: nodes and clients refuse the name before they propose it.
func ValidateNewName(what, name string) error {
	if name == "." || name == ".." {
		return Ef("rhumb.Name", InvalidArgument, "%s name %q means a folder in paths and URLs; choose a name with a letter or a digit", what, name)
	}
	return nil
}

// ValidateTableName rejects names that are empty or long, or contain characters other than letters,
// digits, '_', '-' and '.'.
func ValidateTableName(name string) error {
	const op Op = "rhumb.Table"
	if name == "" || len(name) > TableNameSizeMax {
		return Ef(op, InvalidArgument, "table name %.20q has %d characters; table names have 1 to %d", name, len(name), TableNameSizeMax)
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return Ef(op, InvalidArgument, "table name %q contains %q; use letters, digits, '_', '-' and '.'", name, c)
		}
	}
	return nil
}
