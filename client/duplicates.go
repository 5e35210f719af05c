package client

import (
	"bytes"
	"context"
	"iter"

	"github.com/rhumbdb/rhumb"
)

// Duplicates scans for named keys that exist in more than one region, and yields all records of
// each. Such a name was created while a region that has it was dead. Keys that the server named are
// left out. ScanOptions.Limit is ignored.
func (t *Table) Duplicates(ctx context.Context, o ScanOptions) iter.Seq2[rhumb.Item, error] {
	return func(yield func(rhumb.Item, error) bool) {
		o.Limit = 0
		// A scan yields the records of one name one after the other, so one record of the present
		// name is enough to compare.
		var first rhumb.Item // of the present name
		alone := false       // first is not yielded yet
		for it, err := range t.Scan(ctx, o) {
			if err != nil {
				yield(it, err)
				return
			}
			// A named key is in the range that its name hashes to, a key that the server named is
			// not.
			if id, err := t.c.meta.homeOfName(t, it.Key.Home.Region, it.Key.Name); err != nil || id != it.Key.Home {
				continue
			}
			if first.Key.Name == nil || !bytes.Equal(it.Key.Name, first.Key.Name) {
				first, alone = it, true
				continue
			}
			if alone && !yield(first, nil) || !yield(it, nil) {
				return
			}
			alone = false
		}
	}
}
