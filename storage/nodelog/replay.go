package nodelog

import (
	"fmt"
	"iter"

	"github.com/rhumbdb/rhumb"
)

// Record is one record of a log.
type Record struct {
	Number Number
	// Payload is valid until the next record is read.
	Payload []byte
}

// Replay returns all records that were not trimmed, in order, without marks. The sequence ends with the first error: records that Open found
// intact and that cannot be read now. Nothing can be appended before the sequence ends.
func (l *Log) Replay() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		l.io.Lock()
		defer l.io.Unlock()
		if l.failed != nil {
			yield(Record{}, l.failed)
			return
		}
		// The oldest lap is at most a whole ring before the newest one.
		first := uint64(1)
		if n := uint64(len(l.files)); l.lap > n {
			first = l.lap - n + 1
		}
		buf := make([]byte, l.size)
		for lap := first; lap <= l.lap; lap++ {
			// A lap that was trimmed whole may be written over, or damaged.
			if l.ends[segmentOf(lap, len(l.files))] <= l.Trimmed() {
				continue
			}
			if !l.replayLap(lap, buf, yield) {
				return
			}
		}
	}
}

// replayLap yields the records of one lap. It reports whether to continue. io is held.
func (l *Log) replayLap(lap uint64, buf []byte, yield func(Record, error) bool) bool {
	const op rhumb.Op = "nodelog.Log.Replay"
	segment := segmentOf(lap, len(l.files))
	if err := l.readSegment(op, segment, buf); err != nil {
		yield(Record{}, err)
		return false
	}
	var before head
	for at := int64(Sector); before.number < l.ends[segment]; {
		h, payload, _, ok := decodeRecord(buf[at:], l.seed)
		// Open has read the same bytes, so they have changed since.
		if !ok || h.lap != lap || before.number > 0 && h.number != before.number+1 {
			yield(Record{}, damaged(l.segmentFile(segment), at, fmt.Sprintf("a record of lap %d is damaged", lap)))
			return false
		}
		if h.kind == kindData && h.number > l.Trimmed() && !yield(Record{h.number, payload}, nil) {
			return false
		}
		before = h
		at += paddedSize(len(payload))
	}
	return true
}
