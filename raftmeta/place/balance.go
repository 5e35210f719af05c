package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

const (
	// BalanceMovesMax is the number of copies that balance moves at a time, in the whole cluster.
	BalanceMovesMax = 4
	// rangeWeight is counted for each range besides its bytes: an empty range costs a log, heartbeats and
	// memory too, and without sizes the numbers of ranges are balanced.
	rangeWeight = 1 << 20
	// A difference between two nodes below balanceShare percent of their mean, or below three empty ranges, is
	// left alone. Otherwise copies would follow every change of load.
	balanceShare = 10
	// balanceEnds is the number of nodes at each end of the order by load that are tried in one step.
	balanceEnds = 4
)

// balancer is the By of operations that balance starts.
const balancer = "balance"

// Move is one copy of a range that should be on another node of the same region.
type Move struct {
	Range    rhumb.RangeID
	From, To rhumb.NodeID
	// Bytes is the size of the range, 0 if it is not known.
	Bytes int64
}

// Spread is how evenly the copies in one region are distributed: the least and the greatest weight of a node,
// in bytes, with a MiB for each copy.
type Spread struct {
	Region      rhumb.RegionID
	Least, Most int64
}

// PlanMoves returns up to most moves of copies of hash slots that make the nodes of each region more alike, the
// most useful first, with the spread of each region before and after. size returns the size of a range, and
// false if it is not known.
//
// A move stays within its region, so residency and survival goals are not affected, and never makes the
// replicas of a range share more zones. It at least keeps a tenth of the difference that it removes from
// coming back: a copy only moves if its target ends below the present weight of its source by more than the
// threshold. Ranges that lack a copy, are moving, or have a copy that leaves or is damaged stay.
func PlanMoves(s *catalog.State, size func(*rhumb.Range) (int64, bool), most int) (moves []Move, before, after []Spread) {
	// A range that an operation moves already stays out of the plan: one change of a range at a time.
	moving := make(map[rhumb.RangeID]bool)
	for o := range s.Operations() {
		if !o.State.IsOver() && o.Kind == rhumb.OperationMove {
			moving[o.Range] = true
		}
	}
	// Nodes that take no copies are on no scales: nothing moves to them, and what they hold is moved by the
	// operation that empties them.
	regions := make(map[rhumb.RegionID]*scales)
	for n := range s.Nodes() {
		if s.TakesCopies(n.ID) {
			if regions[n.Region] == nil {
				regions[n.Region] = &scales{s: s, region: n.Region, weights: make(map[rhumb.NodeID]int64), movable: make(map[rhumb.NodeID][]weighed)}
			}
			sc := regions[n.Region]
			sc.nodes = append(sc.nodes, n)
			sc.weights[n.ID] = 0
		}
	}
	for r := range s.Ranges() {
		// A range of unknown size counts as an empty one.
		bytes, _ := size(r)
		w := weighed{r, bytes + rangeWeight}
		free := !moving[r.ID] && mayMove(s, r)
		for _, id := range r.Replicas {
			n, _ := s.Node(id)
			sc := regions[n.Region]
			if sc == nil {
				continue
			}
			if _, counts := sc.weights[id]; counts {
				sc.weights[id] += w.weight
				if free {
					sc.movable[id] = append(sc.movable[id], w)
				}
			}
		}
	}
	for region := range s.Regions() {
		sc := regions[region.ID]
		if sc == nil {
			continue
		}
		before = append(before, sc.spread())
		for len(moves) < most {
			m, ok := sc.next()
			if !ok {
				break
			}
			moves = append(moves, m)
		}
		after = append(after, sc.spread())
	}
	return moves, before, after
}

// mayMove reports whether balance may move a copy of a range: it is a hash slot, and all its copies are in sync.
//
// The ranges of inserts stay: they begin on the node that opened them, and clients spread new ones by load.
// A range with a copy that lags, leaves or is damaged stays too: a move would make it even less safe, and its
// repair needs the same disks.
func mayMove(s *catalog.State, r *rhumb.Range) bool {
	// The copies of a range that is being split stay where they are until that is done.
	if _, splits := s.ReservedIn(r); splits || r.Birth != 0 {
		return false
	}
	b, ok := s.BlockOf(r.ID)
	class, known := s.Class(r.Class)
	return ok && known && b.Node == rhumb.NoNode && !class.Dropping && len(r.Leaving) == 0 && len(r.Quarantined) == 0 &&
		len(r.Replicas) == class.Settings.Replicas && len(r.InSync) == len(r.Replicas)
}

// weighed is a range with its weight.
type weighed struct {
	r      *rhumb.Range
	weight int64
}

// scales hold the weights of the nodes of one region, and the ranges that may move from each.
type scales struct {
	s       *catalog.State
	region  rhumb.RegionID
	nodes   []*rhumb.Node
	weights map[rhumb.NodeID]int64
	movable map[rhumb.NodeID][]weighed
}

// spread returns the present spread. A region whose nodes take no copies is on no scales, so there is at
// least one weight.
func (sc *scales) spread() Spread {
	out := Spread{Region: sc.region, Least: -1}
	for _, w := range sc.weights {
		out.Most = max(out.Most, w)
		if out.Least < 0 || w < out.Least {
			out.Least = w
		}
	}
	return out
}

// next returns the best move and counts it as done.
func (sc *scales) next() (Move, bool) {
	slices.SortFunc(sc.nodes, func(a, b *rhumb.Node) int {
		return cmp.Or(cmp.Compare(sc.weights[b.ID], sc.weights[a.ID]), cmp.Compare(a.ID, b.ID))
	})
	// The heaviest and the lightest node first; their neighbours if no range fits between those two.
	for i := range min(balanceEnds, len(sc.nodes)) {
		for j := range min(balanceEnds, len(sc.nodes)) {
			from, to := sc.nodes[i], sc.nodes[len(sc.nodes)-1-j]
			if m, ok := sc.between(from, to); ok {
				return m, true
			}
		}
	}
	return Move{}, false
}

// between moves the range that brings two nodes closest together, if their difference is worth it.
func (sc *scales) between(from, to *rhumb.Node) (Move, bool) {
	gap := sc.weights[from.ID] - sc.weights[to.ID]
	mean := (sc.weights[from.ID] + sc.weights[to.ID]) / 2
	if gap <= max(mean*balanceShare/100, 3*rangeWeight) {
		return Move{}, false
	}
	best := -1
	for i, w := range sc.movable[from.ID] {
		// Beyond the gap the two would only change roles.
		if w.weight >= gap || w.r.IsReplica(to.ID) || sc.losesZone(w.r, from, to) {
			continue
		}
		if best < 0 || far(gap-2*w.weight) < far(gap-2*sc.movable[from.ID][best].weight) {
			best = i
		}
	}
	if best < 0 {
		return Move{}, false
	}
	// The plan continues as if the move were done, so that the next one does not fill the same gap again.
	w := sc.movable[from.ID][best]
	sc.weights[from.ID] -= w.weight
	sc.weights[to.ID] += w.weight
	// One change per range at a time.
	for id := range sc.movable {
		sc.movable[id] = slices.DeleteFunc(sc.movable[id], func(o weighed) bool { return o.r == w.r })
	}
	return Move{w.r.ID, from.ID, to.ID, w.weight - rangeWeight}, true
}

// far returns how far two weights are apart.
func far(d int64) int64 { return max(d, -d) }

// losesZone reports whether the replicas of a range would be in fewer zones.
func (sc *scales) losesZone(r *rhumb.Range, from, to *rhumb.Node) bool {
	type zone struct {
		region rhumb.RegionID
		name   string
	}
	// Zones of different regions may have the same name.
	was, will := map[zone]bool{}, map[zone]bool{{to.Region, to.Zone}: true}
	for _, id := range r.Replicas {
		n, _ := sc.s.Node(id)
		was[zone{n.Region, n.Zone}] = true
		if id != from.ID {
			will[zone{n.Region, n.Zone}] = true
		}
	}
	return len(will) < len(was)
}

// Rebalance starts the next moves, as operations that an operator can see, pause and cancel. At most
// BalanceMovesMax copies move at a time. While a node is being removed or replaced, or copies are missing,
// nothing is moved: those have the disks and links for themselves.
func (p *Planner) Rebalance(now time.Duration, wall time.Time, s *catalog.State, v *Surveys) []catalog.Command {
	// Without the surveys of all nodes, some would look empty.
	if !s.Has(rhumb.FeatureOperations) || !v.covers(now, s) {
		return nil
	}
	room := BalanceMovesMax
	for o := range s.Operations() {
		switch {
		case o.State.IsOver():
		case o.Kind != rhumb.OperationMove:
			return nil
		default:
			room--
		}
	}
	// A node that is down for a moment returns, and its copies with it.
	for n := range s.Nodes() {
		if n.State != rhumb.NodeLive && !n.Forgotten {
			return nil
		}
	}
	// Moves that an operator has started count as well: they use the same disks and links.
	if room <= 0 {
		return nil
	}
	moves, _, _ := PlanMoves(s, func(r *rhumb.Range) (int64, bool) { return v.Size(now, r) }, room)
	var out []catalog.Command
	for _, m := range moves {
		out = append(out, catalog.StartOperation{Kind: rhumb.OperationMove, Range: m.Range, Node: m.From, Target: m.To, By: balancer, At: wall})
	}
	return out
}
