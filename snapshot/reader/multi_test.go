package reader_test

import (
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// TestBatchFetchesOlder guards that a batch of names asks for the versions before those that the view does not show, and asks
// for none where it shows them all.
func TestBatchFetchesOlder(t *testing.T) {
	w := newWorld(t, 1, snapshot.TableSpec{KeyKind: format.KeyName, Shards: 2}, reader.Options{})
	names := make([][]byte, 20)
	commit := func(n int, hlc, closed rhumb.Timestamp) {
		c := w.pub.Begin()
		for i := range n {
			names[i] = fmt.Appendf(nil, "name/%d", i)
			check(t, c.Put(w.table, snapshot.Record{Key: format.Key{Name: names[i]}, HLC: hlc, Value: fmt.Append(nil, uint64(hlc))}))
		}
		_, err := c.Publish(snapshot.CommitInfo{Closed: closed})
		check(t, err)
	}
	ask := func(v reader.View, err error) (reader.Table, func()) {
		check(t, err)
		tb := w.tableOf(v)
		tb.TrustLengths()
		return tb, v.Unlock
	}
	commit(len(names), 10, 20)
	old, unlock := ask(w.client.Lock())
	defer unlock()
	if n := old.Hidden(names); n != 0 {
		t.Errorf("%d names have a version that a view of the newest does not show", n)
	}
	const changed = 8
	commit(changed, 30, 20)
	closed, unlock := ask(w.client.LockClosed())
	defer unlock()
	for kind, tb := range map[string]reader.Table{"an earlier version": old, "the closed timestamp": closed} {
		// Two of few names have one fingerprint once in a thousand runs.
		if n := tb.Hidden(names); n < changed-1 || n > changed+1 {
			t.Errorf("view of %s: %d of %d names are fetched, want %d", kind, n, len(names), changed)
		}
		out := make([]reader.Item, len(names))
		if found, err := tb.MultiGet(names, out); found != len(names) || err != nil {
			t.Errorf("view of %s: %d names found, %v", kind, found, err)
		}
		for i := range out {
			if string(out[i].Value) != "10" {
				t.Errorf("view of %s: %s is %s", kind, names[i], out[i].Value)
			}
		}
	}
	newest, unlock := ask(w.client.Lock())
	defer unlock()
	if n := newest.Hidden(names); n != 0 {
		t.Errorf("the newest version hides %d names", n)
	}
}
