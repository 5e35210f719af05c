package node

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// plant changes one value of a closed node behind its back: what key-7 says becomes something else of the
// same length, with right checksums.
func plant(t *testing.T, n *Node) {
	t.Helper()
	changed, err := storagetest.Plant(n.cfg.Dirs[0], func(key, value []byte) []byte {
		if !bytes.Contains(key, []byte("key-7")) || bytes.IndexByte(value, 'v') < 0 {
			return nil
		}
		value[len(value)-1] ^= 1
		return value
	})
	if err != nil || changed == 0 {
		t.Fatalf("planted %d differences: %v", changed, err)
	}
}

// verifyAll compares all ranges through a node, and counts the results.
func verifyAll(t *testing.T, n *Node, trust rhumb.NodeID) (results map[string]int, last *rhumbpb.VerifyRangeResponse) {
	t.Helper()
	results = map[string]int{}
	for r := range n.State().Ranges() {
		var resp *rhumbpb.VerifyRangeResponse
		var err error
		// A range without a primary at the moment is asked for again, as the client does.
		await(t, "a comparison of range "+r.ID.String(), func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			resp, err = clusterClient(t, n).VerifyRange(ctx, &rhumbpb.VerifyRangeRequest{Range: api.EncodeRangeID(r.ID), Trust: uint32(trust)})
			return err == nil
		})
		if results[resp.Result]++; resp.Result != "equal" {
			last = resp
		}
	}
	return results, last
}

// awaitEqual waits until all ranges are in sync everywhere, and compares them.
func awaitEqual(t *testing.T, n *Node) {
	t.Helper()
	awaitInSync(t, n, 3)
	if got, bad := verifyAll(t, n, rhumb.NoNode); len(got) != 1 || got["equal"] == 0 {
		t.Fatalf("comparing equal replicas: %v, %v", got, bad)
	}
}

// TestDifferingCopyHeals: one value of one replica is changed so that every checksum holds. Nothing but a
// comparison finds it; the comparison does, the copy is quarantined and replaced, and the replicas are equal.
func TestDifferingCopyHeals(t *testing.T) {
	healAfterForTests = 100 * time.Millisecond
	t.Cleanup(func() { healAfterForTests = -1 })
	nodes, table := startThree(t)
	kv := kvClient(t, nodes[0])
	for i := range 20 {
		put(t, kv, table.Id, "key-"+string(rune('a'+i)), "other")
	}
	put(t, kv, table.Id, "key-7", "value")
	del(t, kv, table.Id, "key-b")
	awaitEqual(t, nodes[0])
	victim := nodes[2]
	id := victim.Identity().Node
	victim.Close()
	plant(t, victim)
	again := startAgain(t, victim, nodes[0])
	awaitInSync(t, nodes[0], 3)
	results, bad := verifyAll(t, nodes[0], rhumb.NoNode)
	if results["differ"] != 1 {
		t.Fatalf("results %v, want one range that differs", results)
	}
	for _, r := range bad.Replicas {
		if want := r.Node == uint32(id); r.Quarantined != want || (r.Verdict == "differs") != want {
			t.Errorf("%v: only n%d differs", r, id)
		}
	}
	await(t, "the copy is replaced", func() bool {
		r, _ := nodes[0].State().Range(api.DecodeRangeID(bad.Range))
		return metric(t, again, "rhumb_host_healed_replicas_total") == 1 && !r.IsQuarantined(id) && len(r.InSync) == 3
	})
	awaitEqual(t, nodes[0])
	// The node that was wrong serves the right value with one other.
	nodes[1].Close()
	if got := get(t, kvClient(t, again), table.Id, "key-7"); got != "value" {
		t.Errorf("key-7 is %q", got)
	}
}

// TestTwoCopiesDiffer: of two replicas that differ, with the third one away, none is quarantined; when the third one
// is back, its copy decides.
func TestTwoCopiesDiffer(t *testing.T) {
	nodes, table := startThree(t)
	put(t, kvClient(t, nodes[0]), table.Id, "key-7", "value")
	awaitEqual(t, nodes[0])
	nodes[2].Close()
	plant(t, nodes[2])
	again := startAgain(t, nodes[2], nodes[0])
	awaitInSync(t, nodes[0], 3)
	third := nodes[1]
	third.Close()
	await(t, "the third one is out", func() bool {
		for r := range again.State().Ranges() {
			if r.Primary == third.Identity().Node || r.Primary == rhumb.NoNode {
				return false
			}
		}
		return true
	})
	var results map[string]int
	var bad *rhumbpb.VerifyRangeResponse
	await(t, "the difference is seen", func() bool {
		results, bad = verifyAll(t, nodes[0], rhumb.NoNode)
		return results["undecided"] == 1
	})
	if bad.Why == "" {
		t.Error("the answer does not say what is missing")
	}
	// The primary of the range names it in its status, and nobody else does.
	want, named := api.DecodeRangeID(bad.Range), 0
	for _, n := range []*Node{nodes[0], again} {
		resp, err := clusterClient(t, n).Status(t.Context(), &rhumbpb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range resp.Differing {
			if named++; api.DecodeRangeID(d.Range) != want || len(d.Nodes) != 2 || d.Why == "" || d.Table != table.Id {
				t.Errorf("%s names %v, want %s", n.Identity().Node, d, want)
			}
		}
		if len(resp.Differing) != int(resp.DifferingCount) {
			t.Errorf("%d named of %d", len(resp.Differing), resp.DifferingCount)
		}
	}
	if named != 1 {
		t.Errorf("the difference was named %d times", named)
	}
	// An operator's word does not leave a range with fewer copies than it needs.
	for _, r := range bad.Replicas {
		if r.Verdict != "undecided" {
			continue
		}
		resp, err := clusterClient(t, nodes[0]).VerifyRange(t.Context(), &rhumbpb.VerifyRangeRequest{Range: bad.Range, Trust: r.Node})
		if err != nil || resp.Result != "differ" || resp.Why == "" {
			t.Errorf("trusting n%d alone: %v, %v", r.Node, resp, err)
		}
	}
	for r := range nodes[0].State().Ranges() {
		if len(r.Quarantined) > 0 {
			t.Errorf("%v of range %s are quarantined", r.Quarantined, r.ID)
		}
	}
}
