package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// readCommands are `rhumb get` and `rhumb scan`.
type readCommands struct{ *session }

func (rc *readCommands) getCommand() *cobra.Command {
	var place placeFlags
	var raw bool
	c := &cobra.Command{
		Use: "get TABLE NAME", Short: "Print a record",
		Long: `Print a record. It is looked for in the region of --from, and on a miss in all others at once; the receipt
says who answered, and how many other regions were asked. NAME is text, or 0x and hexadecimal digits. Control characters
are shown escaped, such as \x1b; --raw writes a value that is text or bytes as it was put with --text or --file, and
nothing else.`,
		Example: "  rhumb get flights SWR8\n  rhumb get notes picture --raw > picture.png\n  rhumb get flights SWR8 --from virginia -o json\n  rhumb get events 0x000001000000002a --home 2/1026",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, name []byte) error {
				got, err := t.Get(ctx, name, client.GetOptions{Home: place.home, Local: place.local})
				if err != nil {
					return err
				}
				if raw {
					return rc.writeRaw(got.Item.Value)
				}
				n := regionNames(c)
				doc, err := n.record(t.Name(), got.Item)
				if err != nil {
					return err
				}
				receipt := n.receipt(got.Receipt)
				doc.Receipt = &receipt
				return rc.printRecord(doc)
			})
		},
	}
	place.register(c)
	c.Flags().BoolVar(&raw, "raw", false, "write the bytes of a value that has no fields as they are")
	return rc.connected(c)
}

// writeRaw writes an opaque value as it was put.
func (rc *readCommands) writeRaw(stored []byte) error {
	const op rhumb.Op = "rhumb.get"
	payload, ok := rhumb.DecodeOpaque(stored)
	if !ok {
		return rhumb.E(op, rhumb.InvalidArgument, "--raw: the record has fields; -o json prints them exactly")
	}
	_, err := rc.Out.Write(payload)
	return rhumb.Wrap(op, err)
}

// printRecord prints one record, a field to a line, and its receipt as a note.
func (rc *readCommands) printRecord(doc recordDoc) error {
	err := rc.Print(doc, func(t table.Writer) {
		if doc.Record == nil {
			t.AppendRow(table.Row{doc.Line()})
			return
		}
		t.AppendHeader(table.Row{"FIELD", "TYPE", "VALUE"})
		for _, f := range doc.Record {
			t.AppendRow(table.Row{f.Name, f.Value.Kind(), f.Value})
		}
	})
	if !rc.AsJSON() {
		rc.Notef("home %s (%s), version %s; served by %s in %s, %s, %s asked",
			doc.Home, doc.Region, doc.Version, doc.Receipt.Node, doc.Receipt.Region,
			output.Counted(doc.Receipt.Hops, "hop", "hops"), output.Counted(doc.Receipt.Searched, "other region", "other regions"))
	}
	return err
}

func (rc *readCommands) scanCommand() *cobra.Command {
	var o client.ScanOptions
	var duplicates bool
	c := &cobra.Command{
		Use: "scan TABLE [PREFIX]", Short: "Print records in the order of their names",
		Long: `Print the records whose names begin with PREFIX, in the order of their names, from all regions. -o json prints one
record on each line. When --limit cuts the answer short, a note tells the --after that goes on behind it.`,
		Example: "  rhumb scan flights\n  rhumb scan positions SWR8/ --limit 0 -o json\n  rhumb scan flights --region frankfurt --limit 20\n  rhumb scan flights --duplicates --limit 0",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, prefix []byte) error {
				o.Prefix = prefix
				return rc.scan(ctx, c, t, o, duplicates)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&o.Limit, "limit", 100, "records at most; 0 is no limit")
	f.StringVar(&o.After, "after", "", "go on behind the place that an earlier scan told")
	f.StringVar(&o.Region, "region", "", "only records whose home is this region")
	f.BoolVar(&o.Local, "local", false, "only records of the region of --from, without leaving it")
	f.BoolVar(&duplicates, "duplicates", false, "only names that exist in more than one region, because they were created while one was dead")
	return rc.connected(c)
}

func (rc *readCommands) scan(ctx context.Context, c *client.Client, t *client.Table, o client.ScanOptions, duplicates bool) error {
	if o.Limit < 0 {
		return rhumb.Ef("rhumb.scan", rhumb.InvalidArgument, "--limit %d is below 0", o.Limit)
	}
	n, most := regionNames(c), o.Limit
	if most > 0 {
		o.Limit = most + 1 // one more tells whether there are more
	}
	var docs []recordDoc
	count, after := 0, ""
	records := t.Scan(ctx, o)
	if duplicates {
		records = t.Duplicates(ctx, o)
	}
	for it, err := range records {
		if err != nil {
			return err
		}
		if most > 0 && count == most {
			rc.Notef("more records follow: go on with --after %s, or say --limit 0", after)
			break
		}
		doc, err := n.record(t.Name(), it)
		if err != nil {
			return err
		}
		count, after = count+1, client.ScanToken(it)
		if rc.AsJSON() {
			if err := rc.PrintJSON(doc); err != nil {
				return err
			}
			continue
		}
		if docs = append(docs, doc); len(docs) == output.TableRows {
			if err := rc.printRecords(docs); err != nil {
				return err
			}
			docs = docs[:0]
		}
	}
	if len(docs) > 0 {
		return rc.printRecords(docs)
	}
	return nil
}

func (rc *readCommands) printRecords(docs []recordDoc) error {
	return rc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "REGION", "VALUE"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Name, d.Region, output.Shorten(d.Line())})
		}
	})
}
