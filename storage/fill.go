package storage

import (
	"math"
	"time"
)

// DiskState says what a store's disk still takes.
type DiskState uint8

// The states of a disk, from good to bad.
const (
	// DiskHealthy takes everything.
	DiskHealthy DiskState = iota
	// DiskRefusing takes what was accepted before; Writable refuses new work. The node should give its primaries away and
	// leave the in-sync sets, and goes on answering reads.
	DiskRefusing
	// DiskFull takes no appends at all. What remains, and the store's own reserve, is for the metadata group's vote.
	DiskFull
)

// String returns the name of the state.
func (s DiskState) String() string {
	switch s {
	case DiskHealthy:
		return "healthy"
	case DiskRefusing:
		return "refusing writes"
	case DiskFull:
		return "full"
	}
	return "unknown"
}

// How the refusal of writes follows the speed at which a disk fills.
const (
	// fillAhead is for how long a disk that fills as fast as now must have room when writes are refused: what was accepted
	// is still to be written, and so are flushes and compactions of it.
	fillAhead = 10 * time.Second
	// refuseShareMost bounds the share of the disk that is kept free however fast it fills, and again the share for what is
	// owed.
	refuseShareMost = 0.25
	// fillHalfLife is how fast a measured speed is forgotten.
	fillHalfLife = 10 * time.Second
	// fillStep is the least time between two measurements: shorter ones say little.
	fillStep = 50 * time.Millisecond
	// recoverShare is how much more than the limit must be free before a state gets better.
	recoverShare = 1.1
)

// fillValues follows how full a disk is and how fast it fills. It is a pure value: the caller brings the time.
type fill struct {
	refuseShare, fullShare float64 // of the disk, least
	state                  DiskState
	rate                   float64 // bytes a second
	measured               time.Duration
	free, total            uint64 // at the last measurement
	owed                   uint64
	started                bool
}

// observe takes in the free and total bytes of the disk at a time, and the bytes in memory that a flush has yet to write:
// a store that has no room for them can neither go on nor start again.
func (f *fill) observe(now time.Duration, free, total, owed uint64) {
	f.owed = owed
	if dt := now - f.measured; !f.started || dt >= fillStep {
		if f.started {
			used := max(0, float64(f.free)-float64(free))
			f.rate = max(used/dt.Seconds(), f.rate*math.Exp2(-dt.Seconds()/fillHalfLife.Seconds()))
		}
		f.started, f.measured, f.free, f.total = true, now, free, total
	}
	f.decideState(free, total)
}

// refuseBelow returns the free bytes below which writes are refused.
func (f *fill) refuseBelow(total uint64) float64 {
	most := refuseShareMost * float64(total)
	return max(f.refuseShare*float64(total), min(f.rate*fillAhead.Seconds(), most)) + min(float64(f.owed), most)
}

func (f *fill) decideState(free, total uint64) {
	if total == 0 { // a file system that cannot tell
		f.state = DiskHealthy
		return
	}
	state := func(factor float64) DiskState {
		switch {
		case float64(free) < factor*f.fullShare*float64(total):
			return DiskFull
		case float64(free) < factor*f.refuseBelow(total):
			return DiskRefusing
		}
		return DiskHealthy
	}
	f.state = max(state(1), min(f.state, state(recoverShare)))
}

// nextQuery returns how soon the disk should be asked again, at most most: well before it can be full at its present speed.
func (f *fill) nextQuery(most time.Duration) time.Duration {
	if f.rate <= 0 {
		return most
	}
	left := float64(f.free) - f.fullShare*float64(f.total)
	soon := time.Duration(max(0, left) / f.rate / 4 * float64(time.Second))
	return min(most, max(fillStep, soon))
}
