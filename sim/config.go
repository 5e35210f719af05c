package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Durations of a run.
const (
	// DurationDefault is how long a run lasts.
	DurationDefault = 60 * time.Second
	// LivenessMax is how long after the last fault everything must work again.
	LivenessMax = 30 * time.Second
	// faultShare is the part of a run, in percent, in which faults happen.
	faultShare = 70
)

// Config says what to run.
type Config struct {
	// Seed decides everything.
	Seed uint64
	// Duration is the length of the run in virtual time; default DurationDefault.
	Duration time.Duration
	// Bug is broken on purpose; default NoBug.
	Bug Bug
	// Mix draws the faults with which this bug is sought, and does not plant it; default those of the seed.
	Mix Bug
	// Trace, when set, takes one line per step.
	Trace io.Writer
}

// FaultKind is a sort of fault; the names stand in traces.
type FaultKind uint8

// The sorts of faults. The comments give their ids in the project's fault list.
const (
	faultCrash     FaultKind = iota // F1, F30: a node loses power and comes back
	faultCrashAll                   // F6: all nodes at once
	faultCrashLoop                  // F7: a node crashes again while it starts
	faultPause                      // F3: a node stops for a while and goes on
	faultIsolate                    // F10: one node is cut off
	faultSplit                      // F11: two parts
	faultBridge                     // F13, F12: two parts that share one node
	faultOneWay                     // F14: one direction of one link
	faultLink                       // F15: both directions of one link
	faultSlowLink                   // F16, F19: one node's links get slow
	faultLoss                       // F17, F18: loss, repetition and reordering everywhere
	faultStall                      // F34: a disk stops for a while
	faultSlowDisk                   // a disk is slow for a while
	faultJump                       // F40, F41: a wall clock jumps
	faultMeta                       // F53, F54: no proposal is applied for a while
	faultDrain                      // a node is drained and comes back
	faultMove                       // F50, F51: a range gets other replicas
	faultData                       // the data path of a node is broken, its heartbeats are not
	faultUsurp                      // a primary is cut off while a member that has just restarted is elected
	faultRollBack                   // the disk of a node that is down becomes what it was a life earlier
	faultFlip                       // a bit of the synced part of its log flips
	faultTorn                       // its log ends before the end of its synced part
	faultEmpty                      // its directory with the ranges comes back empty
	faultSpoil                      // a replica meets damage in its data, and is discarded later
	faultFull                       // a disk has no room for a while
	faultHalfOpen                   // one direction of a stream loses everything, or of a link, and nobody is told
	faultRing                       // of each node and the next, in a ring, one direction of the stream loses everything
	faultRegion                     // all nodes of a region are down for a while
	faultClock                      // a wall clock is wrong for a while, and steps
	faultKinds
)

var faultNames = [faultKinds]string{
	"crash", "crash-all", "crash-loop", "pause", "isolate", "split", "bridge", "one-way", "link", "slow-link", "loss",
	"stall", "slow-disk", "jump", "meta", "drain", "move", "data", "usurp",
	"roll-back", "flip", "torn", "empty", "spoil", "full", "half-open", "ring", "region", "clock",
}

// String names the fault in traces.
func (k FaultKind) String() string { return faultNames[k] }

// profile is what a seed draws: sizes, bounds and fault kinds.
type profile struct {
	nodes, regions, ranges int
	settings               rhumb.ClassSettings
	clients, keys          int
	think                  time.Duration
	replica                replica.Config
	// regionDelay is the one-way delay within a region, wanDelay between regions; jitter is a share of the delay.
	regionDelay, wanDelay time.Duration
	jitter                float64
	loss, repeat          float64
	// reorder lets messages of one stream overtake each other on short links.
	reorder bool
	// vague lowers the hints of refusals, so that primaries begin to send from well below where the logs part.
	vague     bool
	syncDelay time.Duration
	// pass is the longest time for which events of one node gather before its replicas are asked what they want done.
	pass      time.Duration
	metaDelay time.Duration
	// rho is the greatest difference of clock rates in thousandths.
	rho  float64
	skew time.Duration
	// strict seeds refuse timestamps from clocks that are ahead, as real nodes do, and only the clock of the node with index
	// wrong is ever wrong. In the others all clocks jump, and all timestamps are taken.
	strict bool
	wrong  int
	// trusting is strict without the refusal (NoClockRefusal).
	trusting   bool
	faults     []FaultKind
	faultEvery time.Duration
}

// one gives one of the choices.
func one[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

func draw(r *rand.Rand) profile {
	p := profile{
		nodes:       one(r, 3, 3, 4, 5, 6),
		regions:     one(r, 1, 1, 1, 2, 3),
		ranges:      1 + r.IntN(4),
		clients:     3 + r.IntN(5),
		keys:        2 + r.IntN(6),
		think:       one[time.Duration](r, 20, 60, 150, 400) * time.Millisecond,
		regionDelay: one[time.Duration](r, 100, 300, 1000, 4000) * time.Microsecond,
		wanDelay:    one[time.Duration](r, 10, 40, 120) * time.Millisecond,
		jitter:      one(r, 0.05, 0.3, 2),
		loss:        one(r, 0, 0, 0, 0.005, 0.03),
		repeat:      one(r, 0, 0, 0.01, 0.1),
		syncDelay:   one[time.Duration](r, 100, 1000, 2000, 10_000) * time.Microsecond,
		metaDelay:   one[time.Duration](r, 2, 20, 150) * time.Millisecond,
		rho:         one(r, 0, 0.5, 1),
		skew:        one[time.Duration](r, 0, 50, 2000) * time.Millisecond,
		faultEvery:  one[time.Duration](r, 800, 1500, 3000, 6000) * time.Millisecond,
	}
	p.pass = one[time.Duration](r, 50, 200, 200, 5000, 20_000) * time.Microsecond
	p.vague = r.IntN(4) == 0
	p.reorder = r.IntN(4) == 0
	p.settings = rhumb.DefaultClassSettings()
	p.settings.HashSlots = p.ranges
	switch r.IntN(10) {
	case 0:
		p.settings.Replicas, p.settings.MinInSync = 3, 1
	case 1:
		p.settings.Replicas, p.settings.MinInSync = 2, 1
	case 2:
		p.settings.Replicas, p.settings.MinInSync = 2, 2
	case 3:
		if p.nodes >= 5 {
			p.settings.Replicas, p.settings.MinInSync = 5, 2+r.IntN(2)
		}
	}
	p.strict, p.wrong = r.IntN(2) == 0, r.IntN(p.nodes)
	p.replica = drawBounds(r)
	for k := range faultKinds {
		if r.IntN(3) == 0 {
			p.faults = append(p.faults, k)
		}
	}
	if len(p.faults) == 0 && r.IntN(4) > 0 {
		p.faults = append(p.faults, faultCrash, faultIsolate)
	}
	return p
}

// drawBounds makes some bounds so small that what happens beyond them is common.
func drawBounds(r *rand.Rand) replica.Config {
	var c replica.Config
	if r.IntN(2) == 0 {
		c.AppendBytesMax = one(r, 1, 400, 2000)
		c.EntryBytesMax = one(r, 1, 300, 4000)
	}
	if r.IntN(3) == 0 { // but not so small that a far replica could never catch up under load
		c.InflightBytesMax = max(c.AppendBytesMax, one(r, 8000, 30_000))
		if c.AppendBytesMax == 0 {
			c.AppendBytesMax = c.InflightBytesMax
		}
	}
	if r.IntN(3) == 0 {
		c.TailBytesMax = one(r, 1, 500, 5000)
	}
	if r.IntN(4) == 0 {
		c.LogKeepBytes = one[int64](r, 2000, 20_000)
	}
	if r.IntN(4) == 0 { // more than what a far replica is behind under load, or it could never join
		c.JoinWithinBytes = one(r, 8000, 30_000)
	}
	if r.IntN(6) == 0 {
		c.ProposalsMax = 2
	}
	if r.IntN(4) > 0 { // so that sets change often
		c.HoldOffMin = one(r, time.Millisecond, 100*time.Millisecond, 500*time.Millisecond)
		c.HoldOffMax = one(r, 500*time.Millisecond, 5*time.Second)
	}
	if r.IntN(6) == 0 {
		c.UncommittedBytesMax = max(c.EntryBytesMax, 2000)
		if c.EntryBytesMax == 0 {
			c.EntryBytesMax = 2000
		}
	}
	return c
}

// timing gives the lease timing of a pair with a round trip.
func timing(roundTrip time.Duration) lease.Timing {
	if roundTrip > 50*time.Millisecond {
		return lease.WANTiming()
	}
	return lease.RegionTiming()
}

func (p *profile) String() string {
	return fmt.Sprintf("%d nodes in %d regions, %d ranges of %d replicas (min %d), %d clients, faults %v every %v, strict %v, loss %v, repeat %v, delay %v/%v, sync %v, meta %v",
		p.nodes, p.regions, p.ranges, p.settings.Replicas, p.settings.MinInSync, p.clients, p.faults, p.faultEvery, p.strict, p.loss, p.repeat, p.regionDelay, p.wanDelay, p.syncDelay, p.metaDelay)
}
