package raftmeta

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// clockYieldPause is how long a node whose clock is wrong leads, at least, after it has tried to hand over the leadership for that
// reason, also if it has led in a later term since. Raft refuses proposals while a transfer is under way, for an election
// timeout if it fails; and two nodes that compare their clocks with different ones could hand the leadership back and forth.
const clockYieldPause = 10 * time.Second

// clockYield decides when a leader hands the leadership over because its clock is wrong. It is a value without I/O or clock, and outlives
// the terms of this node.
type clockYield struct {
	// asked is when this node last tried, and tried whether it did.
	asked time.Duration
	tried bool
}

// next returns whether the leader tries to hand the leadership to heir now, and notes that. The first time is at once: a verdict
// about a clock has taken several heartbeats already.
func (y *clockYield) next(now time.Duration, heir rhumb.NodeID) bool {
	if heir == rhumb.NoNode || y.tried && now-y.asked < clockYieldPause {
		return false
	}
	y.asked, y.tried = now, true
	return true
}

// leadGrace is how long a witness leads before it hands the leadership over, and how long it waits before it tries again: an election
// is often followed by others, and a transfer that Raft gave up says that the other node is not well.
const leadGrace = 10 * time.Second

// yieldLead hands the leadership over if this node is a witness that is far from the other voters (place.NextLeader). Nothing waits
// for the transfer: until it succeeds this node leads, and does all the work of a leader.
func (c *controller) yieldLead(ctx context.Context, now time.Duration) {
	since := max(c.leadership.Load().since-c.start, c.asked)
	if now-since < leadGrace {
		return
	}
	heir := rhumb.NoNode
	err := c.askDriver(ctx, "raftmeta.yieldLead", func(d *driver) {
		ready := d.readyNodes()
		clocks := d.clocks()
		heir = place.NextLeader(d.state, d.config.Node, func(id rhumb.NodeID) bool {
			// A voter whose clock is wrong would hand the leadership back.
			return ready[uint64(id)] && (len(clocks.Right) == 0 || clocks.IsRight(id))
		})
		if heir != rhumb.NoNode {
			d.node.TransferLeader(uint64(heir))
		}
	})
	if err != nil || heir == rhumb.NoNode {
		return
	}
	c.asked = now
	c.metrics.leadYields.Inc()
	c.log.Info("this witness hands the leadership of the metadata to a voter that is nearer to the others", "to", heir)
}

// yieldForClock hands the leadership over if the clock of this node is wrong (place.ClockHeir). Nothing waits for the transfer: until
// it succeeds this node leads, and does all the work of a leader.
func (c *controller) yieldForClock(ctx context.Context, now time.Duration) {
	clocks := c.clocks()
	// The driver is not asked twenty times a second for nothing.
	if !clocks.Wrong {
		return
	}
	heir, tries := rhumb.NoNode, false
	err := c.askDriver(ctx, "raftmeta.yieldForClock", func(d *driver) {
		ready := d.readyNodes()
		heir = place.ClockHeir(d.state, d.config.Node, clocks, func(id rhumb.NodeID) bool { return ready[uint64(id)] })
		if tries = d.isLead && c.clock.next(now, heir); tries {
			d.node.TransferLeader(uint64(heir))
		}
	})
	if err != nil || !tries {
		return
	}
	c.metrics.clockYields.Inc()
	c.log.Warn("the clock of this node is wrong; it hands the leadership of the metadata to a voter whose clock is right", "to", heir)
}

// yieldAccused hands the leadership over in place of fencing this node. A fenced node begins a new
// life, and its copy of the group starts again: an election would delay the failover of its ranges.
// The next leader receives the same reports within a moment. yieldAccused returns false if no voter
// can lead, or if this node still leads after an attempt in this term. The caller then fences the
// node all the same.
func (c *controller) yieldAccused(ctx context.Context) bool {
	if c.accused {
		return false
	}
	c.accused = true
	// Any live voter may lead: the accusers are among them, and so are those that hear the node.
	heir := rhumb.NoNode
	err := c.askDriver(ctx, "raftmeta.yieldAccused", func(d *driver) { heir = d.transferLead(d.state.IsLive) })
	if err != nil || heir == rhumb.NoNode {
		return false
	}
	c.metrics.accusedYields.Inc()
	c.log.Warn("other nodes do not hear this node; it hands the leadership of the metadata to one of them", "to", heir)
	return true
}
