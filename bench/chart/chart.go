// Package chart draws charts over the time of a run, with the faults of the run
// as bands.
package chart

import (
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Sizes of a picture. Each chart has the width of the whole, so that a moment
// is at the same place in all of them.
const (
	width  = 34 * vg.Centimeter
	height = 20 * vg.Centimeter
	// margin is free at the right, for the last number of the axis of time.
	margin = 10 * vg.Millimeter
)

// Colours of lines. Slow is for a latency that few calls reach, Failed for
// errors.
var (
	Fast   = color.NRGBA{31, 119, 180, 255}
	Slow   = color.NRGBA{148, 103, 189, 255}
	Failed = color.NRGBA{214, 39, 40, 255}
)

// The two colours of a band separate the time of the fault from the time until
// the cluster was whole again.
var (
	colorFault = color.NRGBA{214, 39, 40, 60}
	colorHeal  = color.NRGBA{255, 187, 120, 70}
)

// Band is a fault: from its start to its end, and until the cluster was whole
// again. Times count from the start of the run.
type Band struct {
	Name            string
	From, To, Whole time.Duration
}

// Line is a line of a chart.
type Line struct {
	Name  string
	XYs   plotter.XYs
	Color color.Color
}

// AddLines adds lines to a chart, with their names in the legend. A line
// without points is left out.
func AddLines(p *plot.Plot, lines ...Line) error {
	p.Legend.Top = true
	for _, l := range lines {
		if len(l.XYs) == 0 {
			continue
		}
		line, err := plotter.NewLine(l.XYs)
		if err != nil {
			return err
		}
		line.Color = l.Color
		p.Add(line)
		p.Legend.Add(l.Name, line)
	}
	return nil
}

// AddBands draws each fault as a band over the height of the chart, with its
// name if named is set. Bands are added after the lines, whose range of values
// they take; they are transparent.
func AddBands(p *plot.Plot, bands []Band, named bool) error {
	var names plotter.XYLabels
	for _, b := range bands {
		for _, part := range []struct {
			from, to time.Duration
			color    color.Color
		}{{b.From, b.To, colorFault}, {b.To, b.Whole, colorHeal}} {
			if part.to <= part.from {
				// A fault that was over at once, or a cluster that was never
				// hurt.
				continue
			}
			from, to := part.from.Seconds(), part.to.Seconds()
			polygon, err := plotter.NewPolygon(plotter.XYs{{X: from, Y: p.Y.Min}, {X: from, Y: p.Y.Max}, {X: to, Y: p.Y.Max}, {X: to, Y: p.Y.Min}})
			if err != nil {
				return err
			}
			polygon.Color, polygon.LineStyle.Width = part.color, 0
			p.Add(polygon)
		}
		names.XYs = append(names.XYs, plotter.XY{X: b.From.Seconds(), Y: p.Y.Max})
		names.Labels = append(names.Labels, b.Name)
	}
	if !named || len(names.Labels) == 0 {
		return nil
	}
	labels, err := plotter.NewLabels(names)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		// Upwards, because faults follow each other faster than their names are
		// long.
		labels.TextStyle[i].Rotation, labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = 1.5708, text.XRight, text.YTop
	}
	p.Add(labels)
	return nil
}

// liftLegend puts the legend of a chart above its lines, at the height of the title. Among the lines it covers names of bands.
func liftLegend(p *plot.Plot, area draw.Canvas) {
	room := p.Legend.Rectangle(area).Size().Y + vg.Points(4)
	if p.Title.Text == "" {
		// The library keeps room above a chart only if the chart has a title.
		p.Title.Text = " "
	}
	p.Title.Padding, p.Legend.YOffs = room, room
}

// Save draws charts below each other into one file. The end of its name, such
// as .png or .svg, decides the format.
func Save(path string, charts ...*plot.Plot) (err error) {
	// The library knows the formats by these names: "png", "svg", "pdf" and
	// others. It returns an error for a name that it does not know.
	canvas, err := draw.NewFormattedCanvas(width, height, strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return err
	}
	// One column: charts below each other share the axis of time.
	tiles := draw.Tiles{Rows: len(charts), Cols: 1, PadY: vg.Points(6)}
	column := make([][]*plot.Plot, len(charts))
	area := draw.Crop(draw.New(canvas), 0, -margin, 0, 0)
	for i, p := range charts {
		liftLegend(p, area)
		column[i] = []*plot.Plot{p}
	}
	// Align makes the charts equally wide without their axes.
	for i, row := range plot.Align(column, tiles, area) {
		charts[i].Draw(row[0])
	}
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	_, err = canvas.WriteTo(f)
	return err
}
