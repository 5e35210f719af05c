package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/ingest"
)

// ingestFlags are the flags of `rhumb ingest`.
type ingestFlags struct {
	// table, format, mapping, region, reject and printMapping are the texts of the flags of the same names.
	table, format, mapping, region, reject, printMapping string
	// strict stops at the first malformed line, and createTables creates missing tables.
	strict, createTables bool
	// workers and merge are 0 for the defaults of package ingest. replicas is for tables that are created.
	workers, merge, replicas int
	// retryFor bounds the attempts to write one event.
	retryFor time.Duration
}

// ingestion is `rhumb ingest`.
type ingestion struct{ *session }

// ingestCommand returns `rhumb ingest`.
func ingestCommand(s *session) *cobra.Command {
	ic := &ingestion{s}
	var f ingestFlags
	c := &cobra.Command{
		Use:   "ingest --table NAME [--format FORMAT] FILE|-",
		Short: "Read a feed or a file into tables",
		Long: `Read a feed or a file into tables, plain or gzip, from FILE or from standard input (-).

Each line becomes one atomic batch: a row in each table that the mapping names. A record is created in the region nearest to
its first location, or in --region. An event that is not newer than its record changes nothing, so an interrupted ingest can
be run again with the same input and continues where it stopped. A malformed line is reported, counted and appended to
--reject, and does not stop the ingest. A gzip file is checked first: if the checksum of a member is wrong, none of its lines
is used. docs/ingest.md describes formats and mappings.`,
		Example: `  rhumb ingest --table flights --format controlstream flights.controlstream.gz
  some-feed | rhumb ingest --table flights --format controlstream --reject bad.lines -
  rhumb ingest --table roads roads-monaco.tsv.gz
  rhumb ingest --print-mapping flights > my.yaml; rhumb ingest --mapping my.yaml FILE`,
		Args: func(cmd *cobra.Command, args []string) error {
			// Without an input, there is nothing to read but a mapping of this program.
			if f.printMapping != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.printMapping != "" {
				return ic.printMapping(f.printMapping)
			}
			return ic.runIngest(cmd.Context(), f, args[0])
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.table, "table", "", "table of the first row of the mapping; without --mapping, also the name of the built-in mapping")
	fl.StringVar(&f.format, "format", "", "one of "+ingest.FormatList())
	flags.Default(fl, "format", "that of the mapping, else by the name of the file")
	fl.StringVar(&f.mapping, "mapping", "", fmt.Sprintf("mapping file, or a built-in mapping: one of %s", strings.Join(ingest.BuiltinMappings(), ", ")))
	fl.StringVar(&f.region, "region", "", "create records in this region instead of the one nearest to their location")
	fl.StringVar(&f.reject, "reject", "", "append malformed lines to this file, and their reasons to FILE.reasons")
	fl.BoolVar(&f.strict, "strict", false, "stop at the first malformed line")
	fl.BoolVar(&f.createTables, "create-tables", false, "create missing tables")
	fl.IntVar(&f.replicas, "replicas", 0, "copies of each range of tables that --create-tables creates")
	flags.Default(fl, "replicas", strconv.Itoa(rhumb.ReplicasDefault))
	fl.IntVar(&f.workers, "workers", 0, "maximum number of batches in flight")
	flags.Default(fl, "workers", "1024")
	fl.IntVar(&f.merge, "merge", 0, "maximum number of waiting events of one record that share a batch; 1 writes each separately")
	flags.Default(fl, "merge", "64")
	fl.DurationVar(&f.retryFor, "retry-for", 0, "how long to retry an event that the cluster cannot accept")
	flags.Default(fl, "retry-for", "2m")
	flags.Positive(fl, "replicas", "workers", "merge", "retry-for")
	fl.StringVar(&f.printMapping, "print-mapping", "", "print a built-in mapping and exit")
	must(c.RegisterFlagCompletionFunc("mapping", cobra.FixedCompletions(ingest.BuiltinMappings(), cobra.ShellCompDirectiveDefault)))
	return ic.connected(c)
}

// opIngest is the operation of errors that the command finds before the run begins.
const opIngest rhumb.Op = "rhumb.ingest"

// mappingSizeMax bounds a mapping file, in bytes.
const mappingSizeMax = 1 << 20

// printMapping writes a built-in mapping to the output unchanged, with its comments, so that it can be edited.
func (ic *ingestion) printMapping(name string) error {
	text, ok := ingest.BuiltinMapping(name)
	if !ok {
		return rhumb.Ef(opIngest, rhumb.NotFound, "there is no built-in mapping %q, only %s", name, strings.Join(ingest.BuiltinMappings(), ", "))
	}
	_, err := ic.Out.Write(text)
	return rhumb.Wrap(opIngest, err)
}

// readMapping returns the mapping that the flags select, and the format of the input.
func (ic *ingestion) readMapping(f ingestFlags, file string) (*ingest.Mapping, ingest.Format, error) {
	name := cmp.Or(f.mapping, f.table)
	if name == "" {
		return nil, "", rhumb.E(opIngest, rhumb.InvalidArgument, "nothing says what a line means: add --table NAME or --mapping FILE")
	}
	// A built-in mapping wins over a file of its name. The name of a table is never taken for a file.
	text, ok := ingest.BuiltinMapping(name)
	if !ok && f.mapping == "" {
		return nil, "", rhumb.Ef(opIngest, rhumb.InvalidArgument, "there is no built-in mapping %q, only %s; describe the lines with --mapping FILE",
			name, strings.Join(ingest.BuiltinMappings(), ", "))
	}
	if !ok {
		var err error
		if text, err = ic.readFile(name, mappingSizeMax); err != nil {
			return nil, "", err
		}
	}
	// Errors of the mapping name it, because a built-in one and a file look the same on the command line.
	m, err := ingest.ParseMapping(text)
	if err != nil {
		return nil, "", rhumb.Ef(opIngest, rhumb.KindOf(err), "mapping %s: %s", name, exit.Describe(err).Message)
	}
	// --table replaces the name of the first row only. The other rows keep the tables that the mapping names.
	if f.table != "" {
		m.Rows[0].Table = f.table
	}
	format, err := formatOf(f, m, file)
	return m, format, err
}

// formatOf returns the format: --format wins over the mapping, which wins over the name of the
// file.
func formatOf(f ingestFlags, m *ingest.Mapping, file string) (ingest.Format, error) {
	if f.format != "" {
		return ingest.ParseFormat(f.format)
	}
	if m.Format != "" {
		return m.Format, nil
	}
	if byName, ok := ingest.FormatOfFile(file); ok {
		return byName, nil
	}
	return "", rhumb.Ef(opIngest, rhumb.InvalidArgument, "neither the mapping nor the name %s determines the format; add --format, one of %s", file, ingest.FormatList())
}

// runIngest reads the input, which is a file or "-", and writes its lines until the end of the input or of ctx. It prints
// the counts.
func (ic *ingestion) runIngest(ctx context.Context, f ingestFlags, file string) error {
	mapping, format, err := ic.readMapping(f, file)
	if err != nil {
		return err
	}
	src, size, err := ic.openSized(file)
	if err != nil {
		return err
	}
	defer src.Close()
	// Before anything is written, and before the command waits for a cluster.
	if err := checkRejects(f.reject, filesRead(src, f.mapping)); err != nil {
		return err
	}
	return ic.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		tables, err := ingestTables(ctx, c, mapping, &f)
		if err != nil {
			return err
		}
		writer, err := newIngestWriter(c, f.region, mapping)
		if err != nil {
			return err
		}
		// Opened only now, so that an ingest which cannot start leaves no empty files.
		rejects, err := openRejects(ic.Printer, f.reject)
		if err != nil {
			return err
		}
		// Progress counts compressed bytes, as the size of the file does.
		counted := &countingReader{src: src}
		r, err := ingest.New(ingest.Config{
			Input: counted, Format: format, Mapping: mapping, Tables: tables, Writer: writer, Rejected: rejects.addRejection,
			Strict: f.strict, Workers: f.workers, MergeEvents: f.merge, RetryFor: f.retryFor,
		})
		if err != nil {
			return err
		}
		start := time.Now()
		stop := ic.showProgress(r, counted, size)
		counts, err := r.Run(ctx)
		stop()
		// The counts are printed even if the run failed: a rerun continues from there.
		if closeErr := rejects.close(); err == nil {
			err = closeErr
		}
		if printErr := ic.printIngest(counts, counted.read.Load(), time.Since(start)); err == nil {
			err = printErr
		}
		return err
	})
}

// ingestTables returns the tables of the rows of a mapping, and creates missing ones if the flags
// say so.
func ingestTables(ctx context.Context, c *client.Client, m *ingest.Mapping, f *ingestFlags) (tables []rhumb.Table, err error) {
	// The order of the tables is that of the rows of the mapping.
	for _, name := range m.Tables() {
		t, err := c.Table(ctx, name)
		if rhumb.KindOf(err) == rhumb.NotFound {
			if t, err = missingTable(ctx, c, m, name, f); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, err
		}
		tables = append(tables, t.Info())
	}
	return tables, nil
}

// missingTable creates a table with the options that the mapping needs, or explains how to create
// it.
func missingTable(ctx context.Context, c *client.Client, m *ingest.Mapping, name string, f *ingestFlags) (*client.Table, error) {
	// Settings that stay 0 are filled in by the cluster.
	o := client.TableOptions{Settings: rhumb.ClassSettings{Replicas: f.replicas}}
	hint := "rhumb table create " + name
	if m.Location != nil && m.Location.Field != rhumb.LocationFieldDefault {
		o.LocationField = m.Location.Field
		hint += " --location-field " + m.Location.Field
	}
	if len(m.Rows) > 1 {
		// The rows of a line are one atomic batch, so their tables have to share ranges.
		o.Colocate = '/'
		hint += " --colocate /"
	}
	if !f.createTables {
		return nil, rhumb.Ef(opIngest, rhumb.NotFound, "there is no table %s; create it with `%s`, or add --create-tables", name, hint)
	}
	t, err := c.CreateTable(ctx, name, o)
	if rhumb.KindOf(err) == rhumb.AlreadyExists { // another ingest was faster
		return c.Table(ctx, name)
	}
	return t, err
}

// ingestWriter writes the batches of a run with a client.
type ingestWriter struct {
	// c writes the batches, and options select the home of new records.
	c       *client.Client
	options client.BatchOptions
}

// newIngestWriter returns a writer that creates records in a region, or where their location is if
// region is empty. A patch finds its record in whichever region it is, so the region matters only
// for new records; a put does not search, so it needs a home.
func newIngestWriter(c *client.Client, region string, m *ingest.Mapping) (*ingestWriter, error) {
	w := &ingestWriter{c: c}
	if region == "" {
		return w, nil
	}
	r, err := regionNamed(c, region)
	if err != nil {
		return nil, err
	}
	if m.Rows[0].Write == "put" { // all rows of a line go to the home of the first
		w.options.Home = region
	} else {
		w.options.Location = &r.Location
	}
	return w, nil
}

// Write writes one batch.
func (w *ingestWriter) Write(ctx context.Context, mutations []rhumb.Mutation) (applied bool, err error) {
	// Whether a batch was applied depends on its conditions: an old event is not applied, and that is not an error.
	out, err := w.c.Batch(ctx, mutations, w.options)
	return out.Applied, err
}

// Read returns the stored value of a record.
func (w *ingestWriter) Read(ctx context.Context, id rhumb.TableID, name []byte) ([]byte, error) {
	// Mutations name a table by its ID, and the client opens it by its name.
	for _, known := range w.c.Tables() {
		if known.ID != id {
			continue
		}
		t, err := w.c.Table(ctx, known.Name)
		if err != nil {
			return nil, err
		}
		got, err := t.Get(ctx, name, client.GetOptions{})
		return got.Value, err
	}
	return nil, rhumb.Ef(opIngest, rhumb.NotFound, "table %s no longer exists", id)
}

// ingestDoc is the document that an ingest prints when it ends.
type ingestDoc struct {
	ingest.Counts
	// Bytes counts the bytes that were read, before decompression.
	Bytes int64 `json:"bytes"`
	// Seconds is how long the run took, and LinesPerSecond the mean over this time.
	Seconds        float64 `json:"seconds"`
	LinesPerSecond float64 `json:"lines_per_second"`
}

// printIngest prints the counts of a run that has ended, with or without an error.
func (ic *ingestion) printIngest(c ingest.Counts, bytes int64, took time.Duration) error {
	doc := ingestDoc{Counts: c, Bytes: bytes, Seconds: took.Seconds(), LinesPerSecond: float64(c.Lines) / max(took.Seconds(), 1e-9)}
	return ic.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"LINES", "APPLIED", "ALREADY THERE", "REJECTED", "FAILED", "SECONDS", "LINES/S"})
		t.AppendRow(table.Row{c.Lines, c.Applied, c.AlreadyThere, c.Rejected, c.Failed, fmt.Sprintf("%.1f", doc.Seconds), fmt.Sprintf("%.0f", doc.LinesPerSecond)})
	})
}

// filesRead returns the files that an ingest reads: its input, unless that is a pipe, and its
// mapping.
func filesRead(src io.Reader, mapping string) (files []fs.FileInfo) {
	// Standard input may be a redirected file, too.
	if f, ok := src.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil {
			files = append(files, info)
		}
	}
	if _, builtin := ingest.BuiltinMapping(mapping); builtin {
		return files
	}
	if info, err := os.Stat(mapping); err == nil {
		files = append(files, info)
	}
	return files
}
