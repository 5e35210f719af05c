package demo

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

const (
	// secondsShown is the interval at which figures are gathered. plainInterval is the interval at
	// which they are printed if the output is not a terminal.
	secondsShown  = time.Second
	plainInterval = 10 * time.Second
)

// playFeed runs the feed and shows figures until ctx ends.
func (d *run) playFeed(ctx context.Context) error {
	// The feed has a context of its own, so that it can be ended before the clients are closed.
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
	err := d.showFigures(ctx, f)
	// The feed ends also if showing failed, because its caller closes the clients next.
	cancel()
	<-fed
	return err
}

// newFeed returns a feed over the stations.
func (d *run) newFeed() *feed {
	var stores []store
	var meters []*meter
	for _, s := range d.stations {
		stores, meters = append(stores, s), append(meters, s.meter)
	}
	return newFeed(d.layout.Regions, stores, meters, d.cfg.Flights, rand.Uint64(), time.Now())
}

// showFigures gathers and prints figures every second until ctx ends.
func (d *run) showFigures(ctx context.Context, f *feed) error {
	tick := time.NewTicker(secondsShown)
	defer tick.Stop()
	// shown is zero until a line was printed, so that the first one is printed at once.
	last, shown := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		// Figures are not reset either, so the next line covers the whole interval.
		if !d.cfg.JSON && !d.cfg.Terminal && now.Sub(shown) < plainInterval {
			continue
		}
		sec := d.gatherSecond(f, now, now.Sub(last))
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

// gatherSecond returns the figures since the last call.
func (d *run) gatherSecond(f *feed, now time.Time, elapsed time.Duration) *Second {
	sec := &Second{Time: now.UTC()}
	byNode, byRegion := countPrimaries(d.newestClient())
	for i, s := range d.stations {
		fig := s.meter.flushFigures(s.region.Name, elapsed)
		fig.Primaries = byRegion[s.client.Region().ID]
		if f != nil {
			fig.Flights = f.countAloft()[i]
		}
		if err := s.meter.takeError(); err != nil {
			sec.LastError = s.region.Name + ": " + err.Error()
		}
		sec.Acknowledged += s.meter.acknowledged.Load()
		sec.Regions = append(sec.Regions, fig)
	}
	up, pids := d.children.childStates()
	// Children are in the order of the nodes, because bootCluster adds them in that order.
	for i, n := range d.layout.Nodes {
		sec.Nodes = append(sec.Nodes, NodeFigures{ID: n.ID, Region: n.Region, PID: pids[i], Up: up[i], Primaries: byNode[n.ID]})
	}
	return sec
}

// newestClient returns the client with the newest metadata. Some clients may be cut off.
func (d *run) newestClient() *client.Client {
	best := d.stations[0].client
	for _, s := range d.stations[1:] {
		if s.client.Revision() > best.Revision() {
			best = s.client
		}
	}
	return best
}

// countPrimaries returns the number of primaries per node and per region.
func countPrimaries(c *client.Client) (byNode map[rhumb.NodeID]int, byRegion map[rhumb.RegionID]int) {
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
