package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rhumbdb/rhumb"
)

// manSection is the section of commands of users.
const manSection = "1"

// manDoc is what `rhumb man` prints.
type manDoc struct {
	// Dir is the directory of the pages, and Pages their number.
	Dir   string `json:"dir"`
	Pages int    `json:"pages"`
}

// manCommand returns `rhumb man`. The pages are made from the help of the commands, so the two
// never differ.
func manCommand(s *session) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "man --dir DIR", Short: "Write the manual pages", Args: cobra.NoArgs,
		Long: `Write one manual page for each command, as rhumb-put.1, into a directory. Packages install the pages in
/usr/share/man/man1.`,
		Example: "  rhumb man --dir ./man && man -l ./man/rhumb-put.1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			pages, err := writeManual(cmd.Root(), dir)
			if err != nil {
				return err
			}
			return s.Print(manDoc{dir, pages}, func(t table.Writer) { t.AppendRow(table.Row{"pages", pages, dir}) })
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory for the pages; created if it does not exist")
	must(c.MarkFlagRequired("dir"))
	return c
}

// writeManual writes the pages of all commands that users see, and returns their number. Their date
// is that of the source, so that the same source makes the same pages.
func writeManual(root *cobra.Command, dir string) (int, error) {
	const op rhumb.Op = "rhumb.man"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, rhumb.Ef(op, rhumb.InvalidArgument, "--dir: %v", err)
	}
	version := describeVersion()
	date, err := time.Parse(time.RFC3339, version.Date)
	if err != nil {
		date = time.Unix(0, 0).UTC() // a build without version control
	}
	return writePages(root, dir, func(c *cobra.Command) (string, error) {
		var b strings.Builder
		// The tag would hold the date on which the pages were made.
		c.DisableAutoGenTag = true
		header := &doc.GenManHeader{Section: manSection, Source: "Rhumb " + version.Version, Manual: "Rhumb", Date: &date}
		if err := doc.GenMan(c, header, &b); err != nil {
			return "", err
		}
		return polishPage(b.String(), date), nil
	})
}

// writePages writes the page of a command and those of its subcommands.
func writePages(c *cobra.Command, dir string, page func(*cobra.Command) (string, error)) (pages int, err error) {
	const op rhumb.Op = "rhumb.man"
	text, err := page(c)
	if err != nil {
		return 0, rhumb.Wrap(op, err)
	}
	// man(1) itself joins the words of a command by hyphens: `man rhumb put` shows this page.
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "." + manSection
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		return 0, rhumb.Ef(op, rhumb.InvalidArgument, "--dir: %v", err)
	}
	pages = 1
	for _, sub := range c.Commands() {
		// Hidden commands and topics of the help have no page.
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		n, err := writePages(sub, dir, page)
		if err != nil {
			return pages, err
		}
		pages += n
	}
	return pages, nil
}

// The parts of cobra's pages that mandoc warns about.
var (
	manDate  = regexp.MustCompile(`(?m)^(\.TH "[^"]*" "[^"]*") "[^"]*"`)
	manFlag  = regexp.MustCompile(`(?m)(?:^\.PP\n)?^(\\fB-.*)\n\t`)
	manValue = regexp.MustCompile(`(?m)^(\\fB-.*\\fP)(?:=""|=\[\]|=0s|=0|\[=false\])$`)
	manBlank = regexp.MustCompile(`\n{2,}`)
)

// polishPage turns the options of a page into a list of tagged paragraphs, leaves out defaults that mean
// none, and writes the date in a form that all readers know.
func polishPage(page string, date time.Time) string {
	page = manDate.ReplaceAllString(page, `$1 "`+date.Format(time.DateOnly)+`"`)
	page = manFlag.ReplaceAllString(page, ".TP\n$1\n")
	page = manValue.ReplaceAllString(page, "$1")
	return manBlank.ReplaceAllString(page, "\n")
}
