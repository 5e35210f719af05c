package storage

import (
	"math"
	"time"
)

// DiskState says which writes a store's disk still accepts.
type DiskState uint8

// The states of a disk, from good to bad.
const (
	// DiskHealthy accepts everything.
	DiskHealthy DiskState = iota
	// DiskRefusing accepts entries of work that was accepted before; Writable rejects new work. The
	// node should hand over its primaries and leave the in-sync sets. It continues to answer reads.
	DiskRefusing
	// DiskFull accepts no appends but for a small part of the reserve, which is for those that were
	// accepted before. The remaining space is for the metadata group's vote.
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

// Constants of the rule by which writes are rejected earlier the faster a disk fills.
const (
	// fillAhead is how long a disk must be able to continue filling at its current speed when
	// writes are rejected: work that was accepted has yet to be written, flushed and compacted.
	fillAhead = 10 * time.Second
	// refuseShareMost bounds the share of the disk that is kept free however fast it fills, and
	// again the share for unflushed bytes. Without a bound one burst of writes would make a small
	// disk useless.
	refuseShareMost = 0.25
	// fillHalfLife is the time after which a measured speed counts half.
	fillHalfLife = 10 * time.Second
	// fillStep is the shortest time between two measurements. Free space changes in steps of whole
	// files, so a shorter time measures noise.
	fillStep = 50 * time.Millisecond
	// recoverShare is how much more than the limit must be free before a state improves. Without
	// the gap, a disk at the limit would accept and reject writes in turn.
	recoverShare = 1.1
)

// fill tracks how full a disk is and how fast it fills. It is a pure value: the caller provides the
// time.
type fill struct {
	refuseShare, fullShare float64 // least free shares of the disk
	state                  DiskState
	rate                   float64 // bytes per second
	measured               time.Duration
	free, total            uint64 // at the last measurement
	owed                   uint64
	started                bool
}

// observe records the free and total bytes of the disk at a time, and the bytes in memory that a
// flush has yet to write. A store without room for a flush can neither continue nor start again,
// because a start replays the log and flushes it.
func (f *fill) observe(now time.Duration, free, total, owed uint64) {
	f.owed = owed
	if dt := now - f.measured; !f.started || dt >= fillStep {
		if f.started {
			// The speed rises at once and falls slowly: after a pause between two bursts the next
			// burst may be as fast as the last one.
			used := max(0, float64(f.free)-float64(free))
			f.rate = max(used/dt.Seconds(), f.rate*math.Exp2(-dt.Seconds()/fillHalfLife.Seconds()))
		}
		f.started, f.measured, f.free, f.total = true, now, free, total
	}
	f.decideState(free, total)
}

// owedMatters reports whether the bytes in memory can change a decision about a disk with so many free
// bytes. On a disk that is more than half empty they cannot, because their share is bounded. To count
// them costs much more than everything else here.
func (f *fill) owedMatters(free, total uint64) bool {
	most := recoverShare*(max(f.refuseShare, refuseShareMost)+refuseShareMost) + 2*reserveShare
	return float64(free) < most*float64(total)
}

// refuseBelow returns the free bytes below which writes are rejected.
func (f *fill) refuseBelow(total uint64) float64 {
	// Unflushed bytes come on top of the limit, because their flush must fit even when the limit is
	// reached.
	most := refuseShareMost * float64(total)
	return max(f.refuseShare*float64(total), min(f.rate*fillAhead.Seconds(), most)) + min(float64(f.owed), most)
}

// acceptFrom returns the free bytes from which a disk that is in the given state or in a worse one
// leaves it.
func (f *fill) acceptFrom(total uint64, state DiskState) float64 {
	if state == DiskFull {
		return recoverShare * f.fullShare * float64(total)
	}
	return recoverShare * f.refuseBelow(total)
}

// decideState sets the state for the given free and total bytes.
func (f *fill) decideState(free, total uint64) {
	if total == 0 { // the file system does not report its size
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
	// A state gets worse at its limit and better only recoverShare beyond it.
	f.state = max(state(1), min(f.state, state(recoverShare)))
}

// nextQuery returns how soon the disk should be queried again, at most most: well before it can be
// full at its current speed.
func (f *fill) nextQuery(most time.Duration) time.Duration {
	if f.rate <= 0 {
		return most
	}
	// A quarter of the time until the disk is full, so that at least three more queries come before
	// that.
	left := float64(f.free) - f.fullShare*float64(f.total)
	soon := time.Duration(max(0, left) / f.rate / 4 * float64(time.Second))
	return min(most, max(fillStep, soon))
}
