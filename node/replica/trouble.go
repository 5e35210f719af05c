package replica

import "github.com/rhumbdb/rhumb"

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

// Troubles holds the problems that a node knows of.
type Troubles struct {
	// Listed may be truncated. Counts holds the number of all problems of each kind.
	Listed []Trouble
	Counts map[TroubleKind]int
}
