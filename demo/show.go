package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// screen prints tables: redrawn in place on a terminal, one after the other elsewhere.
type screen struct {
	out io.Writer
	// redraw is set on a terminal; lastRows counts the lines of the last drawing.
	redraw   bool
	lastRows int
}

// draw prints the figures of one second.
func (s *screen) draw(sec *Second) {
	drawing := figuresTable(sec) + "\n" + nodesLine(sec) + "\n"
	if s.redraw && s.lastRows > 0 {
		// Move up over the last drawing and clear from there to the end of the screen.
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.lastRows)
	}
	s.lastRows = strings.Count(drawing, "\n")
	fmt.Fprint(s.out, drawing)
}

// forget makes the next drawing start below other output.
func (s *screen) forget() { s.lastRows = 0 }

// figuresTable returns the table of regions.
func figuresTable(sec *Second) string {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row{"region", "flights", "writes/s", "p50 ms", "p99 ms", "reads/s", "p50 ms", "p99 ms", "local", "primaries", "errors"})
	for _, r := range sec.Regions {
		t.AppendRow(table.Row{
			r.Region, r.Flights,
			fmt.Sprintf("%.0f", r.WritesPerSecond), fmt.Sprintf("%.1f", r.WriteP50), fmt.Sprintf("%.1f", r.WriteP99),
			fmt.Sprintf("%.0f", r.ReadsPerSecond), fmt.Sprintf("%.1f", r.ReadP50), fmt.Sprintf("%.1f", r.ReadP99),
			fmt.Sprintf("%.0f %%", 100*r.Locality), r.Primaries, r.Errors,
		})
	}
	// All columns but the first hold numbers.
	var columns []table.ColumnConfig
	for i := 2; i <= 11; i++ {
		columns = append(columns, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t.Render()
}

// nodesLine returns the line with the primaries of each node, or DOWN.
func nodesLine(sec *Second) string {
	var parts []string
	for _, n := range sec.Nodes {
		if n.Up {
			parts = append(parts, fmt.Sprintf("%s %d", n.ID, n.Primaries))
		} else {
			parts = append(parts, fmt.Sprintf("%s DOWN", n.ID))
		}
	}
	line := "primaries by node: " + strings.Join(parts, ", ")
	// Errors may span lines, but draw counts the lines that it must clear.
	if sec.LastError != "" {
		line += fmt.Sprintf("\nlast error: %.200s", strings.ReplaceAll(sec.LastError, "\n", " "))
	}
	return line
}
