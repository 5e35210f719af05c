package publish

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// closed gives the timestamp up to which the version is complete in every range of a published table, for ever; 0 when that
// is not known, or was asked just before.
func (c *cut) closed() rhumb.Timestamp {
	d := c.d
	now := hlc.Boottime()
	if now-d.asked < closedInterval {
		return 0
	}
	d.asked = now
	return d.closedAt(c.st, c.at)
}

// closedAt gives the least closed timestamp of the ranges, as of the positions in moved or else those followed so far. A
// range whose position is not known makes it 0.
func (d *Driver) closedAt(st *catalog.State, moved map[rhumb.RangeID]format.Position) rhumb.Timestamp {
	if d.cfg.Closed == nil || !d.fitted() {
		return 0
	}
	classes := map[rhumb.ClassID]bool{}
	for _, t := range d.tables {
		classes[t.Class] = true
	}
	for id := range d.at {
		if r, ok := st.Range(id); !ok || !r.IsReplica(d.cfg.Node) {
			return 0 // it is about to leave the image
		}
	}
	var least rhumb.Timestamp
	for r := range st.Ranges() {
		if !classes[r.Class] || !r.IsReplica(d.cfg.Node) {
			continue
		}
		p, ok := moved[r.ID]
		if !ok {
			p = d.at[r.ID]
		}
		at := d.cfg.Closed(r.ID, rhumb.Seq(p.Seq))
		if p.Seq == 0 || at == 0 {
			return 0
		}
		if least == 0 || at < least {
			least = at
		}
	}
	return least
}

// fitted reports whether the tables followed are those that the image has: no change of the catalog waits to be taken in.
func (d *Driver) fitted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.revision
}

// publishClosed publishes a version that has nothing new but a greater closed timestamp, when the last one has none and the
// policy lets it.
func (d *Driver) publishClosed() {
	p := d.cfg.Policy
	early := p.OnDemand || hlc.Boottime() < max(d.last+p.Interval, d.retry)
	if !early && !d.anyStale() && len(d.left) == 0 {
		if at := d.closedAt(d.cfg.State(), nil); at > d.pub.Closed() {
			c := d.pub.Begin()
			defer c.Discard()
			if _, err := c.Publish(snapshot.CommitInfo{Closed: at}); err != nil {
				d.m.failures.Inc()
				d.retry = hlc.Boottime() + retryPause
				d.cfg.Logger.Error("the closed timestamp is not published", "err", err)
			}
		}
	}
	if at := d.pub.Closed(); at != 0 {
		d.m.closedLag.Set(time.Since(at.Time()).Seconds())
	}
}
