package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// logPosition returns the position of the operation in the log of its range, as its answer reported
// it. The timestamps of a log grow strictly (invariant I7), so a timestamp is a position.
func (o *Op) logPosition() (at rhumb.Timestamp, ok bool) {
	switch {
	case o.Result == OK && o.IsWrite():
		return o.Outcome.Version.HLC, true
	case o.Result == OK:
		return o.At, true
	}
	return 0, false
}

// RealTime reports the first operation whose log position is below that of an operation that had
// ended before it began. The log orders all keys of a range, so this checks strict serializability
// of the range at the cost of a sort.
func RealTime(history []*Op) error {
	// Parts of a range may be in different logs after a split. The log of each continues that of the whole, so its positions
	// grow all the same.
	type place struct {
		rng  rhumb.RangeID
		part int
	}
	byRange := map[place][]*Op{}
	var ranges []place
	// An operation without a definite answer has no position, and Resolve has added those that took
	// effect.
	for _, op := range history {
		if _, ok := op.logPosition(); !ok {
			continue
		}
		// Without splits all keys of a range are one part.
		at := place{op.Range, op.Part}
		if byRange[at] == nil {
			ranges = append(ranges, at)
		}
		byRange[at] = append(byRange[at], op)
	}
	for _, r := range ranges {
		if err := realTimeRange(byRange[r]); err != nil {
			return err
		}
	}
	return nil
}

// realTimeRange checks the operations on one range.
func realTimeRange(ops []*Op) error {
	// One pass over calls in order of time, with the ended operations merged in, replaces the
	// comparison of all pairs.
	byCall, byReturn := slices.Clone(ops), slices.Clone(ops)
	slices.SortStableFunc(byCall, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortStableFunc(byReturn, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	// last is the operation with the greatest log position among those that have ended.
	var last *Op
	var lastAt rhumb.Timestamp
	i := 0
	for _, op := range byCall {
		// Only operations that had ended strictly before the call precede it in real time.
		for ; i < len(byReturn) && byReturn[i].Return < op.Call; i++ {
			if at, _ := byReturn[i].logPosition(); last == nil || at > lastAt {
				last, lastAt = byReturn[i], at
			}
		}
		at, _ := op.logPosition()
		// A read may share a position with the operation it follows; two writes may not, unless
		// they are mutations of one request.
		if last != nil && (at < lastAt || op.IsWrite() && at == lastAt && op.Request != last.Request) {
			return fmt.Errorf("order of range %s:\n  %v\nhad ended before the next began, but has a greater log position:\n  %v", op.Range, last, op)
		}
	}
	return nil
}

// Atomic reports the first read of several keys that saw one key of a batch with the write of the
// batch or a later one, and another key without it.
func Atomic(history []*Op) error {
	batches := map[keyName][]*Op{}
	for _, op := range history {
		// Single writes cannot be torn.
		if op.Result == OK && len(op.Mutations) > 1 {
			for _, k := range op.keyNames() {
				batches[k] = append(batches[k], op)
			}
		}
	}
	for _, op := range history {
		if op.Result != OK || len(op.Names) < 2 {
			continue
		}
		// All keys of a read are read at one timestamp, so they must show the same batches.
		seen := map[keyName]rhumb.Version{}
		for i, k := range op.keyNames() {
			seen[k] = op.Items[i].Version
		}
		for _, k := range op.keyNames() {
			for _, b := range batches[k] {
				if err := atomicRead(op, b, k, seen); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// atomicRead checks a read against a batch that wrote key k. A deleted key has no version, so it
// proves nothing: only a key with an older version shows that the batch is missing.
func atomicRead(read, batch *Op, k keyName, seen map[keyName]rhumb.Version) error {
	// The read precedes the batch at this key, so other keys need not show the batch.
	if seen[k].Compare(batch.Outcome.Version) < 0 {
		return nil
	}
	for _, other := range batch.keyNames() {
		v, asked := seen[other]
		if asked && !v.IsZero() && v.Compare(batch.Outcome.Version) < 0 {
			return fmt.Errorf("torn batch:\n  %v\nsaw %s with, and %s without\n  %v", read, k, other, batch)
		}
	}
	return nil
}
