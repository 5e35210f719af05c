package lease

import (
	"fmt"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// LeaseMax is the longest lease that a heartbeat may ask for, and so the time that a restarted node
// waits.
const LeaseMax = 1500 * time.Millisecond

// MeetGrace is how much longer than usual a peer may stay silent if it is new or begins a new life:
// both sides must first hear of each other from metadata and connect.
const MeetGrace = 2 * time.Second

// rhoPermilleMax bounds the configurable difference of clock rates. A restarted node assumes it,
// since it does not know the timing of its earlier life.
const rhoPermilleMax = 10

// epsilonMax bounds the configurable allowance. A restarted node assumes it.
const epsilonMax = 100 * time.Millisecond

// Timing configures how two nodes watch each other (docs/replication.md#timings).
type Timing struct {
	// Heartbeat is the interval between heartbeats.
	Heartbeat time.Duration
	// Lease is the length of a grant, at most LeaseMax.
	Lease time.Duration
	// Suspect is the time without two-way contact after which a peer is suspected. It is shorter
	// than Lease, so that the metadata commit of a failover overlaps the wait for the lease to end.
	Suspect time.Duration
	// Epsilon is subtracted from the holder's belief and added to the grantor's obligation.
	Epsilon time.Duration
	// RhoPermille is the largest difference between the rates of two clocks, in thousandths.
	RhoPermille int
}

// RegionTiming returns the timing for two nodes of one region.
func RegionTiming() Timing {
	return Timing{
		Heartbeat: 150 * time.Millisecond, Lease: 900 * time.Millisecond, Suspect: 600 * time.Millisecond,
		Epsilon: 20 * time.Millisecond, RhoPermille: 1,
	}
}

// WANTiming returns the timing for two nodes with a round trip above 50 ms.
func WANTiming() Timing {
	return Timing{
		Heartbeat: 250 * time.Millisecond, Lease: 1500 * time.Millisecond, Suspect: 1000 * time.Millisecond,
		Epsilon: 20 * time.Millisecond, RhoPermille: 1,
	}
}

// refusedSuspect is Suspect for a peer whose host has refused a connection. A peer that is alive nevertheless answers a heartbeat
// before that.
func (t Timing) refusedSuspect() time.Duration { return t.Heartbeat * 3 / 2 }

// unhealthySuspect is Suspect for a peer that says that its data path does not work. It has waited
// for its disk for longer than this before it said so.
func (t Timing) unhealthySuspect() time.Duration { return t.Suspect / 2 }

// Obligation returns how long a grant binds its grantor at most: so long an elected node may have to wait for the lease of a
// predecessor that died right after a heartbeat.
func (t Timing) Obligation() time.Duration { return obligation(t.Lease, t) }

// Validate returns an error that lists every fault of the timing.
func (t Timing) Validate() error {
	const op rhumb.Op = "lease.Timing"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(t.Heartbeat <= 0, "heartbeat is %v, want more than 0", t.Heartbeat)
	// With a shorter interval, one or two lost heartbeats would look like a failure.
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
