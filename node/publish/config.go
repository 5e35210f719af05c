package publish

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/storage"
)

// DirDefault is the parent directory of the images of a machine's nodes.
const DirDefault = "/dev/shm/rhumb"

// Bounds of a driver.
const (
	// commitBytes bounds, approximately, how much of the log one version takes in.
	commitBytes = 8 << 20
	// staleBytes is the same bound for a version that also loads tables from storage. It is larger
	// because such a version needs all ranges as new as possible: storage keeps old versions only
	// for a while.
	staleBytes = 256 << 20
	// readBytes is how much of a range's log one read returns.
	readBytes = 1 << 20
	// heldBytesDefault is the default of Config.HeldBytes.
	heldBytesDefault = 32 << 20
	// positionInterval is how long the image may lack the newest position of a range whose log did
	// not change the image.
	positionInterval = time.Second
	// wakeInterval is the shortest time between two versions for which nobody asked. A commit after a pause is published
	// at once; those that follow share a version.
	wakeInterval = 2 * time.Millisecond
	// beatInterval is the interval between signs of life for readers.
	beatInterval = 250 * time.Millisecond
	// closedInterval is how long a version may be published without a new closed timestamp.
	// beatInterval bounds how long readers wait for the version that carries it.
	closedInterval = 50 * time.Millisecond
	// storagePause is how long the driver waits until storage shows every commit: the remainder of
	// a pass of the host.
	storagePause = time.Millisecond
	// storagePauseMax bounds the pauses, which double while nothing moves.
	storagePauseMax = 100 * time.Millisecond
	// storageWait is how long a load waits for entries that the image follows and storage lacks.
	storageWait = time.Second
	// retryPause is the wait after a failure. It doubles up to retryPauseMax while the image has no room: the load of such a table reads
	// many gigabytes, and fails every time.
	retryPause    = time.Second
	retryPauseMax = time.Minute
)

// Policy determines when a version is published. The zero value publishes every commit at once.
type Policy struct {
	// Interval is the least time between two versions; 0 for none.
	Interval time.Duration
	// Count publishes before the interval is over once this many entries wait; 0 for never.
	Count int
	// OnDemand publishes only when Publish is called.
	OnDemand bool
}

// Validate returns an error if a value is negative.
func (p Policy) Validate() error {
	if p.Interval < 0 || p.Count < 0 {
		return rhumb.Ef("publish.Policy", rhumb.InvalidArgument, "interval is %v and count is %d; neither may be negative", p.Interval, p.Count)
	}
	return nil
}

// Config configures a driver.
type Config struct {
	// Root is the directory of all images of the machine; default DirDefault. The image of a node
	// is <Root>/<cluster>/<node>.
	Root    string
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	Policy  Policy
	// Image configures the limits of the image. The driver sets its Dir, Logger and Registerer.
	Image  snapshot.Config
	Engine *storage.Engine
	// Closed returns the greatest timestamp such that every present or future entry of a range at
	// or below it has a position up to upTo, or 0 if none is known. If Closed is nil, readers get
	// no cut across ranges.
	Closed func(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp
	// State returns the node's copy of the catalog.
	State  func() *catalog.State
	Logger *slog.Logger
	// HeldBytes bounds the entries that wait in memory to be published; as much again may be held
	// by the version under construction. Entries beyond the bound are dropped and read from storage
	// later. Default 32 MiB.
	HeldBytes int
	// Registerer registers the metrics; nil registers none.
	Registerer prometheus.Registerer
}

// ImageDir returns the directory of a node's image.
func ImageDir(root string, cluster rhumb.ClusterID, node rhumb.NodeID) string {
	if root == "" {
		root = DirDefault
	}
	return filepath.Join(root, cluster.String(), node.String())
}

// Validate returns an error that lists every fault of the configuration.
func (c *Config) Validate() error {
	var faults []string
	if c.Node == rhumb.NoNode || c.Cluster.IsZero() {
		faults = append(faults, "node or cluster is missing")
	}
	if c.Engine == nil || c.State == nil || c.Logger == nil {
		faults = append(faults, "engine, state or logger is missing")
	}
	if err := c.Policy.Validate(); err != nil {
		faults = append(faults, rhumb.Message(err))
	}
	if len(faults) > 0 {
		return rhumb.E("publish.Config", rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}
