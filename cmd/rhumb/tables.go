package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/client"
)

// tableFlags are the flags of `rhumb table create`.
type tableFlags struct {
	// colocate is a text of at most one byte. The texts are parsed by createTable.
	colocate   string
	snapshot   string
	survive    string
	durability string
	// regions confines the table; nil means all regions.
	regions []string
	// o holds the options that flags fill without a conversion.
	o client.TableOptions
}

// tableCommands are `rhumb table`.
type tableCommands struct{ *session }

// tableCommand returns the group `rhumb table`.
func (tc *tableCommands) tableCommand() *cobra.Command {
	var f tableFlags
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a table",
		Long: `Create a table. Its settings cannot be changed later. Tables with equal settings share the placement of their ranges. If
they also have the same --colocate byte, one atomic batch can write records of several such tables whose names are equal up
to that byte.

With --survive region, the copies of a range are in several regions: one copy each in three regions, or 2 + 2 + 1 with
--replicas 5. The home region of a record has its primary, and the nearest regions by measured round trip the other copies. A
write is acknowledged once a second region has it, which costs a round trip, and the table goes on without any one region.

--regions confines the table: records have their home in one of these regions, and no copy, image or log of them leaves the
regions. Nodes elsewhere do not pass its requests on, so clients must reach the regions themselves.

A write is acknowledged when all in-sync copies have synced it, so no failure of fewer copies loses it. --durability deferred=50ms
acknowledges it when their operating systems have it; each copy syncs it within 50 ms. The end of processes still loses nothing.
If so many copies lose power at about the same time that none is left, the writes of the last 50 ms are lost, although they were
acknowledged, and the range goes on without them.

--snapshot publishes the table in shared memory on every node that holds ranges of it: spatial adds an index of the records'
locations (the default), ordered adds an index of their names for scans by prefix, and summed adds a checksum to every
record; plain has none of these. --snapshot=never refuses publication for good.`,
		Example: `  rhumb table create flights --colocate /
  rhumb table create notes --replicas 5 --min-in-sync 3
  rhumb table create tracks --history 24h
  rhumb table create accounts --survive region       # 3 copies in 3 regions
  rhumb table create patients --regions eu-west,eu-central
  rhumb table create telemetry --durability deferred=50ms
  rhumb table create cars --snapshot                  # also in shared memory, with a spatial index
  rhumb table create roads --snapshot=spatial,ordered # also with scans by prefix`,
		Args: func(cmd *cobra.Command, args []string) error {
			// The value of --snapshot is optional, so pflag takes a separate word for an argument.
			if len(args) == 2 && cmd.Flags().Changed("snapshot") {
				return fmt.Errorf("write --snapshot=%s, with an equals sign", args[1])
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return tc.createTable(cmd.Context(), args[0], f) },
	}
	fl := create.Flags()
	fl.StringVar(&f.colocate, "colocate", "", "hash names only up to this byte, so that names with the same beginning share a range")
	fl.StringVar(&f.o.LocationField, "location-field", "", "field that holds the location of a record")
	flags.Default(fl, "location-field", rhumb.LocationFieldDefault)
	fl.DurationVar(&f.o.History, "history", 0, "how long old versions of records are kept")
	fl.StringVar(&f.snapshot, "snapshot", "", "publish the table in shared memory: plain, or some of spatial,ordered,summed; or never")
	// This value is used for --snapshot without a value.
	fl.Lookup("snapshot").NoOptDefVal = (rhumb.SnapshotOn | rhumb.SnapshotSpatial).String()
	fl.IntVar(&f.o.Settings.Replicas, "replicas", 0, "copies of each range")
	flags.Default(fl, "replicas", strconv.Itoa(rhumb.ReplicasDefault))
	fl.IntVar(&f.o.Settings.MinInSync, "min-in-sync", 0, "copies that a write must reach before it is acknowledged")
	flags.Default(fl, "min-in-sync", fmt.Sprintf("%d, or 1 with one replica", rhumb.MinInSyncDefault))
	fl.StringVar(&f.survive, "survive", "", "failure that the table survives: zone or region")
	flags.Default(fl, "survive", rhumb.SurviveZone.String())
	fl.StringSliceVar(&f.regions, "regions", nil, "regions to which the table is confined; all regions if left out")
	fl.IntVar(&f.o.Settings.HashSlots, "hash-slots", 0, "ranges for named keys in each region")
	flags.Default(fl, "hash-slots", strconv.Itoa(rhumb.HashSlotsDefault))
	fl.Int64Var(&f.o.Settings.ShardSize, "shard-size", 0, "bytes at which a range of server-named keys counts as full")
	flags.Default(fl, "shard-size", fmt.Sprintf("%d MiB", rhumb.ShardSizeDefault>>20))
	fl.StringVar(&f.durability, "durability", "", "when a write is acknowledged: sync, when it is synced on all in-sync copies, or deferred=50ms, before that; a loss of power can then lose what was written within the time given")
	flags.Default(fl, "durability", rhumb.Synced.String())
	flags.Positive(fl, "replicas", "min-in-sync", "hash-slots", "shard-size")
	ls := &cobra.Command{
		Use: "ls", Short: "List the tables", Args: cobra.NoArgs, Example: "  rhumb table ls\n  rhumb table ls -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return tc.conn.With(cmd.Context(), func(_ context.Context, c *client.Client) error { return tc.listTables(c) })
		},
	}
	describe := &cobra.Command{
		Use: "describe NAME", Short: "Show a table and its settings", Args: cobra.ExactArgs(1),
		Example: "  rhumb table describe flights\n  rhumb table describe flights -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return tc.withTable(cmd.Context(), args, func(_ context.Context, c *client.Client, t *client.Table, _ []byte) error {
				// The name of the table is that of the catalog, which withTable has looked up.
				return tc.printTable(c, t.Name())
			})
		},
	}
	unpublish := &cobra.Command{
		Use: "unpublish NAME", Short: "Refuse to publish a table in shared memory, for good",
		Long: `Take a table out of the images in shared memory on all nodes. It cannot be published again: whoever may create tables and
whoever may read images need not be the same people. The records stay in the database. It takes the right admin of the table.`,
		Args: cobra.ExactArgs(1), Example: "  rhumb table unpublish patients",
		RunE: func(cmd *cobra.Command, args []string) error {
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.RefuseSnapshot(ctx, args[0]); err != nil {
					return err
				}
				if tc.ForPrograms() {
					return tc.PrintDocument(map[string]any{"table": args[0], "snapshot": rhumb.SnapshotNever.String()})
				}
				tc.Notef("table %s is not published any more", args[0])
				return nil
			})
		},
	}
	return commandGroup("table", "Create, list, describe and drop tables", tc.connected(create), tc.connected(ls), tc.connected(describe), tc.connected(unpublish), tc.connected(tc.dropCommand()))
}

// createTable checks the flags that are texts, creates the table and prints it with the settings that the cluster chose.
func (tc *tableCommands) createTable(ctx context.Context, name string, f tableFlags) error {
	if len(f.colocate) > 1 {
		// Names are bytes, so a character of several bytes cannot end the hashed part.
		return rhumb.Ef("rhumb.table", rhumb.InvalidArgument, "--colocate %q has %d bytes; want one", f.colocate, len(f.colocate))
	}
	if f.colocate != "" {
		f.o.Colocate = f.colocate[0]
	}
	var err error
	if f.o.Settings.Survival, err = rhumb.ParseSurvival(f.survive); err != nil {
		return err
	}
	if f.o.Settings.Regions, err = rhumb.ParseRegionSet(strings.Join(f.regions, ",")); err != nil {
		return err
	}
	if f.o.Settings.Durability, err = rhumb.ParseDurability(f.durability); err != nil {
		return err
	}
	if f.o.Snapshot, err = rhumb.ParseSnapshotFeatures(f.snapshot); err != nil {
		return err
	}
	// Settings that the flags left at 0 are filled in by the cluster.
	return tc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		if _, err := c.CreateTable(ctx, name, f.o); err != nil {
			return err
		}
		return tc.printTable(c, name)
	})
}

// listTables prints the tables of the client's catalog.
func (tc *tableCommands) listTables(c *client.Client) error {
	docs := []tableDoc{}
	for _, t := range c.Tables() {
		docs = append(docs, describeTable(t))
	}
	return tc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"TABLE", "ID", "CLASS", "COLOCATE", "LOCATION", "MODE", "REPLICAS", "MIN IN SYNC", "DURABILITY", "RANGES", "SNAPSHOT"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Name, d.ID, d.Class, d.Colocate, d.LocationField, d.Mode, d.Replicas, d.MinInSync, d.Durability, d.Ranges, cmp.Or(d.Snapshot, "no")})
		}
	})
}

// printTable prints one table with its settings, one in each row.
func (tc *tableCommands) printTable(c *client.Client, name string) error {
	tables := c.Tables()
	i := slices.IndexFunc(tables, func(t client.TableStatus) bool { return t.Name == name })
	// The table may have been dropped since it was looked up.
	if i < 0 {
		return rhumb.Ef("rhumb.table", rhumb.NotFound, "there is no table %s; `rhumb table ls` lists the tables", name)
	}
	doc := describeTable(tables[i])
	return tc.Print(doc, func(t table.Writer) {
		for _, row := range []table.Row{
			{"table", doc.Name},
			{"id", doc.ID},
			{"class", doc.Class},
			{"colocate", doc.Colocate},
			{"location field", doc.LocationField},
			{"history", tables[i].History},
			{"snapshot", cmp.Or(doc.Snapshot, "no")},
			{"mode", doc.Mode},
			{"replicas", doc.Replicas},
			{"min in sync", doc.MinInSync},
			{"durability", doc.Durability},
			{"survival", doc.Survival},
			{"regions", cmp.Or(strings.Join(doc.Regions, ", "), "all")},
			{"hash slots", doc.HashSlots},
			{"buckets", doc.Buckets},
			{"shard size", bytesText(uint64(doc.ShardSize))},
			{"ranges", doc.Ranges},
		} {
			t.AppendRow(row)
		}
	})
}
