package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestSilentDifferenceHeals kills one of three nodes, changes a value on its disk so that every checksum holds, and
// starts it again with a comparison every second. Nobody asks for one: the copy is found, replaced, and then all
// replicas are equal, as `rhumb range verify` says too.
func TestSilentDifferenceHeals(t *testing.T) {
	k := startCrew(t, 3, rand.New(rand.NewPCG(1, 1)))
	ok(t, "table", "create", "notes", "--replicas", "3")
	for i := range 12 {
		ok(t, "put", "notes", fmt.Sprint("note-", i), "v=value")
	}
	await(t, "the cluster to be whole", settleWait, k.isHealthy)
	victim := k.nodes[2]
	before := k.life(victim.ID)
	k.kill(victim)
	n, err := storagetest.Plant(victim.Dir, func(key, value []byte) []byte {
		if !bytes.Contains(key, []byte("note-7")) || len(value) < 2 {
			return nil
		}
		at := bytes.Index(value, []byte("value"))
		if at < 0 {
			return nil
		}
		copy(value[at:], "wrong")
		return value
	})
	if err != nil || n == 0 {
		t.Fatalf("planted %d differences: %v", n, err)
	}
	victim.args = append(victim.args, "--heal-after", "500ms", "--verify-interval", "1s")
	k.start(victim)
	k.awaitNewLife(victim, before)
	await(t, "the cluster to be whole", settleWait, k.isHealthy)
	// The ranges whose primary is another node are compared by it, once a day: the command does it now. Those of
	// the restarted node it compares itself.
	var verdicts []verdictDoc
	seen := 0
	await(t, "equal replicas", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", "range", "verify", "--all")
		if code == exit.Failure {
			seen++
		}
		return code == exit.OK && k.isHealthy() && scrape(t, victim.AdminAddr, "rhumb_host_healed_replicas_total") > 0
	})
	t.Logf("the command saw the difference %d times before it was mended", seen)
	okJSON(t, &verdicts, "range", "verify", "--all")
	records := uint64(0)
	for _, v := range verdicts {
		if v.Result != "equal" || len(v.Replicas) != 3 {
			t.Errorf("range %s: %+v", v.Range, v)
			continue
		}
		for _, r := range v.Replicas {
			if r.Digest != v.Replicas[0].Digest || r.Verdict != "trusted" {
				t.Errorf("range %s: %+v", v.Range, v)
			}
		}
		records += v.Replicas[0].Records
	}
	if records != 12 {
		t.Errorf("%d records were compared, want 12", records)
	}
	// The node that was wrong compares its own ranges in the background.
	await(t, "comparisons in the background", settleWait, func() bool {
		return scrape(t, victim.AdminAddr, "rhumb_digest_compared_total") > 0
	})
	if scrape(t, victim.AdminAddr, "rhumb_host_distrusted_replicas_total") != 1 || scrape(t, victim.AdminAddr, "rhumb_host_healed_replicas_total") != 1 {
		t.Error("the copy was not quarantined and healed once")
	}
	fails(t, exit.Usage, "range", "verify")
	fails(t, exit.Usage, "range", "verify", "--all", "--trust", "n1")
	fails(t, exit.NotFound, "range", "verify", "1/60000")
}

// scrape returns the sum of a metric of a node over its labels, or 0 if the node does not answer.
func scrape(t *testing.T, admin, name string) (sum float64) {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), " ")
		if base, _, _ := strings.Cut(key, "{"); base == name {
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	return sum
}
