package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// placeFlags say where a record is looked for, or written.
type placeFlags struct {
	home  string
	local bool
}

func (p *placeFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&p.home, "home", "", "the record's home: a region, or REGION/SLOT as it is printed (default: search)")
	c.Flags().BoolVar(&p.local, "local", false, "act in the region of --from only, and fail rather than leave it")
}

// ifFlags say when a write applies.
type ifFlags struct {
	absent, present bool
	version         string
	newer           []string
}

func (f *ifFlags) register(c *cobra.Command, patch bool) {
	c.Flags().BoolVar(&f.absent, "if-absent", false, "only when the record does not exist")
	c.Flags().BoolVar(&f.present, "if-present", false, "only when the record exists")
	c.Flags().StringVar(&f.version, "if-version", "", "only when the record has this version, as get prints it")
	exclusive := []string{"if-absent", "if-present", "if-version"}
	if patch {
		c.Flags().StringSliceVar(&f.newer, "if-newer", nil, "only when these fields, compared in turn, are greater than the record's; else change nothing")
		exclusive = append(exclusive, "if-newer")
	}
	c.MarkFlagsMutuallyExclusive(exclusive...)
}

func (f *ifFlags) condition() (rhumb.Condition, error) {
	switch {
	case f.absent:
		return rhumb.Condition{Kind: rhumb.IfAbsent}, nil
	case f.present:
		return rhumb.Condition{Kind: rhumb.IfPresent}, nil
	case f.version != "":
		v, err := rhumb.ParseVersion(f.version)
		return rhumb.Condition{Kind: rhumb.IfVersion, Version: v}, err
	case len(f.newer) > 0:
		return rhumb.Condition{Kind: rhumb.IfNewer, Fields: f.newer}, nil
	}
	return rhumb.Condition{}, nil
}

func (a *app) getCommand() *cobra.Command {
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
			return a.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, name []byte) error {
				got, err := t.Get(ctx, name, client.GetOptions{Home: place.home, Local: place.local})
				if err != nil {
					return err
				}
				if raw {
					return a.writeRaw(got.Item.Value)
				}
				n := regionNames(c)
				doc, err := n.record(t.Name(), got.Item)
				if err != nil {
					return err
				}
				receipt := n.receipt(got.Receipt)
				doc.Receipt = &receipt
				return a.printRecord(doc)
			})
		},
	}
	place.register(c)
	c.Flags().BoolVar(&raw, "raw", false, "write the bytes of a value that has no fields as they are")
	return a.connected(c)
}

// writeRaw writes an opaque value as it was put.
func (a *app) writeRaw(stored []byte) error {
	const op rhumb.Op = "rhumb.get"
	payload, ok := rhumb.DecodeOpaque(stored)
	if !ok {
		return rhumb.E(op, rhumb.InvalidArgument, "--raw: the record has fields; -o json prints them exactly")
	}
	_, err := a.out.Write(payload)
	return rhumb.Wrap(op, err)
}

// printRecord prints one record, a field to a line, and its receipt as a note.
func (a *app) printRecord(doc recordDoc) error {
	err := a.print(doc, func(t table.Writer) {
		if doc.record == nil {
			t.AppendRow(table.Row{doc.line()})
			return
		}
		t.AppendHeader(table.Row{"FIELD", "TYPE", "VALUE"})
		for _, f := range doc.record {
			t.AppendRow(table.Row{f.Name, f.Value.Kind(), f.Value})
		}
	})
	if a.output == outputTable {
		a.notef("home %s (%s), version %s; served by %s in %s, %s, %s asked",
			doc.Home, doc.Region, doc.Version, doc.Receipt.Node, doc.Receipt.Region,
			counted(doc.Receipt.Hops, "hop", "hops"), counted(doc.Receipt.Searched, "other region", "other regions"))
	}
	return err
}

// withTable opens the table of args[0] and reads the name in args[1], when there is one.
func (a *app) withTable(ctx context.Context, args []string, f func(context.Context, *client.Client, *client.Table, []byte) error) error {
	var name []byte
	if len(args) > 1 {
		var err error
		if name, err = rhumb.ParseName(args[1]); err != nil {
			return err
		}
	}
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		t, err := c.Table(ctx, args[0])
		if err != nil {
			return err
		}
		return f(ctx, c, t, name)
	})
}

const valueHelp = `Fields are FIELD=VALUE, or FIELD:TYPE=VALUE with a type of string, bytes, int64, float64, bool, timestamp, point,
box. Without a type, the table's location field is LAT,LON or LAT,LON,LAT,LON; numbers, true and false are what they
are; all else is text. --json takes the fields that -o json prints, each with the type that it had; --text and --file
store bytes as they are.`

func (f *valueFlags) register(c *cobra.Command, opaque bool) {
	c.Flags().StringVar(&f.json, "json", "", jsonFlagHelp)
	if opaque {
		c.Flags().StringVar(&f.text, "text", "", textFlagHelp)
		c.Flags().StringVar(&f.file, "file", "", fileFlagHelp)
	}
}

func (a *app) putCommand() *cobra.Command {
	var place placeFlags
	var when ifFlags
	var value valueFlags
	c := &cobra.Command{
		Use: "put TABLE NAME [FIELD=VALUE …]", Short: "Write a record whole",
		Long: "Write a record whole, in the region of --from unless --home names another; what was there is gone. With a\ncondition, it acts on the record wherever it is.\n\n" + valueHelp,
		Example: `  rhumb put flights SWR8 ident=SWR8 location=47.4,8.5 alt_ft=38000
  rhumb put flights SWR8 --json '{"ident":"SWR8","eta:timestamp":"2026-01-02T15:04:05Z"}'
  rhumb put notes hello --text 'plain text' --if-absent`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.write(cmd.Context(), args, rhumb.Put, place, when, value)
		},
	}
	place.register(c)
	when.register(c, false)
	value.register(c, true)
	return a.connected(c)
}

func (a *app) patchCommand() *cobra.Command {
	var place placeFlags
	var when ifFlags
	var value valueFlags
	c := &cobra.Command{
		Use: "patch TABLE NAME FIELD=VALUE …", Short: "Change fields of a record",
		Long: "Change the fields that are given and leave the others; FIELD:null= removes one. The record is found wherever it\nis; where there is none, it is created in the region nearest to its location, else in that of --from.\n\n" + valueHelp,
		Example: `  rhumb patch flights SWR8 alt_ft=36000
  rhumb patch flights SWR8 gate:null=
  rhumb patch flights SWR8 _c=1700000000 _s=4 gs=441 --if-newer _c,_s`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.write(cmd.Context(), args, rhumb.Patch, place, when, value)
		},
	}
	place.register(c)
	when.register(c, true)
	value.register(c, false)
	return a.connected(c)
}

func (a *app) deleteCommand() *cobra.Command {
	var place placeFlags
	var when ifFlags
	c := &cobra.Command{
		Use: "delete TABLE NAME", Short: "Remove a record",
		Long:    "Remove a record, wherever it is. Removing one that does not exist is no error: existed is then false.",
		Example: "  rhumb delete flights SWR8\n  rhumb delete flights SWR8 --if-version 115964116992000001@3",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.write(cmd.Context(), args, rhumb.Delete, place, when, valueFlags{})
		},
	}
	place.register(c)
	when.register(c, false)
	return a.connected(c)
}

// write carries out a put, patch or delete.
func (a *app) write(ctx context.Context, args []string, kind rhumb.MutationKind, place placeFlags, when ifFlags, value valueFlags) error {
	cond, err := when.condition()
	if err != nil {
		return err
	}
	return a.withTable(ctx, args, func(ctx context.Context, c *client.Client, t *client.Table, name []byte) error {
		m := rhumb.Mutation{Kind: kind, Table: t.Info().ID, Name: name, Cond: cond}
		if kind != rhumb.Delete {
			if m.Value, err = value.stored(a, args[2:], t.Info().LocationField); err != nil {
				return err
			}
		}
		out, err := c.Batch(ctx, []rhumb.Mutation{m}, client.BatchOptions{Home: place.home, Local: place.local})
		if err != nil {
			return err
		}
		r := client.Result{
			Key:     rhumb.Key{Table: m.Table, Home: out.Receipt.Range, Name: name},
			Applied: out.Applied, Version: out.Version, Existed: len(out.Existed) > 0 && out.Existed[0], Receipt: out.Receipt,
		}
		if err := a.printWrite(regionNames(c).write(t.Name(), r)); err != nil {
			return err
		}
		if kind == rhumb.Delete && r.Receipt.Node == rhumb.NoNode && a.output == outputTable { // no region has it
			a.notef("nothing was deleted: table %s has no record %s", t.Name(), rhumb.NameString(name))
		}
		return nil
	})
}

func (a *app) printWrite(doc writeDoc) error {
	return a.print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "HOME", "REGION", "APPLIED", "EXISTED", "VERSION", "BY"})
		t.AppendRow(table.Row{doc.Name, doc.Home, doc.Region, doc.Applied, doc.Existed, doc.Version, doc.Receipt.Node})
	})
}

func (a *app) insertCommand() *cobra.Command {
	var region string
	var value valueFlags
	c := &cobra.Command{
		Use: "insert TABLE [FIELD=VALUE …]", Short: "Write a record under a name that the server gives",
		Long: "Write a record under a name that the server gives, in the region nearest to its location, else in that of --from.\nThe name and home that are printed read it again: rhumb get TABLE NAME --home HOME.\n\n" + valueHelp,
		Example: `  rhumb insert positions location=47.4,8.5 alt_ft=38000
  rhumb insert notes --text 'plain text' --region frankfurt -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.insert(cmd.Context(), args, region, value)
		},
	}
	c.Flags().StringVar(&region, "region", "", "the home region (default: the nearest to the location, else that of --from)")
	value.register(c, true)
	return a.connected(c)
}

func (a *app) insert(ctx context.Context, args []string, region string, value valueFlags) error {
	return a.withTable(ctx, args[:1], func(ctx context.Context, c *client.Client, t *client.Table, _ []byte) error {
		stored, err := value.stored(a, args[1:], t.Info().LocationField)
		if err != nil {
			return err
		}
		o := client.InsertOptions{Region: region}
		var r client.Result
		if payload, opaque := rhumb.DecodeOpaque(stored); opaque {
			r, err = t.Insert(ctx, payload, o)
		} else {
			record, decodeErr := rhumb.DecodeRecord(stored)
			if decodeErr != nil {
				return decodeErr
			}
			r, err = t.InsertRecord(ctx, record, o)
		}
		if err != nil {
			return err
		}
		doc := regionNames(c).write(t.Name(), r)
		doc.Key = shardKey(r.Key)
		return a.printWrite(doc)
	})
}

func (a *app) scanCommand() *cobra.Command {
	var o client.ScanOptions
	var duplicates bool
	c := &cobra.Command{
		Use: "scan TABLE [PREFIX]", Short: "Print records in the order of their names",
		Long: `Print the records whose names begin with PREFIX, in the order of their names, from all regions. -o json prints one
record on each line. When --limit cuts the answer short, a note tells the --after that goes on behind it.`,
		Example: "  rhumb scan flights\n  rhumb scan positions SWR8/ --limit 0 -o json\n  rhumb scan flights --region frankfurt --limit 20\n  rhumb scan flights --duplicates --limit 0",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTable(cmd.Context(), args, func(ctx context.Context, c *client.Client, t *client.Table, prefix []byte) error {
				o.Prefix = prefix
				return a.scan(ctx, c, t, o, duplicates)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&o.Limit, "limit", 100, "records at most; 0 is no limit")
	f.StringVar(&o.After, "after", "", "go on behind the place that an earlier scan told")
	f.StringVar(&o.Region, "region", "", "only records whose home is this region")
	f.BoolVar(&o.Local, "local", false, "only records of the region of --from, without leaving it")
	f.BoolVar(&duplicates, "duplicates", false, "only names that exist in more than one region, because they were created while one was dead")
	return a.connected(c)
}

// scanRows is how many records a scan lays out as one table.
const scanRows = 500

func (a *app) scan(ctx context.Context, c *client.Client, t *client.Table, o client.ScanOptions, duplicates bool) error {
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
			a.notef("more records follow: go on with --after %s, or say --limit 0", after)
			break
		}
		doc, err := n.record(t.Name(), it)
		if err != nil {
			return err
		}
		count, after = count+1, client.ScanToken(it)
		if a.output == outputJSON {
			if err := a.printJSON(doc); err != nil {
				return err
			}
			continue
		}
		if docs = append(docs, doc); len(docs) == scanRows {
			if err := a.printRecords(docs); err != nil {
				return err
			}
			docs = docs[:0]
		}
	}
	if len(docs) > 0 {
		return a.printRecords(docs)
	}
	return nil
}

func (a *app) printRecords(docs []recordDoc) error {
	return a.print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "REGION", "VALUE"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Name, d.Region, shorten(d.line())})
		}
	})
}

// lineMax bounds what a table shows of one value, in characters.
const lineMax = 160

func shorten(s string) string {
	if runes := []rune(s); len(runes) > lineMax {
		return fmt.Sprintf("%s…", string(runes[:lineMax]))
	}
	return s
}
