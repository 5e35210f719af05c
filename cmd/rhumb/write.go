package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/client"
)

// writeCommands are `rhumb put`, `patch`, `delete`, `insert` and `batch`.
type writeCommands struct{ *session }

// searchAll describes the place of a record without --home.
const searchAll = "search all regions"

// placeFlags select where a record is searched or written.
type placeFlags struct {
	home  string
	local bool
}

// register adds the flags to a command. fallback describes where the command goes without --home.
func (p *placeFlags) register(c *cobra.Command, fallback string) {
	c.Flags().StringVar(&p.home, "home", "", "home of the record: a region, or REGION/SLOT as commands print it")
	flags.Default(c.Flags(), "home", fallback)
	c.Flags().BoolVar(&p.local, "local", false, "stay in the region of --from, and fail if that is not possible")
}

// conditionFlags select when a write applies.
type conditionFlags struct {
	absent, present bool
	version         string
	newer           []string
}

// register adds the flags. Only a patch has --if-newer, which compares fields.
func (f *conditionFlags) register(c *cobra.Command, patch bool) {
	c.Flags().BoolVar(&f.absent, "if-absent", false, "only if the record does not exist")
	c.Flags().BoolVar(&f.present, "if-present", false, "only if the record exists")
	c.Flags().StringVar(&f.version, "if-version", "", "only if the record has this version, as get prints it")
	exclusive := []string{"if-absent", "if-present", "if-version"}
	if patch {
		c.Flags().StringSliceVar(&f.newer, "if-newer", nil, "only if these fields, compared in this order, are greater than those of the record; otherwise change nothing")
		exclusive = append(exclusive, "if-newer")
	}
	c.MarkFlagsMutuallyExclusive(exclusive...)
}

// condition returns the condition that the flags describe, or the zero value without a flag.
func (f *conditionFlags) condition() (rhumb.Condition, error) {
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

const valueHelp = `Fields are FIELD=VALUE, or FIELD:TYPE=VALUE with one of the types string, bytes, int64, float64, bool, timestamp, point
and box. Without a type, the location field of the table is LAT,LON or LAT,LON,LAT,LON; numbers, true and false are numbers
and bools; everything else is text. A whole number of more than 64 bits and a number beyond float64 need a type. --json
takes the fields that -o json prints, with their types; --text and --file store bytes without fields.`

// putCommand is `rhumb put`.
func (wc *writeCommands) putCommand() *cobra.Command {
	var place placeFlags
	var when conditionFlags
	var value valueFlags
	c := &cobra.Command{
		Use: "put TABLE NAME [FIELD=VALUE …]", Short: "Write a whole record",
		Long: `Write a whole record, in the region of --from unless --home names another one. A record that was there is replaced. With a
condition, the command acts on the record in whichever region it is.

` + valueHelp,
		Example: `  rhumb put flights SWR8 ident=SWR8 location=47.4,8.5 alt_ft=38000
  rhumb put flights SWR8 --json '{"ident":"SWR8","eta:timestamp":"2026-01-02T15:04:05Z"}'
  rhumb put notes hello --text 'plain text' --if-absent`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return wc.runWrite(cmd.Context(), args, rhumb.Put, place, when, value)
		},
	}
	place.register(c, "the region of --from; with a condition, search all regions")
	when.register(c, false)
	value.register(c, true)
	return wc.connected(c)
}

// patchCommand is `rhumb patch`, which changes fields of a record in one step at its primary.
func (wc *writeCommands) patchCommand() *cobra.Command {
	var place placeFlags
	var when conditionFlags
	var value valueFlags
	c := &cobra.Command{
		Use: "patch TABLE NAME FIELD=VALUE …", Short: "Change fields of a record",
		Long: `Change the named fields and keep the others; FIELD:null= removes a field. The record is found in whichever region it is. If it
does not exist, it is created in the region nearest to its location, or in that of --from if it has no location.

` + valueHelp,
		Example: `  rhumb patch flights SWR8 alt_ft=36000
  rhumb patch flights SWR8 gate:null=
  rhumb patch flights SWR8 _c=1700000000 _s=4 gs=441 --if-newer _c,_s`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return wc.runWrite(cmd.Context(), args, rhumb.Patch, place, when, value)
		},
	}
	place.register(c, searchAll)
	when.register(c, true)
	value.register(c, false)
	return wc.connected(c)
}

// deleteCommand is `rhumb delete`.
func (wc *writeCommands) deleteCommand() *cobra.Command {
	var place placeFlags
	var when conditionFlags
	c := &cobra.Command{
		Use: "delete TABLE NAME", Short: "Remove a record",
		Long:    "Remove a record, in whichever region it is. Removing a record that does not exist is not an error: EXISTED is false then.",
		Example: "  rhumb delete flights SWR8\n  rhumb delete flights SWR8 --if-version 115964116992000001@3",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return wc.runWrite(cmd.Context(), args, rhumb.Delete, place, when, valueFlags{})
		},
	}
	place.register(c, searchAll)
	when.register(c, false)
	return wc.connected(c)
}

// runWrite executes a put, patch or delete.
func (wc *writeCommands) runWrite(ctx context.Context, args []string, kind rhumb.MutationKind, place placeFlags, when conditionFlags, value valueFlags) error {
	cond, err := when.condition()
	if err != nil {
		return err
	}
	return wc.withTable(ctx, args, func(ctx context.Context, c *client.Client, t *client.Table, name []byte) error {
		m := rhumb.Mutation{Kind: kind, Table: t.Info().ID, Name: name, Cond: cond}
		if kind != rhumb.Delete {
			// What FIELD=VALUE means depends on the table: its location field is a point.
			if m.Value, err = value.encode(wc.inputs, args[2:], t.Info().LocationField); err != nil {
				return err
			}
		}
		out, err := c.Batch(ctx, []rhumb.Mutation{m}, client.BatchOptions{Home: place.home, Local: place.local})
		if err != nil {
			return err
		}
		// Put, patch and delete differ only in their mutation, so all three go as a batch of one.
		// Its receipt has the range that the search found. The home is the slot in it, as get prints it.
		r := client.Result{
			Key:     rhumb.Key{Table: m.Table, Home: t.HomeIn(out.Receipt.Range, name), Name: name},
			Applied: out.Applied, Version: out.Version, Existed: len(out.Existed) > 0 && out.Existed[0], Receipt: out.Receipt,
		}
		if err := wc.printWrite(regionNames(c).describeWrite(t.Name(), r)); err != nil {
			return err
		}
		// No node served the delete because no region has the record.
		if kind == rhumb.Delete && r.Receipt.Node == rhumb.NoNode && !wc.ForPrograms() {
			wc.Notef("nothing was deleted: table %s has no record %s", t.Name(), rhumb.NameString(name))
		}
		return nil
	})
}

// printWrite prints the change of a write, and its place.
func (wc *writeCommands) printWrite(doc writeDoc) error {
	return wc.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "HOME", "REGION", "APPLIED", "EXISTED", "VERSION", "BY"})
		t.AppendRow(table.Row{doc.Name, doc.Home, doc.Region, doc.Applied, doc.Existed, doc.Version, doc.Receipt.Node})
	})
}

// insertCommand is `rhumb insert`, whose name the server chooses.
func (wc *writeCommands) insertCommand() *cobra.Command {
	var region string
	var value valueFlags
	c := &cobra.Command{
		Use: "insert TABLE [FIELD=VALUE …]", Short: "Write a record under a name that the server chooses",
		Long: `Write a record under a name that the server chooses, in the region nearest to its location, or in that of --from if it has no
location. The printed name and home read the record again: rhumb get TABLE NAME --home HOME.

` + valueHelp,
		Example: `  rhumb insert positions location=47.4,8.5 alt_ft=38000
  rhumb insert notes --text 'plain text' --region frankfurt -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return wc.insertRecord(cmd.Context(), args, region, value)
		},
	}
	c.Flags().StringVar(&region, "region", "", "home region")
	flags.Default(c.Flags(), "region", "the nearest to the location, else that of --from")
	value.register(c, true)
	return wc.connected(c)
}

// insertRecord inserts a record into the region of its location, or the one that was named, and prints its name.
func (wc *writeCommands) insertRecord(ctx context.Context, args []string, region string, value valueFlags) error {
	return wc.withTable(ctx, args[:1], func(ctx context.Context, c *client.Client, t *client.Table, _ []byte) error {
		stored, err := value.encode(wc.inputs, args[1:], t.Info().LocationField)
		if err != nil {
			return err
		}
		o := client.InsertOptions{Region: region}
		var r client.Result
		// InsertRecord takes the region from the location field, which only records have.
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
		doc := regionNames(c).describeWrite(t.Name(), r)
		doc.Key = shardKey(r.Key)
		return wc.printWrite(doc)
	})
}
