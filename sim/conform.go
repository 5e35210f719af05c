package sim

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sim/model"
)

// In every conformEvery-th seed, and with Config.Conform, each step of each replica core is checked against the guards of the model
// (model.Guards): a glimpse of the replica after the step is compared with the one before it. Acknowledgements and answers to PREPARE are counted
// from the messages on the wire, independently of the replica.

// A step here is the work between two calls of host.Probe.Ready, in which a replica may handle several events: messages, a record, a tick. Two
// consequences follow. A change of the in-sync set may begin in the same step in which entries are committed with the sets before it, so the
// guards accept a commit that either sets justify. And a record may end one change before the next one begins in the same step, so a newer
// version of the record resets the comparison of changes. Neither hides a bug that lasts for more than one step.
//
// The check needs a status of the replica in each step, which copies its sets and peers. That is why not every seed has it. The seeds that
// have it are the same in every run, so that a failed one can be repeated.
//
// Not checked here are leases, closed timestamps, copies and splits. The monitor judges those by their effects: a read that misses an
// acknowledged write, an entry below a closed timestamp, an in-sync member without an acknowledged entry.

// conformEvery is the distance of seeds whose steps are checked.
const conformEvery = 8

// conformance is the knowledge of an observer about one life of a node, by range index.
type conformance struct {
	// last is the last glimpse of a replica, and of the replica itself: with another one the comparison starts again.
	last []model.Glimpse
	of   []*replica.Replica
	acks []map[rhumb.NodeID]heardFrom
	// promises are the answers to PREPARE, and handed is the greatest epoch that was handed over.
	promises []map[rhumb.NodeID]heardFrom
	handed   []rhumb.Epoch
}

// The memory of one life ends with the life: acknowledgements of an earlier life of this node went to an earlier primary, and it must
// not count them.

// heardFrom is the newest message of a node: its epoch and life, and the greatest position in both.
type heardFrom struct {
	epoch rhumb.Epoch
	life  rhumb.BootSeq
	match rhumb.Seq
}

// conforms reports whether the steps of the run are checked.
func (w *world) conforms() bool { return w.cfg.Conform || w.cfg.Seed%conformEvery == 0 }

// grow makes room for all ranges.
func (c *conformance) grow(ranges int) {
	for len(c.last) < ranges {
		c.last, c.of = append(c.last, model.Glimpse{}), append(c.of, nil)
		c.acks, c.promises = append(c.acks, map[rhumb.NodeID]heardFrom{}), append(c.promises, map[rhumb.NodeID]heardFrom{})
		c.handed = append(c.handed, 0)
	}
}

// hear records a message that arrives at the node.
func (c *conformance) hear(i int, m *replica.Message) {
	switch m.Kind {
	case replica.Ack:
		noteHeard(c.acks[i], m, m.Match)
	case replica.Promise:
		noteHeard(c.promises[i], m, 0)
	case replica.Handover:
		c.handed[i] = max(c.handed[i], m.Epoch)
	}
}

// noteHeard records a message. A later epoch or life replaces an earlier one, which may arrive after it.
func noteHeard(of map[rhumb.NodeID]heardFrom, m *replica.Message, match rhumb.Seq) {
	old := of[m.From]
	switch {
	case m.Life < old.life || m.Life == old.life && m.Epoch < old.epoch:
		return
	case m.Life == old.life && m.Epoch == old.epoch:
		match = max(match, old.match)
	}
	of[m.From] = heardFrom{m.Epoch, m.Life, match}
}

// hearMessages records messages before planted bugs change them.
func (n *node) hearMessages(msgs []replica.Message) {
	c := &n.seen.conform
	c.grow(len(n.w.ranges))
	for k := range msgs {
		if i := n.w.rangeIndex(msgs[k].Range); i >= 0 {
			c.hear(i, &msgs[k])
		}
	}
}

// conformStep compares a new glimpse of a replica with the last one, and passes a broken guard to the judge.
func (n *node) conformStep(i int, id rhumb.RangeID, rd *replica.Ready) {
	r, ok := n.host.Replica(id)
	// The replica may have been dropped by the same pass.
	if !ok {
		return
	}
	c := &n.seen.conform
	c.grow(len(n.w.ranges))
	before := c.last[i]
	after := n.glimpse(i, r)
	after.Appended = before.Appended + uint64(len(rd.Append))
	// A change stays sent until another one takes its place.
	after.Sent = before.Sent && slices.Equal(before.Pending, after.Pending) && before.Version == after.Version && before.Promised == after.Promised
	// Metadata learns of a change by this proposal, so from now on only a newer record ends it.
	for _, m := range rd.Meta {
		if m.Kind == replica.AlterISR && slices.Equal(nodeNumbers(m.New), after.Pending) {
			after.Sent = true
		}
	}
	fresh := c.of[i] != r
	c.last[i], c.of[i] = after, r
	// A replica that takes the place of another one, or that is quarantined, follows no rule of steps.
	if fresh || r.State() == replica.Quarantined {
		return
	}
	n.w.stats.Conformed++
	guards := model.Guards{MinInSync: n.w.p.settings.MinInSync}
	if rule, what := guards.Check(&before, &after); rule != "" {
		n.w.failf("%s: range %s: a step breaks the guard %s of the model: %s", n.id, id, rule, what)
	}
	n.checkRecordedSet(id, &after)
}

// checkRecordedSet checks that a primary uses the in-sync set of the record that it has (rule R).
func (n *node) checkRecordedSet(id rhumb.RangeID, g *model.Glimpse) {
	d, ok := n.group.State().Range(id)
	if ok && g.Primary && uint64(d.Epoch) == g.Promised && d.Version == g.Version && !slices.Equal(nodeNumbers(d.InSync), g.InSync) {
		n.w.failf("%s: range %s: a step breaks the guard shrink-after-commit of the model: in sync %v, the record of version %d has %v", n.id, id, g.InSync, d.Version, d.InSync)
	}
}

// glimpse returns the present glimpse of a replica.
func (n *node) glimpse(i int, r *replica.Replica) model.Glimpse {
	s, c := r.Status(), &n.seen.conform
	g := model.Glimpse{
		Self: uint64(n.id), Promised: uint64(s.Epoch), Primary: s.State == replica.Primary, Elected: s.State == replica.Activating,
		Last: uint64(s.Last.Seq), Commit: uint64(s.Commit), Start: uint64(s.Start), Version: s.Version,
		InSync: nodeNumbers(s.InSync), Pending: nodeNumbers(s.Pending), Match: map[uint64]uint64{uint64(n.id): uint64(s.Durable)},
		Answers: []uint64{uint64(n.id)},
	}
	// The record as this node knows it: the replica cannot know a newer one.
	d, known := n.group.State().Range(n.w.ranges[i])
	vouched := func(id rhumb.NodeID, life rhumb.BootSeq) bool { return known && life != 0 && d.LifeOf(id) == life }
	g.Vouched = vouched(n.id, n.identity().Boot)
	// Acknowledgements of another epoch say nothing about the log of this one.
	for id, a := range c.acks[i] {
		if a.epoch == s.Epoch {
			g.Match[uint64(id)] = uint64(a.match)
		}
	}
	// The answers are kept after the epoch began, because the guard looks at the step in which it begins.
	for id, p := range c.promises[i] {
		if p.epoch == s.Epoch {
			g.Answers = append(g.Answers, uint64(id))
			g.Vouched = g.Vouched || vouched(id, p.life)
		}
	}
	// A handover carries the whole log, and the first epoch of a range has nothing before it.
	g.Unasked = c.handed[i] == s.Epoch || known && replica.BeginsWithoutAsking(d, s.Epoch)
	return g
}

// nodeNumbers returns the numbers of nodes, nil for none.
func nodeNumbers(nodes []rhumb.NodeID) (out []uint64) {
	for _, id := range nodes {
		out = append(out, uint64(id))
	}
	return out
}
