package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

const opSnapshot rhumb.Op = "rhumb.snapshot"

// imageHelp tells how an image is named.
const imageHelp = `IMAGE is a directory, a file made by ` + "`rhumb snapshot save`" + `, or a node, such as n3: of the demo that runs here, or the
only one of that name under --snapshot-dir, or the only one of them that is alive.`

// snapshotFlags say where the images of this machine lie.
type snapshotFlags struct{ dir string }

func (f *snapshotFlags) register(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&f.dir, "snapshot-dir", "", "folder of the images (default: that of the demo that runs here, else "+publish.DirDefault+")")
	return c
}

func (a *app) snapshotCommand() *cobra.Command {
	return noArgsGroup("snapshot", "Look into the images of published tables in shared memory",
		a.snapshotListCommand(), a.snapshotStatCommand(), a.snapshotGetCommand(), a.snapshotScanCommand(), a.snapshotQueryCommand("bbox"),
		a.snapshotQueryCommand("radius"), a.snapshotQueryCommand("nearest"), a.snapshotVerifyCommand(), a.snapshotSaveCommand(),
		a.snapshotLoadCommand(), a.snapshotDiffCommand(), a.snapshotPinsCommand(), a.snapshotPublishCommand(), a.snapshotBenchCommand())
}

// root gives the folder of the images, and the cluster of the demo that runs here, "" when none does.
func (f *snapshotFlags) root() (dir, cluster string, err error) {
	if f.dir != "" {
		info, err := os.Stat(f.dir)
		if err == nil && !info.IsDir() {
			err = rhumb.E(opSnapshot, rhumb.InvalidArgument, "it is no directory")
		}
		if err != nil {
			return "", "", rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "--snapshot-dir %s: %s", f.dir, rhumb.Message(err))
		}
		return f.dir, "", nil
	}
	layout, err := runningDemo()
	if err != nil || layout == nil {
		return publish.DirDefault, "", err
	}
	return orElse(layout.SnapshotDir, publish.DirDefault), layout.ClusterID, nil
}

// place is where an image lies.
type place struct {
	dir   string
	shown string // what people are told: the directory, or the file that was unpacked to it
}

// with runs fn with the place of an image. A saved file is unpacked for that time.
func (f *snapshotFlags) with(ctx context.Context, image string, fn func(at place) error) error {
	if _, err := os.Stat(image); err != nil && filepath.Base(image) == image {
		dir, err := f.find(image)
		if err != nil {
			return err
		}
		return fn(place{dir, dir})
	}
	dir, done, err := inspect.OpenSaved(ctx, image)
	if err != nil {
		return err
	}
	defer done()
	return fn(place{dir, image})
}

// find gives the directory of a node's image: of several, that of the demo that runs here, or the only one that is alive.
func (f *snapshotFlags) find(node string) (string, error) {
	root, cluster, err := f.root()
	if err != nil {
		return "", err
	}
	images, err := inspect.List(root)
	if err != nil {
		return "", err
	}
	var all, alive []string
	for _, l := range images {
		if l.Node != node {
			continue
		}
		if l.Cluster == cluster {
			return l.Dir, nil
		}
		if all = append(all, l.Dir); l.Publisher.Alive {
			alive = append(alive, l.Dir)
		}
	}
	switch {
	case len(all) == 0:
		return "", rhumb.Ef(opSnapshot, rhumb.NotFound, "there is no image %s, neither as a path nor as a node under %s; `rhumb snapshot ls` lists them", node, root)
	case len(all) == 1:
		return all[0], nil
	case len(alive) == 1:
		return alive[0], nil
	}
	return "", rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "several clusters have a node %s: give the path of one of %s", node, strings.Join(all, ", "))
}

// imageDoc is an image as `snapshot ls` prints it. Times that are not known are null.
type imageDoc struct {
	Path             string   `json:"path"`
	Cluster          string   `json:"cluster"`
	Node             string   `json:"node"`
	Version          uint64   `json:"version"`
	AgeSeconds       *float64 `json:"age_seconds"`
	HeartbeatSeconds *float64 `json:"heartbeat_seconds"`
	Publisher        string   `json:"publisher"`
	PID              int      `json:"pid,omitempty"`
	Tables           int      `json:"tables"`
	Records          int64    `json:"records"`
	Bytes            int64    `json:"bytes"`
	Quarantined      int      `json:"quarantined"`
	Error            string   `json:"error,omitempty"`
}

// seconds gives a duration, nil for a negative one.
func seconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

// ago writes a duration for people.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "unknown"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// since writes how long ago something was.
func since(d time.Duration) string {
	if d < 0 {
		return "at an unknown time"
	}
	return ago(d) + " ago"
}

func publisherState(p inspect.Publisher) string {
	switch {
	case p.Alive:
		return "alive"
	case p.State == format.StateStopping:
		return "stopped"
	}
	return "dead"
}

// sizeOf writes bytes for people.
func sizeOf(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
}

func (a *app) snapshotListCommand() *cobra.Command {
	var f snapshotFlags
	return f.register(&cobra.Command{
		Use: "ls", Short: "List the images on this machine", Args: cobra.NoArgs,
		Example: "  rhumb snapshot ls\n  rhumb snapshot ls --snapshot-dir /run/rhumb -o json",
		RunE: func(*cobra.Command, []string) error {
			root, _, err := f.root()
			if err != nil {
				return err
			}
			images, err := inspect.List(root)
			if err != nil {
				return err
			}
			if len(images) == 0 {
				a.notef("no images under %s; `rhumb table create NAME --snapshot` makes a table that nodes publish", root)
			}
			return a.printImages(images)
		},
	})
}

func (a *app) printImages(images []inspect.Listed) error {
	docs := []imageDoc{}
	for _, l := range images {
		doc := imageDoc{
			Path: l.Dir, Cluster: l.Cluster, Node: l.Node, Version: l.Version, AgeSeconds: seconds(l.Age), HeartbeatSeconds: seconds(l.Publisher.Heartbeat),
			Publisher: publisherState(l.Publisher), PID: l.Publisher.PID, Tables: l.Tables, Records: l.Records, Bytes: l.Bytes, Quarantined: l.Quarantined,
		}
		if l.Err != nil {
			doc.Publisher, doc.Error, doc.HeartbeatSeconds = "unknown", describeError(l.Err).Message, nil
		}
		docs = append(docs, doc)
	}
	return a.print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "VERSION", "AGE", "PUBLISHER", "TABLES", "RECORDS", "SIZE", "PATH"})
		for i, d := range docs {
			state := d.Publisher
			if d.Error != "" {
				state = shorten(d.Error)
			}
			t.AppendRow(table.Row{d.Node, d.Version, ago(images[i].Age), state, d.Tables, d.Records, sizeOf(d.Bytes), d.Path})
		}
	})
}

// statDoc is the document of `snapshot stat`.
type statDoc struct {
	Path      string        `json:"path"`
	Image     string        `json:"image"`
	Version   uint64        `json:"version"`
	Closed    string        `json:"closed,omitempty"`
	Age       *float64      `json:"age_seconds"`
	Publisher string        `json:"publisher"`
	PID       int           `json:"pid,omitempty"`
	Life      uint64        `json:"life"`
	Heartbeat *float64      `json:"heartbeat_seconds"`
	Tables    []imageTable  `json:"tables"`
	Shards    []shardDoc    `json:"shards"`
	Commits   []commitDoc   `json:"commits"`
	Positions []positionDoc `json:"positions"`
	Faults    []faultDoc    `json:"faults"`
}

type imageTable struct {
	Name          string `json:"name"`
	ID            uint32 `json:"id"`
	Keys          string `json:"keys"`
	Spatial       bool   `json:"spatial"`
	Ordered       bool   `json:"ordered"`
	Summed        bool   `json:"summed"`
	LocationField string `json:"location_field,omitempty"`
	Shards        int    `json:"shards"`
	Records       int64  `json:"records"`
	Bytes         int64  `json:"bytes"`
}

type shardDoc struct {
	Table       string  `json:"table"`
	Shard       int     `json:"shard"`
	Generation  uint64  `json:"generation"`
	Base        uint64  `json:"base"`
	File        string  `json:"file"`
	Bytes       int64   `json:"bytes"`
	Records     int64   `json:"records"`
	BaseRecords int64   `json:"base_records"`
	Load        float64 `json:"load"`
	Overflow    int64   `json:"overflow"`
	OverflowMax int64   `json:"overflow_max"`
	AppendUsed  int64   `json:"append_used_bytes"`
	AppendMax   int64   `json:"append_max_bytes"`
	TreeLevels  int64   `json:"tree_levels"`
	TreeItems   int64   `json:"tree_items"`
	Delta       int64   `json:"delta"`
	DeltaMax    int64   `json:"delta_max"`
	OrderUsed   int64   `json:"order_delta_used"`
	OrderMax    int64   `json:"order_delta_max"`
	Closed      string  `json:"closed,omitempty"`
}

type commitDoc struct {
	Version uint64  `json:"version"`
	Records uint32  `json:"records"`
	Age     float64 `json:"age_seconds"`
	Closed  string  `json:"closed,omitempty"`
	// EventLag is how long before the commit its newest event was.
	EventLag *float64 `json:"event_lag_seconds"`
}

type positionDoc struct {
	Range string `json:"range"`
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
	HLC   string `json:"hlc"`
}

func (a *app) snapshotStatCommand() *cobra.Command {
	var f snapshotFlags
	return f.register(&cobra.Command{
		Use: "stat IMAGE [TABLE]", Short: "Tell how full an image is, how old, and what it covers",
		Long: `Tell of an image its tables, how full each shard is, the last commits, and how far it follows the log of each range.
A shard is rolled into a new generation when its append area, overflow buckets or deltas are full.

` + imageHelp,
		Example: "  rhumb snapshot stat n1\n  rhumb snapshot stat /dev/shm/rhumb/CLUSTER/n1 flights -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd.Context(), args[0], func(at place) error { return a.snapshotStat(at, args[1:]) })
		},
	})
}

func (a *app) snapshotStat(at place, tables []string) error {
	im, err := inspect.Open(at.dir)
	if err != nil {
		return err
	}
	defer im.Close()
	only := ""
	if len(tables) == 1 {
		only = tables[0]
		if !slices.ContainsFunc(im.Tables, func(t inspect.Table) bool { return t.Name == only }) {
			return rhumb.Ef(opSnapshot, rhumb.NotFound, "the image %s has no table %q", at.shown, only)
		}
	}
	now := time.Now()
	doc := statDoc{
		Path: at.shown, Image: im.Head.Image.String(), Version: im.Version, Age: seconds(im.Age(now)), Publisher: publisherState(im.Publisher),
		PID: im.Publisher.PID, Life: im.Publisher.Life, Heartbeat: seconds(im.Publisher.Heartbeat),
		Tables: describeImageTables(im, only), Shards: []shardDoc{}, Commits: describeCommits(im.Commits, now), Faults: describeFaults(im.Faults),
	}
	if len(im.Commits) > 0 {
		doc.Closed = timestampText(im.Commits[0].Closed)
	}
	for _, u := range im.Usages(only) {
		doc.Shards = append(doc.Shards, shardDoc{
			u.Table, u.Slot, u.Generation, u.Base, u.File, u.Bytes, u.Keys, u.Records, u.Load, u.Overflow, u.OverflowMax, u.AppendUsed, u.AppendMax,
			u.TreeLevels, u.TreeItems, u.Delta, u.DeltaMax, u.OrderUsed, u.OrderMax, timestampText(u.Closed),
		})
	}
	if doc.Positions, err = imagePositions(at.dir); err != nil && len(doc.Faults) == 0 {
		return err
	}
	return a.printStat(&doc, im, now)
}

func timestampText(t rhumb.Timestamp) string {
	if t == 0 {
		return ""
	}
	return t.String()
}

func describeImageTables(im *inspect.Image, only string) (docs []imageTable) {
	for _, t := range im.Tables {
		if only != "" && t.Name != only {
			continue
		}
		doc := imageTable{
			Name: t.Name, ID: uint32(t.ID), Keys: "names", Spatial: t.Spatial(), Ordered: t.Ordered(), Summed: t.Summed(),
			LocationField: t.LocationField, Shards: int(t.ShardCount),
		}
		if t.KeyKind == format.KeyUint64 {
			doc.Keys = "numbers"
		}
		for _, u := range im.Usages(t.Name) {
			doc.Records, doc.Bytes = doc.Records+u.Keys, doc.Bytes+u.Bytes
		}
		docs = append(docs, doc)
	}
	return docs
}

func describeCommits(commits []format.Commit, now time.Time) []commitDoc {
	docs := []commitDoc{}
	for _, c := range commits {
		doc := commitDoc{Version: c.Version, Records: c.Records, Age: now.Sub(time.Unix(0, c.Wall)).Seconds(), Closed: timestampText(c.Closed)}
		if c.Event != 0 {
			lag := float64(c.Wall-c.Event) / 1e9
			doc.EventLag = &lag
		}
		docs = append(docs, doc)
	}
	return docs
}

func describeFaults(faults []inspect.Fault) []faultDoc {
	docs := []faultDoc{}
	for _, f := range faults {
		docs = append(docs, faultDoc{f.File, f.Offset, f.What})
	}
	return docs
}

// imagePositions reads how far an image follows the ranges.
func imagePositions(dir string) ([]positionDoc, error) {
	docs := []positionDoc{}
	c, err := inspect.Attach(dir)
	if err != nil {
		return docs, err
	}
	defer c.Close()
	v, err := c.Lock()
	if err != nil {
		return docs, err
	}
	defer v.Unlock()
	t, err := v.Table(format.PositionsTable)
	if err != nil {
		return docs, err
	}
	type position struct {
		key uint64
		doc positionDoc
	}
	var all []position
	for it, err := range t.All() {
		if err != nil {
			return docs, err
		}
		if p, ok := format.DecodePosition(it.Value); ok {
			id := rhumb.RangeID{Region: rhumb.RegionID(it.Number >> 32), Slot: rhumb.Slot(uint32(it.Number))}
			all = append(all, position{it.Number, positionDoc{id.String(), uint64(p.Epoch), p.Seq, p.HLC.String()}})
		}
	}
	slices.SortFunc(all, func(a, b position) int { return cmp.Compare(a.key, b.key) })
	for _, p := range all {
		docs = append(docs, p.doc)
	}
	return docs, nil
}

// printStat prints several tables one below the other.
func (a *app) printStat(doc *statDoc, im *inspect.Image, now time.Time) error {
	if a.output == outputJSON {
		return a.printJSON(doc)
	}
	percent := func(used, most int64) string {
		if most == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100*float64(used)/float64(most))
	}
	sections := []func(t table.Writer){
		func(t table.Writer) {
			t.AppendRow(table.Row{"image", doc.Path})
			t.AppendRow(table.Row{"version", fmt.Sprintf("%d, committed %s", doc.Version, since(im.Age(now)))})
			t.AppendRow(table.Row{"closed", orElse(doc.Closed, "unknown")})
			t.AppendRow(table.Row{"publisher", fmt.Sprintf("%s, process %d, life %d, heartbeat %s", doc.Publisher, doc.PID, doc.Life, since(im.Publisher.Heartbeat))})
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"TABLE", "SHARD", "GENERATION", "RECORDS", "LOAD", "OVERFLOW", "APPEND", "TREE", "DELTA", "ORDER", "SIZE"})
			for _, s := range doc.Shards {
				t.AppendRow(table.Row{
					s.Table, s.Shard, s.Generation, s.Records, fmt.Sprintf("%.0f %%", 100*s.Load), percent(s.Overflow, s.OverflowMax), percent(s.AppendUsed, s.AppendMax),
					fmt.Sprintf("%d levels", s.TreeLevels), percent(s.Delta, s.DeltaMax), percent(s.OrderUsed, s.OrderMax), sizeOf(s.Bytes),
				})
			}
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"COMMIT", "RECORDS", "AGE", "CLOSED"})
			for i, c := range doc.Commits {
				t.AppendRow(table.Row{c.Version, c.Records, ago(now.Sub(time.Unix(0, im.Commits[i].Wall))), c.Closed})
			}
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"RANGE", "EPOCH", "SEQ", "HLC"})
			for _, p := range doc.Positions {
				t.AppendRow(table.Row{p.Range, p.Epoch, p.Seq, p.HLC})
			}
		},
	}
	for i, section := range sections {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		if err := a.print(nil, section); err != nil {
			return err
		}
	}
	for _, f := range doc.Faults {
		a.notef("damaged: %s", inspect.Fault(f))
	}
	return nil
}
