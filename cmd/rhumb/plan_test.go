package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// Plans of failovers are compared with failures in tests that have a cluster under load anyway: TestPausedNodeComesBack
// (a node) and TestRegionIsLost (a region).

// planOf returns the plan for a failure.
func planOf(t *testing.T, name string) *failoverDoc {
	t.Helper()
	doc := new(failoverDoc)
	okJSON(t, doc, "plan", "failover", name)
	t.Logf("plan: %s", failoverTitle(doc))
	return doc
}

// expect waits until the metadata shows what the plan says, and fails the test if the longest pause was not within its bound.
func (d *failoverDoc) expect(t *testing.T, c *client.Client, longest time.Duration) {
	t.Helper()
	planned := make(map[string]rangeFailoverDoc)
	for _, r := range d.Ranges {
		planned[r.Range] = r
	}
	fates, unlike := compareFates(planned, c.Ranges())
	// A set may lack a slow copy for a moment, and this client may see a command late.
	for end := time.Now().Add(planWait); len(unlike) > 0 && time.Now().Before(end); fates, unlike = compareFates(planned, c.Ranges()) {
		time.Sleep(50 * time.Millisecond)
	}
	for _, text := range unlike {
		t.Error(text)
	}
	// A plan of nothing would agree with everything.
	if len(fates) == 0 {
		t.Error("the plan concerns no range")
	}
	// No protocol bounds what a machine that is short of processors adds.
	most := time.Duration(max(d.TakeOver.MostMs, d.Stall.MostMs) * float64(time.Millisecond))
	if text, err := os.ReadFile("/proc/loadavg"); err == nil && isCrowded(string(text)) {
		most *= 3
	}
	t.Logf("%v ranges as planned; the longest pause was %v of at most %v", fates, longest.Round(time.Millisecond), most)
	if longest > most {
		t.Errorf("writes paused for %v, and the plan said at most %v: %+v", longest, most, d.TakeOver.Steps)
	}
}

// planWait bounds the wait for metadata that shows what a plan says.
const planWait = 10 * time.Second

// compareFates counts the ranges by what was planned for them, and returns a line for each that is not as planned. The sets are compared besides the
// primaries: a range is served when its set has shrunk to the copies that are left.
func compareFates(planned map[string]rangeFailoverDoc, ranges []*rhumb.Range) (fates map[rhumb.FailoverFate]int, unlike []string) {
	fates = make(map[rhumb.FailoverFate]int)
	for _, r := range ranges {
		// The plan concerns the ranges that were there when it was made.
		p, ok := planned[r.ID.String()]
		if !ok {
			continue
		}
		fates[p.Fate]++
		if p.To != "" && r.Primary.String() != p.To {
			unlike = append(unlike, fmt.Sprintf("range %s: %s took over from %s, and the plan said %s", r.ID, r.Primary, p.From, p.To))
		}
		left := strings.Join(nodeNames(r.InSync), " ")
		if shrunk := left == strings.Join(p.Left, " "); shrunk != (p.Fate != rhumb.FailoverUnserved) {
			unlike = append(unlike, fmt.Sprintf("range %s has the in-sync set %s, and the plan said %s with %v: %s", r.ID, left, p.Fate, p.Left, p.Reason))
		}
	}
	return fates, unlike
}

// isCrowded reports whether more than two processes wait for each processor, by the text of /proc/loadavg.
func isCrowded(text string) bool {
	var load float64
	for _, digit := range strings.SplitN(text, ".", 2)[0] {
		load = 10*load + float64(digit-'0')
	}
	return load > 2*float64(runtime.NumCPU())
}
