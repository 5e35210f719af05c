package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// position is where an answer says that its operation stands in its range's log.
func (o *Op) position() (at rhumb.Timestamp, ok bool) {
	switch {
	case o.Result == OK && o.IsWrite():
		return o.Outcome.Version.HLC, true
	case o.Result == OK:
		return o.At, true
	}
	return 0, false
}

// RealTime reports the first operation that stands in the log of its range before one that had ended when it began. The
// log is one order for all keys of a range, so this is a test of strict serializability that costs one sort.
func RealTime(history []*Op) error {
	byRange := map[rhumb.RangeID][]*Op{}
	var ranges []rhumb.RangeID
	for _, op := range history {
		if _, ok := op.position(); !ok {
			continue
		}
		if byRange[op.Range] == nil {
			ranges = append(ranges, op.Range)
		}
		byRange[op.Range] = append(byRange[op.Range], op)
	}
	for _, r := range ranges {
		if err := realTimeRange(byRange[r]); err != nil {
			return err
		}
	}
	return nil
}

func realTimeRange(ops []*Op) error {
	byCall, byReturn := slices.Clone(ops), slices.Clone(ops)
	slices.SortStableFunc(byCall, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortStableFunc(byReturn, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	var last *Op // of those that had ended, the one that stands furthest in the log
	var lastAt rhumb.Timestamp
	i := 0
	for _, op := range byCall {
		for ; i < len(byReturn) && byReturn[i].Return < op.Call; i++ {
			if at, _ := byReturn[i].position(); last == nil || at > lastAt {
				last, lastAt = byReturn[i], at
			}
		}
		at, _ := op.position()
		if last != nil && (at < lastAt || op.IsWrite() && at == lastAt && op.Request != last.Request) {
			return fmt.Errorf("order of range %s:\n  %v\nhad ended before the next began, and stands behind it in the log:\n  %v", op.Range, last, op)
		}
	}
	return nil
}

// Atomic reports the first read of several keys that saw one key as a batch left it, or later, and another key of the
// batch as it was before.
func Atomic(history []*Op) error {
	batches := map[keyName][]*Op{}
	for _, op := range history {
		if op.Result == OK && len(op.Mutations) > 1 {
			for _, k := range op.keys() {
				batches[k] = append(batches[k], op)
			}
		}
	}
	for _, op := range history {
		if op.Result != OK || len(op.Names) < 2 {
			continue
		}
		seen := map[keyName]rhumb.Version{}
		for i, k := range op.keys() {
			seen[k] = op.Items[i].Version
		}
		for _, k := range op.keys() {
			for _, b := range batches[k] {
				if err := atomicRead(op, b, k, seen); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// atomicRead judges a read against a batch that wrote key k. A key that was deleted shows no version, so a batch counts
// as unseen there only when it did not delete it and nothing later could have.
func atomicRead(read, batch *Op, k keyName, seen map[keyName]rhumb.Version) error {
	if seen[k].Compare(batch.Outcome.Version) < 0 {
		return nil
	}
	for _, other := range batch.keys() {
		v, asked := seen[other]
		if asked && !v.IsZero() && v.Compare(batch.Outcome.Version) < 0 {
			return fmt.Errorf("torn batch:\n  %v\nsaw %s with, and %s without\n  %v", read, k, other, batch)
		}
	}
	return nil
}
