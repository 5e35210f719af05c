package lease

import (
	"fmt"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// LeaseMax is the longest lease that may be asked for, and so what a restarted node waits out.
const LeaseMax = 1500 * time.Millisecond

// MeetGrace is how much longer than usual a peer that is new, or begins a new life, may stay silent: both sides have to
// hear of each other from metadata and to connect first.
const MeetGrace = 2 * time.Second

// rhoPermilleMax bounds the rate difference that may be configured; a restarted node assumes it.
const rhoPermilleMax = 10

// epsilonMax bounds the allowance that may be configured; a restarted node assumes it.
const epsilonMax = 100 * time.Millisecond

// Timing says how a pair of nodes watch each other (section 1.9 of the replication design).
type Timing struct {
	// Heartbeat is the time between two heartbeats.
	Heartbeat time.Duration
	// Lease is the length of a grant, at most LeaseMax.
	Lease time.Duration
	// Suspect is the time without two-way contact after which a peer is suspected; shorter than Lease, so that the
	// metadata commit overlaps the wait for the lease to end.
	Suspect time.Duration
	// Epsilon is taken off the holder's belief and added to the grantor's obligation.
	Epsilon time.Duration
	// RhoPermille is the greatest difference between the rates of two clocks, in thousandths.
	RhoPermille int
}

// RegionTiming is for a pair of nodes within a region.
func RegionTiming() Timing {
	return Timing{
		Heartbeat: 150 * time.Millisecond, Lease: 900 * time.Millisecond, Suspect: 600 * time.Millisecond,
		Epsilon: 20 * time.Millisecond, RhoPermille: 1,
	}
}

// WANTiming is for a pair with a round trip above 50 ms.
func WANTiming() Timing {
	return Timing{
		Heartbeat: 250 * time.Millisecond, Lease: 1500 * time.Millisecond, Suspect: 1000 * time.Millisecond,
		Epsilon: 20 * time.Millisecond, RhoPermille: 1,
	}
}

// Validate lists everything that is wrong with the timing.
func (t Timing) Validate() error {
	const op rhumb.Op = "lease.Timing"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(t.Heartbeat <= 0, "heartbeat is %v, want more than 0", t.Heartbeat)
	fault(t.Suspect < 3*t.Heartbeat, "suspect is %v, want at least three heartbeats of %v", t.Suspect, t.Heartbeat)
	fault(t.Lease <= t.Suspect, "lease is %v, want more than suspect %v", t.Lease, t.Suspect)
	fault(t.Lease > LeaseMax, "lease is %v, want at most %v", t.Lease, LeaseMax)
	fault(t.Epsilon < 0 || t.Epsilon > epsilonMax, "epsilon is %v, want 0 to %v", t.Epsilon, epsilonMax)
	fault(t.RhoPermille < 0 || t.RhoPermille > rhoPermilleMax, "rho is %d permille, want 0 to %d", t.RhoPermille, rhoPermilleMax)
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}
