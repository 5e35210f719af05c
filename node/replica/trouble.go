package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// TroubleKind is the kind of problem that keeps a replica from working.
type TroubleKind uint8

// The kinds of trouble.
const (
	// DataDamaged: a replica of this node is quarantined because its data is damaged.
	DataDamaged TroubleKind = 1
	// Waiting: a replica of this node was elected and does not serve yet.
	Waiting TroubleKind = 2
	// LogLost: a replica of another node needs log that its primary, on this node, has trimmed.
	LogLost TroubleKind = 3
)

// Trouble is one problem that keeps a replica from working.
type Trouble struct {
	Kind  TroubleKind
	Range rhumb.RangeID
	Node  rhumb.NodeID
	// Reason is text for operators.
	Reason string
}

// DeferredLosses counts what ranges of tables that defer syncs lost, or may have lost, on a node in its present life.
type DeferredLosses struct {
	// UnsureEpochs began although all copies that answered had started again since their last sync.
	UnsureEpochs int
	// Entries of the node were lost by the other copies, and their ranges went on without them.
	Entries uint64
	// Last is when the last of either happened; zero if nothing did.
	Last time.Time
}

// Troubles holds the problems that a node knows of.
type Troubles struct {
	// Listed may be truncated. Counts holds the number of all problems of each kind.
	Listed []Trouble
	Counts map[TroubleKind]int
}
