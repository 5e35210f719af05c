package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb/cli/flags"
)

// eachCommand calls fn with every command that a user can see.
func eachCommand(c *cobra.Command, fn func(c *cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			eachCommand(sub, fn)
		}
	}
}

// TestExamples guards that the examples in the help are command lines that the program accepts: the
// command exists, its flags parse, and the number of arguments is right.
func TestExamples(t *testing.T) {
	tried := 0
	eachCommand(newApp(streams{}).rootCommand(), func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			line = cutDescription(strings.NewReplacer("<(", " ", ")", " ").Replace(line))
			for _, args := range rhumbCommands(line) {
				tried++
				if err := checkArgs(args); err != nil {
					t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
				}
			}
		}
	})
	if tried < 50 {
		t.Errorf("only %d examples were found", tried)
	}
}

// checkArgs returns an error if the program would not accept arguments.
func checkArgs(args []string) error {
	root := newApp(streams{}).rootCommand() // flags keep what an earlier example set
	cmd, rest, err := root.Find(flags.PlaceLast(root, args))
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err == nil {
		err = flags.CheckBounds(cmd.Flags())
	}
	return err
}

// TestDocumentedLines guards that the program accepts the command lines of the documents: lines of
// code that begin with rhumb.
func TestDocumentedLines(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	for _, more := range []string{"../../docs/operations/*.md", "../../docs/runbooks/*.md", "../../docs/decisions/*.md", "../../README.md", "../../jepsen/README.md"} {
		found, e := filepath.Glob(more)
		pages, err = append(pages, found...), errors.Join(err, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
			trimmed := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "bin/")
			// Code is indented by four, or begins a line of a block.
			if !strings.HasPrefix(trimmed, "rhumb ") || strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "    ") {
				continue
			}
			// What follows belongs to the shell, or stands for more.
			for _, end := range []string{" >", ` "$`, " …"} {
				trimmed, _, _ = strings.Cut(trimmed, end)
			}
			for _, args := range rhumbCommands(cutDescription(trimmed)) {
				tried++
				if err := checkArgs(args); err != nil {
					t.Errorf("%s: %q: %v", page, strings.TrimSpace(line), err)
				}
			}
		}
	}
	if tried < 50 {
		t.Errorf("only %d command lines were found", tried)
	}
}

// rhumbCommands returns the arguments of each rhumb in a line of shell.
func rhumbCommands(line string) (commands [][]string) {
	operators := []string{"|", ">", "&", "&&", ";"}
	words := splitWords(strings.ReplaceAll(line, ";", " ; "))
	for i, word := range words {
		if word != "rhumb" {
			continue
		}
		args := words[i+1:]
		if end := slices.IndexFunc(args, func(w string) bool { return slices.Contains(operators, w) }); end >= 0 {
			args = args[:end]
		}
		commands = append(commands, args)
	}
	return commands
}

// cutDescription removes the description of an example: a comment, or text after a wide gap.
func cutDescription(line string) string {
	line, _, _ = strings.Cut(line, " # ")
	line, _, _ = strings.Cut(strings.TrimSpace(line), "    ")
	return line
}

var quotedRE = regexp.MustCompile("`([^`]+)`")

// TestDocumentedCommands guards that the table in docs/cli.md names every command.
func TestDocumentedCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page, _, _ := strings.Cut(string(text), "\n## ")
	var rows [][]string // the words of each row's first column
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			var words []string
			for _, m := range quotedRE.FindAllStringSubmatch(cells[1], -1) {
				words = append(words, strings.Fields(m[1])...)
			}
			rows = append(rows, words)
		}
	}
	eachCommand(newApp(streams{}).rootCommand(), func(c *cobra.Command) {
		names := strings.Fields(c.CommandPath())[1:]
		if c.HasAvailableSubCommands() || len(names) == 0 {
			return
		}
		if !slices.ContainsFunc(rows, func(row []string) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(row, name) })
		}) {
			t.Errorf("docs/cli.md does not name %s", c.CommandPath())
		}
	})
}
