package publish

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// cut returns the closed timestamp of the image, or 0 if it has none.
func (w *world) cut() rhumb.Timestamp {
	w.t.Helper()
	c, err := reader.Attach(w.dir(), reader.Options{})
	if err != nil {
		return 0
	}
	defer c.Close()
	v, err := c.LockClosed()
	if err != nil {
		return 0
	}
	defer v.Unlock()
	return v.Closed()
}

// awaitCut waits for a closed timestamp.
func (w *world) awaitCut(want rhumb.Timestamp) {
	w.t.Helper()
	await(w.t, "the cut at "+want.String(), func() bool { return w.cut() == want })
}

// awaitAsked waits until the driver has asked for the closed timestamps of all ranges twice more.
func (w *world) awaitAsked() {
	w.t.Helper()
	from := w.asked.Load()
	await(w.t, "the driver to ask", func() bool { return w.asked.Load() >= from+3*int64(hashSlots) })
}

// TestClosed guards that the image's closed timestamp is the minimum over its ranges, that it
// advances when nothing is written, and that it does not advance while a range is not published up
// to its position or is unknown.
func TestClosed(t *testing.T) {
	w := newWorld(t, Policy{})
	id := w.table("cars", rhumb.SnapshotOn)
	put := func(n int, tell bool) {
		w.append(hashRange(n), tell, false, entry.Write{Table: id, Name: []byte{byte('a' + n)}, Value: opaque("v")})
	}
	for n := range hashSlots - 1 {
		put(n, true)
	}
	w.closed.Store(100)
	w.check(map[string]rhumb.TableID{"cars": id})
	w.awaitAsked()
	if at := w.cut(); at != 0 {
		t.Fatalf("a range without a position, and the cut is at %v", at)
	}
	put(hashSlots-1, true)
	w.awaitCut(100) // all ranges are closed up to 100
	w.closed.Store(200)
	w.awaitCut(200) // closed up to 200, nothing written
	put(0, false)   // committed, but the driver has not heard of it
	w.by.Store(hashRange(0), w.logs[hashRange(0)].commit.Seq)
	w.closed.Store(300)
	w.awaitAsked()
	if at := w.cut(); at != 200 {
		t.Fatalf("an entry is not published, and the cut is at %v", at)
	}
	w.driver.Committed(hashRange(0), w.logs[hashRange(0)].commit, nil)
	w.awaitCut(300) // the entry is published
}
