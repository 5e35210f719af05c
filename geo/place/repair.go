package place

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Repair gives a SetReplicas for each range that has fewer usable replicas than its class wants and a node that could hold
// one more, and for each that has a replica too many on a node that is gone. A node that is fenced counts as usable until
// ReplaceAfter has passed.
func (p *Planner) Repair(now time.Duration, s *catalog.State) []catalog.Command {
	var out []catalog.Command
	var l *load
	regions := make(map[rhumb.RegionID][]*rhumb.Node)
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		class, _ := s.Class(r.Class)
		lacks := class.Settings.Replicas - p.usable(now, r)
		if lacks <= 0 {
			if cmd, ok := p.trim(now, s, r, class.Settings.Replicas); ok {
				out = append(out, cmd)
			}
			continue
		}
		nodes, ok := regions[r.ID.Region]
		if !ok {
			nodes = liveNodes(s, r.ID.Region)
			regions[r.ID.Region] = nodes
		}
		if l == nil {
			l = measure(s)
		}
		if cmd, ok := l.extend(s, r, nodes, lacks); ok {
			out = append(out, cmd)
		}
	}
	return out
}

// usable counts the replicas on nodes that are not gone.
func (p *Planner) usable(now time.Duration, r *rhumb.Range) int {
	n := 0
	for _, id := range r.Replicas {
		if !p.isGone(now, id, p.config.ReplaceAfter) {
			n++
		}
	}
	return n
}

// extend adds up to lacks replicas on nodes that hold none.
func (l *load) extend(s *catalog.State, r *rhumb.Range, nodes []*rhumb.Node, lacks int) (catalog.Command, bool) {
	var chosen []*rhumb.Node
	for _, id := range r.Replicas {
		n, _ := s.Node(id)
		chosen = append(chosen, n)
	}
	replicas := slices.Clone(r.Replicas)
	for ; lacks > 0 && len(replicas) < rhumb.ReplicasMax; lacks-- {
		n := l.next(chosen, nodes)
		if n == nil {
			break
		}
		chosen = append(chosen, n)
		replicas = append(replicas, n.ID)
		l.replicas[n.ID]++
	}
	if len(replicas) == len(r.Replicas) {
		return nil, false
	}
	return catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: replicas}, true
}

// trim drops the replicas on nodes that are gone, once as many as the class wants are in sync elsewhere.
func (p *Planner) trim(now time.Duration, s *catalog.State, r *rhumb.Range, wanted int) (catalog.Command, bool) {
	if len(r.Replicas) <= wanted || len(r.InSync) < wanted {
		return nil, false
	}
	keep := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool {
		return !r.IsInSync(id) && p.isGone(now, id, p.config.ReplaceAfter)
	})
	if len(keep) == len(r.Replicas) {
		return nil, false
	}
	preferred := r.Preferred
	if !slices.Contains(keep, preferred) {
		preferred = r.Primary
	}
	return catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: keep, Preferred: preferred}, true
}

// Balance gives a SetReplicas that moves the preferred primary of a range to the replica with the fewest, for as many
// ranges as it takes until, among the nodes that share them, no two differ by more than one. Only hash slots move: a node
// is the preferred primary of its own blocks. Nodes that are not live neither give nor take, for they may come back.
func (p *Planner) Balance(s *catalog.State) []catalog.Command {
	count := make(map[rhumb.NodeID]int)
	var hashed []*rhumb.Range
	for r := range s.Ranges() {
		if b, ok := s.BlockOf(r.ID); ok && b.Node == rhumb.NoNode {
			hashed = append(hashed, r)
			count[r.Preferred]++
		}
	}
	var out []catalog.Command
	for _, r := range hashed {
		if len(out) == PlanMax {
			break
		}
		if !s.IsLive(r.Preferred) {
			continue
		}
		to := r.Preferred
		for _, id := range r.Replicas {
			if s.IsLive(id) && count[id] < count[to] {
				to = id
			}
		}
		if count[r.Preferred]-count[to] > 1 {
			count[r.Preferred]--
			count[to]++
			out = append(out, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: r.Replicas, Preferred: to})
		}
	}
	return out
}
