package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// AdversityGoal is a goal of the project and the result of a run.
type AdversityGoal struct {
	// Goal is its name, such as G2, and Phase the phase in which it was judged.
	Goal  string `json:"goal"`
	Phase string `json:"phase"`
	What  string `json:"what"`
	// Limit and Seen are in Unit.
	Limit float64 `json:"limit"`
	Seen  float64 `json:"seen"`
	Unit  string  `json:"unit"`
	// Samples is the number of calls, ranges or keys that Seen is computed from. A
	// goal without any is not met.
	Samples int  `json:"samples"`
	Met     bool `json:"met"`
}

// The limits of the goals.
//
// They are what callers of a cluster of this shape are promised, and not what
// this machine reaches: nine nodes on two cores share processors and one disk,
// so a busy machine misses them. A figure without the load of the machine
// therefore says little, and the report has both.
const (
	// adversityAfter is the time after a fault from which the rate must be
	// back, and goodputLeast the share of the rate of the baseline.
	adversityAfter = 5 * time.Second
	goodputLeast   = 0.9

	failoverP99  = 1600 * time.Millisecond
	failoverMax  = 2 * time.Second
	failoverWide = 2500 * time.Millisecond // ranges whose copies are in several regions
	failoverLead = 3500 * time.Millisecond // the metadata leader died too
	secondaryMax = 800 * time.Millisecond
	// The nodes need time to distinguish a stalled disk or a cut link from a slow one.
	suspicionMore = 500 * time.Millisecond
	// adversitySlowAfter is the time in which a slow node is found, and slowFactor
	// how much longer a write may take from then on.
	adversitySlowAfter = 15 * time.Second
	slowFactor         = 2
	upgradeMedian      = 10 * time.Millisecond
	upgradeP999        = 50 * time.Millisecond
)

// judge computes the figures of the phases from the calls, and judges the
// goals.
func (r *AdversityReport) judge(callers []*adversityCaller) {
	for i := range r.Phases {
		r.Phases[i].measure(r.calls, callers)
	}
	if len(r.Phases) == 0 {
		return
	}
	// The first phase is the measure of the others: what the callers get when
	// nothing happens on this machine, with this load.
	base := &r.Phases[0]
	for i := range r.Phases {
		p := &r.Phases[i]
		limit := r.limitsOf(p)
		switch p.Name {
		case phaseMaintenance:
			limit("G5", "writes that failed", "writes", 0, float64(p.FailedWrites), p.samples.writes)
			both := min(p.samples.near, base.samples.near)
			limit("G5", "added to the median latency", "ms", milliseconds(upgradeMedian), (p.Near.P50-base.Near.P50)/1e3, both)
			limit("G5", "added to the 99.9th percentile", "ms", milliseconds(upgradeP999), (p.NearP999-base.NearP999)/1e3, both)
		case phaseStall, phasePartition:
			r.judgeGaps(p, callers, "G4", "G4", suspicionMore)
		case phaseSlow:
			limit("G6", "99th percentile of writes after 15 s", "ms", slowFactor*base.NearWriteP99/1e3, p.NearWriteP99/1e3,
				min(p.samples.settled, base.samples.settled))
		case phaseNode:
			r.judgeGaps(p, callers, "G2", "G3", 0)
			limit("G3", "reads that failed", "reads", 0, float64(p.FailedReads), p.samples.reads)
			limit("G6", "rate after 5 s, of the baseline", "", goodputLeast, p.shareOf(base), min(p.samples.due, base.samples.due))
		case phaseRegion:
			// The leader's successor is elected first, and only then can ranges
			// fail over.
			most := failoverWide
			if p.leader {
				most = failoverLead
			}
			g := r.gaps(p, callers, func(s struckPart, wide bool) bool { return s.primary && wide && !s.none })
			limit("G2", "gap of ranges of several regions", "s", most.Seconds(), g.Max.Seconds(), g.Ranges)
			limit("G6", "rate after 5 s, of the baseline", "", goodputLeast, p.shareOf(base), min(p.samples.due, base.samples.due))
		case phaseHealing:
			limit("G6", "rate after 5 s, of the baseline", "", goodputLeast, p.shareOf(base), min(p.samples.due, base.samples.due))
		}
	}
	r.limitsOf(&AdversityPhase{Name: "all"})("G1", "keys without their last acknowledged write", "keys", 0, float64(r.Lost), r.Checked)
}

// judgeGaps judges the gaps of the ranges whose primary or secondary was struck.
// more is added to the limits of a crash.
func (r *AdversityReport) judgeGaps(p *AdversityPhase, callers []*adversityCaller, primary, secondary string, more time.Duration) {
	limit := r.limitsOf(p)
	// The successor of a metadata leader is elected first.
	wideMost := failoverWide
	if p.leader {
		wideMost = failoverLead
	}
	g := r.gaps(p, callers, func(s struckPart, wide bool) bool { return s.primary && !wide })
	limit(primary, "gap of ranges of one region, p99", "s", (failoverP99 + more).Seconds(), g.P99.Seconds(), g.Ranges)
	limit(primary, "gap of ranges of one region, longest", "s", (failoverMax + more).Seconds(), g.Max.Seconds(), g.Ranges)
	g = r.gaps(p, callers, func(s struckPart, wide bool) bool { return s.primary && wide })
	limit(primary, "gap of ranges of several regions", "s", (wideMost + more).Seconds(), g.Max.Seconds(), g.Ranges)
	g = r.gaps(p, callers, func(s struckPart, wide bool) bool { return s.copy && !s.primary && !wide })
	limit(secondary, "gap of ranges with a lost secondary", "s", (secondaryMax + more).Seconds(), g.Max.Seconds(), g.Ranges)
}

// limitsOf returns a function that adds goals of a phase. A share must reach
// its limit, every other figure must not exceed it. A figure without samples is
// 0, which would meet most limits.
func (r *AdversityReport) limitsOf(p *AdversityPhase) func(goal, what, unit string, limit, seen float64, samples int) {
	return func(goal, what, unit string, limit, seen float64, samples int) {
		met := seen <= limit
		if unit == "" {
			met = seen >= limit
		}
		r.Goals = append(r.Goals, AdversityGoal{goal, p.Name, what, limit, seen, unit, samples, met && samples > 0})
	}
}

// shareOf returns the rate of the phase as a share of that of another one, or 0
// if that had no answers.
func (p *AdversityPhase) shareOf(base *AdversityPhase) float64 {
	if base.Share == 0 {
		return 0
	}
	return p.Share / base.Share
}

// milliseconds converts a duration.
func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// served reports whether a copy of the key of a caller was left. Without a
// fault there always is one.
func (p *AdversityPhase) served(caller int) bool { return p.parts == nil || !p.parts[caller].none }

// measure computes the figures of a phase.
func (p *AdversityPhase) measure(calls []adversityCall, callers []*adversityCaller) {
	var near, wide, writes histogram
	var answered, answeredAfter, offered float64
	for i, c := range callers {
		if p.served(i) {
			offered += 1 / c.interval.Seconds()
		}
	}
	// A phase that is shorter than the time after which the rate is judged has
	// no such rate.
	after := min(p.From+adversityAfter, p.Healed)
	settled := p.From
	if p.Name == phaseSlow {
		settled += adversitySlowAfter
	}
	for _, c := range calls {
		if !p.served(c.caller) {
			continue
		}
		// A call belongs to the phase in which it ended, also while the cluster
		// healed.
		if c.end() < p.From || c.end() >= p.To {
			continue
		}
		if c.read {
			p.samples.reads++
		} else {
			p.samples.writes++
		}
		if !c.ok {
			if p.FailedWrites+p.FailedReads == 0 {
				p.FirstError = c.why
			}
			if c.read {
				p.FailedReads++
			} else {
				p.FailedWrites++
			}
			continue
		}
		if c.end() < p.Healed {
			answered++
			if c.end() >= after {
				answeredAfter++
			}
		}
		times := &near
		if callers[c.caller].wide {
			times = &wide
		}
		// The calls that were due while this one was under way were skipped.
		// They would have waited for it.
		for d := c.took; d > 0; d -= callers[c.caller].interval {
			times.add(d)
			if times == &near && !c.read && c.end() >= settled && c.end() < p.Healed {
				writes.add(d)
			}
		}
	}
	p.Near, p.Wide, p.NearP999 = near.quantiles(), wide.quantiles(), near.at(0.999)
	p.NearWriteP99 = writes.at(0.99)
	p.samples.near, p.samples.settled = int(near.total), int(writes.total)
	p.Goodput = answered / (p.Healed - p.From).Seconds()
	if p.Healed > after && offered > 0 {
		p.GoodputAfter = answeredAfter / (p.Healed - after).Seconds()
		p.Share = p.GoodputAfter / offered
		p.samples.due = int(math.Ceil(offered * (p.Healed - after).Seconds()))
	}
}

// gaps returns the times without an acknowledged write of the ranges that the
// filter selects, and notes the longest in the phase. A range is the unit that fails over; all its keys
// together show when it was available.
func (r *AdversityReport) gaps(p *AdversityPhase, callers []*adversityCaller, filter func(s struckPart, wide bool) bool) Gaps {
	acks := map[rhumb.RangeID][]time.Duration{}
	for _, c := range r.calls {
		s := p.parts[c.caller]
		// Keys that were not written before the fault have no range.
		if s.at == (rhumb.RangeID{}) || !filter(s, callers[c.caller].wide) {
			continue
		}
		if acks[s.at] == nil {
			acks[s.at] = []time.Duration{p.From, p.To}
		}
		if c.ok && !c.read && c.end() > p.From && c.end() < p.To {
			acks[s.at] = append(acks[s.at], c.end())
		}
	}
	var each []time.Duration
	for _, ends := range acks {
		// Calls of several callers are noted in the order in which they ended,
		// but for those that ended at the same moment.
		slices.Sort(ends)
		gap := time.Duration(0)
		for i := range len(ends) - 1 {
			gap = max(gap, ends[i+1]-ends[i])
		}
		each = append(each, gap)
	}
	g := gapsOf(each)
	p.Gap = max(p.Gap, g.Max)
	return g
}

// String returns the goal as a sentence.
func (g AdversityGoal) String() string {
	return fmt.Sprintf("%s, %s, %s: %s, want %.3g", g.Goal, g.Phase, g.What, g.Figure(), g.Limit)
}

// Figure returns what was seen, with its unit.
func (g AdversityGoal) Figure() string {
	if g.Samples == 0 {
		return "no samples"
	}
	return strings.TrimSpace(fmt.Sprintf("%.3g %s", g.Seen, g.Unit))
}
