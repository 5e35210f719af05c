package host

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// troubleNames are the kinds in metrics.
var troubleNames = map[replica.TroubleKind]string{replica.DataDamaged: "quarantined", replica.Waiting: "waiting", replica.LogLost: "log_lost"}

// troublesMax bounds the troubles of one kind that are listed.
const troublesMax = 256

// Troubles returns what is wrong with replicas of this node, and with those that they send to.
func (h *Host) Troubles(ctx context.Context) (replica.Troubles, error) {
	const op rhumb.Op = "host.Host.Troubles"
	answer := make(chan replica.Troubles, 1)
	posted := h.post(askEvent{func(h *Host) {
		all := replica.Troubles{Counts: map[replica.TroubleKind]int{}}
		for _, s := range h.all {
			for _, t := range s.troubles(h.cfg.Self.Node) {
				if all.Counts[t.Kind]++; all.Counts[t.Kind] <= troublesMax {
					all.Listed = append(all.Listed, t)
				}
			}
		}
		answer <- all
	}})
	if !posted {
		return replica.Troubles{}, errStopping(op)
	}
	select {
	case t := <-answer:
		return t, nil
	case <-ctx.Done():
		return replica.Troubles{}, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	}
}

// troubles looks at the whole state of a replica only where something may be wrong: most are well. The pass calls it.
func (s *slot) troubles(self rhumb.NodeID) (out []replica.Trouble) {
	d := s.desc.Load()
	switch s.r.State() {
	case replica.Quarantined:
		return []replica.Trouble{{Kind: replica.DataDamaged, Range: s.id, Node: self, Reason: s.r.Status().Quarantine}}
	case replica.Activating:
		why := s.r.Status().Preparing
		if why == "" {
			why = "it waits for the end of the leases that it granted"
		}
		return []replica.Trouble{{Kind: replica.Waiting, Range: s.id, Node: self, Reason: why}}
	case replica.Primary:
		if d == nil || len(d.InSync) == len(d.Replicas) {
			return nil
		}
		for _, p := range s.r.Status().Peers {
			if p.Flow == "lost" && !d.IsInSync(p.Node) {
				out = append(out, replica.Trouble{Kind: replica.LogLost, Range: s.id, Node: p.Node, Reason: p.Why})
			}
		}
	default:
		if d != nil && d.Primary == self && d.Epoch == s.r.Epoch() {
			return []replica.Trouble{{Kind: replica.Waiting, Range: s.id, Node: self, Reason: "it held this epoch in an earlier life, and waits for a new one"}}
		}
	}
	return out
}
