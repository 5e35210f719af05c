package nodelog

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// verdict describes the content of a log, or its damage.
type verdict struct {
	// oldest and newest are the laps that hold the records from the first that was not trimmed to the last.
	oldest, newest uint64
	// trimmed is the greatest trim position that any record has, and durable the greatest of a record that
	// counts.
	trimmed, durable Number
	// known is the greatest number that any record but a mark has, or that any calls durable, or the one that
	// is damaged.
	known  Number
	damage *spot
}

// spot is a place in a segment where damage was found.
type spot struct {
	segment int
	at      int64
	what    string
}

// segmentOf returns the index of the segment of a lap in a ring.
func segmentOf(lap uint64, segments int) int { return int((lap - 1) % uint64(segments)) }

// damageError returns the damage as an error.
func (v *verdict) damageError(fsys vfs.FS, dir string) error {
	d := v.damage
	return &rhumb.Error{Op: "nodelog.Open", Kind: rhumb.Corrupt, Err: &Damage{segmentPath(fsys, dir, d.segment), d.at, d.what, v.known > v.trimmed}}
}

// judgeLog decides about a log by the scans of all its segments. synced is a number that is known from
// elsewhere to have been durable, and trimmed one that is known to be needed no longer; both may be 0.
func judgeLog(scans []segmentScan, synced, trimmed Number) (v verdict) {
	all := head{synced: synced, trimmed: trimmed}
	for i := range scans {
		all.raise(scans[i].greatest)
	}
	v.trimmed, v.known = all.trimmed, all.synced
	for i := range scans {
		v.known = max(v.known, scans[i].data)
	}
	n := len(scans)
	// Trimmed records may be written over, so the search begins at the first one that was not. The records
	// after it must follow without a gap.
	if v.oldest, v.damage = findOldest(scans, v.trimmed); v.damage != nil {
		return v
	}
	v.newest = v.oldest
	for {
		s, next := &scans[segmentOf(v.newest, n)], &scans[segmentOf(v.newest+1, n)]
		v.durable = max(v.durable, s.last.trimmed)
		if next.first.lap != v.newest+1 {
			break
		}
		// The next lap began after this one was synced, so it follows without a gap, and its writer was not an
		// earlier boot.
		if next.first.number != s.last.number+1 || next.first.boot < s.last.boot {
			v.damage = &spot{segmentOf(v.newest, n), s.end, fmt.Sprintf("record %d is missing, and lap %d begins with record %d", s.last.number+1, v.newest+1, next.first.number)}
			return v
		}
		v.newest++
	}
	s := &scans[segmentOf(v.newest, n)]
	missing := s.last.number + 1
	switch next := segmentOf(v.newest+1, n); {
	case all.synced >= missing && all.lap > v.newest && s.greatest.number < missing:
		// Records of a later lap remain, and none of this one, so the first record of the next lap is missing.
		v.damage = &spot{next, Sector, fmt.Sprintf("record %d of lap %d is missing or damaged, although record %d was synced", missing, v.newest+1, all.synced)}
	case all.synced >= missing:
		v.damage = &spot{segmentOf(v.newest, n), s.end, fmt.Sprintf("record %d is missing or damaged, although record %d was synced", missing, all.synced)}
	case s.flipped != 0:
		v.damage = &spot{segmentOf(v.newest, n), s.end, fmt.Sprintf("one bit of record %d is wrong", missing)}
		v.raiseKnown(s.flipped, missing)
	}
	return v
}

// raiseKnown notes a damaged record. A damaged mark loses nothing.
func (v *verdict) raiseKnown(kind byte, number Number) {
	if kind == kindData {
		v.known = max(v.known, number)
	}
}

// checkNextLap looks for a wrong bit in the record after the last one, if that record begins the next lap: its
// lap and number are known only after judgeLog. next is the segment of that lap.
func (v *verdict) checkNextLap(scans []segmentScan, next []byte, seed uint32) {
	i, missing := segmentOf(v.newest+1, len(scans)), scans[segmentOf(v.newest, len(scans))].last.number+1
	if scans[i].first.lap == v.newest+1 {
		return
	}
	if kind := oneBitOff(next[Sector:], seed, v.newest+1, missing); kind != 0 {
		v.damage = &spot{i, Sector, fmt.Sprintf("one bit of record %d is wrong", missing)}
		v.raiseKnown(kind, missing)
	}
}

// findOldest returns the lap with the first record that was not trimmed.
func findOldest(scans []segmentScan, trimmed Number) (oldest uint64, damage *spot) {
	var least uint64 // the earliest lap whose beginning is intact
	for i := range scans {
		f := scans[i].first
		// A file holds only laps of its own: a lap in the wrong place is a file under the wrong name, and its
		// record proves nothing here.
		if f.lap == 0 || segmentOf(f.lap, len(scans)) != i {
			continue
		}
		if least == 0 || f.lap < least {
			least = f.lap
		}
		if f.number <= trimmed+1 && f.lap > oldest {
			oldest = f.lap
		}
	}
	switch {
	case oldest > 0:
		return oldest, nil
	case least > 1:
		return 0, &spot{segmentOf(least-1, len(scans)), Sector, fmt.Sprintf("lap %d, which holds record %d, is missing or damaged", least-1, trimmed+1)}
	}
	// A new log has a mark, so a log without any record has lost it.
	return 0, &spot{0, Sector, "the first record, which is written when a log is created, is missing or damaged"}
}
