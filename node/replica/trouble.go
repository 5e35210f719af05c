package replica

import "github.com/rhumbdb/rhumb"

// TroubleKind says what keeps a replica from its work.
type TroubleKind uint8

// The kinds of trouble.
const (
	// DataDamaged is a replica of this node that is quarantined: its data is damaged.
	DataDamaged TroubleKind = 1
	// Waiting is a replica of this node that was elected and does not serve yet.
	Waiting TroubleKind = 2
	// LogLost is a replica of another node that needs log that its primary, on this node, has trimmed away.
	LogLost TroubleKind = 3
)

// Trouble is what keeps one replica from its work.
type Trouble struct {
	Kind  TroubleKind
	Range rhumb.RangeID
	Node  rhumb.NodeID
	// Reason is for people.
	Reason string
}

// Troubles are the troubles that a node knows of.
type Troubles struct {
	// Listed may be cut short, Counts the number of all.
	Listed []Trouble
	Counts map[TroubleKind]int
}
