package rhumb

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// OperationID identifies a long operation of the cluster; ids are never reused. 0 means "none".
type OperationID uint64

// String returns the id in the form that commands take.
func (id OperationID) String() string { return "op" + strconv.FormatUint(uint64(id), 10) }

// ParseOperationID parses the format of OperationID.String; the letters may be left out.
func ParseOperationID(s string) (OperationID, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "op"), 10, 64)
	if err != nil || n == 0 {
		return 0, E("rhumb.ParseOperationID", InvalidArgument, fmt.Sprintf("%q is not the number of an operation; write it like op12", s))
	}
	return OperationID(n), nil
}

// OperationKind is the kind of a long operation.
type OperationKind uint8

// The kinds of operations. They are stored on disk: append only.
const (
	// OperationDecommission moves all copies and roles away from a live or dead node (Node).
	OperationDecommission OperationKind = 1
	// OperationReplace moves all copies of a node (Node) to another one (Target), and then removes the node.
	OperationReplace OperationKind = 2
	// OperationMove moves one copy of a range (Range) from a node (Node) to another one (Target).
	OperationMove OperationKind = 3
	// OperationRepair creates the copies of a dead node (Node) elsewhere. The cluster starts it without a request.
	OperationRepair OperationKind = 4
	// OperationRemoveRegion moves everything away from a region without tables' records, and removes it (Region).
	OperationRemoveRegion OperationKind = 5
	// OperationRebalance moves copies until the nodes of each region (or of one, Region) are alike. While it is paused, the cluster
	// moves no copies for balance either.
	OperationRebalance OperationKind = 6
	// OperationMoveVote moves the vote of a node in the metadata group (Node) to another one (Target), and pins the votes where they are
	// then.
	OperationMoveVote OperationKind = 7
	// OperationMerge merges a small range (Range) into the range before it. The cluster starts it without a request, and moves the copies
	// and the primary of the range to the nodes of that one first.
	OperationMerge OperationKind = 8
)

// String returns the stable name of the kind.
func (k OperationKind) String() string {
	switch k {
	case OperationDecommission:
		return "decommission"
	case OperationReplace:
		return "replace"
	case OperationMove:
		return "move"
	case OperationRepair:
		return "repair"
	case OperationRemoveRegion:
		return "remove-region"
	case OperationRebalance:
		return "rebalance"
	case OperationMoveVote:
		return "move-vote"
	case OperationMerge:
		return "merge"
	}
	return fmt.Sprintf("kind_%d", uint8(k))
}

// OperationState is the state of an operation, or of one of its steps.
type OperationState uint8

// The states of operations and steps. They are stored on disk: append only. The zero value is a step that has not begun.
const (
	OperationWaiting   OperationState = 0
	OperationRunning   OperationState = 1
	OperationPaused    OperationState = 2
	OperationDone      OperationState = 3
	OperationFailed    OperationState = 4
	OperationCancelled OperationState = 5
)

// String returns the stable name of the state.
func (s OperationState) String() string {
	names := [...]string{"waiting", "running", "paused", "done", "failed", "cancelled"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

// IsOver reports whether nothing changes any more.
func (s OperationState) IsOver() bool { return s >= OperationDone }

// OperationStep is a part of an operation, in the order in which the parts end.
type OperationStep struct {
	Name  string         `json:"name"`
	State OperationState `json:"state"`
}

// Progress counts the finished and all parts of an operation.
type Progress struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
	// DoneBytes and TotalBytes are estimates by the sizes of the copies; 0 where no size is known.
	DoneBytes  uint64 `json:"done_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

// Share returns how much is done, between 0 and 1. Bytes count where they are known, because ranges differ in size.
func (p Progress) Share() float64 {
	whole := progressOf(p.Total, p.TotalBytes)
	if whole == 0 {
		return 0
	}
	return min(1, progressOf(p.Done, p.DoneBytes)/whole)
}

// progressWeight is what each part counts in a share besides its bytes. Without it, a hundred empty ranges and one of a
// kilobyte would count as one.
const progressWeight = 1 << 20

// progressOf returns the weight of parts and their bytes.
func progressOf(parts, bytes uint64) float64 { return float64(parts)*progressWeight + float64(bytes) }

// Operation is the record of a long operation. The controller of the metadata leader advances it, so it continues after the
// death of any process, the one that started it included.
type Operation struct {
	ID    OperationID    `json:"id"`
	Kind  OperationKind  `json:"kind"`
	State OperationState `json:"state"`
	// Version grows with every change of this record.
	Version uint64 `json:"version"`
	// Node, Target, Region and Range are its objects, as the kind defines.
	Node   NodeID   `json:"node,omitempty"`
	Target NodeID   `json:"target,omitempty"`
	Region RegionID `json:"region,omitempty"`
	Range  RangeID  `json:"range"`
	// By is who started it; "cluster" for operations that nobody asked for.
	By       string          `json:"by"`
	Steps    []OperationStep `json:"steps"`
	Progress Progress        `json:"progress"`
	// Waits names the present obstacle, Error the last error.
	Waits string `json:"waits,omitempty"`
	Error string `json:"error,omitempty"`
	// Started and Ended are wall-clock times of the proposers. Ran is how long it ran before Since, pauses left out; Since is
	// when it last began to run.
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Since   time.Time     `json:"since"`
	Ran     time.Duration `json:"ran"`
}

// Clone returns a deep copy of o.
func (o *Operation) Clone() *Operation {
	c := *o
	c.Steps = append([]OperationStep(nil), o.Steps...)
	return &c
}

// Running returns for how long the operation has run until now, without its pauses.
func (o *Operation) Running(now time.Time) time.Duration {
	if o.State != OperationRunning {
		return o.Ran
	}
	return o.Ran + max(0, now.Sub(o.Since))
}

// ETA estimates how long the operation still runs, by its rate so far. ok is false while no rate is known.
func (o *Operation) ETA(now time.Time) (left time.Duration, ok bool) {
	share, ran := o.Progress.Share(), o.Running(now)
	if o.State != OperationRunning || share <= 0 || ran <= 0 {
		return 0, false
	}
	return time.Duration(float64(ran) * (1 - share) / share).Round(time.Second), true
}

// Bounds of operations. OperationsActiveMax bounds those that are not over, OperationsKept those that are: older ones are
// trimmed. The others bound the parts of a record.
const (
	OperationsActiveMax  = 64
	OperationsKept       = 256
	OperationStepsMax    = 16
	OperationTextSizeMax = 512
)
