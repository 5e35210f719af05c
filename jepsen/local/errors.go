package local

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// excusable holds the kinds of errors with which a cluster may answer during a
// fault: it cannot serve at the moment, or does not know what became of a write.
// Every other kind says that something is wrong with the caller, the data or the
// program, which no fault excuses.
var excusable = []rhumb.Kind{
	rhumb.NotPrimary, rhumb.Unavailable, rhumb.Overloaded, rhumb.Unknown, rhumb.DeadlineExceeded, rhumb.Canceled, rhumb.DiskFull,
}

// failedLines bounds the lines about failed calls, one for each kind of error and
// of call.
const failedLines = 10

// refusedShare bounds the writes in calm times that were sent again and then refused: one in this
// many calls. A call that waits for a quarter of a second while its range gets another primary is
// sent again, and that happens without any fault: ranges are moved and merged.
const refusedShare = 100_000

// judgeCalls returns a line for each kind of error that no fault excuses, and for
// reads and writes that failed although the cluster was whole and no fault was in
// progress. A few writes with a condition may be sent again then. previous is set if
// nodes run the previous release, whose kinds of errors are not those of this one,
// and busy if the machine does other work, which may keep a call from being answered
// at any time.
func judgeCalls(calls []Call, windows []Window, examples map[rhumb.Kind]string, previous, busy bool) (broken []string) {
	// One line for each kind: a fault fails hundreds of calls alike.
	counts, calm, first := map[rhumb.Kind]int{}, map[string]int{}, map[string]Call{}
	refused := 0
	for _, c := range calls {
		if c.OK {
			continue
		}
		if !previous && !slices.Contains(excusable, c.Kind) {
			counts[c.Kind]++
		}
		switch calmly := !busy && isCalm(c, windows); {
		case calmly && c.Refused:
			refused++
		case calmly:
			what := fmt.Sprintf("%s failed as %s", map[bool]string{true: "reads", false: "writes"}[c.Read], c.Kind)
			if calm[what]++; calm[what] == 1 {
				first[what] = c
			}
		}
	}
	if most := 1 + len(calls)/refusedShare; refused > most {
		broken = append(broken, fmt.Sprintf("%d of %d calls were writes that were sent again and then refused while no fault was in progress; at most %d may be", refused, len(calls), most))
	}
	for kind, count := range counts {
		broken = append(broken, fmt.Sprintf("%d calls failed as %s, which no fault excuses, such as: %s", count, kind, examples[kind]))
	}
	for what, count := range calm {
		c := first[what]
		broken = append(broken, fmt.Sprintf("%d %s while the cluster was whole and no fault was in progress, the first at %.1f s for %v: %s", count, what, c.At.Seconds(), c.Took.Round(time.Millisecond), c.Err))
	}
	// The counts are in maps, and the report must not differ from run to run.
	slices.Sort(broken)
	return broken[:min(len(broken), failedLines)]
}

// isCalm reports whether a call began and ended between two faults, when the
// cluster was whole.
func isCalm(c Call, windows []Window) bool {
	if len(windows) == 0 || c.At < windows[0].Whole {
		return false // the start, when the first calls open connections
	}
	// A call that only began or ended in the calm may have met the fault.
	for _, w := range windows {
		if c.At < w.Whole && c.At+c.Took > w.From {
			return false
		}
	}
	return true
}
