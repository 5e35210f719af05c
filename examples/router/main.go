// Command router finds the fastest route through a town over road segments in Rhumb. Speeds are
// live: every step of the search reads them, once from the image in shared memory and once through
// the client, for comparison.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/examples/live"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// config holds the flags.
type config struct {
	image, addr, from, to, out string
	depart                     string
	drive, repeat              int
	rush                       bool
}

func main() {
	var cfg config
	flag.StringVar(&cfg.image, "image", "", "directory of the image (default: the image of the running demo with the most roads)")
	flag.StringVar(&cfg.addr, "addr", "", "address of a node (default: the nodes of the running demo)")
	flag.StringVar(&cfg.from, "from", "43.7280,7.4135", "start as LAT,LON")
	flag.StringVar(&cfg.to, "to", "43.7489,7.4365", "end as LAT,LON")
	flag.StringVar(&cfg.out, "out", "route.geojson", "output file of the route")
	flag.IntVar(&cfg.drive, "drive", 0, "block the middle of the route this many times, and find another route each time")
	flag.StringVar(&cfg.depart, "depart", "", "time of departure, as 2026-11-23T08:00:00Z (default: now)")
	flag.BoolVar(&cfg.rush, "rush", false, "store slow usual speeds from 7 to 9 o'clock for the middle of the route, and depart at 3 and at 8")
	flag.IntVar(&cfg.repeat, "repeat", 20, "number of searches over the image; their median is reported")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "router:", err)
		os.Exit(1)
	}
}

// findDemo fills the missing image from the running demo and returns the addresses of the nodes.
func (cfg *config) findDemo() (addrs []string, err error) {
	// Flags take precedence over a running demo, which may be another cluster.
	if cfg.image != "" && cfg.addr != "" {
		return []string{cfg.addr}, nil
	}
	demo, err := live.Demo()
	if err != nil {
		return nil, err
	}
	if cfg.image == "" {
		if cfg.image, err = live.Image(demo, "roads"); err != nil {
			return nil, err
		}
	}
	if cfg.addr != "" {
		return []string{cfg.addr}, nil
	}
	return live.Addrs(demo), nil
}

// run finds the route both ways, saves it, and runs the optional parts.
func run(ctx context.Context, cfg config, w io.Writer) error {
	addrs, err := cfg.findDemo()
	if err != nil {
		return err
	}
	cluster, err := client.Open(ctx, client.Config{Addrs: addrs, Insecure: true})
	if err != nil {
		return err
	}
	defer cluster.Close()
	table, err := cluster.Table(ctx, "roads")
	if err != nil {
		return err
	}
	image, err := reader.Attach(cfg.image, reader.Options{})
	if err != nil {
		return err
	}
	defer image.Close()
	r := &router{image: image, roads: table, w: w, depart: time.Now()}
	if cfg.depart != "" {
		if r.depart, err = time.Parse(time.RFC3339, cfg.depart); err != nil {
			return err
		}
	}
	if err := r.loadRoads(cfg.from, cfg.to); err != nil {
		return err
	}
	best, err := r.compareSources(ctx, cfg.repeat)
	if err != nil {
		return err
	}
	if err := r.saveRoute(cfg.out, best); err != nil {
		return err
	}
	if cfg.rush {
		if err := r.simulateRush(ctx, best); err != nil {
			return err
		}
	}
	return r.driveJams(ctx, best, cfg.drive)
}

// router finds routes between two nodes of the graph.
type router struct {
	image    *reader.Client
	roads    *client.Table
	w        io.Writer
	g        *graph
	from, to int32
	depart   time.Time
}

// newTrip returns the trip of a search that begins now.
func (r *router) newTrip() trip { return trip{now: time.Now(), depart: r.depart} }

// withView calls fn with the roads of a view, which is unlocked afterwards.
func (r *router) withView(fn func(v reader.View, roads *reader.Table) error) error {
	v, err := r.image.Lock()
	if err != nil {
		return err
	}
	defer v.Unlock()
	roads, err := v.Table("roads")
	if err != nil {
		return err
	}
	return fn(v, &roads)
}

// loadRoads reads the graph and finds both ends in it.
func (r *router) loadRoads(from, to string) error {
	a, errA := rhumb.ParseField(rhumb.FieldPoint, from)
	b, errB := rhumb.ParseField(rhumb.FieldPoint, to)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	return r.withView(func(v reader.View, roads *reader.Table) (err error) {
		start := time.Now()
		if r.g, err = loadGraph(roads); err != nil {
			return err
		}
		fmt.Fprintf(r.w, "graph: %d segments, %d nodes, read in %v\n", len(r.g.edges), len(r.g.nodes), time.Since(start).Round(time.Microsecond))
		pa, _ := a.Point()
		pb, _ := b.Point()
		if r.from, err = r.g.nearestNode(roads, pa); err == nil {
			r.to, err = r.g.nearestNode(roads, pb)
		}
		return err
	})
}

// overImage finds the route in a view of this moment: all speeds of one search are consistent.
func (r *router) overImage() (best *route, took time.Duration, err error) {
	err = r.withView(func(v reader.View, roads *reader.Table) error {
		start := time.Now()
		best, err = r.g.findRoute(r.from, r.to, &imageSpeeds{trip: r.newTrip(), g: r.g, roads: roads})
		took = time.Since(start)
		return err
	})
	return best, took, err
}

// compareSources finds the same route through the image and through the network, and prints both
// times.
func (r *router) compareSources(ctx context.Context, repeat int) (best *route, err error) {
	var times []time.Duration
	for range max(repeat, 1) {
		var took time.Duration
		if best, took, err = r.overImage(); err != nil {
			return nil, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	// The median hides single slow searches, such as the first one.
	image := times[len(times)/2]
	start := time.Now()
	other, err := r.g.findRoute(r.from, r.to, &clusterSpeeds{trip: r.newTrip(), ctx: ctx, g: r.g, roads: r.roads})
	if err != nil {
		return nil, err
	}
	network := time.Since(start)
	// Both searches read the same speeds, unless a write changes them in between.
	if !slices.Equal(best.edges, other.edges) {
		return nil, fmt.Errorf("the routes differ: %d segments over the image, %d over the network; if speeds are changing, try again", len(best.edges), len(other.edges))
	}
	fmt.Fprintf(r.w, "route: %d segments, %.0f m, %.0f s; the search settled %d nodes and read %d speeds\n",
		len(best.edges), best.metres, best.seconds, best.settled, best.reads)
	fmt.Fprintf(r.w, "over the image:   %v (median of %d)\nover the network: %v, the same route\nratio:            %.0f\n",
		image.Round(time.Microsecond), len(times), network.Round(time.Microsecond), float64(network)/float64(image))
	return best, nil
}

// driveJams blocks the middle of the route, waits until the image shows that, and finds another
// route, the given number of times. At the end it removes the live speeds.
func (r *router) driveJams(ctx context.Context, best *route, times int) error {
	var jams []int32
	// The cleanup must also run after an interrupt.
	defer func() { _ = r.setField(context.WithoutCancel(ctx), jams, speedField, rhumb.FieldValue{}) }()
	for i := range times {
		n := len(best.edges)
		// A fifth of the route, around its middle.
		jam := best.edges[n/2-n/10 : n/2+n/10+1]
		jams = append(jams, jam...)
		start := time.Now()
		if err := r.setField(ctx, jam, speedField, rhumb.Float64Field(2)); err != nil {
			return err
		}
		// The writes are acknowledged here, so their durability is included.
		written := time.Since(start)
		if err := r.awaitField(ctx, jam[len(jam)-1], speedField, rhumb.Float64Field(2)); err != nil {
			return err
		}
		visible := time.Since(start)
		next, took, err := r.overImage()
		if err != nil {
			return err
		}
		fmt.Fprintf(r.w, "jam %d: %d segments slowed in %v, visible after %v; the next route takes %.0f s and %.0f m, shares %d of %d segments, found in %v\n",
			i+1, len(jam), written.Round(time.Microsecond), visible.Round(time.Microsecond), next.seconds, next.metres, countShared(next, best), len(next.edges), took.Round(time.Microsecond))
		best = next
	}
	return nil
}

// simulateRush stores slow usual speeds from 7 to 9 o'clock on each day for the middle of the
// route, and finds tomorrow's route at night and in the morning. At the end it removes them.
func (r *router) simulateRush(ctx context.Context, best *route) error {
	profile := make([]byte, hoursOfWeek)
	for h := range profile {
		if hour := h % 24; hour >= 7 && hour < 9 {
			profile[h] = 2
		}
	}
	n := len(best.edges)
	slow := best.edges[n/2-n/10 : n/2+n/10+1]
	defer func() { _ = r.setField(context.WithoutCancel(ctx), slow, profileField, rhumb.FieldValue{}) }()
	if err := r.setField(ctx, slow, profileField, rhumb.BytesField(profile)); err != nil {
		return err
	}
	// Segments are written one after another, so the last one is the last to appear.
	if err := r.awaitField(ctx, slow[len(slow)-1], profileField, rhumb.BytesField(profile)); err != nil {
		return err
	}
	// The departure of the command line is restored at the end.
	depart := r.depart
	defer func() { r.depart = depart }()
	for _, hour := range []int{3, 8} {
		r.depart = time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1).Add(time.Duration(hour) * time.Hour)
		next, took, err := r.overImage()
		if err != nil {
			return err
		}
		fmt.Fprintf(r.w, "tomorrow at %d:00 UTC: %.0f s and %.0f m, shares %d of %d segments with today's route, found in %v\n",
			hour, next.seconds, next.metres, countShared(next, best), len(next.edges), took.Round(time.Microsecond))
	}
	return nil
}

// countShared returns the number of segments of a route that are in another one too.
func countShared(of, with *route) (n int) {
	for _, e := range of.edges {
		if slices.Contains(with.edges, e) {
			n++
		}
	}
	return n
}

// setField sets a field of segments through the cluster. The zero value removes the field.
func (r *router) setField(ctx context.Context, edges []int32, field string, value rhumb.FieldValue) error {
	patch, err := rhumb.NewRecord(rhumb.Field{Name: field, Value: value})
	if err != nil {
		return err
	}
	for _, e := range edges {
		if _, err := r.roads.Patch(ctx, r.g.edges[e].name, patch, client.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// awaitField waits until the image shows a value in a field of a segment.
func (r *router) awaitField(ctx context.Context, e int32, field string, want rhumb.FieldValue) error {
	for ctx.Err() == nil {
		var got rhumb.FieldValue
		err := r.withView(func(_ reader.View, roads *reader.Table) error {
			item, err := roads.Get(r.g.edges[e].name)
			if err == nil {
				got, _, err = rhumb.RecordField(item.Value, field)
			}
			return err
		})
		if err != nil || got == want {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
	return ctx.Err()
}

// saveRoute writes a route as GeoJSON.
func (r *router) saveRoute(path string, best *route) error {
	line := [][2]float64{}
	for _, n := range best.nodes {
		p := r.g.nodes[n]
		line = append(line, [2]float64{p.Lon, p.Lat})
	}
	text, err := json.MarshalIndent(map[string]any{
		"type": "FeatureCollection",
		"features": []any{map[string]any{
			"type":       "Feature",
			"properties": map[string]any{"seconds": best.seconds, "metres": best.metres, "segments": len(best.edges)},
			"geometry":   map[string]any{"type": "LineString", "coordinates": line},
		}},
	}, "", " ")
	if err != nil {
		return err
	}
	fmt.Fprintf(r.w, "wrote %s\n", path)
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
