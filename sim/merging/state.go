package merging

import "fmt"

// Bounds of the arrays in a state, which make states comparable.
const (
	nodesMax = 2
	logMax   = 6
)

// side is one of the two ranges.
type side uint8

const (
	left side = iota
	right
)

func (x side) String() string { return [...]string{"left", "right"}[x] }

// kind is the effect of an entry of a log. Entries of the left range that have nothing to do with
// the merge are not modelled: they are ordered as ever, and no rule of the merge names them.
type kind uint8

const (
	start kind = iota + 1 // begins an epoch
	write                 // writes to a slot of the right range
	end                   // ends the right range
	take                  // moves the slots of the right range to the left one
)

// entry is an entry of a log. id is the number of a write; of and at are epoch and position of
// the end that a take names.
type entry struct {
	epoch  uint8
	kind   kind
	id     uint8
	of, at uint8
}

// logState is a log. Positions begin at 1.
type logState struct {
	n uint8
	e [logMax]entry
}

func (l *logState) add(e entry) {
	l.e[l.n] = e
	l.n++
}

// prefix returns the log up to a position.
func (l *logState) prefix(upTo uint8) logState {
	p := *l
	for i := upTo; i < p.n; i++ {
		p.e[i] = entry{}
	}
	p.n = min(p.n, upTo)
	return p
}

// find returns the position of the first entry of a kind, or 0.
func (l *logState) find(k kind) uint8 {
	for i := range l.n {
		if l.e[i].kind == k {
			return i + 1
		}
	}
	return 0
}

// startOf returns the position of the start of an epoch, or 0.
func (l *logState) startOf(epoch uint8) uint8 {
	for i := range l.n {
		if l.e[i].kind == start && l.e[i].epoch == epoch {
			return i + 1
		}
	}
	return 0
}

// writes returns the set of the writes up to a position.
func (l *logState) writes(upTo uint8) (set uint8) {
	for i := range min(upTo, l.n) {
		if l.e[i].kind == write {
			set |= 1 << l.e[i].id
		}
	}
	return set
}

// copyState is the copy of one range at a node.
type copyState struct {
	log      logState
	commit   uint8
	promised uint8
	// Acknowledgements count in one epoch only. active is the epoch in which the node acts as
	// primary, 0 if it does not. leased reports that its lease may be valid.
	active uint8
	leased bool
	// acked is, at a primary, the position up to which each node has the log.
	acked [nodesMax]uint8
}

// node is the state of one node.
type node struct {
	c [2]copyState
	// united reports that the copies are one. had is then the set of the writes that the right
	// copy had.
	united bool
	had    uint8
	// counts are the in-sync sets of both ranges that the node counts on as a primary.
	counts [2]uint8
}

// state is the state of the world.
type state struct {
	nodes [nodesMax]node
	// The records: the epoch, the primary and the in-sync set of each range.
	epoch, primary, inSync [2]uint8
	// cancelled and merged are the two ways in which a merge ends. Both are changes of the
	// record; nodes may act on an older one for a while.
	cancelled, merged bool
	// written counts the writes, done is the set of those that were acknowledged.
	written, done uint8
	// left counts what may still happen.
	elections, shrinks, joins uint8
}

func newState(cfg *Config) state {
	all := uint8(1<<cfg.Nodes - 1)
	s := state{epoch: [2]uint8{1, 1}, inSync: [2]uint8{all, all}, elections: uint8(cfg.Elections), shrinks: uint8(cfg.Shrinks), joins: uint8(cfg.Joins)}
	for x := range s.nodes[0].c {
		s.activate(0, side(x))
	}
	return s
}

// activate makes a node the primary of a range in the epoch of the record.
func (s *state) activate(n int, x side) {
	c := &s.nodes[n].c[x]
	c.promised, c.active, c.leased, c.acked = s.epoch[x], s.epoch[x], true, [nodesMax]uint8{}
	c.log.add(entry{epoch: s.epoch[x], kind: start})
	s.nodes[n].counts[x] = s.inSync[x]
}

// has reports whether a set of nodes has one.
func has(set uint8, n int) bool { return set&(1<<n) != 0 }

// serves returns the writes that a read at node n sees, and whether the node answers reads of the
// right slots.
func (s *state) serves(cfg *Config, n int) (seen uint8, ok bool) {
	nd := &s.nodes[n]
	x, seen := right, uint8(0)
	if nd.united {
		x, seen = left, nd.had
	}
	c := &nd.c[x]
	if c.active == 0 || !c.leased || c.commit < c.log.startOf(c.active) {
		return 0, false
	}
	// Others may have united their copies.
	if x == right && c.log.find(end) > 0 && cfg.Mutation != ReadAfterEnd {
		return 0, false
	}
	return seen | c.log.writes(c.commit), true
}

// isTaken reports whether a node knows that the take is committed.
func (s *state) isTaken(cfg *Config) bool {
	for n := range cfg.Nodes {
		if l := &s.nodes[n].c[left]; l.log.find(take) > 0 && l.commit >= l.log.find(take) {
			return true
		}
	}
	return false
}

// broken names an invariant that the state breaks, or returns "". Reads must see every
// acknowledged write, members of the in-sync set of the range that has the slots must hold every
// acknowledged write, and those of the left one must be able to unite their copies: a set of
// members that cannot would leave the range without service.
func (s *state) broken(cfg *Config) string {
	owner := right
	if s.isTaken(cfg) {
		owner = left
	}
	for n := range cfg.Nodes {
		nd := &s.nodes[n]
		if seen, ok := s.serves(cfg, n); ok && s.done&^seen != 0 {
			return fmt.Sprintf("stale read: n%d serves and lacks acknowledged writes %b", n+1, s.done&^seen)
		}
		holds := nd.had | nd.c[left].log.writes(logMax) | nd.c[right].log.writes(logMax)
		if has(s.inSync[owner], n) && s.done&^holds != 0 {
			return fmt.Sprintf("lost write: n%d is in sync and lacks acknowledged writes %b", n+1, s.done&^holds)
		}
		if at := nd.c[left].log.find(take); has(s.inSync[left], n) && !nd.united && at > 0 && nd.c[left].commit >= at && !nd.hasEnd(at) {
			return fmt.Sprintf("no union: n%d is in sync and lacks the end that the left range took over", n+1)
		}
	}
	return ""
}

// hasEnd reports whether the right copy has the end that the take at a position of the left log
// names.
func (nd *node) hasEnd(take uint8) bool { return nd.hasEndOf(nd.c[left].log.e[take-1]) }

// hasEndOf reports whether the right copy has the end that a take names.
func (nd *node) hasEndOf(t entry) bool {
	r := &nd.c[right].log
	return r.n >= t.at && r.e[t.at-1].kind == end && r.e[t.at-1].epoch == t.of
}
