package bench

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// PlanMatch compares the failure of a node with the plan that was asked for just before it (`rhumb plan failover`).
type PlanMatch struct {
	// Ranges are those that the plan named, and Unlike counts those of them whose primary after the failure was another one than planned.
	Ranges int `json:"ranges"`
	Unlike int `json:"unlike"`
	// Observed counts the ranges that callers wrote to, and Late those of them whose callers waited longer than the plan's bound.
	Observed int `json:"observed"`
	Late     int `json:"late"`
	// Share is the greatest part of its bound that a range needed: 1 is the bound itself.
	Share float64 `json:"longest_share"`
}

// add counts the ranges of another failure too.
func (m *PlanMatch) add(o PlanMatch) {
	m.Ranges += o.Ranges
	m.Unlike += o.Unlike
	m.Observed += o.Observed
	m.Late += o.Late
	m.Share = max(m.Share, o.Share)
}

// matchPlan compares a plan with the ranges just after the failure, and with the longest gap of each range that had a caller. A gap includes
// the time between two writes of a caller and the bound does not, so a range may count as late that was not.
func matchPlan(plan *rhumb.FailoverPlan, after []*rhumb.Range, gaps map[rhumb.RangeID]time.Duration) (m PlanMatch) {
	primaries := make(map[rhumb.RangeID]rhumb.NodeID, len(after))
	for _, r := range after {
		primaries[r.ID] = r.Primary
	}
	for i := range plan.Ranges {
		r := &plan.Ranges[i]
		m.Ranges++
		// A range that nobody can serve keeps the failed node in its record.
		if want := r.To; want != rhumb.NoNode && primaries[r.Range] != want {
			m.Unlike++
		}
		gap, observed := gaps[r.Range]
		if !observed || r.Pause == 0 {
			continue
		}
		m.Observed++
		if gap > r.Pause {
			m.Late++
		}
		m.Share = max(m.Share, gap.Seconds()/r.Pause.Seconds())
	}
	return m
}
