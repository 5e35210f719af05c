package sidebyside

import (
	_ "embed"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb/bench/rounds"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": formatNumber, "micros": formatMicros, "share": formatShare,
}).Parse(pageText))

// WriteHTML writes the report as one page with charts, which needs nothing from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	return page.Execute(w, struct {
		*Report
		Limits   []rounds.Row
		Sections []section
	}{r, r.limits(), r.sections()})
}

// limits returns the rows of the machine.
func (r *Report) limits() (out []rounds.Row) {
	for _, row := range r.Rows {
		if row.Target == machine {
			out = append(out, row)
		}
	}
	return out
}

// The page is one file without scripts, fonts or images from elsewhere: it can be attached, archived, and
// opened without a network. Charts are drawn as SVG by the template; this file computes their measures.

// section is one case with its chart.
type section struct {
	Case rounds.Case
	Bars []bar
	// Height of the chart, in units of the drawing.
	Height int
}

// bar is one target in a chart. Lengths and positions are in units of the drawing.
type bar struct {
	rounds.Row
	Ratio *rounds.Ratio
	Kind  string // the class of its colour
	// Label is the text at the end of the bar.
	Label                     string
	Y, Middle, LabelX         int
	Length, Least, Most       float64
	WhiskerTop, WhiskerBottom int
}

// Measures of a chart.
const (
	barsAt    = 130 // where bars begin
	barsWidth = 470 // the length of the longest bar
	barHeight = 16
	barPitch  = 24
)

// sections returns the cases of databases in their order, with their targets in that of the rows.
func (r *Report) sections() (out []section) {
	for _, row := range r.Rows {
		if row.Target == machine {
			continue
		}
		if len(out) == 0 || out[len(out)-1].Case != row.Case {
			out = append(out, section{Case: row.Case})
		}
		s := &out[len(out)-1]
		s.Bars = append(s.Bars, bar{Row: row, Ratio: r.RatioTo(row)})
	}
	for i := range out {
		out[i].draw()
	}
	return out
}

// draw computes the chart of a section.
func (s *section) draw() {
	// The longest line, not the longest bar: spreads must fit too.
	longest := 0.0
	for _, b := range s.Bars {
		longest = max(longest, b.OpsSpread.Max)
	}
	// A case in which everything failed has bars without length.
	scale := barsWidth / max(longest, 1)
	for i := range s.Bars {
		b := &s.Bars[i]
		b.Y = i*barPitch + 4
		b.Middle, b.WhiskerTop, b.WhiskerBottom = b.Y+barHeight/2, b.Y+4, b.Y+barHeight-4
		b.Length, b.Least, b.Most = b.Ops*scale, barsAt+b.OpsSpread.Min*scale, barsAt+b.OpsSpread.Max*scale
		b.LabelX = int(b.Most) + 8
		b.Label = formatNumber(b.Ops)
		b.Kind = "peer"
		if strings.HasPrefix(b.Target, "rhumb") {
			b.Kind = "rhumb"
		}
	}
	s.Height = len(s.Bars)*barPitch + 8
}

// RatioTo returns the ratio of Rhumb to a peer in this case, or nil if it did not run it.
func (s section) RatioTo(peer string) *rounds.Ratio {
	for _, b := range s.Bars {
		if b.Target == peer {
			return b.Ratio
		}
	}
	return nil
}

// BarsAt returns where bars begin.
func (bar) BarsAt() int { return barsAt }

// BarHeight returns the height of a bar.
func (bar) BarHeight() int { return barHeight }

// NameX returns where the name of a target ends.
func (bar) NameX() int { return barsAt - 8 }

// formatNumber returns a number with three significant digits, and with separators of thousands.
func formatNumber(f float64) string {
	if f < 100 {
		return strconv.FormatFloat(f, 'g', 3, 64)
	}
	// Digits after the third are noise.
	unit := math.Pow(10, math.Floor(math.Log10(f))-2)
	text := strconv.FormatFloat(math.Round(f/unit)*unit, 'f', 0, 64)
	// From the end, so that positions before stay valid.
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// formatMicros returns microseconds in a unit that keeps the number short.
func formatMicros(us float64) string {
	switch {
	case us >= 1e6:
		return strconv.FormatFloat(us/1e6, 'f', 2, 64) + " s"
	case us >= 1e3:
		return strconv.FormatFloat(us/1e3, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(us, 'f', 0, 64) + " µs"
}

// formatShare returns a small number with two decimals.
func formatShare(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
