package imagecmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// imageReportDoc is the document of `rhumb snapshot verify`.
type imageReportDoc struct {
	Path    string         `json:"path"`
	Version uint64         `json:"version"`
	Deep    bool           `json:"deep"`
	Tables  int            `json:"tables"`
	Files   int            `json:"files"`
	Bytes   int64          `json:"bytes"`
	Records int64          `json:"records"`
	Faults  []output.Fault `json:"faults"`
}

// verifyCommand is `rhumb snapshot verify`. It reads the files of an image and needs no node.
func (ic *commands) verifyCommand() *cobra.Command {
	var f imageFlags
	var deep bool
	c := &cobra.Command{
		Use: "verify IMAGE", Short: "Check an image for damage",
		Long: `Check the headers, counters and checksums of an image, live or saved, and name damage by file and offset. --deep also
follows every reference: buckets, chains of versions, the boxes of the R-tree, the spatial and the ordered deltas, the order
of the keys, and the checksums of records. The command changes nothing, and the node may run. Exit code 1 means that
something is damaged; docs/operations/snapshot.md describes what the node does then.

` + imageHelp,
		Example: "  rhumb snapshot verify n1 --deep\n  rhumb snapshot verify ./flights.rhs -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withImage(cmd.Context(), args[0], func(at place) error { return ic.verifyImage(cmd.Context(), at, deep) })
		},
	}
	c.Flags().BoolVar(&deep, "deep", false, "follow every reference")
	return f.register(c)
}

// verifyImage compares the checksums of an image, and with deep every record with the index. It prints each fault with its file and offset, and fails if
// there is one, so that a script notices.
func (ic *commands) verifyImage(ctx context.Context, at place, deep bool) error {
	show, stop := ic.ByteBar("verify")
	r, err := inspect.Verify(ctx, at.dir, inspect.VerifyOptions{Deep: deep, Progress: show})
	stop()
	if err != nil {
		return err
	}
	doc := imageReportDoc{at.shown, r.Version, deep, r.Tables, r.Files, r.Bytes, r.Records, describeFaults(r.Faults)}
	if err := ic.Print(doc, func(t table.Writer) { output.AppendFaults(t, doc.Faults) }); err != nil {
		return err
	}
	records := "no records; --deep checks them"
	if deep {
		records = output.Counted(int(doc.Records), "record version", "record versions")
	}
	ic.Notef("checked version %d: %d files, %d bytes, %s", doc.Version, doc.Files, doc.Bytes, records)
	// The report is printed in full before the error, which only sets the exit code.
	if len(doc.Faults) > 0 {
		return rhumb.Ef(exit.OpSnapshot, rhumb.Corrupt, "%s in %s; docs/runbooks/snapshot.md describes what to do", output.Counted(len(doc.Faults), "fault", "faults"), at.shown)
	}
	return nil
}

// saveCommand is `rhumb snapshot save`: one version of an image as a file that outlives the node.
func (ic *commands) saveCommand() *cobra.Command {
	var f imageFlags
	return f.register(&cobra.Command{
		Use: "save IMAGE DIR|FILE" + inspect.FileSuffix, Short: "Copy one version of an image to a directory or a file",
		Long: `Copy the newest version of an image to a new directory, to which readers can attach as to any image, or to one compressed
file. The node may run; what it commits in the meantime is not in the copy.

` + imageHelp,
		Example: "  rhumb snapshot save n1 ./flights" + inspect.FileSuffix + "\n  rhumb snapshot save n1 ./noon",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withImage(cmd.Context(), args[0], func(at place) error {
				show, stop := ic.ByteBar("save")
				saved, err := inspect.Save(cmd.Context(), at.dir, args[1], show)
				stop()
				if err != nil {
					return err
				}
				return ic.printSaved(saved)
			})
		},
	})
}

// loadCommand is `rhumb snapshot load`: a saved version becomes an image again.
func (ic *commands) loadCommand() *cobra.Command {
	var o inspect.LoadOptions
	c := &cobra.Command{
		Use: "load FILE|DIR DIR", Short: "Restore a saved image to a directory",
		Long: `Unpack an image from ` + "`rhumb snapshot save`" + `, check it, and move it to a directory in one step, so that readers never see
half of it. A live image is never overwritten, and a dead one only with --replace.`,
		Example: "  rhumb snapshot load ./flights" + inspect.FileSuffix + " /dev/shm/rhumb/saved/flights\n  rhumb snapshot load ./noon /dev/shm/rhumb/saved/noon --replace",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			show, stop := ic.ByteBar("load")
			o.Progress = show
			saved, err := inspect.Load(cmd.Context(), args[0], args[1], o)
			stop()
			if err != nil {
				return err
			}
			return ic.printSaved(saved)
		},
	}
	c.Flags().BoolVar(&o.Replace, "replace", false, "remove the image in DIR, unless it is live")
	return c
}

// printSaved prints what was saved or loaded: both commands report the same figures.
func (ic *commands) printSaved(s inspect.Saved) error {
	doc := map[string]any{"path": s.Path, "version": s.Version, "files": s.Files, "bytes": s.Bytes}
	return ic.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"PATH", "VERSION", "FILES", "SIZE"})
		t.AppendRow(table.Row{s.Path, s.Version, s.Files, sizeText(s.Bytes)})
	})
}

// DiffDoc is the document of `rhumb snapshot diff`.
type DiffDoc struct {
	Tables []tableDiffDoc `json:"tables"`
	// Keys lists the first differences, at most --limit.
	Keys []keyDiffDoc `json:"keys"`
}

// tableDiffDoc counts the differences of one table.
type tableDiffDoc struct {
	Table   string `json:"table"`
	Added   int64  `json:"added"`
	Removed int64  `json:"removed"`
	Changed int64  `json:"changed"`
	Same    int64  `json:"same"`
}

// keyDiffDoc is a record that differs: Was is nil if it was added, Is is nil if it was removed.
type keyDiffDoc struct {
	Table  string          `json:"table"`
	Key    string          `json:"key"`
	Change string          `json:"change"`
	Was    *inspect.Record `json:"was,omitempty"`
	Is     *inspect.Record `json:"is,omitempty"`
}

// diffCommand is `rhumb snapshot diff`.
func (ic *commands) diffCommand() *cobra.Command {
	var f imageFlags
	var only string
	var limit int
	c := &cobra.Command{
		Use: "diff A B", Short: "Compare two images",
		Long: `Count the records that were added, removed and changed from image A to image B, and print the first of them. A record has
changed if its value, its box or its expiry has. A and B are images as for the other commands.

` + imageHelp,
		Example: "  rhumb snapshot diff ./flights.rhs n1\n  rhumb snapshot diff n1 n2 --table flights --limit 0 -o json",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return rhumb.Ef(exit.OpSnapshot, rhumb.InvalidArgument, "--limit %d is negative", limit)
			}
			ctx := cmd.Context()
			return f.withImage(ctx, args[0], func(before place) error {
				return f.withImage(ctx, args[1], func(after place) error { return ic.diffImages(ctx, before.dir, after.dir, only, limit) })
			})
		},
	}
	c.Flags().StringVar(&only, "table", "", "compare only this table")
	c.Flags().IntVar(&limit, "limit", 20, "maximum number of differences to print; all are counted")
	return f.register(c)
}

// diffImages counts the differences of two images by table, and prints the first ones: two images of different regions may share no record.
func (ic *commands) diffImages(ctx context.Context, before, after, only string, limit int) error {
	doc := DiffDoc{Tables: []tableDiffDoc{}, Keys: []keyDiffDoc{}}
	var failed error
	// All differences are counted, but only the first ones are kept: two images may differ in every
	// record.
	counts, err := inspect.Diff(ctx, before, after, only, func(d *inspect.Difference) {
		if len(doc.Keys) < limit && failed == nil {
			var key keyDiffDoc
			key, failed = describeDifference(d)
			doc.Keys = append(doc.Keys, key)
		}
	})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	for _, c := range counts {
		doc.Tables = append(doc.Tables, tableDiffDoc(c))
	}
	if ic.ForPrograms() {
		return ic.PrintDocument(doc)
	}
	if err := ic.Print(nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"TABLE", "ADDED", "REMOVED", "CHANGED", "SAME"})
		for _, c := range counts {
			t.AppendRow(table.Row{c.Table, c.Added, c.Removed, c.Changed, c.Same})
		}
	}); err != nil || len(doc.Keys) == 0 {
		return err
	}
	fmt.Fprintln(ic.Out)
	return ic.Print(nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"TABLE", "KEY", "CHANGE", "VALUE"})
		for _, k := range doc.Keys {
			value := k.Is
			if value == nil {
				value = k.Was
			}
			t.AppendRow(table.Row{k.Table, k.Key, k.Change, output.Shorten(recordLine(value))})
		}
	})
}

// describeDifference returns a difference as a document: the record as it was, as it is, or both.
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

// pinsDoc is the document of `rhumb snapshot pins`.
type pinsDoc struct {
	PinnedBytes int64    `json:"pinned_bytes"`
	Pins        []pinDoc `json:"pins"`
	// Unreadable lists processes of other users, which may also pin memory.
	Unreadable []int `json:"unreadable_pids"`
}

// pinDoc is one generation that a process has mapped.
type pinDoc struct {
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Path       string `json:"path"`
	Shard      int    `json:"shard"`
	Generation uint64 `json:"generation"`
	Bytes      int64  `json:"bytes"`
	Superseded bool   `json:"superseded"`
	Deleted    bool   `json:"deleted"`
	// SinceSeconds is how long ago the generation was superseded, at least.
	SinceSeconds *float64 `json:"superseded_seconds"`
	Publisher    bool     `json:"publisher"`
}

// pinsCommand is `rhumb snapshot pins`: who holds which version.
func (ic *commands) pinsCommand() *cobra.Command {
	var f imageFlags
	var all bool
	c := &cobra.Command{
		Use: "pins", Short: "List processes that keep superseded generations in memory", Args: cobra.NoArgs,
		Long: `List the processes that have superseded generations of images mapped, so that their memory cannot be freed. --all also lists
live generations. Processes of other users cannot be inspected; the command prints how many there are.`,
		Example: "  rhumb snapshot pins\n  sudo rhumb snapshot pins --all -o json",
		RunE: func(*cobra.Command, []string) error {
			dir, _, err := f.imageRoot()
			if err != nil {
				return err
			}
			p, err := inspect.FindPins(dir)
			if err != nil {
				return err
			}
			return ic.printPins(p, all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also list live generations, and those of the publishers themselves")
	return f.register(c)
}

// printPins prints the views that processes hold. A version that is held keeps its memory, so the oldest one explains an image that grows.
func (ic *commands) printPins(p inspect.Pins, all bool) error {
	doc := pinsDoc{PinnedBytes: p.PinnedBytes, Pins: []pinDoc{}, Unreadable: p.Unreadable}
	if doc.Unreadable == nil {
		doc.Unreadable = []int{}
	}
	for _, pin := range p.List {
		// Live generations are meant to be mapped, and the publisher releases its own.
		if !all && (!pin.Superseded || pin.Publisher) {
			continue
		}
		d := pinDoc{PID: pin.PID, Command: pin.Command, Path: pin.Dir, Shard: pin.Slot, Generation: pin.Generation, Bytes: pin.Bytes, Superseded: pin.Superseded, Deleted: pin.Deleted, Publisher: pin.Publisher}
		if pin.Since > 0 {
			d.SinceSeconds = secondsOf(pin.Since)
		}
		doc.Pins = append(doc.Pins, d)
	}
	err := ic.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"PID", "COMMAND", "SHARD", "GENERATION", "SIZE", "SUPERSEDED", "PUBLISHER", "IMAGE"})
		for _, d := range doc.Pins {
			since := "no"
			if d.Superseded {
				since = "yes"
			}
			if d.SinceSeconds != nil {
				since = ageText(time.Duration(*d.SinceSeconds*float64(time.Second))) + " or more"
			}
			t.AppendRow(table.Row{d.PID, d.Command, d.Shard, d.Generation, sizeText(d.Bytes), since, d.Publisher, d.Path})
		}
	})
	ic.Notef("readers of superseded generations keep %s in memory", sizeText(p.PinnedBytes))
	if n := len(p.Unreadable); n > 0 {
		ic.Notef("%s of other users could not be inspected; try again as root", output.Counted(n, "process", "processes"))
	}
	return err
}

// publishCommand is `rhumb snapshot publish`.
func (ic *commands) publishCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "publish NODE", Short: "Make a node publish a version of its image now",
		Long: `Make a node publish everything that is committed, whatever its policy is, and print the version. Nodes that were started
with --snapshot-on-demand make versions only for this command. The request goes to the operators' address of the node, so the
command has to run on the node's machine. ` + connect.NodeHelp,
		Example: "  rhumb snapshot publish n1\n  rhumb snapshot publish frankfurt-1\n  rhumb snapshot publish n1 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := connect.ParseNode(args[0])
			if err != nil {
				return err
			}
			return ic.publishImage(cmd.Context(), node)
		},
	}
	ic.conn.Register(c.Flags())
	return c
}

// publishImage asks a node for a version of its image. The request goes to
// the admin port of the node, with the identity of the connection.
func (ic *commands) publishImage(ctx context.Context, node connect.NodeArg) error {
	cfg, err := ic.conn.Config()
	if err != nil {
		return err
	}
	admin, err := connect.OpenAdmin(cfg)
	if err != nil {
		return err
	}
	defer admin.Close()
	return ic.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		nodes := c.Nodes()
		id, err := node.Find(nodes)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(nodes, func(n rhumb.Node) bool { return n.ID == id })
		if i < 0 {
			return rhumb.Ef(exit.OpSnapshot, rhumb.NotFound, "there is no node %s; `rhumb node ls` lists the nodes", id)
		}
		// The client bounds its own requests; this one goes to the node
		// directly.
		if ic.conn.Timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, ic.conn.Timeout)
			defer cancel()
		}
		var answer struct {
			Version uint64 `json:"version"`
			Error   struct{ Kind, Message string }
		}
		if err := postJSON(ctx, admin, nodes[i].AdminAddr, "/v1/snapshot/publish", &answer); err != nil {
			return err
		}
		if answer.Error.Kind != "" {
			return rhumb.E(exit.OpSnapshot, kindNamed(answer.Error.Kind), answer.Error.Message)
		}
		doc := map[string]any{"node": id.String(), "version": answer.Version}
		return ic.Print(doc, func(t table.Writer) {
			t.AppendHeader(table.Row{"NODE", "VERSION"})
			t.AppendRow(table.Row{id, strconv.FormatUint(answer.Version, 10)})
		})
	})
}

// answerMax bounds the answer of a node, in bytes: whatever listens at that address must not fill
// the memory.
const answerMax = 1 << 20

// postJSON sends an empty request and decodes the answer. Errors of the node are documents too, so
// the status does not matter.
func postJSON(ctx context.Context, admin *connect.Admin, addr, path string, into any) error {
	resp, err := admin.Do(ctx, http.MethodPost, addr, path)
	if err != nil {
		return rhumb.Wrap(exit.OpSnapshot, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	return rhumb.WrapKind(exit.OpSnapshot, rhumb.Unavailable, err)
}

// kindNamed returns the kind that a node named. A newer node may have kinds that this program does
// not know.
func kindNamed(name string) rhumb.Kind {
	for _, k := range rhumb.Kinds() {
		if k.String() == name {
			return k
		}
	}
	return rhumb.Other
}
