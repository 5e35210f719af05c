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

// ingestFlags are the flags of `ingest`.
type ingestFlags struct {
	table, format, mapping, region, reject, printMapping string
	strict, createTables                                 bool
	workers, merge, replicas                             int
	retryFor                                             time.Duration
}

// ingestion is `rhumb ingest`.
type ingestion struct{ *session }

func ingestCommand(s *session) *cobra.Command {
	ic := &ingestion{s}
	var f ingestFlags
	c := &cobra.Command{
		Use:   "ingest --table NAME [--format FORMAT] FILE|-",
		Short: "Read a feed or a file into tables",
		Long: `Read a feed or a file into tables, plain or gzip, from FILE or from standard input (-).

Each line becomes one atomic batch: a row in each table that the mapping names. A record is created in the region
nearest to its first location, or in --region. An event that is not newer than its record changes nothing, so an
ingest that was broken off is started again with the same input and goes on where it stopped. A malformed line is
reported, counted, appended to --reject and does not stop the rest. A gzip file is checked first: no line is taken of
a member whose checksum does not hold. docs/ingest.md describes formats and mappings.`,
		Example: `  rhumb ingest --table flights --format controlstream flights.controlstream.gz
  some-feed | rhumb ingest --table flights --format controlstream --reject bad.lines -
  rhumb ingest --table roads roads-monaco.tsv.gz
  rhumb ingest --print-mapping flights > my.yaml; rhumb ingest --mapping my.yaml FILE`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.printMapping != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.printMapping != "" {
				return ic.printMapping(f.printMapping)
			}
			return ic.ingest(cmd.Context(), f, args[0])
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.table, "table", "", "table of the mapping's first row; without --mapping, also the name of the built-in mapping")
	fl.StringVar(&f.format, "format", "", fmt.Sprintf("one of %v", ingest.Formats()))
	flags.Default(fl, "format", "the mapping's, else by the file's name")
	fl.StringVar(&f.mapping, "mapping", "", fmt.Sprintf("mapping file, or a built-in mapping: one of %s", strings.Join(ingest.BuiltinMappings(), ", ")))
	fl.StringVar(&f.region, "region", "", "create records in this region, in place of the one nearest to their location")
	fl.StringVar(&f.reject, "reject", "", "append malformed lines to this file, and their reasons to FILE.reasons")
	fl.BoolVar(&f.strict, "strict", false, "stop at the first malformed line")
	fl.BoolVar(&f.createTables, "create-tables", false, "create tables that are missing")
	fl.IntVar(&f.replicas, "replicas", 0, "copies of each range of tables that --create-tables makes")
	flags.Default(fl, "replicas", strconv.Itoa(rhumb.ReplicasDefault))
	fl.IntVar(&f.workers, "workers", 0, "batches in flight at most")
	flags.Default(fl, "workers", "1024")
	fl.IntVar(&f.merge, "merge", 0, "waiting events of one record that share a batch at most; 1 writes each by itself")
	flags.Default(fl, "merge", "64")
	fl.DurationVar(&f.retryFor, "retry-for", 0, "how long to try again while the cluster cannot take an event")
	flags.Default(fl, "retry-for", "2m")
	flags.Positive(fl, "replicas", "workers", "merge", "retry-for")
	fl.StringVar(&f.printMapping, "print-mapping", "", "print a built-in mapping and end")
	must(c.RegisterFlagCompletionFunc("mapping", cobra.FixedCompletions(ingest.BuiltinMappings(), cobra.ShellCompDirectiveDefault)))
	return ic.connected(c)
}

const opIngest rhumb.Op = "rhumb.ingest"

func (ic *ingestion) printMapping(name string) error {
	text, ok := ingest.BuiltinMapping(name)
	if !ok {
		return rhumb.Ef(opIngest, rhumb.NotFound, "there is no built-in mapping %q; there are %s", name, strings.Join(ingest.BuiltinMappings(), ", "))
	}
	_, err := ic.Out.Write(text)
	return rhumb.Wrap(opIngest, err)
}

// readMapping finds the mapping that the flags ask for, and the format.
func (ic *ingestion) readMapping(f ingestFlags, file string) (*ingest.Mapping, ingest.Format, error) {
	name := cmp.Or(f.mapping, f.table)
	if name == "" {
		return nil, "", rhumb.E(opIngest, rhumb.InvalidArgument, "say --table NAME or --mapping FILE")
	}
	text, ok := ingest.BuiltinMapping(name)
	if !ok && f.mapping == "" {
		return nil, "", rhumb.Ef(opIngest, rhumb.InvalidArgument, "no built-in mapping is named %q (there are %s): say what a line means with --mapping FILE",
			name, strings.Join(ingest.BuiltinMappings(), ", "))
	}
	if !ok {
		var err error
		if text, err = ic.readFile(name, 1<<20); err != nil {
			return nil, "", err
		}
	}
	m, err := ingest.ParseMapping(text)
	if err != nil {
		return nil, "", rhumb.Ef(opIngest, rhumb.KindOf(err), "mapping %s: %s", name, exit.Describe(err).Message)
	}
	if f.table != "" {
		m.Rows[0].Table = f.table
	}
	format, err := formatOf(f, m, file)
	return m, format, err
}

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
	return "", rhumb.Ef(opIngest, rhumb.InvalidArgument, "neither the mapping nor the name %s tells the format: say --format, one of %v", file, ingest.Formats())
}

func (ic *ingestion) ingest(ctx context.Context, f ingestFlags, file string) error {
	mapping, format, err := ic.readMapping(f, file)
	if err != nil {
		return err
	}
	src, size, err := ic.openSized(file)
	if err != nil {
		return err
	}
	defer src.Close()
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
		rejects, err := openRejects(ic.Printer, f.reject)
		if err != nil {
			return err
		}
		counted := &countingReader{src: src}
		r, err := ingest.New(ingest.Config{
			Input: counted, Format: format, Mapping: mapping, Tables: tables, Writer: writer, Rejected: rejects.take,
			Strict: f.strict, Workers: f.workers, MergeEvents: f.merge, RetryFor: f.retryFor,
		})
		if err != nil {
			return err
		}
		start := time.Now()
		stop := ic.showProgress(r, counted, size)
		counts, err := r.Run(ctx)
		stop()
		if closeErr := rejects.close(); err == nil {
			err = closeErr
		}
		if printErr := ic.printIngest(counts, counted.read.Load(), time.Since(start)); err == nil {
			err = printErr
		}
		return err
	})
}

// ingestTables gives the tables of a mapping's rows, and makes those that are missing when it is asked to.
func ingestTables(ctx context.Context, c *client.Client, m *ingest.Mapping, f *ingestFlags) (tables []rhumb.Table, err error) {
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

func missingTable(ctx context.Context, c *client.Client, m *ingest.Mapping, name string, f *ingestFlags) (*client.Table, error) {
	o := client.TableOptions{Settings: rhumb.ClassSettings{Replicas: f.replicas}}
	hint := "rhumb table create " + name
	if m.Location != nil && m.Location.Field != rhumb.LocationFieldDefault {
		o.LocationField = m.Location.Field
		hint += " --location-field " + m.Location.Field
	}
	if len(m.Rows) > 1 {
		o.Colocate = '/'
		hint += " --colocate /"
	}
	if !f.createTables {
		return nil, rhumb.Ef(opIngest, rhumb.NotFound, "there is no table %s: make it with `%s`, or say --create-tables", name, hint)
	}
	t, err := c.CreateTable(ctx, name, o)
	if rhumb.KindOf(err) == rhumb.AlreadyExists {
		return c.Table(ctx, name)
	}
	return t, err
}

// ingestWriter writes the batches of a run with a client.
type ingestWriter struct {
	c       *client.Client
	options client.BatchOptions
}

// newIngestWriter lets records be created in a region, or where their location says. A patch finds its record wherever
// it is, so the region is only the place of birth; a put does not look.
func newIngestWriter(c *client.Client, region string, m *ingest.Mapping) (*ingestWriter, error) {
	w := &ingestWriter{c: c}
	if region == "" {
		return w, nil
	}
	r, err := regionNamed(c, region)
	if err != nil {
		return nil, err
	}
	if m.Rows[0].Write == "put" {
		w.options.Home = region
	} else {
		w.options.Location = &r.Location
	}
	return w, nil
}

func (w *ingestWriter) Write(ctx context.Context, mutations []rhumb.Mutation) (applied bool, err error) {
	out, err := w.c.Batch(ctx, mutations, w.options)
	return out.Applied, err
}

func (w *ingestWriter) Read(ctx context.Context, id rhumb.TableID, name []byte) ([]byte, error) {
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
	return nil, rhumb.Ef(opIngest, rhumb.NotFound, "table %s does not exist any more", id)
}

// ingestDoc is what an ingest prints at its end.
type ingestDoc struct {
	ingest.Counts
	Bytes          int64   `json:"bytes"`
	Seconds        float64 `json:"seconds"`
	LinesPerSecond float64 `json:"lines_per_second"`
}

func (ic *ingestion) printIngest(c ingest.Counts, bytes int64, took time.Duration) error {
	doc := ingestDoc{Counts: c, Bytes: bytes, Seconds: took.Seconds(), LinesPerSecond: float64(c.Lines) / max(took.Seconds(), 1e-9)}
	return ic.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"LINES", "APPLIED", "ALREADY THERE", "REJECTED", "FAILED", "SECONDS", "LINES/S"})
		t.AppendRow(table.Row{c.Lines, c.Applied, c.AlreadyThere, c.Rejected, c.Failed, fmt.Sprintf("%.1f", doc.Seconds), fmt.Sprintf("%.0f", doc.LinesPerSecond)})
	})
}

// filesRead lists the files that an ingest reads: its input, where that is one, and its mapping.
func filesRead(src io.Reader, mapping string) (files []fs.FileInfo) {
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
