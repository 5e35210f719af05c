package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
)

// In some seeds dead nodes are replaced after a short time, so that the second phase of failover (docs/replication.md#failover-phases) happens
// among the other faults. After them one node dies for long, and the phase is judged: each range that preferred the node must be served by the
// live node nearest to it. The judge knows only where the nodes are. It does not ask the planner.
//
// All nodes of such a seed are in one zone, one after the other on a line, so the nearest is known without the rules about zones.

// Times of the second phase.
const (
	// replaceSoon is the setting replace_after, which is its least value.
	replaceSoonAfter = "5s"
	// returnAfter is how long a node must be healthy before it gets ranges.
	returnAfter = 3 * time.Second
	// standInMost is how long the phase may take from the death of the node, and then its return: the node is missed, is dead for
	// replace_after, a copy is made and joins, and the range is handed over. A handover that was given up among the faults delays the next one by a
	// minute (place.HandoverRetry).
	standInMost = 90 * time.Second
	// standInNodes is the least number of nodes. With as many as a range has copies, the phase would often change nothing.
	standInNodes = 5
	// standInLook is how often the phase is looked at, also for the planted bug.
	standInLook = 20 * time.Millisecond
)

// standNear puts all nodes into one zone, and lets every range spare one member.
func (p *profile) standNear() {
	p.regions, p.nodes = 1, max(p.nodes, standInNodes)
	p.settings.MinInSync = min(p.settings.MinInSync, p.settings.Replicas-1)
}

// hastenFailback shortens the times of the planner. The wait does not grow with the failures of a node: the faults cause many.
func (p *profile) hastenFailback(c *evidence.Config) {
	if p.standIn {
		c.FailbackAfter, c.FailbackMax = returnAfter, returnAfter
	}
}

// replaceSoon sets the setting, and tries again until it is set: metadata may be cut off.
func (w *world) replaceSoon() { w.setSetting(w.p.standIn, rhumb.SettingReplaceAfter, replaceSoonAfter) }

// setSetting sets a setting if wanted, and repeats that until the metadata shows it.
func (w *world) setSetting(wanted bool, name, value string) {
	if wanted && w.state.Setting(name) != value {
		w.proposeOnce(catalog.SetSetting{Name: name, Value: value})
		w.after(time.Second, func() { w.setSetting(wanted, name, value) })
	}
}

// doomed is a range of the node that dies, with the distance of the node that is to have it.
type doomed struct {
	id     rhumb.RangeID
	metres int64
	// spare is set if another node can take the place of the dead one among the copies.
	spare bool
}

// failForLong lets a node die for as long as the second phase of failover takes, and then return.
func (w *world) failForLong() {
	if w.err != nil || !w.p.standIn || w.damage != nil && !w.damage.isRepaired() {
		return
	}
	w.awaitLive(w.now)
	dead, ranges := w.pickDoomed()
	if w.err != nil || dead == nil || w.stats.Lost+w.stats.Quarantined > 0 {
		return
	}
	// A node whose clock is wrong gets no primary, and in half of the seeds all clocks jump (seed 55).
	if slices.ContainsFunc(w.nodes, func(n *node) bool { return n.host != nil && n.host.Unfit() != "" }) {
		return
	}
	if w.cfg.Bug == NeverStandIn {
		w.setSetting(true, rhumb.SettingFailback, evidence.FailbackNever)
		w.until(w.now + 3*time.Second)
	}
	w.tracef("fault", "%s is down for long; it is preferred by %v", dead.id, ranges)
	w.stats.StandIns++
	dead.stop()
	w.awaitEach(ranges, func(d doomed) string { return w.whyNotStoodIn(dead, d) })
	w.tracef("fault", "%s returns", dead.id)
	if w.err == nil {
		dead.start()
	}
	w.awaitLive(w.now)
	w.awaitEach(ranges, func(d doomed) string { return w.whyNotReturned(dead, d) })
	// The last copies of the return may be on their way.
	w.awaitLive(w.now)
}

// awaitEach waits until why returns "" for each range, at most standInMost.
func (w *world) awaitEach(ranges []doomed, why func(d doomed) string) {
	for end := w.now + standInMost; w.err == nil; w.until(w.now + standInLook) {
		text := ""
		for _, d := range ranges {
			if text == "" {
				text = why(d)
			}
		}
		switch {
		case text == "":
			return
		case w.now >= end:
			w.failf("%s, after %v", text, standInMost)
		}
	}
}

// pickDoomed returns the node whose death shows the second phase best, with the ranges that prefer it: those that the nearest other
// node has no copy of come first. It returns nil if no node will do.
func (w *world) pickDoomed() (dead *node, ranges []doomed) {
	best := -1
	for _, n := range w.nodes {
		if n.down || n.retired || n.isWitness() || !w.maySpare(n) {
			continue
		}
		var of []doomed
		score := 0
		for _, id := range w.served() {
			r, _ := w.state.Range(id)
			// A range that returns to its former node, or that is being moved, has another plan.
			if r.Preferred != n.id || r.Former != rhumb.NoNode || r.Prepared != nil || len(r.Leaving) > 0 || len(r.Replicas) != w.p.settings.Replicas || !slices.Equal(r.InSync, r.Replicas) {
				continue
			}
			d, changes := w.expectStandIn(n, r)
			of = append(of, d)
			if changes {
				score++
			}
		}
		if len(of) > 0 && score > best {
			dead, ranges, best = n, of, score
		}
	}
	return dead, ranges
}

// maySpare reports whether the metadata group has a majority without a node.
func (w *world) maySpare(n *node) bool {
	voters := 0
	for d := range w.state.Nodes() {
		if d.Voter && !w.nodes[d.ID-1].lost {
			voters++
		}
	}
	rec, _ := w.state.Node(n.id)
	return !rec.Voter || voters >= votersLeast
}

// expectStandIn returns which distance from a dead node the primary of a range must have after the second phase. changes is set if the node
// at this distance has no copy yet.
func (w *world) expectStandIn(dead *node, r *rhumb.Range) (d doomed, changes bool) {
	var has, lacks []int64
	for _, n := range w.nodes {
		switch {
		case n == dead || n.retired || !w.state.TakesCopies(n.id):
		case r.IsReplica(n.id):
			has = append(has, w.metresBetween(dead.id, n.id))
		default:
			lacks = append(lacks, w.metresBetween(dead.id, n.id))
		}
	}
	d = doomed{r.ID, slices.Min(has), len(lacks) > 0}
	// One copy is missing, and the nearest of the other nodes gets it.
	if d.spare && slices.Min(lacks) < d.metres {
		d.metres, changes = slices.Min(lacks), true
	}
	return d, changes
}

// metresBetween returns the distance of two nodes.
func (w *world) metresBetween(a, b rhumb.NodeID) int64 {
	x, _ := w.state.Node(a)
	y, _ := w.state.Node(b)
	return geo.Metres(x.Location, y.Location)
}

// whyNotStoodIn returns why the second phase of a range is not over, or "".
func (w *world) whyNotStoodIn(dead *node, d doomed) string {
	r, ok := w.state.Range(d.id)
	if !ok {
		return fmt.Sprintf("range %s is gone", d.id)
	}
	if w.cfg.Bug == StandInUnready {
		w.standInUnready(r, dead)
	}
	switch away := w.metresBetween(dead.id, r.Primary); {
	case r.Primary == dead.id || away != d.metres:
		return fmt.Sprintf("range %s: its primary is %s, %d m away from %s, which is dead; the nearest node that is to have the range is %d m away", d.id, r.Primary, away, dead.id, d.metres)
	case d.spare && (r.IsReplica(dead.id) || r.Preferred != r.Primary || r.Former != dead.id):
		return fmt.Sprintf("range %s: %s stands in for %s; the replicas are %v, the preferred primary is %s, the former one %s", d.id, r.Primary, dead.id, r.Replicas, r.Preferred, r.Former)
	case !w.takesWrites(d.id):
		return fmt.Sprintf("range %s: %s does not serve it yet", d.id, r.Primary)
	}
	return ""
}

// whyNotReturned returns why a range is not back at the node that was dead, or "". Balance may then prefer another of its copies.
func (w *world) whyNotReturned(dead *node, d doomed) string {
	r, ok := w.state.Range(d.id)
	switch {
	case w.cfg.Bug != NoBug:
	case !ok || r.Former != rhumb.NoNode || !r.IsInSync(dead.id) || r.Primary != r.Preferred:
		return fmt.Sprintf("range %s has not returned to %s: %+v", d.id, dead.id, r)
	}
	return ""
}

// standInUnready elects the node that is to have a range as soon as the record names it, and before it is in sync (StandInUnready).
func (w *world) standInUnready(r *rhumb.Range, dead *node) {
	for _, id := range r.Replicas {
		if id != dead.id && !r.IsInSync(id) && w.state.IsLive(id) {
			w.enthrone(r, id)
			return
		}
	}
}
