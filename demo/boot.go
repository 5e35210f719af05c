package demo

import (
	"bytes"
	"context"
	"crypto/rand"
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
	// bootTimeout bounds the time from the first process to a cluster that accepts writes.
	bootTimeout = 2 * time.Minute
	// bootPoll is the interval at which the demo checks for progress.
	bootPoll = 50 * time.Millisecond
)

// demoTables holds the tables that a demo creates: those of the built-in mappings of ingest, with
// the settings that allow their rows to share batches. Only tables with a colocate byte take part
// in batches of several rows.
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

// published publishes a table in the shared memory of the nodes that have a replica.
const published = rhumb.SnapshotOn | rhumb.SnapshotSpatial | rhumb.SnapshotOrdered

// bootCluster starts the nodes, forms a cluster, and waits until it accepts writes.
func (d *run) bootCluster(running context.Context) error {
	ctx, cancel := context.WithTimeout(running, bootTimeout)
	defer cancel()
	if err := d.makeTokens(); err != nil {
		return err
	}
	// The other nodes need not wait for Init: a node without a cluster looks for a member until it
	// finds one.
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
	go network.Watch(running, func(err error) {
		d.note("cannot reload the latency file; its former content remains in effect: %v\n", err)
	})
	if err := d.initCluster(ctx); err != nil {
		return err
	}
	if err := d.awaitNodes(ctx); err != nil {
		return err
	}
	d.removeTokens()
	if err := d.openStations(ctx, network); err != nil {
		return err
	}
	if err := d.createTables(ctx); err != nil {
		return err
	}
	if err := d.awaitVoters(ctx); err != nil {
		return err
	}
	d.learnNodes()
	return d.createViewer(ctx)
}

// newClusterID returns a random ID.
func newClusterID() (id rhumb.ClusterID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// initCluster makes the first node the first member of a cluster, unless it belongs to one.
func (d *run) initCluster(ctx context.Context) error {
	// The founder of a secure cluster creates it without a command.
	if d.security != nil {
		return nil
	}
	cfg := d.clientConfig()
	cfg.Addrs, cfg.Timeout = []string{d.layout.Nodes[0].Addr}, 5*time.Second
	return d.retryUntil(ctx, "the first node to form a cluster", func(ctx context.Context) error {
		_, err := client.Init(ctx, cfg)
		// The directory is one of an earlier demo, or an attempt succeeded and its answer was lost.
		if rhumb.KindOf(err) == rhumb.AlreadyExists {
			return nil
		}
		return err
	})
}

// retryUntil calls f until it succeeds or ctx ends. The error names what the demo waited for.
func (d *run) retryUntil(ctx context.Context, what string, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		// The last error of f says why, where the error of ctx would only say that time is up.
		case <-ctx.Done():
			return rhumb.Ef(opRun, rhumb.Unavailable, "the demo waited for %s and gave up: %v", what, err)
		case <-time.After(bootPoll):
		}
	}
}

// awaitNodes waits until every node is ready.
func (d *run) awaitNodes(ctx context.Context) error {
	return runAll(len(d.layout.Nodes), func(i int) error {
		n := d.layout.Nodes[i]
		return d.retryUntil(ctx, fmt.Sprintf("node %s/%s to be ready", n.Region, n.Zone), func(ctx context.Context) error {
			return d.checkReady(ctx, n.AdminAddr)
		})
	})
}

// checkReady asks the admin port of a node whether the node is ready.
func (d *run) checkReady(ctx context.Context, addr string) error {
	c, scheme := d.httpClient()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // a part of the reason is better than none
		return fmt.Errorf("the node answers %s: %s", resp.Status, bytes.TrimSpace(reason))
	}
	return nil
}

// openStations opens one client in each region. Each dials from its region, so that its calls have
// the latency of that region.
func (d *run) openStations(ctx context.Context, network *wan.Network) error {
	d.stations = make([]*station, len(d.layout.Regions))
	err := runAll(len(d.layout.Regions), func(i int) error {
		r := d.layout.Regions[i]
		cfg := d.clientConfig()
		cfg.From, cfg.Dial = r.Name, network.Dialer(r.Name)
		// A client needs the addresses of one region only: it learns the others from the metadata.
		for _, n := range d.layout.Nodes {
			if n.Region == r.Name {
				cfg.Addrs = append(cfg.Addrs, n.Addr)
			}
		}
		return d.retryUntil(ctx, "a client in "+r.Name, func(ctx context.Context) error {
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

// createTables creates the tables and waits until every region accepts writes to them. The first
// table creates the class of all tables; the others follow concurrently.
func (d *run) createTables(ctx context.Context) error {
	// A region with fewer nodes than the default number of replicas cannot hold as many.
	settings := rhumb.ClassSettings{Replicas: min(rhumb.ReplicasDefault, d.cfg.NodesPerRegion)}
	settings.MinInSync = min(rhumb.MinInSyncDefault, settings.Replicas)
	create := func(i int) error {
		t := demoTables[i]
		return d.retryUntil(ctx, "table "+t.name, func(ctx context.Context) error {
			_, err := d.stations[0].client.CreateTable(ctx, t.name, client.TableOptions{
				Settings: settings, TableOptions: rhumb.TableOptions{Colocate: t.colocate, Snapshot: t.snapshot},
			})
			// From an earlier demo in the same directory, or from an attempt whose answer was lost.
			if rhumb.KindOf(err) == rhumb.AlreadyExists {
				return nil
			}
			return err
		})
	}
	if err := create(0); err != nil {
		return err
	}
	if err := runAll(len(demoTables)-1, func(i int) error { return create(i + 1) }); err != nil {
		return err
	}
	return runAll(len(d.stations), func(i int) error {
		s := d.stations[i]
		return d.retryUntil(ctx, "region "+s.region.Name+" to accept writes", func(ctx context.Context) error {
			// The nearest node may learn of the tables later than the node that created them.
			if err := s.openTables(ctx); err != nil {
				return err
			}
			return s.probeRegion(ctx)
		})
	})
}

// runAll calls f with 0 to n-1 concurrently and waits for all calls. It returns the first error in
// the order of the arguments, so that the same failure always has the same message.
func runAll(n int, f func(i int) error) error {
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

// awaitVoters waits until the metadata group has all its voters. Before, the death of the first node would end the demo: nobody else
// could elect.
func (d *run) awaitVoters(ctx context.Context) error {
	c, want := d.stations[0].client, rhumb.VoterCount(len(d.layout.Nodes), len(d.layout.Regions))
	return d.retryUntil(ctx, fmt.Sprintf("%d voters of the metadata", want), func(context.Context) error {
		voters := 0
		for _, n := range c.Nodes() {
			if n.Voter {
				voters++
			}
		}
		if voters < want {
			return rhumb.Ef(opRun, rhumb.Unavailable, "there are %d", voters)
		}
		return nil
	})
}

// learnNodes records the node IDs that the cluster assigned, and the processes.
func (d *run) learnNodes() {
	c := d.stations[0].client
	d.layout.ClusterID = c.Cluster().String()
	_, pids := d.children.childStates()
	for i := range d.layout.Nodes {
		n := &d.layout.Nodes[i]
		n.PID = pids[i]
		// An address identifies a node here: each node of a demo has its own, for good.
		for _, known := range c.Nodes() {
			if known.Addr == n.Addr {
				n.ID = known.ID
			}
		}
	}
}

// closeClients closes the clients that were opened.
func (d *run) closeClients() {
	for _, s := range d.stations {
		if s != nil {
			s.client.Close()
		}
	}
}
