package rhumb_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"unicode"
)

var styleTable = flag.Bool("style.table", false, "print the figures of TestStyle for each package")

// The limits of TestStyle, over all packages. Single packages may miss them: a table of flags needs
// few comments.
const (
	commentsLeast  = 20.0 // comment lines, percent of comment and code lines
	inBodiesLeast  = 5.0  // comment lines in function bodies, per 100 code lines
	translatedMost = 1.0  // comment lines with a turn of phrase below, percent
	oneWordMost    = 25.0 // unexported functions whose name is one word, percent
)

// translated matches turns of phrase that hide who does what: verbs that Go's own documentation does
// not use for what a function does, clauses that begin with "what" in place of a noun, and adverbs of
// place for relations that have a name. Some matches are good English; so few may stay.
var translated = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`gives?`, `gave`, `tells?`, `told`, `said`, `shall`, `of which`, `of whom`, `anew`, `by itself`, `by themselves`,
	`of late`, `for ever`, `go(es)? on`, `went on`, `beside`, `behind`, `thereby`, `therewith`,
	`stands? (in|there|for|at|on)`, `stood`, `lies? (in|there|where|at|on)`, `rests?`, `rides?`,
	`what (a|an|the|it|they|is|was|has|had|this|that|one|else)`, `that which`, `those which`, `such (a|an) one`,
	`without a word`, `is no [a-z]+`, `so long as`, `as it is`, `comes? (to|from|of|with)`, `makes? (a|an|the) [a-z]+ of`,
}, "|") + `)\b`)

// styleFigures holds the counts of TestStyle for a package, without tests and generated code.
type styleFigures struct {
	code, comments, inBodies, translated int
	functions, oneWord                   int // unexported functions and methods
}

func (s *styleFigures) add(o styleFigures) {
	s.code += o.code
	s.comments += o.comments
	s.inBodies += o.inBodies
	s.translated += o.translated
	s.functions += o.functions
	s.oneWord += o.oneWord
}

func share(part, whole int) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

// TestStyle guards the rules of CONTRIBUTING.md that can be counted.
// `go test . -run TestStyle -v -style.table` prints the figures of each package.
func TestStyle(t *testing.T) {
	packages := map[string]*styleFigures{}
	var all styleFigures
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(path, ".pb.go") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		figures, err := countStyle(path, src)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if packages[dir] == nil {
			packages[dir] = &styleFigures{}
		}
		packages[dir].add(figures)
		all.add(figures)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if *styleTable {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		row := func(name string, f *styleFigures) {
			fmt.Fprintf(w, "%d\t%.1f\t%.1f\t%.1f\t%.0f\t%s\n", f.code, share(f.comments, f.comments+f.code), share(f.inBodies, f.code),
				share(f.translated, f.comments), share(f.oneWord, f.functions), name)
		}
		fmt.Fprintln(w, "code\tcomments %\tin bodies\ttranslated %\tone word %\t")
		names := []string{}
		for name := range packages {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			row(name, packages[name])
		}
		row("all", &all)
		_ = w.Flush()
	}
	least := func(what string, got, want float64) {
		if got < want {
			t.Errorf("%s: %.1f, want at least %.0f; run with -v -style.table to see where", what, got, want)
		}
	}
	most := func(what string, got, want float64) {
		if got > want {
			t.Errorf("%s: %.1f, want at most %.0f; run with -v -style.table to see where", what, got, want)
		}
	}
	least("percentage of comment lines", share(all.comments, all.comments+all.code), commentsLeast)
	least("comment lines in bodies per 100 lines of code", share(all.inBodies, all.code), inBodiesLeast)
	most("percentage of comment lines with a translated turn of phrase", share(all.translated, all.comments), translatedMost)
	most("percentage of functions with a name of one word", share(all.oneWord, all.functions), oneWordMost)
}

// countStyle returns the figures of one file.
func countStyle(path string, src []byte) (f styleFigures, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, src, parser.ParseComments)
	if err != nil {
		return f, err
	}
	type span struct{ from, to token.Pos }
	var bodies []span
	ast.Inspect(file, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok {
			if fn.Body != nil {
				bodies = append(bodies, span{fn.Body.Pos(), fn.Body.End()})
			}
			if !fn.Name.IsExported() && fn.Name.Name != "main" && fn.Name.Name != "init" {
				f.functions++
				if !strings.ContainsFunc(fn.Name.Name[1:], unicode.IsUpper) {
					f.oneWord++
				}
			}
		}
		return true
	})
	commented := map[int]bool{} // lines that hold only a comment
	lines := strings.Split(string(src), "\n")
	for _, group := range file.Comments {
		for _, c := range group.List {
			in := slices.ContainsFunc(bodies, func(b span) bool { return b.from <= c.Pos() && c.End() <= b.to })
			first := set.Position(c.Pos()).Line
			for i, text := range strings.Split(c.Text, "\n") {
				if translated.MatchString(text) {
					f.translated++
				}
				if i == 0 && !strings.HasPrefix(strings.TrimSpace(lines[first-1]), "/") {
					if in {
						f.inBodies++
					}
					continue // a comment after code on its line
				}
				commented[first+i] = true
				if in {
					f.inBodies++
				}
			}
		}
	}
	for i, line := range lines {
		switch {
		case commented[i+1]:
			f.comments++
		case strings.TrimSpace(line) != "":
			f.code++
		}
	}
	return f, nil
}

// conflictRE matches the lines with which Git marks a conflict that nobody resolved. A line of equal signs alone may underline a heading.
var conflictRE = regexp.MustCompile(`(?m)^(<{7}|>{7}|\|{7})( .*)?$`)

// TestNoConflictMarkers guards every text file of the repository against a merge that was committed half resolved. Files that
// no compiler reads, such as pages and scripts, would keep the marks unnoticed.
func TestNoConflictMarkers(t *testing.T) {
	if !conflictRE.MatchString("a\n"+strings.Repeat("<", 7)+" HEAD\nb\n") || conflictRE.MatchString("Title\n=======\n <<<<<<< x\n") {
		t.Fatal("the expression does not match what it should")
	}
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		// What is built or fetched is not tracked.
		if err == nil && d.IsDir() && (path == ".git" || path == "bin" || d.Name() == ".terraform") {
			return filepath.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		// A zero byte near the beginning is how Git itself tells binary files.
		if err != nil || slices.Contains(text[:min(len(text), 8_000)], 0) {
			return err
		}
		files++
		if at := conflictRE.FindIndex(text); at != nil {
			t.Errorf("%s:%d: a conflict that nobody resolved", path, strings.Count(string(text[:at[0]]), "\n")+1)
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Errorf("%d text files, %v", files, err)
	}
}
