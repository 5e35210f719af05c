package host

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// TroubleKind says what keeps a replica from its work.
type TroubleKind uint8

// The kinds of trouble.
const (
	// Quarantined is a replica of this node with damaged data.
	Quarantined TroubleKind = 1
	// Waiting is a replica of this node that was elected and does not serve yet.
	Waiting TroubleKind = 2
	// LogLost is a replica of another node that needs log that its primary, on this node, has trimmed away.
	LogLost TroubleKind = 3
)

// troubleNames are the kinds in metrics.
var troubleNames = map[TroubleKind]string{Quarantined: "quarantined", Waiting: "waiting", LogLost: "log_lost"}

// Trouble is what keeps one replica from its work.
type Trouble struct {
	Kind  TroubleKind
	Range rhumb.RangeID
	Node  rhumb.NodeID
	// Reason is for people.
	Reason string
}

// troublesMax bounds the troubles of one kind that are listed.
const troublesMax = 256

// Troubles are the troubles that a node knows of.
type Troubles struct {
	// Listed holds at most troublesMax of each kind, Counts the number of all.
	Listed []Trouble
	Counts map[TroubleKind]int
}

// Troubles returns what is wrong with replicas of this node, and with those that they send to.
func (h *Host) Troubles(ctx context.Context) (Troubles, error) {
	const op rhumb.Op = "host.Host.Troubles"
	answer := make(chan Troubles, 1)
	posted := h.post(askEvent{func(h *Host) {
		all := Troubles{Counts: map[TroubleKind]int{}}
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
		return Troubles{}, errStopping(op)
	}
	select {
	case t := <-answer:
		return t, nil
	case <-ctx.Done():
		return Troubles{}, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	}
}

// troubles looks at the whole state of a replica only where something may be wrong: most are well. The pass calls it.
func (s *slot) troubles(self rhumb.NodeID) (out []Trouble) {
	d := s.desc.Load()
	switch s.r.State() {
	case replica.Quarantined:
		return []Trouble{{Quarantined, s.id, self, s.r.Status().Quarantine}}
	case replica.Activating:
		why := s.r.Status().Preparing
		if why == "" {
			why = "it waits for the end of the leases that it granted"
		}
		return []Trouble{{Waiting, s.id, self, why}}
	case replica.Primary:
		if d == nil || len(d.InSync) == len(d.Replicas) {
			return nil
		}
		for _, p := range s.r.Status().Peers {
			if p.Flow == "lost" && !d.IsInSync(p.Node) {
				out = append(out, Trouble{LogLost, s.id, p.Node, p.Why})
			}
		}
	default:
		if d != nil && d.Primary == self && d.Epoch == s.r.Epoch() {
			return []Trouble{{Waiting, s.id, self, "it held this epoch in an earlier life, and waits for a new one"}}
		}
	}
	return out
}
