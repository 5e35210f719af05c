package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/examples/live"
	"github.com/rhumbdb/rhumb/node"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// segments reads the sample like the ingest mapping "roads".
func segments(t *testing.T) map[string]rhumb.Record {
	t.Helper()
	f, err := os.Open("testdata/monaco.tsv")
	check(t, err)
	defer f.Close()
	out := map[string]rhumb.Record{}
	lines := bufio.NewScanner(f)
	lines.Scan()
	head := strings.Split(lines.Text(), "\t")
	for lines.Scan() {
		v := map[string]string{}
		fields := []rhumb.Field{}
		for i, text := range strings.Split(lines.Text(), "\t") {
			v[head[i]] = text
			if x, err := strconv.ParseFloat(text, 64); err == nil && strings.HasPrefix(head[i], "l") {
				fields = append(fields, rhumb.Field{Name: head[i], Value: rhumb.Float64Field(x)})
			} else if text != "" {
				fields = append(fields, rhumb.Field{Name: head[i], Value: rhumb.StringField(text)})
			}
		}
		at := func(field string) float64 {
			x, err := strconv.ParseFloat(v[field], 64)
			check(t, err)
			return x
		}
		fields = append(fields, rhumb.Field{Name: "location", Value: rhumb.BoxField(rhumb.Box{
			Min: rhumb.Point{Lat: min(at("lat1"), at("lat2")), Lon: min(at("lon1"), at("lon2"))},
			Max: rhumb.Point{Lat: max(at("lat1"), at("lat2")), Lon: max(at("lon1"), at("lon2"))},
		})})
		rec, err := rhumb.NewRecord(fields...)
		check(t, err)
		out[v["way_id"]+"/"+v["segment"]] = rec
	}
	check(t, lines.Err())
	return out
}

// image publishes the sample.
func image(t *testing.T) (*snapshot.Publisher, *snapshot.Table, *reader.Client) {
	t.Helper()
	dir := t.TempDir()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	t.Cleanup(func() { check(t, pub.Close()) })
	table, err := pub.Table(snapshot.TableSpec{ID: 1, Name: "roads", KeyKind: format.KeyName, Spatial: true, Shards: 1, LocationField: "location"})
	check(t, err)
	c := pub.Begin()
	for name, rec := range segments(t) {
		check(t, c.Put(table, record(name, rec)))
	}
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	client, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, client.Close()) })
	return pub, table, client
}

func record(name string, rec rhumb.Record) snapshot.Record {
	v, _ := rec.Get("location")
	box, ok := v.Box()
	return snapshot.Record{
		Key: format.Key{Name: []byte(name)}, Value: rhumb.EncodeRecord(nil, rec), Box: format.MakeBox(box), HasBox: ok,
	}
}

// plain returns the cost of the fastest route by relaxing all edges until nothing changes (Bellman,
// Ford).
func (g *graph) plain(from, to int32, live speeds) float64 {
	cost := make([]float64, len(g.nodes))
	for i := range cost {
		cost[i] = math.Inf(1)
	}
	cost[from] = 0
	for changed := true; changed; {
		changed = false
		for i, e := range g.edges {
			var kmh [1]float64
			for k := range e.ends {
				if math.IsInf(cost[e.ends[k]], 1) {
					continue
				}
				if live.edgeSpeeds([]int32{int32(i)}, cost[e.ends[k]], kmh[:]) != nil {
					return math.NaN()
				}
				step := e.metres / (min(max(kmh[0], 1), fastest) / 3.6)
				if c := cost[e.ends[k]] + step; c < cost[e.ends[1-k]] {
					cost[e.ends[1-k]], changed = c, true
				}
			}
		}
	}
	return cost[to]
}

// TestSearch checks that routes cost the same as those of a much simpler algorithm, before and
// after random changes of speeds.
func TestSearch(t *testing.T) {
	pub, table, client := image(t)
	all := segments(t)
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 11, 23, 7, 30, 0, 0, time.UTC)
	r := &router{image: client, w: &bytes.Buffer{}}
	check(t, r.loadRoads("43.7370,7.4180", "43.7410,7.4270"))
	for range 5 {
		check(t, r.withView(func(_ reader.View, roads *reader.Table) error {
			for range 4 {
				from := r.g.edges[rng.IntN(len(r.g.edges))].ends[0]
				to := r.g.edges[rng.IntN(len(r.g.edges))].ends[1]
				live := &imageSpeeds{trip: trip{now, now}, g: r.g, roads: roads}
				got, err := r.g.findRoute(from, to, live)
				if err != nil {
					return err
				}
				if want := r.g.plain(from, to, live); math.Abs(got.seconds-want) > 1e-6 {
					t.Errorf("from %d to %d in %v s, want %v", from, to, got.seconds, want)
				}
				at := from
				for _, e := range got.edges {
					at = r.g.edges[e].otherEnd(at)
				}
				if at != to {
					t.Errorf("the route from %d ends at %d, want %d", from, at, to)
				}
			}
			return nil
		}))
		c := pub.Begin()
		for range 100 {
			name := string(r.g.edges[rng.IntN(len(r.g.edges))].name)
			rec, err := rhumb.NewRecord(append(all[name], rhumb.Field{Name: speedField, Value: rhumb.Float64Field(rng.Float64() * 140)})...)
			check(t, err)
			check(t, c.Put(table, record(name, rec)))
		}
		_, err := c.Publish(snapshot.CommitInfo{})
		check(t, err)
	}
}

// TestTrip checks that usual speeds count where live ones do not: at another hour, and without a
// live speed.
func TestTrip(t *testing.T) {
	monday := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	profile := make([]byte, hoursOfWeek)
	for h := range profile {
		profile[h] = byte(h)
	}
	both := rhumb.Record{}
	for _, f := range []rhumb.Field{{Name: profileField, Value: rhumb.BytesField(profile)}, {Name: speedField, Value: rhumb.Float64Field(99)}} {
		both = append(both, f)
	}
	for _, tc := range []struct {
		name   string
		rec    rhumb.Record
		depart time.Duration // after the present, Monday 5:00
		after  float64
		want   float64
	}{
		{"now", both, 0, 0, 99},
		{"in a quarter of an hour", both, 0, 900, 99},
		{"at six", both, time.Hour, 0, 6},
		{"at seven, when one gets there", both, time.Hour, 3600, 7},
		{"on Sunday at 23", both, 6*24*time.Hour + 18*time.Hour, 0, 167},
		{"next Monday, not known at midnight", both, 7*24*time.Hour - 5*time.Hour, 0, 1},
		{"no live speed", both[:1], 0, 0, 5},
		{"nothing", nil, 0, 0, 1},
		{"a profile of another length", rhumb.Record{{Name: profileField, Value: rhumb.BytesField(profile[1:])}}, 0, 0, 1},
	} {
		now := monday.Add(5 * time.Hour)
		got, err := trip{now, now.Add(tc.depart)}.speedAt(rhumb.EncodeRecord(nil, tc.rec), tc.after, 1)
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v; want %v", tc.name, got, err, tc.want)
		}
	}
}

// TestRun runs the whole program against a node: the same route over both paths, a file of the
// route, and another route after a jam.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	images := t.TempDir()
	n, err := node.Start(node.Config{
		Dirs: []string{t.TempDir()}, Region: "here", Zone: "a", Location: rhumb.Point{Lat: 43.7, Lon: 7.4}, Insecure: true,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		CacheBytes: 8 << 20, Snapshot: node.SnapshotConfig{Dir: images}, Fatal: func(err error) { panic(err) },
	})
	check(t, err)
	defer n.Close()
	cfg := client.Config{Addrs: []string{n.Addr()}, Insecure: true, Timeout: 30 * time.Second}
	_, err = client.Init(ctx, cfg)
	check(t, err)
	check(t, n.AwaitReady(ctx))
	c, err := client.Open(ctx, cfg)
	check(t, err)
	defer c.Close()
	table, err := c.CreateTable(ctx, "roads", client.TableOptions{
		Settings:     rhumb.ClassSettings{Replicas: 1, HashSlots: 2},
		TableOptions: rhumb.TableOptions{Snapshot: rhumb.SnapshotOn | rhumb.SnapshotSpatial},
	})
	check(t, err)
	var wg sync.WaitGroup
	for name, rec := range segments(t) {
		wg.Go(func() {
			if _, err := table.PutRecord(ctx, []byte(name), rec, client.PutOptions{Local: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	dir := publish.ImageDir(images, c.Cluster(), n.Identity().Node)
	awaitImage(ctx, t, dir, len(segments(t)))
	out := filepath.Join(t.TempDir(), "route.geojson")
	var text bytes.Buffer
	check(t, run(ctx, config{image: dir, addr: n.Addr(), from: "43.7370,7.4180", to: "43.7410,7.4270", out: out, drive: 2, rush: true, repeat: 3}, &text))
	t.Log(text.String())
	if !regexp.MustCompile(`the same route`).Match(text.Bytes()) || bytes.Count(text.Bytes(), []byte("jam ")) != 2 {
		t.Errorf("it printed %s", text.String())
	}
	if !regexp.MustCompile(`at 3:00 .*\n.*at 8:00 `).Match(text.Bytes()) {
		t.Errorf("nothing about the hours of the day: %s", text.String())
	}
	saved, err := os.ReadFile(out)
	check(t, err)
	if !json.Valid(saved) || !bytes.Contains(saved, []byte("LineString")) {
		t.Errorf("the route is %s", saved)
	}
}

// TestFind checks that flags take precedence over a running demo.
func TestFind(t *testing.T) {
	layout, err := json.Marshal(demo.Layout{PID: os.Getpid(), Nodes: []demo.Node{{Addr: "127.0.0.1:1"}}})
	check(t, err)
	path := filepath.Join(t.TempDir(), "demo.json")
	check(t, os.WriteFile(path, layout, 0o600))
	t.Setenv("RHUMB_DEMO", path)
	for _, tc := range []struct{ image, addr, wantAddr string }{
		{"/an/image", "", "127.0.0.1:1"},
		{"/an/image", "127.0.0.1:2", "127.0.0.1:2"},
	} {
		cfg := config{image: tc.image, addr: tc.addr}
		addrs, err := cfg.findDemo()
		if err != nil || cfg.image != tc.image || len(addrs) != 1 || addrs[0] != tc.wantAddr {
			t.Errorf("%+v: the image %s and the addresses %q, %v", tc, cfg.image, addrs, err)
		}
	}
}

// awaitImage waits until the node has published the given number of roads.
func awaitImage(ctx context.Context, t *testing.T, dir string, want int) {
	t.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		n, err := live.Records(dir, "roads")
		if n == want {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the image has %d roads, want %d: %v", n, want, err)
		}
	}
}
