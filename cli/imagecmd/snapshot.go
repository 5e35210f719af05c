// Package imagecmd holds the commands of `rhumb snapshot`, which read, check, copy and compare
// images of published tables.
package imagecmd

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
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// imageHelp describes how to name an image.
const imageHelp = `IMAGE is a directory, a file from ` + "`rhumb snapshot save`" + `, or a node such as n3. A node belongs to the demo that runs here;
without a demo, it is the only node of that name under --snapshot-dir, or the only one of them that is alive.`

// imageFlags select the folder of the images of this machine.
type imageFlags struct{ dir string }

// register adds the flags that say where images are.
func (f *imageFlags) register(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&f.dir, "snapshot-dir", "", "folder of the images")
	flags.Default(c.Flags(), "snapshot-dir", "that of the demo that runs here, else "+publish.DirDefault)
	return c
}

// commands are the commands of `rhumb snapshot`.
type commands struct {
	*output.Printer
	conn *connect.Flags
}

// Command returns `rhumb snapshot`. conn holds the flags of the subcommands that connect to a
// cluster.
func Command(p *output.Printer, conn *connect.Flags) *cobra.Command {
	ic := &commands{p, conn}
	c := &cobra.Command{
		Use: "snapshot", Short: "Inspect images of published tables in shared memory", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(ic.listCommand(), ic.statCommand(), ic.getCommand(), ic.scanCommand(), ic.queryCommand("bbox"), ic.queryCommand("radius"),
		ic.queryCommand("nearest"), ic.verifyCommand(), ic.saveCommand(), ic.loadCommand(), ic.diffCommand(), ic.pinsCommand(), ic.publishCommand())
	return c
}

// imageRoot returns the folder of the images, and the cluster of the demo that runs here, or "" if
// none does.
func (f *imageFlags) imageRoot() (dir, cluster string, err error) {
	if f.dir != "" {
		info, err := os.Stat(f.dir)
		if err == nil && !info.IsDir() {
			err = rhumb.E(exit.OpSnapshot, rhumb.InvalidArgument, "not a directory")
		}
		if err != nil {
			return "", "", rhumb.Ef(exit.OpSnapshot, rhumb.InvalidArgument, "--snapshot-dir %s: %s", f.dir, rhumb.Message(err))
		}
		return f.dir, "", nil
	}
	// A demo without /dev/shm keeps its images elsewhere, and knows where.
	layout, err := connect.RunningDemo()
	if err != nil || layout == nil {
		return publish.DirDefault, "", err
	}
	return cmp.Or(layout.SnapshotDir, publish.DirDefault), layout.ClusterID, nil
}

// place is the location of an image.
type place struct {
	dir   string
	shown string // the name for people: the directory, or the saved file that was unpacked into it
}

// withImage runs fn with the place of an image. A saved file is unpacked until fn returns.
func (f *imageFlags) withImage(ctx context.Context, image string, fn func(at place) error) error {
	// A name that is neither a path nor an existing file can only be a node.
	if _, err := os.Stat(image); err != nil && filepath.Base(image) == image {
		dir, err := f.findImage(image)
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

// findImage returns the directory of the image of a node. If several clusters have a node of that
// name, the demo that runs here wins, then the only one that is alive.
func (f *imageFlags) findImage(node string) (string, error) {
	root, cluster, err := f.imageRoot()
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
		return "", rhumb.Ef(exit.OpSnapshot, rhumb.NotFound, "there is no image %s, neither as a path nor as a node under %s; `rhumb snapshot ls` lists the images", node, root)
	case len(all) == 1:
		return all[0], nil
	case len(alive) == 1:
		return alive[0], nil
	}
	return "", rhumb.Ef(exit.OpSnapshot, rhumb.InvalidArgument, "several clusters have a node %s; use the path of its image, one of %s", node, strings.Join(all, ", "))
}

// ImageDoc is an image as `rhumb snapshot ls` prints it. Unknown times are null.
type ImageDoc struct {
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

// secondsOf returns a duration in seconds, or nil if it is negative: package inspect uses that for
// unknown.
func secondsOf(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

// ageText returns a duration for people.
func ageText(d time.Duration) string {
	switch {
	case d < 0:
		return "unknown"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// agoText returns how long ago something was.
func agoText(d time.Duration) string {
	if d < 0 {
		return "at an unknown time"
	}
	return ageText(d) + " ago"
}

// publisherState returns the word for the process that publishes an image. A publisher that is gone
// but did not mark the image as stopping has died.
func publisherState(p inspect.Publisher) string {
	switch {
	case p.Alive:
		return "alive"
	case p.State == format.StateStopping:
		return "stopped"
	}
	return "dead"
}

// sizeText returns a number of bytes for people.
func sizeText(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
}

// listCommand is `rhumb snapshot ls`.
func (ic *commands) listCommand() *cobra.Command {
	var f imageFlags
	return f.register(&cobra.Command{
		Use: "ls", Short: "List the images on this machine", Args: cobra.NoArgs,
		Example: "  rhumb snapshot ls\n  rhumb snapshot ls --snapshot-dir /run/rhumb -o json",
		RunE: func(*cobra.Command, []string) error {
			root, _, err := f.imageRoot()
			if err != nil {
				return err
			}
			images, err := inspect.List(root)
			if err != nil {
				return err
			}
			if len(images) == 0 {
				ic.Notef("there are no images under %s; nodes publish tables that were created with `rhumb table create NAME --snapshot`", root)
			}
			return ic.printImages(images)
		},
	})
}

// printImages prints a list of images. One that cannot be read shows why in place of the state of
// its publisher.
func (ic *commands) printImages(images []inspect.Listed) error {
	docs := []ImageDoc{}
	for _, l := range images {
		doc := ImageDoc{
			Path: l.Dir, Cluster: l.Cluster, Node: l.Node, Version: l.Version, AgeSeconds: secondsOf(l.Age), HeartbeatSeconds: secondsOf(l.Publisher.Heartbeat),
			Publisher: publisherState(l.Publisher), PID: l.Publisher.PID, Tables: l.Tables, Records: l.Records, Bytes: l.Bytes, Quarantined: l.Quarantined,
		}
		if l.Err != nil {
			doc.Publisher, doc.Error, doc.HeartbeatSeconds = "unknown", exit.Describe(l.Err).Message, nil
		}
		docs = append(docs, doc)
	}
	return ic.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "VERSION", "AGE", "PUBLISHER", "TABLES", "RECORDS", "SIZE", "PATH"})
		for i, d := range docs {
			state := d.Publisher
			if d.Error != "" {
				state = output.Shorten(d.Error)
			}
			t.AppendRow(table.Row{d.Node, d.Version, ageText(images[i].Age), state, d.Tables, d.Records, sizeText(d.Bytes), d.Path})
		}
	})
}

// StatDoc is the document of `rhumb snapshot stat`.
type StatDoc struct {
	Path      string         `json:"path"`
	Image     string         `json:"image"`
	Version   uint64         `json:"version"`
	Closed    string         `json:"closed,omitempty"`
	Age       *float64       `json:"age_seconds"`
	Publisher string         `json:"publisher"`
	PID       int            `json:"pid,omitempty"`
	Life      uint64         `json:"life"`
	Heartbeat *float64       `json:"heartbeat_seconds"`
	Tables    []imageTable   `json:"tables"`
	Shards    []shardDoc     `json:"shards"`
	Commits   []commitDoc    `json:"commits"`
	Positions []positionDoc  `json:"positions"`
	Faults    []output.Fault `json:"faults"`
}

// imageTable is a table of an image.
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

// shardDoc is how full one shard is. A shard is rolled when one of its areas is full.
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

// commitDoc is one of the last commits of an image.
type commitDoc struct {
	Version uint64  `json:"version"`
	Records uint32  `json:"records"`
	Age     float64 `json:"age_seconds"`
	Closed  string  `json:"closed,omitempty"`
	// EventLag is the time from the newest event of the commit to the commit.
	EventLag *float64 `json:"event_lag_seconds"`
}

// positionDoc is how far an image follows the log of a range.
type positionDoc struct {
	Range string `json:"range"`
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
	HLC   string `json:"hlc"`
}

// statCommand is `rhumb snapshot stat`.
func (ic *commands) statCommand() *cobra.Command {
	var f imageFlags
	return f.register(&cobra.Command{
		Use: "stat IMAGE [TABLE]", Short: "Show how full an image is, how old, and what it covers",
		Long: `Show the tables of an image, how full each shard is, the last commits, and how far the image follows the log of each range.
A shard is rolled into a new generation when its append area, overflow buckets or deltas are full.

` + imageHelp,
		Example: "  rhumb snapshot stat n1\n  rhumb snapshot stat /dev/shm/rhumb/CLUSTER/n1 flights -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withImage(cmd.Context(), args[0], func(at place) error { return ic.printImage(at, args[1:]) })
		},
	})
}

// printImage prints one image: its tables, its last commits, and how far it follows the logs of the ranges.
func (ic *commands) printImage(at place, tables []string) error {
	im, err := inspect.Open(at.dir)
	if err != nil {
		return err
	}
	defer im.Close()
	only := ""
	if len(tables) == 1 {
		only = tables[0]
		if !slices.ContainsFunc(im.Tables, func(t inspect.Table) bool { return t.Name == only }) {
			return rhumb.Ef(exit.OpSnapshot, rhumb.NotFound, "image %s has no table %q", at.shown, only)
		}
	}
	now := time.Now()
	doc := StatDoc{
		Path: at.shown, Image: im.Head.Image.String(), Version: im.Version, Age: secondsOf(im.Age(now)), Publisher: publisherState(im.Publisher),
		PID: im.Publisher.PID, Life: im.Publisher.Life, Heartbeat: secondsOf(im.Publisher.Heartbeat),
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
	// The positions are a table of the image, so a damaged image may not have them; its faults are
	// what matters.
	if doc.Positions, err = imagePositions(at.dir); err != nil && len(doc.Faults) == 0 {
		return err
	}
	return ic.printStat(&doc, im, now)
}

// timestampText returns a timestamp, or "" if it is unknown.
func timestampText(t rhumb.Timestamp) string {
	if t == 0 {
		return ""
	}
	return t.String()
}

// describeImageTables returns the tables of an image as documents, or the one that is wanted.
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

// describeCommits returns commits as documents, with their ages and how late their events were.
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

// describeFaults returns faults as documents, with file and offset.
func describeFaults(faults []inspect.Fault) []output.Fault {
	docs := []output.Fault{}
	for _, f := range faults {
		docs = append(docs, output.Fault{File: f.File, Offset: f.Offset, What: f.What})
	}
	return docs
}

// imagePositions returns how far an image follows the log of each range, sorted by range.
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
			// The key of a position is the range: region in the upper half, slot in the lower.
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

// printStat prints the document of `rhumb snapshot stat`.
func (ic *commands) printStat(doc *StatDoc, im *inspect.Image, now time.Time) error {
	if ic.ForPrograms() {
		return ic.PrintDocument(doc)
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
			t.AppendRow(table.Row{"version", fmt.Sprintf("%d, committed %s", doc.Version, agoText(im.Age(now)))})
			t.AppendRow(table.Row{"closed", cmp.Or(doc.Closed, "unknown")})
			t.AppendRow(table.Row{"publisher", fmt.Sprintf("%s, process %d, life %d, heartbeat %s", doc.Publisher, doc.PID, doc.Life, agoText(im.Publisher.Heartbeat))})
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"TABLE", "SHARD", "GENERATION", "RECORDS", "LOAD", "OVERFLOW", "APPEND", "TREE", "DELTA", "ORDER", "SIZE"})
			for _, s := range doc.Shards {
				t.AppendRow(table.Row{
					s.Table, s.Shard, s.Generation, s.Records, fmt.Sprintf("%.0f %%", 100*s.Load), percent(s.Overflow, s.OverflowMax), percent(s.AppendUsed, s.AppendMax),
					fmt.Sprintf("%d levels", s.TreeLevels), percent(s.Delta, s.DeltaMax), percent(s.OrderUsed, s.OrderMax), sizeText(s.Bytes),
				})
			}
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"COMMIT", "RECORDS", "AGE", "CLOSED"})
			for i, c := range doc.Commits {
				t.AppendRow(table.Row{c.Version, c.Records, ageText(now.Sub(time.Unix(0, im.Commits[i].Wall))), c.Closed})
			}
		},
		func(t table.Writer) {
			t.AppendHeader(table.Row{"RANGE", "EPOCH", "SEQ", "HLC"})
			for _, p := range doc.Positions {
				t.AppendRow(table.Row{p.Range, p.Epoch, p.Seq, p.HLC})
			}
		},
	}
	if err := ic.PrintSections(sections...); err != nil {
		return err
	}
	for _, f := range doc.Faults {
		ic.Notef("damaged: %s", inspect.Fault(f))
	}
	return nil
}
