package host

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// troubleNames are the labels of the kinds in metrics.
var troubleNames = map[replica.TroubleKind]string{replica.DataDamaged: "quarantined", replica.Waiting: "waiting", replica.LogLost: "log_lost"}

// troublesMax bounds the listed troubles of one kind.
const troublesMax = 256

// Troubles returns the faults of this node's replicas and of the replicas that they send to.
func (h *Host) Troubles(ctx context.Context) (replica.Troubles, error) {
	const op rhumb.Op = "host.Host.Troubles"
	answer := make(chan replica.Troubles, 1)
	posted := h.post(askEvent{func(h *Host) {
		all := replica.Troubles{Counts: map[replica.TroubleKind]int{}}
		for _, s := range h.allSlots {
			for _, t := range s.listTroubles(h.cfg.Self.Node) {
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

// listTroubles returns the faults of one replica. It computes the full status only if something may
// be wrong, since most replicas are well. The pass calls it.
func (s *slot) listTroubles(self rhumb.NodeID) (out []replica.Trouble) {
	d := s.desc.Load()
	switch s.r.State() {
	case replica.Quarantined:
		return []replica.Trouble{{Kind: replica.DataDamaged, Range: s.id, Node: self, Reason: s.r.Status().Quarantine}}
	case replica.Activating:
		why := s.r.Status().Preparing
		if why == "" {
			why = "it waits until the leases that it granted expire"
		}
		return []replica.Trouble{{Kind: replica.Waiting, Range: s.id, Node: self, Reason: why}}
	case replica.Primary:
		// With all replicas in sync none can have lost the log.
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
			return []replica.Trouble{{Kind: replica.Waiting, Range: s.id, Node: self, Reason: "it was primary of this epoch before its node restarted, and waits for a new epoch"}}
		}
	}
	return out
}
