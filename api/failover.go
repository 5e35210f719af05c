package api

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodeFailoverPlan returns the message for a plan. The name is the one that was asked for, so it is not sent back.
func EncodeFailoverPlan(p *rhumb.FailoverPlan) *rhumbpb.PlanFailoverResponse {
	m := &rhumbpb.PlanFailoverResponse{
		Kind: p.Kind, Nodes: encodeNodes(p.Nodes), Untouched: uint64(p.Untouched), TakeOver: encodePause(p.TakeOver), Stall: encodePause(p.Stall),
		Voters: uint32(p.Voters), VotersLeft: uint32(p.VotersLeft), LeaderFails: p.LeaderFails,
	}
	for _, r := range p.Ranges {
		m.Ranges = append(m.Ranges, &rhumbpb.RangeFailover{
			Range: EncodeRangeID(r.Range), Fate: string(r.Fate), From: uint32(r.From), To: uint32(r.To), Left: encodeNodes(r.Left),
			PauseNs: int64(r.Pause), Reason: r.Reason,
		})
	}
	return m
}

// DecodeFailoverPlan returns the plan of a message, without its name.
func DecodeFailoverPlan(m *rhumbpb.PlanFailoverResponse) rhumb.FailoverPlan {
	// A fate that this binary does not know is kept as text, so that it is printed.
	p := rhumb.FailoverPlan{
		Kind: m.GetKind(), Nodes: decodeNodes(m.GetNodes()), Untouched: int(m.GetUntouched()), TakeOver: decodePause(m.GetTakeOver()),
		Stall: decodePause(m.GetStall()), Voters: int(m.GetVoters()), VotersLeft: int(m.GetVotersLeft()), LeaderFails: m.GetLeaderFails(),
	}
	for _, r := range m.GetRanges() {
		p.Ranges = append(p.Ranges, rhumb.RangeFailover{
			Range: DecodeRangeID(r.GetRange()), Fate: rhumb.FailoverFate(r.GetFate()), From: rhumb.NodeID(r.GetFrom()), To: rhumb.NodeID(r.GetTo()),
			Left: decodeNodes(r.GetLeft()), Pause: time.Duration(r.GetPauseNs()), Reason: r.GetReason(),
		})
	}
	return p
}

// encodePause returns the steps of a bound. The bound itself is not sent: it is their sum, and so the two cannot differ.
func encodePause(p rhumb.PausePlan) (out []*rhumbpb.PauseStep) {
	for _, s := range p.Steps {
		out = append(out, &rhumbpb.PauseStep{Name: s.Name, MostNs: int64(s.Most), Why: s.Why})
	}
	return out
}

// decodePause adds the steps up: the bound is their sum.
func decodePause(steps []*rhumbpb.PauseStep) (p rhumb.PausePlan) {
	for _, s := range steps {
		p.Most += time.Duration(s.GetMostNs())
		p.Steps = append(p.Steps, rhumb.PauseStep{Name: s.GetName(), Most: time.Duration(s.GetMostNs()), Why: s.GetWhy()})
	}
	return p
}
