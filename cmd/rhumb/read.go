package main

import (
	"context"
	"iter"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// readCommands are `rhumb get` and `rhumb scan`.
type readCommands struct{ *session }

// getCommand returns `rhumb get`.
func (rc *readCommands) getCommand() *cobra.Command {
	var place placeFlags
	var raw bool
	c := &cobra.Command{
		Use: "get TABLE NAME", Short: "Print a record",
		Long: `Print a record. The command searches the region of --from, and after a miss all other regions at once; the receipt
shows which node answered and how many other regions were asked. NAME is text, or 0x and hexadecimal digits. Control
characters are shown escaped, such as \x1b. --raw writes a value that is text or bytes exactly as it was put with --text
or --file, and nothing else.`,
		Example: `  rhumb get flights SWR8
  rhumb get notes picture --raw > picture.png
  rhumb get flights SWR8 --from virginia -o json
  rhumb get events 0x000001000000002a --home 2/1026`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, name []byte) error {
				got, err := t.Get(ctx, name, client.GetOptions{Home: place.home, Local: place.local})
				if err != nil {
					return err
				}
				// The receipt is not printed then: nothing but the bytes of the value goes to the output.
				if raw {
					return rc.writeRaw(got.Item.Value)
				}
				n := regionNames(c)
				doc, err := n.describeRecord(t.Name(), got.Item)
				if err != nil {
					return err
				}
				// A pointer, so that scans leave the member out.
				receipt := n.describeReceipt(got.Receipt)
				doc.Receipt = &receipt
				return rc.printRecord(doc)
			})
		},
	}
	place.register(c, searchAll)
	c.Flags().BoolVar(&raw, "raw", false, "write the bytes of a value without fields, unescaped")
	return rc.connected(c)
}

// writeRaw writes an opaque value exactly as it was put. It is the only output that is not escaped:
// its bytes belong to the user.
func (rc *readCommands) writeRaw(stored []byte) error {
	const op rhumb.Op = "rhumb.get"
	payload, ok := rhumb.DecodeOpaque(stored)
	if !ok {
		return rhumb.E(op, rhumb.InvalidArgument, "--raw: the record has fields; -o json prints them exactly")
	}
	_, err := rc.Out.Write(payload)
	return rhumb.Wrap(op, err)
}

// printRecord prints one record, a field per line, and its receipt as a note.
func (rc *readCommands) printRecord(doc recordDoc) error {
	err := rc.Print(doc, func(t table.Writer) {
		if doc.Record == nil { // text or bytes
			t.AppendRow(table.Row{doc.Line()})
			return
		}
		t.AppendHeader(table.Row{"FIELD", "TYPE", "VALUE"})
		for _, f := range doc.Record {
			t.AppendRow(table.Row{f.Name, f.Value.Kind(), f.Value})
		}
	})
	if !rc.ForPrograms() { // JSON has the receipt
		// The note goes to standard error, so that the table alone can be piped.
		rc.Notef("home %s (%s), version %s; served by %s in %s, %s, %s asked",
			doc.Home, doc.Region, doc.Version, doc.Receipt.Node, doc.Receipt.Region,
			output.Counted(doc.Receipt.Hops, "hop", "hops"), output.Counted(doc.Receipt.Searched, "other region", "other regions"))
	}
	return err
}

// scanCommand returns `rhumb scan`.
func (rc *readCommands) scanCommand() *cobra.Command {
	var o client.ScanOptions
	var duplicates bool
	c := &cobra.Command{
		Use: "scan TABLE [PREFIX]", Short: "Print records in the order of their names",
		Long: `Print the records whose names begin with PREFIX, in the order of their names, from all regions. -o json prints one
record per line. If --limit cuts the result short, a note shows the --after that continues it.`,
		Example: `  rhumb scan flights
  rhumb scan positions SWR8/ --limit 0 -o json
  rhumb scan flights --region frankfurt --limit 20
  rhumb scan flights --duplicates --limit 0`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Limit < 0 {
				return rhumb.Ef("rhumb.scan", rhumb.InvalidArgument, "--limit %d is negative; 0 means no limit", o.Limit)
			}
			return rc.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, prefix []byte) error {
				o.Prefix = prefix
				limit := o.Limit
				if limit > 0 {
					o.Limit++ // one record more shows whether there are more
				}
				records := t.Scan(ctx, o)
				if duplicates {
					records = t.Duplicates(ctx, o)
				}
				return rc.printScan(regionNames(c), t.Name(), records, limit)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&o.Limit, "limit", 100, "maximum number of records; 0 is no limit")
	f.StringVar(&o.After, "after", "", "resume after the position returned by an earlier scan")
	f.StringVar(&o.Region, "region", "", "only records whose home is this region")
	f.BoolVar(&o.Local, "local", false, "only records of the region of --from, without asking another region")
	f.BoolVar(&duplicates, "duplicates", false, "only names that exist in more than one region because they were created while one was dead")
	return rc.connected(c)
}

// printScan prints at most limit records, and a note if more follow. It never holds more than one
// table's rows, because a scan may return more than fits in memory.
func (rc *readCommands) printScan(n names, tableName string, records iter.Seq2[rhumb.Item, error], limit int) error {
	var docs []recordDoc
	count, after := 0, ""
	for it, err := range records {
		if err != nil {
			return err
		}
		if limit > 0 && count == limit {
			// The note comes after the data, where a person still sees it after a long result.
			defer rc.Notef("more records follow: continue with --after %s, or use --limit 0", after)
			break
		}
		doc, err := n.describeRecord(tableName, it)
		if err != nil {
			return err
		}
		// The position is noted before the record is printed, and used only if another record follows.
		count, after = count+1, client.ScanToken(it)
		if rc.ForPrograms() {
			if err := rc.PrintDocument(doc); err != nil {
				return err
			}
			continue
		}
		// Long results are printed as several tables, so that rows appear while the scan continues.
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

// printRecords prints a table of records, each in one line. -o json prints them in full.
func (rc *readCommands) printRecords(docs []recordDoc) error {
	return rc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "REGION", "VALUE"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Name, d.Region, output.Shorten(d.Line())})
		}
	})
}
