package snapshot

import (
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Bounds of a publisher.
const (
	// BudgetDefault is the greatest size of an image unless Config.Budget says otherwise, in bytes.
	BudgetDefault = 8 << 30
	// AppendRatioDefault is the size of the append area of a shard as a part of its base.
	AppendRatioDefault = 0.25
	// ShardRecordsDefault is how many records a shard is meant to hold at most; a shard of a
	// spatial table is meant to hold spatialShard times as many.
	ShardRecordsDefault = 1 << 20
	// spatialShard is larger than 1 because the records of a place are spread over all shards: a
	// query by place searches the tree of every shard, so its time grows with the number of shards.
	// Fewer and larger shards make queries faster and rolls longer.
	spatialShard = 4
	// CommitRecordsMax bounds the records of one commit, loads aside.
	CommitRecordsMax = 4 << 20
	// RecycleDefault is how many files without a reader are kept mapped for the next rolls.
	RecycleDefault = 4
	// LeashDefault is how long readers may keep a superseded file before the file stops counting in
	// the budget. It equals the reader's default for how long a view may be held.
	LeashDefault = time.Minute
	// QuarantineMax bounds the files kept in quarantine; the oldest are removed first.
	QuarantineMax = 8
)

// HugePages selects whether the files of an image ask for huge pages.
type HugePages uint8

// The ways to use huge pages.
const (
	// HugeOff maps ordinary pages.
	HugeOff HugePages = iota
	// HugeTry asks for huge pages. The kernel may refuse without an error: on tmpfs the mount
	// option huge= decides. The metric rhumb_snapshot_huge_bytes shows the outcome.
	HugeTry
)

// Config holds the location and the limits of an image. The zero value of every field but Dir is a
// working default.
type Config struct {
	// Dir is the directory of the image, <shm>/rhumb/<cluster>/<node>. Open creates it if it does
	// not exist.
	Dir string
	// Budget bounds the bytes of all files of the image, recycled ones and superseded ones within
	// Leash too; default BudgetDefault. A commit, roll or load that would pass it fails with kind
	// Overloaded.
	Budget int64
	// Leash is how long readers may keep a superseded file before the file counts in OverdueMax
	// instead of Budget. Every view that still holds the file is older than Leash by then. Default
	// LeashDefault.
	Leash time.Duration
	// OverdueMax bounds the bytes of superseded files past their leash that do not count in Budget;
	// bytes beyond it count. So the whole image has at most Budget + OverdueMax bytes. Default:
	// Budget, which is more than the views locked at any one moment can pin.
	OverdueMax int64
	// AppendRatio is the size of a shard's append area as a part of its base; default
	// AppendRatioDefault.
	AppendRatio float64
	// ShardRecordsMax is how many records a shard is meant to hold; a shard of a spatial table is
	// meant to hold four times as many. It decides how many shards a table gets. A shard that holds
	// more counts in the metric rhumb_snapshot_large_shards. Default ShardRecordsDefault.
	ShardRecordsMax int64
	// Recycle is how many files without a reader are kept for the next rolls; default
	// RecycleDefault, negative none.
	Recycle int
	// HugePages is HugeOff by default.
	HugePages HugePages
	// GroupReadable lets only the owner and the group of the files read them: modes 0640 and 0750
	// instead of 0644 and 0755.
	GroupReadable bool
	// Group, if not 0, becomes the group of the directory and its files. The process must be a member
	// of the group, or root.
	Group int
	// Logger receives messages for the operator; nil discards them.
	Logger *slog.Logger
	// Registerer receives the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Identity, if set, is the identity of a new image instead of a random one, so that equal input
	// produces equal bytes. Only tests set it: whoever knows the seeds can choose keys that
	// collide.
	Identity *format.Root
}

// Validate returns an error that lists everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var faults []string
	check := func(bad bool, fault string) {
		if bad {
			faults = append(faults, fault)
		}
	}
	check(c.Dir == "", "the directory is empty")
	check(c.Budget < 0, "the budget is negative")
	check(c.Leash < 0, "the leash is negative")
	check(c.OverdueMax < 0, "the bound of overdue files is negative")
	check(!(c.AppendRatio >= 0 && c.AppendRatio <= 8), "the append ratio must be between 0 and 8")
	check(c.ShardRecordsMax < 0, "the number of records per shard is negative")
	check(c.HugePages > HugeTry, "the huge pages setting is unknown")
	check(c.Identity != nil && c.Identity.Seed1&1 == 0, "the second seed of the identity is even")
	if len(faults) > 0 {
		return rhumb.E("snapshot.Config", rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// withDefaults returns the configuration with the zero values replaced by defaults.
func (c Config) withDefaults() Config {
	if c.Budget == 0 {
		c.Budget = BudgetDefault
	}
	if c.Leash == 0 {
		c.Leash = LeashDefault
	}
	if c.OverdueMax == 0 {
		c.OverdueMax = c.Budget
	}
	if c.AppendRatio == 0 {
		c.AppendRatio = AppendRatioDefault
	}
	if c.ShardRecordsMax == 0 {
		c.ShardRecordsMax = ShardRecordsDefault
	}
	if c.Recycle == 0 {
		c.Recycle = RecycleDefault
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return c
}

// recordsMax returns how many records a shard of a table is meant to hold.
func (c *Config) recordsMax(spatial bool) int64 {
	if spatial {
		return spatialShard * c.ShardRecordsMax
	}
	return c.ShardRecordsMax
}

// fileMode returns the mode of the files of the image.
func (c *Config) fileMode() uint32 {
	if c.GroupReadable {
		return 0o640
	}
	return 0o644
}

// dirMode returns the mode of the directory.
func (c *Config) dirMode() uint32 {
	if c.GroupReadable {
		return 0o750
	}
	return 0o755
}
