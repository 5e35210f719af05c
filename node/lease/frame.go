package lease

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// ExclusionsMax bounds the exclusions of one frame.
const ExclusionsMax = 4_096

// Exclusion says that a grant covers no epoch of Range below Epoch.
type Exclusion struct {
	Range rhumb.RangeID
	Epoch rhumb.Epoch
}

// Frame is the one message between the Pairs of two nodes: a heartbeat, or the answer to one. Times are readings of the
// clock that is named; zero means none.
type Frame struct {
	// Sent is the sender's clock when it sent the frame. A heartbeat asks for a grant from this time on.
	Sent time.Duration
	// Reply is true for the answer to a heartbeat; it is not answered.
	Reply bool
	// Lease is how long the sender would believe a grant (heartbeat; 0 asks for none).
	Lease time.Duration

	// EchoBoot is the life of the receiver that Echo and Granted speak of; others are not looked at.
	EchoBoot rhumb.BootSeq
	// Echo is the greatest Sent that the sender has had from the receiver, on the receiver's clock, and Held how long
	// the sender has held it: the round trip is now - Echo - Held.
	Echo time.Duration
	Held time.Duration

	// Granted is the Sent of the heartbeat that is granted, on the receiver's clock, and GrantedLease for how long; no
	// grant when GrantedLease is 0.
	Granted      time.Duration
	GrantedLease time.Duration
	// Exclusions are the ranges that grants of the sender do not cover, those already confirmed left out, and
	// ExclusionSeq numbers the last of them.
	Exclusions   []Exclusion
	ExclusionSeq uint64
	// Confirmed is the ExclusionSeq up to which the sender has applied the receiver's exclusions.
	Confirmed uint64

	// Close asks the receiver to move its clock past a timestamp of the sender's, durably (heartbeat; 0 asks for nothing).
	Close rhumb.Timestamp
	// Agreed is the greatest Close of the receiver that the sender's clock is past, durably: whatever ranges the sender
	// becomes primary of, it writes above. It speaks of no epoch that the sender excludes.
	Agreed rhumb.Timestamp
	// Wall is the sender's wall clock, since 1970.
	Wall time.Duration
	// Suspects are nodes that the sender is not in contact with, at most suspectsMax of them.
	Suspects []rhumb.NodeID
	// Closed tells how far ranges of the sender are closed.
	Closed closed.Frame
}

// Outgoing is a frame to send. It is worthless when it is late: send it before anything else.
type Outgoing struct {
	To    rhumb.NodeID
	Frame Frame
}
