package place

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

const (
	// BalanceMovesMax is the number of copies that balance moves at a time, in the whole cluster.
	BalanceMovesMax = 4
	// BalanceRest is how long a range stays where balance has put a copy of it. Writes come and go faster than copies
	// move; without this pause, a range could follow them to and fro.
	BalanceRest = 10 * time.Minute
	// BalancePlanMax bounds the moves of a plan that is shown or counted.
	BalancePlanMax = 500
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
	// Size has the bytes and the writes of the range, 0 if they are not known.
	Size RangeSize
	// Why says how the two nodes compare before the move.
	Why string
}

// Spread is how evenly the copies in one region are distributed: the least and the greatest weight of a node.
// The weight of a node counts, in bytes, a MiB for each copy, the bytes of the copies, and those written to them in
// ten minutes.
type Spread struct {
	Region      rhumb.RegionID
	Least, Most int64
}

// PlanMoves returns up to most moves of copies of hash slots after which the nodes of each region are more alike, the
// most useful first, with the spread of each region before and after. size returns the size of a range and its
// writes, and false if they are not known.
//
// A move stays within its region, so residency and survival goals are not affected, and never makes the
// replicas of a range share more zones. It at least keeps a tenth of the difference that it removes from
// coming back: a copy only moves if its target ends below the present weight of its source by more than the
// threshold. Ranges that lack a copy, are moving, or have a copy that leaves or is damaged stay, and so do all
// regions but one if only names it. If copies of ranges of that one are in other regions, its moves bring these back first, and
// nothing else (planHomecoming). Nodes to avoid take no part: a copy would not arrive on a disk that is full, and hold up the others.
func PlanMoves(s *catalog.State, wall time.Time, size func(*rhumb.Range) (RangeSize, bool), only rhumb.RegionID, most int, avoid ...rhumb.NodeID) (moves []Move, before, after []Spread) {
	// Nodes that take no copies are on no scales: nothing moves to them, and their copies are moved by the
	// operation that empties them.
	regions := make(map[rhumb.RegionID]*scales)
	on := make(map[rhumb.NodeID]*scales)
	for n := range s.Nodes() {
		if s.TakesCopies(n.ID) && !slices.Contains(avoid, n.ID) && (only == rhumb.LocalRegion || n.Region == only) {
			if regions[n.Region] == nil {
				regions[n.Region] = &scales{s: s, region: n.Region, weights: make(map[rhumb.NodeID]int64)}
			}
			sc := regions[n.Region]
			sc.nodes = append(sc.nodes, n)
			sc.weights[n.ID] = 0
			on[n.ID] = sc
		}
	}
	for r := range s.Ranges() {
		w := weigh(r, size).weight
		for _, id := range r.Replicas {
			if sc := on[id]; sc != nil {
				sc.weights[id] += w
			}
		}
	}
	for region := range s.Regions() {
		sc := regions[region.ID]
		if sc == nil {
			continue
		}
		before = append(before, sc.spread())
		// The copies that come home change what the nodes weigh, so the balance within the region is planned when they are there.
		var back []Move
		if only != rhumb.LocalRegion {
			back = planHomecoming(s, only, size, most, avoid)
		}
		if len(back) > 0 {
			moves = back
			for _, m := range back {
				sc.weights[m.To] += m.Size.Bytes + rangeWeight
			}
			after = append(after, sc.spread())
			continue
		}
		// Nearly all plans end here. The lists below cost as much again as the walk above.
		if len(moves) < most && sc.isUneven() {
			sc.list(wall, on, size)
			for len(moves) < most {
				m, ok := sc.next()
				if !ok {
					break
				}
				moves = append(moves, m)
			}
		}
		after = append(after, sc.spread())
	}
	return moves, before, after
}

// weigh returns a range with its weight. A range of unknown size counts as an empty one.
func weigh(r *rhumb.Range, size func(*rhumb.Range) (RangeSize, bool)) weighed {
	known, _ := size(r)
	bytes, load := known.heft()
	return weighed{r, bytes + load + rangeWeight, known}
}

// list collects the ranges with a copy that may move within the region.
func (sc *scales) list(wall time.Time, on map[rhumb.NodeID]*scales, size func(*rhumb.Range) (RangeSize, bool)) {
	// A range that an operation moves already stays out of the plan: one change of a range at a time.
	moving := mergingRanges(sc.s)
	for o := range sc.s.Operations() {
		if o.Kind == rhumb.OperationMove && (!o.State.IsOver() || rests(o, wall)) {
			moving[o.Range] = true
		}
	}
	sc.movable, sc.moved, sc.fits = make(map[rhumb.NodeID][]int32), make(map[*rhumb.Range]bool), make(map[[2]rhumb.NodeID][]int32)
	for r := range sc.s.Ranges() {
		at := -1
		for _, id := range r.Replicas {
			// Whether the range may move is asked once it is known to have a copy here: the answer is dearer.
			if on[id] != sc || at < 0 && (moving[r.ID] || !mayMove(sc.s, r)) {
				continue
			}
			if at < 0 {
				at = len(sc.ranges)
				sc.ranges = append(sc.ranges, weigh(r, size))
			}
			sc.movable[id] = append(sc.movable[id], int32(at))
		}
	}
}

// mayMove reports whether balance may move a copy of a range: it is a hash slot, and all its copies are in sync.
//
// The ranges of inserts stay: they begin on the node that opened them, and clients spread new ones by load.
// A range with a copy that lags, leaves or is damaged stays too: a move would make it even less safe, and its
// repair needs the same disks.
func mayMove(s *catalog.State, r *rhumb.Range) bool {
	// The copies of a range that is being split stay where they are until that is done.
	if _, splits := s.ReservedIn(r); splits || r.Birth != 0 || r.IsMerging() {
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
	size   RangeSize
}

// scales hold the weights of the nodes of one region, and the ranges that may move from each.
type scales struct {
	s       *catalog.State
	region  rhumb.RegionID
	nodes   []*rhumb.Node
	weights map[rhumb.NodeID]int64
	// ranges are those with a copy that may move, movable the places in it of those with a copy on a node. The ranges in moved have
	// moved in this plan and stay.
	ranges  []weighed
	movable map[rhumb.NodeID][]int32
	moved   map[*rhumb.Range]bool
	fits    map[[2]rhumb.NodeID][]int32 // see fitting
}

// isUneven reports whether the heaviest and the lightest node differ enough for a move. If these two do not, no two nodes do:
// a smaller difference and a greater mean are both further from it.
func (sc *scales) isUneven() bool {
	s := sc.spread()
	return isWorth(s.Most, s.Least)
}

// isWorth reports whether the difference of two weights is worth a move.
func isWorth(from, to int64) bool { return from-to > max((from+to)/2*balanceShare/100, 3*rangeWeight) }

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
	if !isWorth(sc.weights[from.ID], sc.weights[to.ID]) {
		return Move{}, false
	}
	var best *weighed
	for _, i := range sc.fitting(from, to) {
		w := &sc.ranges[i]
		// Beyond the gap the two would only change roles.
		if w.weight >= gap || best != nil && far(gap-2*w.weight) >= far(gap-2*best.weight) {
			continue
		}
		if !sc.moved[w.r] {
			best = w
		}
	}
	if best == nil {
		return Move{}, false
	}
	// The plan continues as if the move were done, so that the next one does not fill the same gap again.
	why := fmt.Sprintf("%s weighs %s, %s weighs %s", from.ID, mebibytes(sc.weights[from.ID]), to.ID, mebibytes(sc.weights[to.ID]))
	sc.weights[from.ID] -= best.weight
	sc.weights[to.ID] += best.weight
	// One change per range at a time.
	sc.moved[best.r] = true
	return Move{best.r.ID, from.ID, to.ID, best.size, why}, true
}

// fitting returns the places of the ranges whose copy may move from one node to the other, whatever they weigh. A plan tries the same
// pairs again and again, and a node may have a hundred thousand ranges, so each pair is looked at once.
func (sc *scales) fitting(from, to *rhumb.Node) []int32 {
	pair := [2]rhumb.NodeID{from.ID, to.ID}
	if out, known := sc.fits[pair]; known {
		return out
	}
	var out []int32
	for _, i := range sc.movable[from.ID] {
		if r := sc.ranges[i].r; !r.IsReplica(to.ID) && !sc.losesZone(r, from, to) {
			out = append(out, i)
		}
	}
	sc.fits[pair] = out
	return out
}

// mebibytes returns a weight for people.
func mebibytes(w int64) string { return fmt.Sprintf("%d MiB", w>>20) }

// far returns how far two weights are apart.
func far(d int64) int64 { return max(d, -d) }

// losesZone reports whether the replicas of a range would be in fewer zones: if from is alone in its zone, and to would not be.
func (sc *scales) losesZone(r *rhumb.Range, from, to *rhumb.Node) bool {
	alone, joins := true, false
	for _, id := range r.Replicas {
		if id == from.ID {
			continue
		}
		// Zones of different regions may have the same name.
		n, _ := sc.s.Node(id)
		alone = alone && (n.Region != from.Region || n.Zone != from.Zone)
		joins = joins || n.Region == to.Region && n.Zone == to.Zone
	}
	return alone && joins
}

// rests reports whether balance has moved a copy of the operation's range lately, by the wall clock of the leader. A clock
// that is set back prolongs the pause, at most until the record of the operation is trimmed.
func rests(o *rhumb.Operation, wall time.Time) bool {
	return o.By == balancer && o.State == rhumb.OperationDone && wall.Sub(o.Ended) < BalanceRest
}

// BalancePlan is what balance would do now.
type BalancePlan struct {
	Moves         []Move
	Before, After []Spread
	// Waits says why nothing is moved at the moment, "" if nothing prevents it.
	Waits string
	// Moving is the number of copies that move already.
	Moving int
}

// PlanBalance returns what balance would do in a region, or in all. It changes nothing.
func PlanBalance(now time.Duration, wall time.Time, s *catalog.State, v *Surveys, only rhumb.RegionID) BalancePlan {
	var p BalancePlan
	// The plan is shown also while nothing may move: an operator wants to know both.
	p.Waits, p.Moving = balanceWaits(now, s, v)
	if why := WhyNotRebalance(s, only); why != "" {
		p.Waits = why
	}
	p.Moves, p.Before, p.After = PlanMoves(s, wall, func(r *rhumb.Range) (RangeSize, bool) { return v.Size(now, r) }, only, BalancePlanMax, v.Unfit...)
	return p
}

// balanceWaits returns why no copy moves now, or "", and the number of moves that are not over.
func balanceWaits(now time.Duration, s *catalog.State, v *Surveys) (waits string, moving int) {
	for o := range s.Operations() {
		switch {
		case o.State.IsOver():
		case o.Kind == rhumb.OperationMove:
			// Moves that an operator has started count as well: they use the same disks and links.
			moving++
		case o.Kind == rhumb.OperationRebalance && o.State == rhumb.OperationPaused:
			waits = fmt.Sprintf("operation %s is paused", o.ID)
		case o.Kind != rhumb.OperationRebalance:
			// Those have the disks and links for themselves.
			waits = fmt.Sprintf("operation %s (%s of %s) comes first", o.ID, o.Kind, objectOf(s, o))
		}
	}
	// A node that is down for a moment returns, and its copies with it.
	for n := range s.Nodes() {
		if n.State != rhumb.NodeLive && !n.Forgotten && waits == "" {
			waits = fmt.Sprintf("%s is %s", n.ID, n.State)
		}
	}
	if to := returning(s); to != rhumb.NoNode && waits == "" {
		waits = fmt.Sprintf("ranges return to %s, which was dead", to)
	}
	// Without the surveys of all nodes, some would look empty.
	if waits == "" && !v.covers(now, s) {
		waits = "not every node has reported its sizes yet"
	}
	return waits, moving
}

// objectOf names the object of an operation: the range, the region or the node.
func objectOf(s *catalog.State, o *rhumb.Operation) string {
	switch region, ok := s.Region(o.Region); {
	case !o.Range.IsZero():
		return "range " + o.Range.String()
	case ok:
		return "region " + region.Name
	}
	return o.Node.String()
}

// BalanceCopies starts the next moves, as operations that an operator can see, pause and cancel, and records how far
// operations of kind rebalance are. At most BalanceMovesMax copies move at a time. While a node is being removed or
// replaced, or copies are missing, nothing is moved. While an operator's operation is in progress, only its region is
// balanced; while it is paused, none.
func (p *Planner) BalanceCopies(now time.Duration, wall time.Time, s *catalog.State, v *Surveys) []catalog.Command {
	if !s.Has(rhumb.FeatureOperations) {
		return nil
	}
	// Only for its records of operations. The moves themselves are operations too, which the mover advances.
	m := &mover{p: p, now: now, wall: wall, s: s}
	waits, moving := balanceWaits(now, s, v)
	only, most := rhumb.LocalRegion, BalanceMovesMax-moving
	var asked *rhumb.Operation
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationRebalance && o.State == rhumb.OperationRunning && asked == nil {
			// Its progress counts all moves that are left. Several operations run one after the other.
			asked, only, most = o, o.Region, BalancePlanMax
		}
	}
	// The last node of its region may have been removed since the operation began.
	if asked != nil {
		if why := WhyNotRebalance(s, asked.Region); why != "" {
			m.fail(asked, why)
			return m.out
		}
	}
	if waits != "" {
		// The record says why nothing moves; the moves that were left are still left.
		if asked != nil {
			m.record(asked, rhumb.OperationRunning, workLeft{left: asked.Progress.Total - asked.Progress.Done, bytes: asked.Progress.TotalBytes - asked.Progress.DoneBytes, waits: waits}, 0)
		}
		return m.out
	}
	// Nothing to count and no room: no plan is needed. A plan walks all ranges.
	if most <= 0 {
		return nil
	}
	moves, _, _ := PlanMoves(s, wall, func(r *rhumb.Range) (RangeSize, bool) { return v.Size(now, r) }, only, most, slices.Concat(v.Unfit, p.avoided(now))...)
	if asked != nil {
		m.recordRebalance(v, asked, moves, moving)
	}
	// The other moves wait for their turn. They are planned again then, by the sizes of that time.
	for _, x := range moves[:max(0, min(len(moves), BalanceMovesMax-moving))] {
		m.out = append(m.out, catalog.StartOperation{Kind: rhumb.OperationMove, Range: x.Range, Node: x.From, Target: x.To, By: balancer, At: wall})
	}
	return m.out
}

// EndBalance returns commands that cancel the moves by which balance takes copies from a node. An operation that empties the node takes these
// copies too, and metadata refuses it while another one does. Moves that an operator has started or paused stay: the operator decides about
// them.
func EndBalance(s *catalog.State, from rhumb.NodeID, at time.Time) (out []catalog.Command) {
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationMove && o.By == balancer && o.State == rhumb.OperationRunning && o.Node == from {
			out = append(out, catalog.ControlOperation{ID: o.ID, Action: catalog.CancelOperation, At: at})
		}
	}
	return out
}

// recordRebalance records the progress of a rebalance: planned and present moves are left. It is done when
// neither is.
func (m *mover) recordRebalance(v *Surveys, o *rhumb.Operation, planned []Move, moving int) {
	// Ranges that are written grow meanwhile, so the total may grow; it never falls (record).
	t := workLeft{left: uint64(len(planned))}
	for _, x := range planned {
		t.bytes += uint64(max(x.Size.Bytes, 0))
	}
	for x := range m.s.Operations() {
		if x.Kind != rhumb.OperationMove || x.State.IsOver() {
			continue
		}
		// A copy on its way counts as left until the old one is gone.
		t.left++
		if r, ok := m.s.Range(x.Range); ok {
			size, _ := v.Size(m.now, r)
			t.bytes += uint64(max(size.Bytes, 0))
		}
	}
	state := rhumb.OperationRunning
	if t.left == 0 {
		state = rhumb.OperationDone
	} else {
		t.waits = fmt.Sprintf("%d copies move, %d are planned", moving, len(planned))
	}
	m.record(o, state, t, 0)
}
