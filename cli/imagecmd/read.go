package imagecmd

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// readFlags select how records of an image are read and printed.
type readFlags struct {
	imageFlags
	geojson, closed bool
	limit           int
	dir             string // the directory of the image, set by withTable
}

// registerAll adds the flags to a command; many is set if it can print several records.
func (f *readFlags) registerAll(c *cobra.Command, many bool) *cobra.Command {
	c.Flags().BoolVar(&f.geojson, "geojson", false, "print a GeoJSON feature collection")
	c.Flags().BoolVar(&f.closed, "closed", false, "read the consistent cut across all ranges at the closed timestamp")
	if many {
		most := 100
		if c.Name() == "nearest" { // its argument K is the limit
			most = 0
		}
		c.Flags().IntVar(&f.limit, "limit", most, "maximum number of records; 0 is no limit")
	}
	return f.register(c)
}

// withTable runs fn with a view of a table of an image. The view keeps its generation in memory
// until fn returns.
func (f *readFlags) withTable(ctx context.Context, image, name string, fn func(v reader.View, t reader.Table) error) error {
	return f.withImage(ctx, image, func(at place) error {
		f.dir = at.dir
		c, err := inspect.Attach(at.dir)
		if err != nil {
			return err
		}
		defer c.Close()
		lock := c.Lock
		if f.closed {
			lock = c.LockClosed
		}
		v, err := lock()
		if err != nil {
			return err
		}
		defer v.Unlock()
		// The name may be misspelt, so the error lists the tables. The table of positions is internal,
		// although it can be read by its name.
		t, err := v.Table(name)
		if rhumb.KindOf(err) == rhumb.NotFound {
			var names []string
			for _, info := range c.Tables() {
				if info.Name != format.PositionsTable {
					names = append(names, info.Name)
				}
			}
			others := "and no others"
			if len(names) > 0 {
				others = "only " + strings.Join(names, ", ")
			}
			return rhumb.Ef("rhumb.view", rhumb.NotFound, "%s has no table %q, %s; nodes publish tables that were created with `rhumb table create NAME --snapshot`",
				at.shown, name, others)
		}
		if err != nil {
			return err
		}
		return fn(v, t)
	})
}

// getCommand is `rhumb snapshot get`.
func (ic *commands) getCommand() *cobra.Command {
	var f readFlags
	return f.registerAll(&cobra.Command{
		Use: "get IMAGE TABLE KEY", Short: "Print a record of an image",
		Long:    "Print a record from the newest version of an image. KEY is a name, as text or as 0x and hexadecimal digits, or a number.\n\n" + imageHelp,
		Example: "  rhumb snapshot get n1 flights SWR8\n  rhumb snapshot get ./flights.rhs flights SWR8 --geojson",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withTable(cmd.Context(), args[0], args[1], func(v reader.View, t reader.Table) error {
				it, err := inspect.Get(t, args[2])
				// That an image lacks a record does not mean that the cluster does.
				if rhumb.KindOf(err) == rhumb.NotFound {
					return rhumb.Ef(exit.OpSnapshot, rhumb.NotFound, "table %s has no record %q in version %d of the image, which contains only the ranges of its node; `rhumb get` asks the whole cluster",
						args[1], args[2], v.Version())
				}
				if err != nil {
					return err
				}
				if f.geojson {
					return ic.printItems(t, func(yield func(reader.Item, error) bool) { yield(it, nil) }, &f, inspect.Query{})
				}
				doc, err := inspect.Describe(t.Info(), &it, false)
				if err != nil {
					return err
				}
				return ic.printImageRecord(doc)
			})
		},
	}, false)
}

// printImageRecord prints one record, a field per line.
func (ic *commands) printImageRecord(doc inspect.Record) error {
	err := ic.Print(doc, func(t table.Writer) {
		if doc.Stored == nil {
			t.AppendRow(table.Row{recordLine(&doc)})
			return
		}
		t.AppendHeader(table.Row{"FIELD", "TYPE", "VALUE"})
		for _, f := range doc.Stored {
			t.AppendRow(table.Row{f.Name, f.Value.Kind(), f.Value})
		}
	})
	if !ic.ForPrograms() {
		ic.Notef("version %d of the image, written at %s", doc.Version, cmp.Or(doc.HLC, "an unknown time"))
	}
	return err
}

// recordLine returns the value of a record in one line. Log positions have fields but no stored
// record.
func recordLine(d *inspect.Record) string {
	if d.Stored == nil && d.Fields != nil { // a log position
		return fmt.Sprintf("epoch=%v seq=%v hlc=%v", d.Fields["epoch"], d.Fields["seq"], d.Fields["hlc"])
	}
	return output.Value{Text: d.Text, Bytes: d.Bytes, Record: d.Stored}.Line()
}

// scanCommand is `rhumb snapshot scan`.
func (ic *commands) scanCommand() *cobra.Command {
	var f readFlags
	return f.registerAll(&cobra.Command{
		Use: "scan IMAGE TABLE [PREFIX]", Short: "Print records of an image",
		Long: `Print the records of a table of an image. PREFIX selects those whose names begin with it, if the table has an index of names.
-o json prints one record per line.

` + imageHelp,
		Example: "  rhumb snapshot scan n1 airports\n  rhumb snapshot scan n1 roads --limit 0 -o json",
		Args:    cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			var q inspect.Query
			if len(args) == 3 {
				q.Prefix = args[2]
			}
			return ic.runQuery(cmd.Context(), args, &f, q)
		},
	}, true)
}

// queryCommand returns the command of one kind of spatial query.
func (ic *commands) queryCommand(name string) *cobra.Command {
	forms := map[string]struct{ args, short, example string }{
		"bbox":    {"W,S,E,N", "Print the records of an image that touch a box", "5.9,45.8,10.5,47.8"},
		"radius":  {"LAT,LON,METRES", "Print the records of an image around a point", "47.46,8.55,50000"},
		"nearest": {"LAT,LON,K", "Print the records of an image nearest to a point", "47.46,8.55,5"},
	}
	f, form := readFlags{}, forms[name]
	return flags.TakesPlace(f.registerAll(&cobra.Command{
		Use: name + " IMAGE TABLE " + form.args, Short: form.short,
		Long: form.short + `. The table needs a spatial index.
An image contains only the ranges of its node. A note names the regions whose records it lacks; with -o json, which prints
one record per line, each record has them in lacks_regions.

` + imageHelp,
		Example: fmt.Sprintf("  rhumb snapshot %s n1 airports %s\n  rhumb snapshot %s n1 flights --geojson %s", name, form.example, name, form.example),
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := map[string]inspect.Query{"bbox": {BBox: args[2]}, "radius": {Radius: args[2]}, "nearest": {Nearest: args[2]}}[name]
			return ic.runQuery(cmd.Context(), args, &f, q)
		},
	}, true))
}

// runQuery prints the records that a query finds.
func (ic *commands) runQuery(ctx context.Context, args []string, f *readFlags, q inspect.Query) error {
	if f.limit < 0 {
		return rhumb.Ef(exit.OpSnapshot, rhumb.InvalidArgument, "--limit %d is negative; 0 means no limit", f.limit)
	}
	return f.withTable(ctx, args[0], args[1], func(_ reader.View, t reader.Table) error {
		items, err := q.Run(t)
		if err != nil {
			return err
		}
		return ic.printItems(t, untilDone(ctx, items), f, q)
	})
}

// untilDone ends items with an error when ctx ends. A query over an image makes no system call that
// a signal could interrupt.
func untilDone(ctx context.Context, items iter.Seq2[reader.Item, error]) iter.Seq2[reader.Item, error] {
	return func(yield func(reader.Item, error) bool) {
		for it, err := range items {
			if err == nil && ctx.Err() != nil {
				err = rhumb.E(exit.OpSnapshot, rhumb.Canceled, "interrupted before it was done")
			}
			if !yield(it, err) || err != nil {
				return
			}
		}
	}
}

// printItems prints records as GeoJSON, as one JSON document each, or as tables of output.TableRows
// records. Notes name missing regions, so that the result does not pass for the answer of
// the whole cluster.
func (ic *commands) printItems(t reader.Table, items iter.Seq2[reader.Item, error], f *readFlags, q inspect.Query) error {
	lacks, _, err := inspect.Lacks(f.dir, t.Info().Name)
	if err != nil {
		return err
	}
	taken, more := inspect.Take(items, f.limit)
	// The notes come after the data, where a person still sees them after a long result.
	defer func() {
		if len(lacks) > 0 {
			ic.Notef("the image lacks all or some records of %s, because its node does not hold them; read the image of a node there, or ask the whole cluster: rhumb scan %s",
				strings.Join(lacks, ", "), t.Info().Name)
		}
		if *more {
			ic.Notef("more records follow: use a higher --limit, or --limit 0")
		}
	}()
	if f.geojson {
		_, err := t.WriteGeoJSON(ic.Out, taken)
		return err
	}
	var docs []inspect.Record
	none := true
	for it, err := range taken {
		if err != nil {
			return err
		}
		none = false
		doc, err := inspect.Describe(t.Info(), &it, q.Measured())
		if err != nil {
			return err
		}
		doc.LacksRegions = lacks
		if ic.ForPrograms() {
			if err := ic.PrintDocument(doc); err != nil {
				return err
			}
			continue
		}
		if docs = append(docs, doc); len(docs) == output.TableRows {
			if err := ic.printImageRecords(docs); err != nil {
				return err
			}
			docs = docs[:0]
		}
	}
	// An empty table would print nothing at all, which looks like a failure.
	if len(docs) == 0 {
		if none && !ic.ForPrograms() {
			ic.Notef("no records")
		}
		return nil
	}
	return ic.printImageRecords(docs)
}

// printImageRecords prints several records, one line each.
func (ic *commands) printImageRecords(docs []inspect.Record) error {
	return ic.Print(docs, func(t table.Writer) {
		header := table.Row{"KEY", "VALUE"}
		if docs[0].Distance != nil {
			header = table.Row{"KEY", "METRES", "VALUE"}
		}
		t.AppendHeader(header)
		for i := range docs {
			row := table.Row{docs[i].Key}
			if d := docs[i].Distance; d != nil {
				row = append(row, fmt.Sprintf("%.0f", *d))
			}
			t.AppendRow(append(row, output.Shorten(recordLine(&docs[i]))))
		}
	})
}
