package output

import (
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/table"
)

// TestTitles guards that the lines above a table are printed as they are, whatever the width of the table.
func TestTitles(t *testing.T) {
	var out strings.Builder
	p := Printer{Out: &out}
	title := strings.Repeat("a long title ", 10) + "1/3\nand a second line"
	if err := p.PrintTitled(nil, title, func(t table.Writer) { t.AppendRow(table.Row{"x"}) }); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), title+"\n") {
		t.Errorf("it prints %q", out.String())
	}
}

// TestEscape guards that text which controls a terminal is escaped, and that other text is not changed.
func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"Zürich 日本 👨‍👩‍👧 \\n": "Zürich 日本 👨‍👩‍👧 \\n",
		"a\x1b[31mred":        `a\x1b[31mred`,
		"two\nlines":          `two\nlines`,
		"C1 \u009b2J":         `C1 \u009b2J`,
		"right\u202eto left":  `right\u202eto left`,
		"not UTF-8 \xff":      `not UTF-8 \xff`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q becomes %s, want %s", in, got, want)
		}
	}
	if got := EscapeLines("a\x07\nb"); got != "a\\a\nb" {
		t.Errorf("lines become %q", got)
	}
}

// TestShorten guards that cells are cut between characters, not between bytes.
func TestShorten(t *testing.T) {
	long := strings.Repeat("ä", lineMax+1)
	if got := Shorten(long); got != strings.Repeat("ä", lineMax)+"…" || Shorten("short") != "short" {
		t.Errorf("%q", got)
	}
}
