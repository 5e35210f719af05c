package main

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/storage"
)

const (
	// copyBytes is the size of the records that are copied, and copyRate bounds the rate of a copy in bytes per
	// second, so that there is time to kill a node in the middle.
	copyBytes = 32 << 20
	copyRate  = "6MiB"
)

// fillRange overwrites the records of a table until the logs of its range are longer than what nodes keep.
func (k *crew) fillRange(table string) { k.t.Helper(); k.fillBytes(table, copyBytes) }

// fillBytes is fillRange with a size.
func (k *crew) fillBytes(table string, bytes int) {
	k.t.Helper()
	const size = 256 << 10
	t, err := k.c.Table(k.t.Context(), table)
	if err != nil {
		k.t.Fatal(err)
	}
	for i := range bytes / size {
		value := make([]byte, size)
		_, _ = rand.Read(value) // compression would make the set small
		if _, err := t.Put(k.t.Context(), fmt.Appendf(nil, "key-%d", i), value, client.PutOptions{}); err != nil {
			k.t.Fatal(err)
		}
	}
}

// bigRange returns the range of a table that has one.
func (k *crew) bigRange(table string) (id rhumb.RangeID) {
	k.t.Helper()
	var d tableDoc
	var ranges []rangeDoc
	okJSON(k.t, &d, "table", "describe", table)
	okJSON(k.t, &ranges, "range", "ls")
	for _, r := range ranges {
		if r.Class != d.Class {
			continue
		}
		id, err := rhumb.ParseRangeID(r.ID)
		if err != nil {
			k.t.Fatal(err)
		}
		return id
	}
	k.t.Fatalf("no range of class %s in %+v", d.Class, ranges)
	return id
}

// awaitCopied waits until a node has received a part of a set, in bytes beyond a number of them. It fails if the node
// counts as in sync before the set is whole.
func (k *crew) awaitCopied(n *crewNode, id rhumb.RangeID, most float64) {
	k.t.Helper()
	await(k.t, "a part of the copy", settleWait, func() bool {
		for _, r := range k.c.Ranges() {
			if r.ID == id && r.IsInSync(n.ID) {
				k.t.Fatalf("%s is in sync before it has the copy", n.ID)
			}
		}
		return scrape(k.t, n.AdminAddr, "rhumb_transfer_received_bytes_total") >= most
	})
}

// awaitShown waits until `rhumb range describe` shows a part of the copy that a node receives, with an estimate of the rest.
func (k *crew) awaitShown(n *crewNode, id rhumb.RangeID) {
	k.t.Helper()
	await(k.t, "the copy in range describe", settleWait, func() bool {
		var d rangeStatusDoc
		okJSON(k.t, &d, "range", "describe", id.String())
		for _, r := range d.Status {
			if c := r.Copying; r.Node == n.ID.String() && c != nil && c.DoneBytes > 0 && c.ETASeconds != nil {
				if c.From == r.Node || c.DoneBytes > c.TotalBytes || c.TotalBytes < copyBytes/2 {
					k.t.Errorf("the copy is shown as %+v", c)
				}
				return true
			}
		}
		return false
	})
}

// TestKilledDuringCopy kills the receiver of a copy with kill -9 at two moments, and its donor at another one. Each time the
// copy continues where it was, and the node is in sync only when it is whole.
func TestKilledDuringCopy(t *testing.T) {
	k := startCrew(t, 3, mathrand.New(mathrand.NewPCG(1, 1)))
	ok(t, "table", "create", "big", "--replicas", "3", "--hash-slots", "1")
	id := k.bigRange("big")
	// The flags that make copies frequent and slow.
	for _, n := range k.nodes {
		n.args = append(n.args, "--log-keep", "1MiB", "--transfer-rate", copyRate)
		before := k.life(n.ID)
		k.kill(n)
		k.start(n)
		k.awaitNewLife(n, before)
		await(t, "the cluster to be whole", settleWait, k.isHealthy)
	}
	receiver := k.nodes[2]
	before := k.life(receiver.ID)
	k.kill(receiver)
	k.fillRange("big")
	k.start(receiver)
	k.awaitNewLife(receiver, before)
	// The receiver, after an eighth and after a quarter more.
	for _, part := range []float64{copyBytes / 8, copyBytes / 4} {
		k.awaitCopied(receiver, id, part)
		k.awaitShown(receiver, id)
		before = k.life(receiver.ID)
		k.kill(receiver)
		k.start(receiver)
		k.awaitNewLife(receiver, before)
	}
	// The donor: the one that sends.
	k.awaitCopied(receiver, id, copyBytes/8)
	donor := k.nodes[0]
	if scrape(t, k.nodes[1].AdminAddr, "rhumb_transfer_sent_bytes_total") > 0 {
		donor = k.nodes[1]
	}
	sent := scrape(t, donor.AdminAddr, "rhumb_transfer_sent_bytes_total")
	made := scrape(t, donor.AdminAddr, "rhumb_transfer_exported_bytes_total")
	before = k.life(donor.ID)
	k.kill(donor)
	k.start(donor)
	k.awaitNewLife(donor, before)
	await(t, "all copies to be in sync", settleWait, k.isHealthy)
	// What was sent in all, against the size of the set. Killed processes had received less than was sent by what was
	// in buffers of the connection.
	sent += scrape(t, donor.AdminAddr, "rhumb_transfer_sent_bytes_total")
	twice := sent - made
	t.Logf("a set of %.0f bytes, sent in four parts: %.0f bytes twice (%.2f %%)", made, twice, 100*twice/made)
	if made < copyBytes || twice > 4*storage.ChunkBytes {
		t.Errorf("%.0f bytes of a set of %.0f were sent twice", twice, made)
	}
	if again := scrape(t, donor.AdminAddr, "rhumb_transfer_exported_bytes_total"); again != 0 {
		t.Errorf("the donor made another set of %.0f bytes after its restart", again)
	}
	var verdicts []verdictDoc
	okJSON(t, &verdicts, "range", "verify", id.String())
	if len(verdicts) != 1 || verdicts[0].Result != "equal" || verdicts[0].Replicas[2].Records < copyBytes/(256<<10) {
		t.Errorf("%+v", verdicts)
	}
	// A table that is dropped during another copy leaves nothing behind.
	before = k.life(receiver.ID)
	k.kill(receiver)
	k.fillRange("big")
	k.start(receiver)
	k.awaitNewLife(receiver, before)
	k.awaitCopied(receiver, id, copyBytes/8)
	var dropped dropDoc
	okJSON(t, &dropped, "table", "drop", "big", "--yes")
	// Some versions may have been collected, and others not yet.
	if !dropped.Dropped || dropped.Ranges != 1 || dropped.Bytes == nil || *dropped.Bytes < copyBytes/2 || *dropped.Bytes > 8*copyBytes {
		t.Errorf("%+v, with %v bytes", dropped, dropped.Bytes)
	}
	await(t, "the parts of the copy to be removed", settleWait, func() bool {
		left, _ := filepath.Glob(filepath.Join(receiver.Dir, "transfer", "in", "*"))
		gone := true
		for _, r := range k.c.Ranges() {
			gone = gone && r.ID != id
		}
		return gone && len(left) == 0
	})
}
