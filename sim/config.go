package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Durations of a run.
const (
	// DurationDefault is the virtual length of a run.
	DurationDefault = 60 * time.Second
	// LivenessMax is how long after the last fault the cluster may take to work again.
	LivenessMax = 30 * time.Second
	// faultShare is the share of a run, in percent, in which faults are injected.
	faultShare = 70
)

// Config describes a run.
type Config struct {
	// Seed determines the whole run.
	Seed uint64
	// Duration is the virtual length of the run, by default DurationDefault.
	Duration time.Duration
	// Bug is the planted bug, by default NoBug.
	Bug Bug
	// Mix selects the faults with which a bug is searched, without planting the bug. The default is
	// the faults of the seed.
	Mix Bug
	// Faults, if not empty, are the kinds of faults in place of those of the seed.
	Faults []FaultKind
	// Whole leaves out the splits of ranges, which every third seed draws. Seeds from before there were splits then are what they were.
	Whole bool
	// Apart leaves out the merges of ranges, which most seeds with splits draw otherwise. Seeds from before there were merges then are what they were.
	Apart bool
	// Asked leaves out the merges that the planner starts on its own, which some seeds with merges draw otherwise. Known seeds then are what
	// they were.
	Asked bool
	// Settled leaves out the removal of a region and the second phase of failover, which some seeds draw otherwise. Known seeds then are what
	// they were. Seeds with a planted bug, a mix or chosen faults draw neither.
	Settled bool
	// OwnLog equips the stores of all nodes with logs of their own.
	OwnLog bool
	// Synced leaves out the tables that defer syncs, which some seeds draw otherwise, so that known seeds do not change. Seeds
	// with a planted bug, a mix or chosen faults draw none.
	Synced bool
	// Kept leaves out regions that are lost for good, and removals of one of more than two regions, which some seeds draw otherwise. Known
	// seeds then are what they were. Seeds with a planted bug, a mix or chosen faults draw neither.
	Kept bool
	// Conform checks each step of the replicas against the guards of the model, which is done in every eighth seed anyway.
	Conform bool
	// Trace receives one line per step if it is not nil.
	Trace io.Writer
}

// FaultKind is a kind of fault. Traces and statistics use its name.
type FaultKind uint8

// The kinds of faults, with their numbers in the fault list of the project.
const (
	faultCrash      FaultKind = iota // F1, F30: a node loses power and restarts
	faultCrashAll                    // F6: all nodes at once
	faultCrashLoop                   // F7: a node crashes again while starting
	faultPause                       // F3: a process stops for a while and continues
	faultIsolate                     // F10: one node is cut off
	faultSplit                       // F11: two groups
	faultBridge                      // F13, F12: two groups that share one node
	faultOneWay                      // F14: one direction of one link
	faultLink                        // F15: both directions of one link
	faultSlowLink                    // F16, F19: the links of one node are slow
	faultLoss                        // F17, F18: loss, repetition and reordering everywhere
	faultStall                       // F34: a disk answers nothing for a while
	faultSlowDisk                    // a disk is slow for a while
	faultJump                        // F40, F41: a wall clock jumps
	faultMeta                        // F53, F54: messages of the metadata group are lost
	faultDrain                       // a node is drained, later live again
	faultMove                        // F50, F51: the replicas of a range change
	faultData                        // replication traffic of a node is lost, heartbeats are not
	faultUsurp                       // a restarting member is elected while the primary is cut off
	faultRollBack                    // the disk returns to the state of an earlier life
	faultFlip                        // a bit of the synced part of the log flips
	faultTorn                        // the log ends before its synced end
	faultEmpty                       // the directory of the ranges comes back empty
	faultSpoil                       // a replica finds damage in its data and is later discarded
	faultFull                        // a disk rejects new work for a while
	faultHalfOpen                    // one direction loses everything and no stream breaks
	faultRing                        // half-open links around a ring of all nodes
	faultRegion                      // all nodes of a region are down for a while
	faultClock                       // a wall clock is wrong for a while and steps
	faultHandover                    // a handover is prepared, and something may happen to it
	faultDivide                      // a range is split, and something may happen to it
	faultMerge                       // two ranges are merged, and something may happen to them
	faultRemove                      // a region is removed with its nodes
	faultUnreadable                  // F33: a disk refuses all reads for a while
	faultPower                       // a node loses what its table had not synced, and restarts
	faultForGood                     // a region is lost for good and given up
	faultKinds
)

var faultNames = [faultKinds]string{
	"crash", "crash-all", "crash-loop", "pause", "isolate", "split", "bridge", "one-way", "link", "slow-link", "loss",
	"stall", "slow-disk", "jump", "meta", "drain", "move", "data", "usurp",
	"roll-back", "flip", "torn", "empty", "spoil", "full", "half-open", "ring", "region", "clock", "handover", "divide", "merge", "remove",
	"unreadable", "power", "for-good",
}

// ParseFaults returns the kinds of faults with the given names, separated by commas; ok is false if there is an unknown one. No name is no kind.
func ParseFaults(names string) (kinds []FaultKind, ok bool) {
	if names == "" {
		return nil, true
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.Index(faultNames[:], name)
		if i < 0 {
			return nil, false
		}
		kinds = append(kinds, FaultKind(i))
	}
	return kinds, true
}

// String returns the name of the fault.
func (k FaultKind) String() string { return faultNames[k] }

// profile is drawn from the seed: sizes, bounds and kinds of faults.
type profile struct {
	nodes, regions, ranges int
	settings               rhumb.ClassSettings
	clients, keys          int
	think                  time.Duration
	replica                replica.Config
	// regionDelay is the one-way delay within a region, wanDelay the one between regions. jitter is
	// the mean of the random part of a delay, as a share of that delay.
	regionDelay, wanDelay time.Duration
	jitter                float64
	loss, repeat          float64
	// reorder lets messages of one stream overtake each other on short links.
	reorder bool
	// vague lowers the hints of refusals, so that a primary resumes from well below the point where
	// the logs diverge.
	vague     bool
	syncDelay time.Duration
	// pass is the longest time for which events of one node accumulate before the host runs a pass.
	pass      time.Duration
	metaDelay time.Duration
	// rho is the greatest difference of clock rates, in thousandths.
	rho  float64
	skew time.Duration
	// strict makes nodes reject timestamps from clocks that are ahead, as real nodes do; then only
	// the clock of the node with index wrong is ever wrong. Without strict all clocks jump and
	// every timestamp is accepted: if all clocks jumped and nodes rejected timestamps, the cluster
	// would correctly stop.
	strict bool
	wrong  int
	// trusting is strict without the rejection (NoClockRefusal).
	trusting bool
	faults   []FaultKind
	// splitBytes is the size above which nodes split their ranges, 0 for never.
	splitBytes int64
	faultEvery time.Duration
	// small lets the planner merge small ranges on its own.
	small bool
	// witness makes the last node one that votes in the metadata group and holds no data.
	witness bool
	// older makes one node begin with an older build.
	older bool
	// survive places the table such that it survives the loss of a region.
	survive bool
	// placed puts the nodes into regions of the metadata. many lets one of more than two regions be removed.
	placed, many bool
	// shape is the index of the regionShape of seeds in which a region is lost for good, or one of many is removed.
	shape int
	// mixed adds a table that does not survive the loss of a region to one that does; alone is the number of its copies.
	mixed bool
	alone int
	// standIn lets the second phase of failover happen: dead nodes are replaced soon, and one dies for long after the other faults.
	standIn bool
	// unread is set if the disk of a primary refuses reads after the other faults.
	unread bool
	// misled sets the clock of the metadata leader wrong after the other faults.
	misled bool
	// spoiltChunks is the share of the chunks of copies that are damaged on the way.
	spoiltChunks float64
}

// oneOf returns one of the choices.
func oneOf[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// drawProfile draws the profile of a run from a generator of its own, so that the profile does not
// depend on the events of the run. The order of draws is part of the meaning of a seed: inserting a
// draw moves every seed in testdata/seeds.txt.
func drawProfile(r *rand.Rand) profile {
	p := profile{
		nodes:       oneOf(r, 3, 3, 4, 5, 6),
		regions:     oneOf(r, 1, 1, 1, 2, 3),
		ranges:      1 + r.IntN(4),
		clients:     3 + r.IntN(5),
		keys:        2 + r.IntN(6),
		think:       oneOf[time.Duration](r, 20, 60, 150, 400) * time.Millisecond,
		regionDelay: oneOf[time.Duration](r, 100, 300, 1000, 4000) * time.Microsecond,
		wanDelay:    oneOf[time.Duration](r, 10, 40, 120) * time.Millisecond,
		jitter:      oneOf(r, 0.05, 0.3, 2),
		loss:        oneOf(r, 0, 0, 0, 0.005, 0.03),
		repeat:      oneOf(r, 0, 0, 0.01, 0.1),
		syncDelay:   oneOf[time.Duration](r, 100, 1000, 2000, 10_000) * time.Microsecond,
		metaDelay:   oneOf[time.Duration](r, 2, 20, 150) * time.Millisecond,
		rho:         oneOf(r, 0, 0.5, 1),
		skew:        oneOf[time.Duration](r, 0, 50, 2000) * time.Millisecond,
		faultEvery:  oneOf[time.Duration](r, 800, 1500, 3000, 6000) * time.Millisecond,
	}
	p.pass = oneOf[time.Duration](r, 50, 200, 200, 5000, 20_000) * time.Microsecond
	p.vague = r.IntN(4) == 0
	p.reorder = r.IntN(4) == 0
	p.settings = rhumb.DefaultClassSettings()
	// Each hash slot is a range.
	p.settings.HashSlots = p.ranges
	// Six of ten seeds keep the default of three replicas, two of them in sync.
	switch r.IntN(10) {
	case 0:
		p.settings.Replicas, p.settings.MinInSync = 3, 1
	case 1:
		p.settings.Replicas, p.settings.MinInSync = 2, 1
	case 2:
		p.settings.Replicas, p.settings.MinInSync = 2, 2
	case 3:
		// Five replicas need at least five nodes.
		if p.nodes >= 5 {
			p.settings.Replicas, p.settings.MinInSync = 5, 2+r.IntN(2)
		}
	}
	// The wrong node is drawn in every seed, so that strictness does not shift later draws.
	p.strict, p.wrong = r.IntN(2) == 0, r.IntN(p.nodes)
	p.replica = drawBounds(r)
	// drawSplits decides about splits.
	for k := range faultDivide {
		if r.IntN(3) == 0 {
			p.faults = append(p.faults, k)
		}
	}
	// A run without faults is a useful case too, but a rare one.
	if len(p.faults) == 0 && r.IntN(4) > 0 {
		p.faults = append(p.faults, faultCrash, faultIsolate)
	}
	// Later draws are at the end, so that they move no seed.
	p.spoiltChunks = oneOf(r, 0, 0, 0.05, 0.3)
	if r.IntN(8) == 0 {
		p.surviveRegion()
	}
	p.older = r.IntN(6) == 0
	// A region is lost among the other faults too, and not only after them.
	if p.survive && len(p.faults) > 0 && !slices.Contains(p.faults, faultRegion) {
		p.faults = append(p.faults, faultRegion)
	}
	return p
}

// drawWitness adds a witness in some seeds whose ranges do not have to be in several regions. It is one node more than the seed draws, so that
// the others are as many as without it, and it draws from a generator of its own, so that all other seeds keep their meaning.
// The witness suffers all faults of nodes: it may be a voter of the metadata, and even its leader.
func (p *profile) drawWitness(r *rand.Rand) {
	if p.witness = r.IntN(8) == 0 && !p.survive; p.witness {
		p.nodes++
	}
}

// dataNodes is the number of nodes that may hold copies. A witness is the last node.
func (p *profile) dataNodes() int {
	if p.witness {
		return p.nodes - 1
	}
	return p.nodes
}

// drawBounds shrinks some bounds so far that the paths beyond them become common.
func drawBounds(r *rand.Rand) replica.Config {
	var c replica.Config
	if r.IntN(2) == 0 {
		// A bound of 1 byte sends and seals one entry at a time, because each message holds at
		// least one.
		c.AppendBytesMax = oneOf(r, 1, 400, 2000)
		c.EntryBytesMax = oneOf(r, 1, 300, 4000)
	}
	// Not so small that a far replica could never catch up under load (seed 2704).
	if r.IntN(3) == 0 {
		c.InflightBytesMax = max(c.AppendBytesMax, oneOf(r, 8000, 30_000))
		if c.AppendBytesMax == 0 {
			c.AppendBytesMax = c.InflightBytesMax
		}
	}
	if r.IntN(3) == 0 {
		c.TailBytesMax = oneOf(r, 1, 500, 5000)
	}
	// With a short log a replica can miss trimmed entries. It then copies the range as a whole.
	if r.IntN(4) == 0 {
		c.LogKeepBytes = oneOf[int64](r, 2000, 20_000)
	}
	// More than a far replica lags under load, or it could never join.
	if r.IntN(4) == 0 {
		c.JoinWithinBytes = oneOf(r, 8000, 30_000)
	}
	if r.IntN(6) == 0 {
		c.ProposalsMax = 2
	}
	// Short hold-offs let in-sync sets change often.
	if r.IntN(4) > 0 {
		c.HoldOffMin = oneOf(r, time.Millisecond, 100*time.Millisecond, 500*time.Millisecond)
		c.HoldOffMax = oneOf(r, 500*time.Millisecond, 5*time.Second)
	}
	if r.IntN(6) == 0 {
		// At least one entry must fit, or nothing could be proposed.
		c.UncommittedBytesMax = max(c.EntryBytesMax, 2000)
		if c.EntryBytesMax == 0 {
			c.EntryBytesMax = 2000
		}
	}
	return c
}

// leaseTiming returns the lease timing of a pair of nodes with the given round trip.
func leaseTiming(roundTrip time.Duration) lease.Timing {
	if roundTrip > 50*time.Millisecond {
		return lease.WANTiming()
	}
	return lease.RegionTiming()
}

// String describes the profile in the first line of a trace.
func (p *profile) String() string {
	return fmt.Sprintf("%d nodes in %d regions, %d ranges of %d replicas (min %d), %d clients, faults %v every %v, strict %v, loss %v, repeat %v, delay %v/%v, sync %v, meta %v",
		p.nodes, p.regions, p.ranges, p.settings.Replicas, p.settings.MinInSync, p.clients, p.faults, p.faultEvery, p.strict, p.loss, p.repeat, p.regionDelay, p.wanDelay, p.syncDelay, p.metaDelay)
}
