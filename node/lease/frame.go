package lease

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// ExclusionsMax bounds the exclusions of one frame.
const ExclusionsMax = 4_096

// Exclusion states that a grant covers no epoch of Range below Epoch.
type Exclusion struct {
	Range rhumb.RangeID
	Epoch rhumb.Epoch
}

// Frame is the only message between the Pairs of two nodes: a heartbeat, or the answer to one. A
// time is a reading of the clock that its comment names; zero means none.
type Frame struct {
	// Sent is the sender's clock when it sent the frame. A heartbeat asks for a grant that begins
	// here.
	Sent time.Duration
	// Reply is true for the answer to a heartbeat, which is not answered in turn.
	Reply bool
	// Lease is how long the sender of a heartbeat would believe a grant; 0 asks for none.
	Lease time.Duration

	// EchoBoot is the life of the receiver that Echo and Granted refer to. Other lives ignore them.
	EchoBoot rhumb.BootSeq
	// Echo is the greatest Sent that the sender has received from the receiver, on the receiver's
	// clock. Held is how long the sender has held it, so the round trip is now - Echo - Held.
	Echo time.Duration
	Held time.Duration

	// Granted is the Sent of the heartbeat that is granted, on the receiver's clock, and
	// GrantedLease is the length of the grant; nothing is granted if GrantedLease is 0.
	Granted      time.Duration
	GrantedLease time.Duration
	// Exclusions lists the ranges that grants of the sender do not cover, except those already
	// confirmed. ExclusionSeq is the number of the last one.
	Exclusions   []Exclusion
	ExclusionSeq uint64
	// Confirmed is the ExclusionSeq up to which the sender has applied the receiver's exclusions.
	Confirmed uint64

	// Close of a heartbeat asks the receiver to move its clock past a timestamp of the sender,
	// durably; 0 asks for nothing.
	Close rhumb.Timestamp
	// Agreed is the greatest Close of the receiver that the sender's clock is durably past: the
	// sender writes above it in every range whose primary it becomes. Agreed covers no epoch
	// that the sender excludes.
	Agreed rhumb.Timestamp
	// Wall is the sender's wall clock, since 1970.
	Wall time.Duration
	// Suspects are nodes with which the sender has no contact, at most suspectsMax of them.
	Suspects []rhumb.NodeID
	// Unhealthy states that the data path of the sender does not work. Such a frame has Sent and
	// EchoBoot, and nothing else: it proves no contact.
	Unhealthy bool
	// Speed is what the sender thinks of the receiver, in the life EchoBoot.
	Speed Speed
	// Closed states how far ranges of the sender are closed.
	Closed closed.Frame
}

// Speed is a node's opinion of how fast a peer acknowledges (docs/replication.md#rule-slow). The values are those of the wire.
type Speed uint8

const (
	// SpeedUnknown is the opinion of a peer that was asked nothing lately.
	SpeedUnknown Speed = iota
	// SpeedUsual is the opinion of a peer that does not stand out from the others.
	SpeedUsual
	// SpeedSlow is the opinion of a peer that acknowledges much later than the others.
	SpeedSlow
)

// Outgoing is a frame to send. Its value falls with every delay, so send it before anything else.
type Outgoing struct {
	To    rhumb.NodeID
	Frame Frame
}
