// Package output prints the results of the commands of rhumb: data as tables,
// JSON or YAML, notes, progress and errors. Data goes to standard output and
// everything else to standard error, so that a pipe contains only data.
// Nothing that is stored in the database reaches a terminal unescaped.
package output

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
)

// Printer writes the results of one run of the program.
type Printer struct {
	Out, Err io.Writer
	Format   string // one of Formats
	NoColor  bool

	documents int // printed as YAML so far
}

// Print writes data: doc as a document, or the table that asTable fills.
func (p *Printer) Print(doc any, asTable func(t table.Writer)) error {
	if p.ForPrograms() {
		return p.PrintDocument(doc)
	}
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	style.Options = table.Options{SeparateColumns: false, SeparateHeader: false, DrawBorder: false}
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	if p.allowsColor(p.Out) {
		style.Color.Header = text.Colors{text.Bold}
	}
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	asTable(escapedTable{t})
	_, err := fmt.Fprintln(p.Out, t.Render())
	return rhumb.Wrap(opPrint, err)
}

// PrintTitled is like Print with lines above the table. They are not rows of the table because the width of the columns must
// not break them. The title may have line breaks; text of the database that becomes part of it must not.
func (p *Printer) PrintTitled(doc any, title string, asTable func(t table.Writer)) error {
	if !p.ForPrograms() {
		fmt.Fprintln(p.Out, EscapeLines(title))
	}
	return p.Print(doc, asTable)
}

// PrintSections prints several tables, separated by empty lines. It is for people only.
func (p *Printer) PrintSections(sections ...func(t table.Writer)) error {
	for i, section := range sections {
		if i > 0 {
			fmt.Fprintln(p.Out)
		}
		if err := p.Print(nil, section); err != nil {
			return err
		}
	}
	return nil
}

// Notef writes a message to standard error: something a person should know that is not data.
func (p *Printer) Notef(format string, args ...any) {
	fmt.Fprintln(p.Err, EscapeLines(fmt.Sprintf(format, args...)))
}

// PrintError writes an error to standard error: as a document if --output or
// asked, the form that the command line asks for, is one for programs.
// --output was never parsed if the command line is wrong.
func (p *Printer) PrintError(err error, asked string) {
	doc := exit.Describe(err)
	if !IsDocument(asked) {
		asked = p.Format
	}
	if IsDocument(asked) {
		errs := &Printer{Out: p.Err, Format: asked}
		// Nothing is left to report a failure to.
		_ = errs.PrintDocument(map[string]exit.Doc{"error": doc})
		return
	}
	fmt.Fprintf(p.Err, "rhumb: %s: %s\n", strings.ReplaceAll(doc.Kind, "_", " "), EscapeLines(doc.Message))
	if doc.NextStep != "" {
		fmt.Fprintf(p.Err, "  next: %s\n", doc.NextStep)
	}
}

// allowsColor reports whether a stream may be colored: only a terminal, and only if neither
// --no-color nor NO_COLOR is set.
func (p *Printer) allowsColor(stream io.Writer) bool {
	return !p.NoColor && os.Getenv("NO_COLOR") == "" && IsTerminal(stream)
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Counted returns a number together with the noun that it counts.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// TableRows is how many records a scan lays out as one table. The columns of a table are as wide as
// its widest cell, so a table can be printed only when its last row is known; a scan without end
// must not wait for that.
const TableRows = 500

// lineMax bounds the text of one value in a table, in characters.
const lineMax = 160

// Shorten cuts a value that is too long for a row of a table.
func Shorten(s string) string {
	if runes := []rune(s); len(runes) > lineMax {
		return string(runes[:lineMax]) + "…"
	}
	return s
}
