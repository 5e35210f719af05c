package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// byteProgress shows on a terminal how many bytes are done, until stop is called.
func (a *app) byteProgress(what string) (show inspect.Progress, stop func()) {
	if !isTerminal(a.err) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(a.err), progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(barInterval/2), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true),
		progressbar.OptionEnableColorCodes(!a.noColor && os.Getenv("NO_COLOR") == ""))
	return func(done, total int64) {
		if total > 0 && bar.GetMax64() != total {
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done) // it is only shown
	}, func() { _ = bar.Finish() }
}

// imageReportDoc is the document of `snapshot verify`.
type imageReportDoc struct {
	Path    string     `json:"path"`
	Version uint64     `json:"version"`
	Deep    bool       `json:"deep"`
	Tables  int        `json:"tables"`
	Files   int        `json:"files"`
	Bytes   int64      `json:"bytes"`
	Records int64      `json:"records"`
	Faults  []faultDoc `json:"faults"`
}

func (a *app) snapshotVerifyCommand() *cobra.Command {
	var f snapshotFlags
	var deep bool
	c := &cobra.Command{
		Use: "verify IMAGE", Short: "Check an image, and name what is damaged",
		Long: `Check the headers, counters and checksums of an image, live or saved, and name what is damaged by file and offset.
--deep follows every reference too: buckets, chains of versions, the boxes of the R-tree, the spatial and the ordered
deltas, the order of the keys, and the checksums of records. It changes nothing, and the node may run.
Exit code 1 says that something is damaged: see docs/operations/snapshot.md for what the node does then.

` + imageHelp,
		Example: "  rhumb snapshot verify n1 --deep\n  rhumb snapshot verify ./flights.rhs -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd.Context(), args[0], func(at place) error { return a.verifyImage(cmd.Context(), at, deep) })
		},
	}
	c.Flags().BoolVar(&deep, "deep", false, "follow every reference")
	return f.register(c)
}

func (a *app) verifyImage(ctx context.Context, at place, deep bool) error {
	show, stop := a.byteProgress("verify")
	r, err := inspect.Verify(ctx, at.dir, inspect.VerifyOptions{Deep: deep, Progress: show})
	stop()
	if err != nil {
		return err
	}
	doc := imageReportDoc{at.shown, r.Version, deep, r.Tables, r.Files, r.Bytes, r.Records, describeFaults(r.Faults)}
	if err := a.print(doc, func(t table.Writer) {
		if len(doc.Faults) == 0 {
			t.AppendRow(table.Row{"nothing is damaged"})
			return
		}
		t.AppendHeader(table.Row{"FILE", "OFFSET", "DAMAGE"})
		for _, f := range doc.Faults {
			offset := any(f.Offset)
			if f.Offset < 0 {
				offset = "-" // of the whole file
			}
			t.AppendRow(table.Row{f.File, offset, f.What})
		}
	}); err != nil {
		return err
	}
	a.notef("version %d: %d files, %d bytes, %d record versions read", doc.Version, doc.Files, doc.Bytes, doc.Records)
	if len(doc.Faults) > 0 {
		return rhumb.Ef(opSnapshot, rhumb.Corrupt, "%s in %s; docs/runbooks/snapshot.md says what to do", counted(len(doc.Faults), "fault", "faults"), at.shown)
	}
	return nil
}

func (a *app) snapshotSaveCommand() *cobra.Command {
	var f snapshotFlags
	return f.register(&cobra.Command{
		Use: "save IMAGE DIR|FILE" + inspect.FileSuffix, Short: "Copy one version of an image to a directory or a file",
		Long: `Copy the newest version of an image to a new directory, which readers attach to as to any image, or to one compressed
file. The node may run; what it commits meanwhile is not in the copy.

` + imageHelp,
		Example: "  rhumb snapshot save n1 ./flights" + inspect.FileSuffix + "\n  rhumb snapshot save n1 ./noon",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd.Context(), args[0], func(at place) error {
				show, stop := a.byteProgress("save")
				saved, err := inspect.Save(cmd.Context(), at.dir, args[1], show)
				stop()
				if err != nil {
					return err
				}
				return a.printSaved(saved)
			})
		},
	})
}

func (a *app) snapshotLoadCommand() *cobra.Command {
	var o inspect.LoadOptions
	c := &cobra.Command{
		Use: "load FILE|DIR DIR", Short: "Put a saved image where readers find it",
		Long: `Unpack an image that ` + "`rhumb snapshot save`" + ` made, check it, and put it at a directory, at once or not at all.
A live image is never overwritten, and another one only with --replace.`,
		Example: "  rhumb snapshot load ./flights" + inspect.FileSuffix + " /dev/shm/rhumb/saved/flights\n  rhumb snapshot load ./noon /dev/shm/rhumb/saved/noon --replace",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			show, stop := a.byteProgress("load")
			o.Progress = show
			saved, err := inspect.Load(cmd.Context(), args[0], args[1], o)
			stop()
			if err != nil {
				return err
			}
			return a.printSaved(saved)
		},
	}
	c.Flags().BoolVar(&o.Replace, "replace", false, "remove the image that stands there, unless it is live")
	return c
}

func (a *app) printSaved(s inspect.Saved) error {
	doc := map[string]any{"path": s.Path, "version": s.Version, "files": s.Files, "bytes": s.Bytes}
	return a.print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"PATH", "VERSION", "FILES", "SIZE"})
		t.AppendRow(table.Row{s.Path, s.Version, s.Files, sizeOf(s.Bytes)})
	})
}

// diffDoc is the document of `snapshot diff`.
type diffDoc struct {
	Tables []tableDiffDoc `json:"tables"`
	// Keys are the first differences, as many as --limit allows.
	Keys []keyDiffDoc `json:"keys"`
}

type tableDiffDoc struct {
	Table   string `json:"table"`
	Added   int64  `json:"added"`
	Removed int64  `json:"removed"`
	Changed int64  `json:"changed"`
	Same    int64  `json:"same"`
}

type keyDiffDoc struct {
	Table  string          `json:"table"`
	Key    string          `json:"key"`
	Change string          `json:"change"`
	Was    *inspect.Record `json:"was,omitempty"`
	Is     *inspect.Record `json:"is,omitempty"`
}

func (a *app) snapshotDiffCommand() *cobra.Command {
	var f snapshotFlags
	var only string
	var limit int
	c := &cobra.Command{
		Use: "diff A B", Short: "Compare two images",
		Long: `Count the records that were added, removed and changed from image A to image B, and print the first of them. A record
is changed when its value, its box or its expiry is. A and B are images as for the other commands.

` + imageHelp,
		Example: "  rhumb snapshot diff ./flights.rhs n1\n  rhumb snapshot diff n1 n2 --table flights --limit 0 -o json",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "--limit %d is below 0", limit)
			}
			ctx := cmd.Context()
			return f.with(ctx, args[0], func(before place) error {
				return f.with(ctx, args[1], func(after place) error { return a.diffImages(ctx, before.dir, after.dir, only, limit) })
			})
		},
	}
	c.Flags().StringVar(&only, "table", "", "compare only this table")
	c.Flags().IntVar(&limit, "limit", 20, "differences that are printed; all are counted")
	return f.register(c)
}

func (a *app) diffImages(ctx context.Context, before, after, only string, limit int) error {
	doc := diffDoc{Tables: []tableDiffDoc{}, Keys: []keyDiffDoc{}}
	var failed error
	counts, err := inspect.Diff(ctx, before, after, only, func(d *inspect.Difference) {
		if len(doc.Keys) < limit && failed == nil {
			var key keyDiffDoc
			key, failed = describeDifference(d)
			doc.Keys = append(doc.Keys, key)
		}
	})
	if err = orError(err, failed); err != nil {
		return err
	}
	for _, c := range counts {
		doc.Tables = append(doc.Tables, tableDiffDoc(c))
	}
	if a.output == outputJSON {
		return a.printJSON(doc)
	}
	if err := a.print(nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"TABLE", "ADDED", "REMOVED", "CHANGED", "SAME"})
		for _, c := range counts {
			t.AppendRow(table.Row{c.Table, c.Added, c.Removed, c.Changed, c.Same})
		}
	}); err != nil || len(doc.Keys) == 0 {
		return err
	}
	fmt.Fprintln(a.out)
	return a.print(nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"TABLE", "KEY", "CHANGE", "VALUE"})
		for _, k := range doc.Keys {
			value := k.Is
			if value == nil {
				value = k.Was
			}
			t.AppendRow(table.Row{k.Table, k.Key, k.Change, shorten(recordLine(value))})
		}
	})
}

func orError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func describeDifference(d *inspect.Difference) (keyDiffDoc, error) {
	doc := keyDiffDoc{Table: d.Table.Name, Change: d.How}
	if d.HasWas {
		r, err := inspect.Describe(d.Table, &d.Was, false)
		if err != nil {
			return doc, err
		}
		doc.Was, doc.Key = &r, r.Key
	}
	if d.HasIs {
		r, err := inspect.Describe(d.Table, &d.Is, false)
		if err != nil {
			return doc, err
		}
		doc.Is, doc.Key = &r, r.Key
	}
	return doc, nil
}

// pinsDoc is the document of `snapshot pins`.
type pinsDoc struct {
	PinnedBytes int64    `json:"pinned_bytes"`
	Pins        []pinDoc `json:"pins"`
	// Unreadable are processes of other users, which may pin memory too.
	Unreadable []int `json:"unreadable_pids"`
}

type pinDoc struct {
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Path       string `json:"path"`
	Shard      int    `json:"shard"`
	Generation uint64 `json:"generation"`
	Bytes      int64  `json:"bytes"`
	Superseded bool   `json:"superseded"`
	Deleted    bool   `json:"deleted"`
	// SinceSeconds is how long ago at least it was superseded.
	SinceSeconds *float64 `json:"superseded_seconds"`
	Publisher    bool     `json:"publisher"`
}

func (a *app) snapshotPinsCommand() *cobra.Command {
	var f snapshotFlags
	var all bool
	c := &cobra.Command{
		Use: "pins", Short: "Tell which processes keep superseded generations in memory", Args: cobra.NoArgs,
		Long: `Tell which processes have superseded generations of images mapped, so that their memory cannot be used again. --all
lists the live ones too. Processes of other users cannot be looked into; how many there are is told.`,
		Example: "  rhumb snapshot pins\n  sudo rhumb snapshot pins --all -o json",
		RunE: func(*cobra.Command, []string) error {
			dir, _, err := f.root()
			if err != nil {
				return err
			}
			p, err := inspect.FindPins(dir)
			if err != nil {
				return err
			}
			return a.printPins(p, all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list live generations, and the publishers' own, too")
	return f.register(c)
}

func (a *app) printPins(p inspect.Pins, all bool) error {
	doc := pinsDoc{PinnedBytes: p.PinnedBytes, Pins: []pinDoc{}, Unreadable: p.Unreadable}
	if doc.Unreadable == nil {
		doc.Unreadable = []int{}
	}
	for _, pin := range p.List {
		if !all && (!pin.Superseded || pin.Publisher) {
			continue
		}
		d := pinDoc{PID: pin.PID, Command: pin.Command, Path: pin.Dir, Shard: pin.Slot, Generation: pin.Generation, Bytes: pin.Bytes, Superseded: pin.Superseded, Deleted: pin.Deleted, Publisher: pin.Publisher}
		if pin.Since > 0 {
			d.SinceSeconds = seconds(pin.Since)
		}
		doc.Pins = append(doc.Pins, d)
	}
	err := a.print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"PID", "COMMAND", "SHARD", "GENERATION", "SIZE", "SUPERSEDED", "PUBLISHER", "IMAGE"})
		for _, d := range doc.Pins {
			since := "no"
			if d.Superseded {
				since = "yes"
			}
			if d.SinceSeconds != nil {
				since = ago(time.Duration(*d.SinceSeconds*float64(time.Second))) + " or more"
			}
			t.AppendRow(table.Row{d.PID, d.Command, d.Shard, d.Generation, sizeOf(d.Bytes), since, d.Publisher, d.Path})
		}
	})
	a.notef("%s are kept for readers of superseded generations", sizeOf(p.PinnedBytes))
	if n := len(p.Unreadable); n > 0 {
		a.notef("%s of other users could not be looked into; try as root", counted(n, "process", "processes"))
	}
	return err
}

func (a *app) snapshotPublishCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "publish NODE", Short: "Let a node make a version of its image now",
		Long: `Let a node publish everything that is committed, whatever its policy says, and print the version. Nodes started with
--snapshot-on-demand make versions only then. The node is asked at its address for operators, from its own machine.`,
		Example: "  rhumb snapshot publish n1\n  rhumb snapshot publish n1 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseNode(args[0])
			if err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error { return a.publishImage(ctx, c, id) })
		},
	}
	return a.connected(c)
}

func (a *app) publishImage(ctx context.Context, c *client.Client, id rhumb.NodeID) error {
	nodes := c.Nodes()
	i := slices.IndexFunc(nodes, func(n rhumb.Node) bool { return n.ID == id })
	if i < 0 {
		return rhumb.Ef(opSnapshot, rhumb.NotFound, "there is no node %s; `rhumb node ls` lists them", id)
	}
	if a.conn.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.conn.timeout)
		defer cancel()
	}
	var answer struct {
		Version uint64 `json:"version"`
		Error   struct{ Kind, Message string }
	}
	if err := postJSON(ctx, "http://"+nodes[i].AdminAddr+"/v1/snapshot/publish", &answer); err != nil {
		return err
	}
	if answer.Error.Kind != "" {
		return rhumb.E(opSnapshot, kindNamed(answer.Error.Kind), answer.Error.Message)
	}
	doc := map[string]any{"node": id.String(), "version": answer.Version}
	return a.print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "VERSION"})
		t.AppendRow(table.Row{id, strconv.FormatUint(answer.Version, 10)})
	})
}

// answerMax bounds an answer of a node's HTTP for operators.
const answerMax = 1 << 20

func postJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return rhumb.WrapKind(opSnapshot, rhumb.InvalidArgument, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return rhumb.WrapKind(opSnapshot, rhumb.Unavailable, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	return rhumb.WrapKind(opSnapshot, rhumb.Unavailable, err)
}

func kindNamed(name string) rhumb.Kind {
	for _, k := range rhumb.Kinds() {
		if k.String() == name {
			return k
		}
	}
	return rhumb.Other
}
