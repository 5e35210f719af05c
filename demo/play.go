package demo

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

const (
	// secondsShown is how often figures are gathered; plainInterval how often they are shown where nothing can be drawn over.
	secondsShown  = time.Second
	plainInterval = 10 * time.Second
)

// play plays the feed and shows figures until ctx ends.
func (d *run) play(ctx context.Context) error {
	playing, cancel := context.WithCancel(ctx)
	defer cancel()
	fed := make(chan struct{})
	var f *feed
	if d.cfg.Load == "none" {
		close(fed)
	} else {
		f = d.newFeed()
		go func() {
			defer close(fed)
			f.run(playing)
		}()
	}
	err := d.show(ctx, f)
	cancel()
	<-fed
	return err
}

func (d *run) newFeed() *feed {
	var stores []store
	var meters []*meter
	for _, s := range d.stations {
		stores, meters = append(stores, s), append(meters, s.meter)
	}
	return newFeed(d.layout.Regions, stores, meters, d.cfg.Flights, rand.Uint64(), time.Now())
}

// show gathers figures every second, and shows them, until ctx ends.
func (d *run) show(ctx context.Context, f *feed) error {
	tick := time.NewTicker(secondsShown)
	defer tick.Stop()
	last, shown := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		if !d.cfg.JSON && !d.cfg.Terminal && now.Sub(shown) < plainInterval {
			continue
		}
		sec := d.second(f, now, now.Sub(last))
		last, shown = now, now
		if !d.cfg.JSON {
			d.screen.draw(sec)
			continue
		}
		if err := d.printJSON(sec); err != nil {
			return err
		}
	}
}

// second gathers the figures of the time since the last.
func (d *run) second(f *feed, now time.Time, elapsed time.Duration) *Second {
	sec := &Second{Time: now.UTC()}
	byNode, byRegion := primaries(d.newest())
	for i, s := range d.stations {
		fig := s.meter.flush(s.region.Name, elapsed)
		fig.Primaries = byRegion[s.client.Region().ID]
		if f != nil {
			fig.Flights = f.aloft()[i]
		}
		if err := s.meter.takeError(); err != nil {
			sec.LastError = s.region.Name + ": " + err.Error()
		}
		sec.Acknowledged += s.meter.acknowledged.Load()
		sec.Regions = append(sec.Regions, fig)
	}
	up, pids := d.children.state()
	for i, n := range d.layout.Nodes {
		sec.Nodes = append(sec.Nodes, NodeFigures{ID: n.ID, Region: n.Region, PID: pids[i], Up: up[i], Primaries: byNode[n.ID]})
	}
	return sec
}

// newest gives the client that has heard the newest metadata: one of them may be cut off.
func (d *run) newest() *client.Client {
	best := d.stations[0].client
	for _, s := range d.stations[1:] {
		if s.client.Revision() > best.Revision() {
			best = s.client
		}
	}
	return best
}

// primaries counts the ranges by the node and the region that orders their writes.
func primaries(c *client.Client) (byNode map[rhumb.NodeID]int, byRegion map[rhumb.RegionID]int) {
	byNode, byRegion = map[rhumb.NodeID]int{}, map[rhumb.RegionID]int{}
	regionOf := map[rhumb.NodeID]rhumb.RegionID{}
	for _, n := range c.Nodes() {
		regionOf[n.ID] = n.Region
	}
	for _, r := range c.Ranges() {
		byNode[r.Primary]++
		byRegion[regionOf[r.Primary]]++
	}
	return byNode, byRegion
}
