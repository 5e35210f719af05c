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
	if d.cfg.Closed == nil {
		return 0
	}
	classes := map[rhumb.ClassID]bool{}
	for _, t := range d.tables {
		classes[t.Class] = true
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

// publishClosed publishes a version that has nothing new but a greater closed timestamp, when the last one has none and the
// policy lets it.
func (d *Driver) publishClosed() {
	p := d.cfg.Policy
	early := p.OnDemand || hlc.Boottime() < d.last+p.Interval
	if !early && !d.anyStale() && len(d.left) == 0 {
		if at := d.closedAt(d.cfg.State(), nil); at > d.pub.Closed() {
			c := d.pub.Begin()
			defer c.Discard()
			if _, err := c.Publish(snapshot.CommitInfo{Closed: at}); err != nil {
				d.m.failures.Inc()
				d.cfg.Logger.Error("the closed timestamp is not published", "err", err)
			}
		}
	}
	if at := d.pub.Closed(); at != 0 {
		d.m.closedLag.Set(time.Since(at.Time()).Seconds())
	}
}
