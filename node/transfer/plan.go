package transfer

import (
	"cmp"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the transfers of a node.
const (
	// inMost and outMost bound the transfers to and from a node at a time: one that reads and one
	// that writes keep a disk and a link busy, and more would only make each of them longer.
	inMost  = 2
	outMost = 2
	// pauseMin and pauseMost bound the pause after a failure, which doubles with each.
	pauseMin  = 500 * time.Millisecond
	pauseMost = 30 * time.Second
	// pauseBusy is the pause after a donor that is busy: its place may be free at any moment.
	pauseBusy = 2 * time.Second
	// resumesMost bounds the failures after which a set that was begun is given up, and another
	// donor is asked.
	resumesMost = 3
)

// Want is a replica of this node that needs a copy of its range.
type Want struct {
	Range rhumb.RangeID
	// Least is the position that the copy must be committed up to.
	Least rhumb.Seq
	// InSync counts the members of the in-sync set. Ranges with fewer are copied first.
	InSync int
	// Donors are the in-sync replicas on other nodes that are not quarantined.
	Donors []Donor
}

// Donor is a node that a range may be copied from.
type Donor struct {
	Node rhumb.NodeID
	// Distance is the round trip to the node, or an estimate.
	Distance time.Duration
}

// plan decides which transfer begins when, and from whom. It is a pure value: the caller provides
// the time.
type plan struct {
	// running holds the ranges whose transfer is in progress, and tries the failures of those that wait.
	running map[rhumb.RangeID]bool
	tries   map[rhumb.RangeID]*tries
}

// tries are the failures of one range since its last success.
type tries struct {
	failed int
	// until is the time before which nothing is tried.
	until time.Duration
	// by counts the failures of each donor.
	by map[rhumb.NodeID]int
}

// start is a transfer that begins.
type start struct {
	want  Want
	donor rhumb.NodeID
	// failed counts the failures before.
	failed int
}

// newPlan returns a plan without transfers.
func newPlan() plan {
	return plan{running: map[rhumb.RangeID]bool{}, tries: map[rhumb.RangeID]*tries{}}
}

// next returns the transfers that begin now.
func (p *plan) next(now time.Duration, wants []Want) (out []start) {
	p.forget(wants)
	// The order must not depend on that of the caller, so that a run of the simulator repeats.
	wants = slices.Clone(wants)
	slices.SortFunc(wants, func(a, b Want) int {
		return cmp.Or(cmp.Compare(a.InSync, b.InSync), cmp.Compare(p.failures(a.Range), p.failures(b.Range)), a.Range.Compare(b.Range))
	})
	for _, w := range wants {
		if len(p.running) >= inMost {
			break
		}
		t := p.tries[w.Range]
		if p.running[w.Range] || len(w.Donors) == 0 || t != nil && now < t.until {
			continue
		}
		s := start{want: w, donor: p.nearest(w), failed: p.failures(w.Range)}
		p.running[w.Range] = true
		out = append(out, s)
	}
	return out
}

// forget drops the failures of ranges that need no copy any more.
func (p *plan) forget(wants []Want) {
	for id := range p.tries {
		if !p.running[id] && !slices.ContainsFunc(wants, func(w Want) bool { return w.Range == id }) {
			delete(p.tries, id)
		}
	}
}

// failures returns the number of failures of a range.
func (p *plan) failures(id rhumb.RangeID) int {
	if t := p.tries[id]; t != nil {
		return t.failed
	}
	return 0
}

// nearest returns the donor with the fewest failures, and of those the nearest one.
func (p *plan) nearest(w Want) rhumb.NodeID {
	t := p.tries[w.Range]
	failures := func(n rhumb.NodeID) int {
		if t == nil {
			return 0
		}
		return t.by[n]
	}
	return slices.MinFunc(w.Donors, func(a, b Donor) int {
		return cmp.Or(cmp.Compare(failures(a.Node), failures(b.Node)), cmp.Compare(a.Distance, b.Distance), cmp.Compare(a.Node, b.Node))
	}).Node
}

// ended records the result of a transfer. A donor that is only busy has not failed: the next attempt asks another one, if there is
// one, and the pause does not grow. Otherwise a copy would wait for half a minute after the donor is free.
func (p *plan) ended(now time.Duration, id rhumb.RangeID, donor rhumb.NodeID, err error) {
	delete(p.running, id)
	if err == nil {
		delete(p.tries, id)
		return
	}
	t := p.tries[id]
	if t == nil {
		t = &tries{by: map[rhumb.NodeID]int{}}
		p.tries[id] = t
	}
	t.by[donor]++
	if rhumb.KindOf(err) == rhumb.Overloaded {
		t.until = now + pauseBusy
		return
	}
	t.failed++
	pause := pauseMost
	// Beyond six failures, the shift would exceed pauseMost anyway.
	if n := t.failed - 1; n < 6 {
		pause = min(pauseMost, pauseMin<<n)
	}
	t.until = now + pause
}

// bucket limits a rate. It is a pure value: the caller provides the time, and waits.
type bucket struct {
	rate float64 // bytes per second; 0 means no limit
	// free is the time at which everything taken so far has passed at the rate.
	free time.Duration
}

// burst is how much may pass at once after a pause.
const burst = 50 * time.Millisecond

// take accounts for n bytes and returns how long the caller must wait before it passes them on.
func (b *bucket) take(now time.Duration, n int) (wait time.Duration) {
	if b.rate <= 0 {
		return 0
	}
	// Time that has passed unused is kept up to burst; more would let a pause excuse a flood.
	b.free = max(b.free, now-burst) + time.Duration(float64(n)/b.rate*float64(time.Second))
	return max(0, b.free-now)
}
