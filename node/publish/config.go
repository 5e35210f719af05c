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

// DirDefault is where the images of a machine's nodes lie.
const DirDefault = "/dev/shm/rhumb"

// Bounds of a driver.
const (
	// commitBytes is about how much of the log goes into one version at most.
	commitBytes = 8 << 20
	// staleBytes is the same for a version with tables that are read whole, which wants every range as new as can be.
	staleBytes = 256 << 20
	// readBytes is how much of a range's log is read at once.
	readBytes = 1 << 20
	// heldBytesDefault is Config.HeldBytes where nothing is said.
	heldBytesDefault = 32 << 20
	// positionInterval is how long the image may lack the newest position of a range whose log did nothing to it.
	positionInterval = time.Second
	// beatInterval is how often readers are told that the node lives.
	beatInterval = 250 * time.Millisecond
	// closedInterval is how long a version may go without asking how far ranges are closed; beatInterval bounds how long
	// readers wait for a version with the answer.
	closedInterval = 50 * time.Millisecond
	// storagePause is how long the driver waits for storage to show what is committed: the rest of a pass of the host.
	storagePause = time.Millisecond
	// retryPause is how long a failure is waited out.
	retryPause = time.Second
)

// Policy says when a version is published. The zero value publishes whatever is committed at once.
type Policy struct {
	// Interval is the least time between two versions; 0 for none.
	Interval time.Duration
	// Count publishes before the interval is over once so many entries wait; 0 for never.
	Count int
	// OnDemand publishes only when Publish is called.
	OnDemand bool
}

// Validate refuses negative values.
func (p Policy) Validate() error {
	if p.Interval < 0 || p.Count < 0 {
		return rhumb.Ef("publish.Policy", rhumb.InvalidArgument, "interval %v and count %d: want 0 or more", p.Interval, p.Count)
	}
	return nil
}

// Config is what a driver needs.
type Config struct {
	// Root is the folder of all images of the machine; default DirDefault. The image is <Root>/<cluster>/<node>.
	Root    string
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	Policy  Policy
	// Image has the limits of the image; its Dir, Logger and Registerer are set from here.
	Image  snapshot.Config
	Engine *storage.Engine
	// Closed gives the greatest timestamp up to which every entry of a range, now and ever, lies at a position up to upTo, 0
	// when none is known. Nil knows none, and readers get no cut across ranges.
	Closed func(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp
	// State gives the node's copy of the catalog.
	State  func() *catalog.State
	Logger *slog.Logger
	// HeldBytes bounds the entries that wait in memory to be published: so many that are told of, and so many that are being
	// published. What is beyond is read from storage. Default 32 MiB.
	HeldBytes int
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
}

// ImageDir gives the directory of a node's image.
func ImageDir(root string, cluster rhumb.ClusterID, node rhumb.NodeID) string {
	if root == "" {
		root = DirDefault
	}
	return filepath.Join(root, cluster.String(), node.String())
}

// Validate lists everything that is wrong.
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
