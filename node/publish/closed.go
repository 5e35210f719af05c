package publish

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// closedTimestamp returns the timestamp up to which the version is permanently complete in every
// range of a published table. It returns 0 if none is known, or if the driver asked within the last
// closedInterval.
func (c *cut) closedTimestamp() rhumb.Timestamp {
	d := c.d
	// A range that leaves the image is missing in the cut.
	if len(c.absent) > 0 {
		return 0
	}
	now := hlc.Boottime()
	// Asking costs a look-up for each range.
	if now-d.asked < closedInterval {
		return 0
	}
	d.asked = now
	return d.closedAt(c.st, c.at)
}

// closedAt returns the minimum closed timestamp of the ranges, as of their positions in moved or
// else the positions followed so far. It returns 0 if the position of any range is unknown.
func (d *Driver) closedAt(st *catalog.State, moved map[rhumb.RangeID]format.Position) rhumb.Timestamp {
	// A table or range that the image lacks would be missing below the timestamp.
	if d.cfg.Closed == nil || !d.catalogApplied() {
		return 0
	}
	classes := map[rhumb.ClassID]bool{}
	for _, t := range d.tables {
		classes[t.Class] = true
	}
	for id := range d.at {
		if r, ok := st.Range(id); !ok || !r.IsReplica(d.cfg.Node) {
			// The range is about to leave the image, and its records with it.
			return 0
		}
	}
	for id := range d.births {
		// A range that was split off is not in this copy of the catalog yet: its writes would be missing in the cut.
		if _, ok := st.Range(id); !ok {
			return 0
		}
	}
	var least rhumb.Timestamp
	// The minimum runs over all ranges that this node holds of a published class, not only those
	// that the image follows: a range that is new on this node must hold the timestamp back until
	// its data is in the image.
	for r := range st.Ranges() {
		if !classes[r.Class] || !r.IsReplica(d.cfg.Node) {
			continue
		}
		p, ok := moved[r.ID]
		if !ok {
			p = d.at[r.ID]
		}
		at := d.cfg.Closed(r.ID, rhumb.Seq(p.Seq))
		// One range without a closed timestamp leaves the cut unknown.
		if p.Seq == 0 || at == 0 {
			return 0
		}
		if least == 0 || at < least {
			least = at
		}
	}
	return least
}

// catalogApplied reports whether the tables and ranges of the image match the catalog: no change of
// the catalog is waiting.
func (d *Driver) catalogApplied() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.revision
}

// publishClosed publishes a version that has no new entries but a greater closed timestamp, if the
// policy allows a version now. Without it the cut of an idle node would stand still.
func (d *Driver) publishClosed() {
	p := d.cfg.Policy
	// A failure also delays these versions, so that a full disk is not retried at every beat.
	early := p.OnDemand || hlc.Boottime() < max(d.last+p.Interval, d.retry)
	if !early && !d.anyStale() && len(d.left) == 0 {
		if at := d.closedAt(d.cfg.State(), nil); at > d.pub.Closed() {
			c := d.pub.Begin()
			defer c.Discard()
			if _, err := c.Publish(snapshot.CommitInfo{Closed: at}); err != nil {
				d.m.failures.Inc()
				d.retry = hlc.Boottime() + retryPause
				d.cfg.Logger.Error("publishing the closed timestamp failed", "err", err)
			}
		}
	}
	// The metric measures what readers see, so it also grows while versions fail.
	if at := d.pub.Closed(); at != 0 {
		d.m.closedLag.Set(time.Since(at.Time()).Seconds())
	}
}
