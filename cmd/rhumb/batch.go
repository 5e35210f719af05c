package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// batchLine is one mutation of a batch file.
type batchLine struct {
	// Op is put, patch, delete or insert.
	Op string `json:"op"`
	// Table is the name of a table; the line does not know its ID.
	Table string `json:"table"`
	// Name is empty for an insert only, because the server chooses the name then.
	Name string `json:"name"`
	// Fields, Text and Bytes are three ways to write the value. A line has at most one of them.
	Fields json.RawMessage `json:"fields"`
	// Text is a pointer because the empty text is a value, too.
	Text *string `json:"text"`
	// Bytes has the form 0x and hexadecimal digits.
	Bytes string `json:"bytes"`
	// If names a condition. Version and By are its arguments.
	If      string   `json:"if"`
	Version string   `json:"version"`
	By      []string `json:"by"`
}

// batchDoc is the outcome of a batch.
type batchDoc struct {
	// Mutations is the number of writes in the batch.
	Mutations int `json:"mutations"`
	// Applied is false if a condition did not hold. None of the writes was applied then.
	Applied bool `json:"applied"`
	// Version is empty if the batch was not applied.
	Version string `json:"version,omitempty"`
	// Existed reports for each mutation whether its record was there before.
	Existed []bool `json:"existed"`
	// Names holds the names that the server chose for inserts.
	Names []string `json:"names,omitempty"`
	// Home is the range that holds all records of the batch, and Region the name of its region.
	Home    string     `json:"home"`
	Region  string     `json:"region"`
	Receipt receiptDoc `json:"receipt"`
}

// batchCommand returns `rhumb batch`.
func (wc *writeCommands) batchCommand() *cobra.Command {
	var place placeFlags
	c := &cobra.Command{
		Use: "batch FILE|-", Short: "Apply several writes to one range atomically",
		Long: `Apply the writes in a file or from standard input, one JSON object per line, either all or none. All keys must belong to
one range: their tables need the same settings and the same --colocate byte, and their names must be equal up to that
byte. The batch goes to the home of its first write.

  op      put, patch, delete or insert
  table   the table
  name    the name; not for insert
  fields  the fields, as -o json prints them; or use text, or bytes (0x and hexadecimal digits)
  if      absent, present, version (with "version") or newer (with "by": the fields to compare)`,
		Example: `  printf '%s\n' '{"op":"patch","table":"flights","name":"SWR8","fields":{"alt_ft":36000}}' \
      '{"op":"put","table":"positions","name":"SWR8/1700000000","fields":{"location":{"lat":47.4,"lon":8.5}}}' | rhumb batch -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return wc.runBatch(cmd.Context(), args[0], place) },
	}
	place.register(c, searchAll)
	return wc.connected(c)
}

// opBatch is the operation of errors about the lines of a batch file.
const opBatch rhumb.Op = "rhumb.batch"

// runBatch reads the batch from a file, or from standard input for "-", and applies it in one request. Lines are parsed
// before a connection is opened; tables can be looked up only with one.
func (wc *writeCommands) runBatch(ctx context.Context, file string, place placeFlags) error {
	text, err := wc.readFile(file, 2*rhumb.BatchSizeMax) // JSON takes more bytes than the encoded batch
	if err != nil {
		return err
	}
	lines, err := parseBatch(text)
	if err != nil {
		return err
	}
	return wc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		mutations, err := batchMutations(ctx, c, lines)
		if err != nil {
			return err
		}
		out, err := c.Batch(ctx, mutations, client.BatchOptions{Home: place.home, Local: place.local})
		if err != nil {
			return err
		}
		return wc.printBatch(regionNames(c), len(mutations), out)
	})
}

// printBatch prints the outcome of a batch of a number of mutations. A batch whose condition does not hold is an outcome and
// not an error.
func (wc *writeCommands) printBatch(n names, mutations int, out client.BatchResult) error {
	doc := batchDoc{
		Mutations: mutations, Applied: out.Applied, Existed: out.Existed, Home: out.Receipt.Range.String(),
		Region: n.nameOf(out.Receipt.Range.Region), Receipt: n.describeReceipt(out.Receipt),
	}
	// A batch that was not applied has no version.
	if !out.Version.IsZero() {
		doc.Version = out.Version.String()
	}
	for _, name := range out.Names {
		doc.Names = append(doc.Names, rhumb.NameString(name))
	}
	return wc.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"MUTATIONS", "HOME", "REGION", "APPLIED", "VERSION", "BY", "NAMES"})
		t.AppendRow(table.Row{doc.Mutations, doc.Home, doc.Region, doc.Applied, doc.Version, doc.Receipt.Node, strings.Join(doc.Names, " ")})
	})
}

// parseBatch parses the lines of a batch file and skips empty ones.
func parseBatch(text []byte) (lines []batchLine, err error) {
	for i, line := range bytes.Split(text, []byte{'\n'}) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		// Empty lines count, so that the number in an error is the one that an editor shows.
		var l batchLine
		if err := decodeStrict(line, &l); err != nil {
			return nil, rhumb.Ef(opBatch, rhumb.InvalidArgument, "line %d: %s", i+1, rhumb.Message(err))
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, rhumb.E(opBatch, rhumb.InvalidArgument, "the batch is empty; write one JSON object per line")
	}
	return lines, nil
}

// batchMutations turns lines into mutations. Errors name the line, which is all that the user knows
// of a mutation.
func batchMutations(ctx context.Context, c *client.Client, lines []batchLine) (mutations []rhumb.Mutation, err error) {
	tables := map[string]rhumb.TableID{} // each table is looked up once
	for i, l := range lines {
		if _, ok := tables[l.Table]; !ok {
			t, err := c.Table(ctx, l.Table)
			if err != nil {
				return nil, rhumb.Ef(opBatch, rhumb.KindOf(err), "line %d: %s", i+1, exit.Describe(err).Message)
			}
			tables[l.Table] = t.Info().ID
		}
		m, err := l.mutation(tables[l.Table])
		if err != nil {
			return nil, rhumb.Ef(opBatch, rhumb.KindOf(err), "line %d: %s", i+1, exit.Describe(err).Message)
		}
		mutations = append(mutations, m)
	}
	return mutations, nil
}

// mutation returns the mutation of a line. It validates it here because the cluster would reject
// the batch without naming a line.
func (l batchLine) mutation(table rhumb.TableID) (m rhumb.Mutation, err error) {
	m.Table = table
	kinds := map[string]rhumb.MutationKind{"put": rhumb.Put, "patch": rhumb.Patch, "delete": rhumb.Delete, "insert": rhumb.Insert}
	if m.Kind = kinds[l.Op]; m.Kind == 0 {
		return m, rhumb.Ef(opBatch, rhumb.InvalidArgument, `"op" is %q; want put, patch, delete or insert`, l.Op)
	}
	if l.Name != "" {
		// Names that are not printable are written as 0x and hexadecimal digits, like those that commands print.
		if m.Name, err = rhumb.ParseName(l.Name); err != nil {
			return m, err
		}
	}
	if m.Cond, err = l.condition(); err != nil {
		return m, err
	}
	if m.Value, err = l.value(); err != nil {
		return m, err
	}
	// Validate rejects combinations, such as an insert with a name or a delete with a value.
	return m, m.Validate()
}

// value returns the encoded value, or nil if the line has none.
func (l batchLine) value() ([]byte, error) {
	switch {
	case l.Fields != nil && l.Text == nil && l.Bytes == "":
		// An empty object is a record without fields, which differs from no value.
		record, err := parseFieldsJSON(l.Fields)
		if err != nil {
			return nil, err
		}
		return rhumb.EncodeRecord(nil, record), nil
	case l.Fields == nil && l.Text != nil && l.Bytes == "":
		return rhumb.EncodeOpaque(nil, []byte(*l.Text)), nil
	case l.Fields == nil && l.Text == nil && l.Bytes != "":
		// The parser of fields knows the form 0x, so bytes here are written like fields of this type.
		v, err := rhumb.ParseField(rhumb.FieldBytes, l.Bytes)
		if err != nil {
			return nil, err
		}
		return rhumb.EncodeOpaque(nil, []byte(v.Text())), nil
	case l.Fields != nil || l.Text != nil || l.Bytes != "":
		return nil, rhumb.E(opBatch, rhumb.InvalidArgument, `the line has more than one of "fields", "text" and "bytes"`)
	}
	// A delete needs no value; for other writes, Validate reports that it is missing.
	return nil, nil
}

// condition returns the condition of a line. Members that belong to another condition are ignored,
// but members without "if" are an error: the write would apply unconditionally.
func (l batchLine) condition() (rhumb.Condition, error) {
	// The same rules as for the flags of single writes, so that they are written down once.
	f := conditionFlags{version: l.Version, newer: l.By}
	switch l.If {
	case "":
		if l.Version != "" || l.By != nil {
			return rhumb.Condition{}, rhumb.E(opBatch, rhumb.InvalidArgument, `"version" and "by" need "if"`)
		}
	case "absent":
		f = conditionFlags{absent: true}
	case "present":
		f = conditionFlags{present: true}
	case "version":
		f.newer = nil
	case "newer":
		f.version = ""
	default:
		return rhumb.Condition{}, rhumb.Ef(opBatch, rhumb.InvalidArgument, `"if" is %q; want absent, present, version or newer`, l.If)
	}
	cond, err := f.condition()
	// A condition whose argument is empty would be Always, and would overwrite the record that it should protect.
	if err == nil && l.If != "" && cond.Kind == rhumb.Always {
		err = rhumb.Ef(opBatch, rhumb.InvalidArgument, `"if": %q needs "version", or "by" with the fields to compare`, l.If)
	}
	return cond, err
}
