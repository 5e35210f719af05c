package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/wan"
)

const (
	// bootTimeout bounds the time from the first process to a cluster that takes writes.
	bootTimeout = 2 * time.Minute
	// bootPoll is how often the demo asks whether a node is ready.
	bootPoll = 50 * time.Millisecond
)

// demoTables are the tables that a demo makes: those that the built-in mappings of ingest write, with the settings that
// let their rows share batches. Only tables that have a colocate byte take part in batches of several rows.
var demoTables = []struct {
	name     string
	colocate byte
	snapshot rhumb.SnapshotFeatures
}{
	{"flights", '/', published},
	{"positions", '/', 0},
	{"events", '/', 0},
	{"surface", '/', published},
	{"surface_positions", '/', 0},
	{"surface_events", '/', 0},
	{"airports", 0, published},
	{"roads", 0, published},
}

// published puts a table into the shared memory of the nodes that hold it.
const published = rhumb.SnapshotOn | rhumb.SnapshotSpatial | rhumb.SnapshotOrdered

// boot starts the nodes, makes a cluster of them, and waits until it takes writes.
func (d *run) boot(running context.Context) error {
	ctx, cancel := context.WithTimeout(running, bootTimeout)
	defer cancel()
	for i := range d.layout.Nodes {
		n := &d.layout.Nodes[i]
		if err := d.children.add(fmt.Sprintf("node %s/%s", n.Region, n.Zone), n.Dir, d.startArgs(n)); err != nil {
			return err
		}
	}
	network, err := wan.Open(d.layout.LatencyFile)
	if err != nil {
		return err
	}
	go network.Watch(running, func(err error) { d.note("the latency file stays as it was: %v\n", err) })
	if err := d.initialise(ctx); err != nil {
		return err
	}
	if err := d.awaitNodes(ctx); err != nil {
		return err
	}
	if err := d.openStations(ctx, network); err != nil {
		return err
	}
	if err := d.createTables(ctx); err != nil {
		return err
	}
	d.learnNodes()
	return nil
}

// initialise makes the first node the first member of a cluster, unless it is a member of one.
func (d *run) initialise(ctx context.Context) error {
	cfg := client.Config{Addrs: []string{d.layout.Nodes[0].Addr}, Insecure: true, Timeout: 5 * time.Second}
	return d.until(ctx, "the first node to make a cluster", func(ctx context.Context) error {
		_, err := client.Init(ctx, cfg)
		if rhumb.KindOf(err) == rhumb.AlreadyExists {
			return nil
		}
		return err
	})
}

// until tries again and again until f succeeds or ctx ends.
func (d *run) until(ctx context.Context, what string, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return rhumb.Ef(opRun, rhumb.Unavailable, "waited in vain for %s: %v", what, err)
		case <-time.After(bootPoll):
		}
	}
}

// awaitNodes waits until every node says that it is ready.
func (d *run) awaitNodes(ctx context.Context) error {
	return together(len(d.layout.Nodes), func(i int) error {
		n := d.layout.Nodes[i]
		return d.until(ctx, fmt.Sprintf("node %s/%s to be ready", n.Region, n.Zone), func(ctx context.Context) error {
			return ready(ctx, n.AdminAddr)
		})
	})
}

// ready asks a node's admin port.
func ready(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // what could be read of it is better than nothing
		return fmt.Errorf("it answers %s: %s", resp.Status, bytes.TrimSpace(reason))
	}
	return nil
}

// openStations opens one client in each region.
func (d *run) openStations(ctx context.Context, network *wan.Network) error {
	d.stations = make([]*station, len(d.layout.Regions))
	err := together(len(d.layout.Regions), func(i int) error {
		r := d.layout.Regions[i]
		cfg := client.Config{From: r.Name, Insecure: true, Dial: network.Dialer(r.Name)}
		for _, n := range d.layout.Nodes {
			if n.Region == r.Name {
				cfg.Addrs = append(cfg.Addrs, n.Addr)
			}
		}
		return d.until(ctx, "a client in "+r.Name, func(ctx context.Context) error {
			c, err := client.Open(ctx, cfg)
			if err != nil {
				return err
			}
			d.stations[i] = &station{region: r, client: c, meter: newMeter()}
			return nil
		})
	})
	if err != nil {
		d.closeClients()
	}
	return err
}

// createTables makes the tables, and waits until every region takes writes to them. The first table makes the class of
// all of them; the others follow side by side.
func (d *run) createTables(ctx context.Context) error {
	// A region of fewer nodes than the default wants cannot hold as many copies.
	settings := rhumb.ClassSettings{Replicas: min(rhumb.ReplicasDefault, d.cfg.NodesPerRegion)}
	settings.MinInSync = min(rhumb.MinInSyncDefault, settings.Replicas)
	create := func(i int) error {
		t := demoTables[i]
		return d.until(ctx, "table "+t.name, func(ctx context.Context) error {
			_, err := d.stations[0].client.CreateTable(ctx, t.name, client.TableOptions{
				Settings: settings, TableOptions: rhumb.TableOptions{Colocate: t.colocate, Snapshot: t.snapshot},
			})
			if rhumb.KindOf(err) == rhumb.AlreadyExists {
				return nil
			}
			return err
		})
	}
	if err := create(0); err != nil {
		return err
	}
	if err := together(len(demoTables)-1, func(i int) error { return create(i + 1) }); err != nil {
		return err
	}
	return together(len(d.stations), func(i int) error {
		s := d.stations[i]
		return d.until(ctx, "region "+s.region.Name+" to take writes", func(ctx context.Context) error {
			// Its nearest node may hear of the tables later than the node that made them.
			if err := s.open(ctx); err != nil {
				return err
			}
			return s.probe(ctx)
		})
	})
}

// together calls f with 0 to n-1 side by side, and gives the first error in that order.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var work sync.WaitGroup
	for i := range n {
		work.Go(func() { errs[i] = f(i) })
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// learnNodes takes over the numbers that the cluster gave its nodes.
func (d *run) learnNodes() {
	c := d.stations[0].client
	d.layout.ClusterID = c.Cluster().String()
	_, pids := d.children.state()
	for i := range d.layout.Nodes {
		n := &d.layout.Nodes[i]
		n.PID = pids[i]
		for _, known := range c.Nodes() {
			if known.Addr == n.Addr {
				n.ID = known.ID
			}
		}
	}
}

func (d *run) closeClients() {
	for _, s := range d.stations {
		if s != nil {
			s.client.Close()
		}
	}
}
