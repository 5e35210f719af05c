package sim

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"
)

// bugPage has the table of planted bugs. TestPlantedBugs writes it with -sim.table, and TestBugTable checks it.
const (
	bugPage    = "../docs/testing.md"
	tableBegin = "<!-- planted bugs: go test ./sim -run TestPlantedBugs -sim.table -->\n"
	tableEnd   = "<!-- end of planted bugs -->"
)

// foundBug is where a planted bug was found, and when.
type foundBug struct {
	seed uint64
	date string
}

// bugDuties returns what each bug breaks: the first sentences of the comments in bug.go, in the order of the bugs.
func bugDuties(t *testing.T) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "bug.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST || len(g.Specs) < int(bugs) {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			text := strings.ReplaceAll(strings.TrimSpace(v.Doc.Text()), "\n", " ")
			_, text, _ = strings.Cut(text, " ")
			text, _, _ = strings.Cut(text, ". ")
			out = append(out, strings.TrimSuffix(text, "."))
		}
	}
	return out
}

// readTable returns the rows of the page, by the name of the bug.
func readTable(t *testing.T) (page string, rows map[string]foundBug) {
	t.Helper()
	b, err := os.ReadFile(bugPage)
	if err != nil {
		t.Fatal(err)
	}
	rows = map[string]foundBug{}
	_, rest, ok := strings.Cut(string(b), tableBegin)
	table, _, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		t.Fatalf("%s lacks the lines %q and %q", bugPage, tableBegin, tableEnd)
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if name := strings.Trim(cells[0], "|` "); strings.HasPrefix(line, "| `") && len(cells) == 4 {
			f := foundBug{date: strings.Trim(cells[3], "| ")}
			fmt.Sscanf(cells[2], "seed %d", &f.seed) //nolint:errcheck // rows of hidden bugs have no seed
			rows[name] = f
		}
	}
	return string(b), rows
}

// bugTable formats the table. A bug that was not searched now keeps its row.
func bugTable(t *testing.T, rows map[string]foundBug) string {
	t.Helper()
	duties := bugDuties(t)
	var b strings.Builder
	b.WriteString("| bug | breaks | found by `TestPlantedBugs` with | last |\n|---|---|---|---|\n")
	for bug := NoBug + 1; bug < bugs; bug++ {
		f := rows[bug.String()]
		by := fmt.Sprintf("seed %d", f.seed)
		if _, ok := hidden[bug]; ok {
			by = "another rule hides it (`hidden` in `sim`)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", bug, duties[bug], by, f.date)
	}
	return b.String()
}

// writeTable replaces the table of the page.
func writeTable(t *testing.T, found map[Bug]uint64) {
	t.Helper()
	page, rows := readTable(t)
	today := time.Now().UTC().Format(time.DateOnly)
	for bug, seed := range found {
		rows[bug.String()] = foundBug{seed, today}
	}
	for bug := range hidden {
		rows[bug.String()] = foundBug{date: today}
	}
	head, rest, _ := strings.Cut(page, tableBegin)
	_, tail, _ := strings.Cut(rest, tableEnd)
	if err := os.WriteFile(bugPage, []byte(head+tableBegin+bugTable(t, rows)+tableEnd+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestBugTable checks that the page lists exactly the planted bugs with what they break, each with a date on which it was found. That the bugs
// are still found is TestPlantedBugs.
func TestBugTable(t *testing.T) {
	page, rows := readTable(t)
	if !strings.Contains(page, tableBegin+bugTable(t, rows)+tableEnd) {
		t.Errorf("%s differs from the bugs in bug.go; rewrite it with go test ./sim -run TestPlantedBugs -sim.table", bugPage)
	}
	for bug := NoBug + 1; bug < bugs; bug++ {
		f := rows[bug.String()]
		if _, err := time.Parse(time.DateOnly, f.date); err != nil {
			t.Errorf("%s: %s has no date: %v", bugPage, bug, err)
		}
		if _, ok := hidden[bug]; !ok && f.seed == 0 {
			t.Errorf("%s: %s has no seed that found it", bugPage, bug)
		}
	}
}
