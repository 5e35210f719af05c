package image

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Draw draws the results in the form of figures 10 to 14 and table 1 of the TrafficDB paper, as PNG
// files in a directory. It leaves out figures whose cases were not run.
func (r *Report) Draw(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	queries := []string{"get", "multiget ×32", "tiles of 2 km", "tiles of 5 km", "tiles of 10 km", "tiles of 20 km", "tiles of 50 km"}
	for _, f := range []figure{
		{
			file: "figure10-throughput.png", title: "Throughput of reads and of queries by tiles", y: "operations per second (log)", log: true,
			cases: queries, value: func(s Scale) float64 { return s.Ops },
		},
		{
			file: "figure11-latency.png", title: "Latency of reads and of queries by tiles", y: "elapsed time of one operation in µs (log)", log: true,
			cases: queries, value: func(s Scale) float64 { return s.Latency },
		},
		{
			file: "figure12-redis.png", title: "Reads from shared memory and from one Redis server", y: "reads per second (log)", log: true,
			cases: []string{"multiget ×32", "get", redisPipelined, redisSingle}, value: func(s Scale) float64 { return s.Ops },
		},
		{
			file: "figure13-attach-throughput.png", title: "Attaching to the image, and locking a view", y: "operations per second (log)", log: true,
			cases: []string{"attach", "lock"}, value: func(s Scale) float64 { return s.Ops },
		},
		{
			file: "figure13-attach-latency.png", title: "Attaching to the image, and locking a view", y: "elapsed time of one operation in µs (log)", log: true,
			cases: []string{"attach", "lock"}, value: func(s Scale) float64 { return s.Latency },
		},
		{
			file: "figure14-scaleup.png", title: "Scale-up: P·N(1)·T(1) / (N(P)·T(P))", y: "scale-up (1 is linear)",
			cases: append(queries, "lock"), value: func(s Scale) float64 { return s.Scaleup.Median },
		},
	} {
		if err := r.drawFigure(f, dir); err != nil {
			return fmt.Errorf("%s: %w", f.file, err)
		}
	}
	return r.drawTable(filepath.Join(dir, "table1-writes.png"))
}

// figure is a chart over the number of clients.
type figure struct {
	file, title, y string
	log            bool
	cases          []string
	value          func(Scale) float64
}

const (
	figureWidth  = 20 * vg.Centimeter
	figureHeight = 13 * vg.Centimeter
)

// drawFigure draws one chart.
func (r *Report) drawFigure(f figure, dir string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s\n%.3g M road segments, %s", f.title, float64(r.Records)/1e6, r.Processor)
	p.X.Label.Text, p.Y.Label.Text = "processes at the same time", f.y
	p.Title.TextStyle.Font.Size, p.X.Label.TextStyle.Font.Size, p.Y.Label.TextStyle.Font.Size = 14, 12, 12
	p.Add(plotter.NewGrid())
	most := 1
	least, greatest := math.Inf(1), 0.0
	for i, name := range f.cases {
		var points plotter.XYs
		for _, s := range r.Scale {
			if s.Case == name && f.value(s) > 0 {
				points = append(points, plotter.XY{X: float64(s.Processes), Y: f.value(s)})
				most = max(most, s.Processes)
				least, greatest = min(least, f.value(s)), max(greatest, f.value(s))
			}
		}
		// A case that was not measured has no line.
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Width, line.Color, line.Dashes = vg.Points(2), plotutil.Color(i), plotutil.Dashes(i/7)
		dots.Shape, dots.Color, dots.Radius = plotutil.Shape(i), plotutil.Color(i), vg.Points(4)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	if greatest == 0 {
		return nil
	}
	p.X.Min, p.X.Max = 0.8, float64(most)+0.2
	p.X.Tick.Marker = wholeTicks{most}
	if f.log {
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(greatest)))
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decadeTicks{}
	} else {
		p.Y.Min, p.Y.Max = 0, math.Ceil(greatest*5+0.01)/5
	}
	return saveBeside(p, filepath.Join(dir, f.file))
}

// saveBeside saves the plot with the legend to the right of it, where the legend covers nothing.
func saveBeside(p *plot.Plot, path string) error {
	legend := p.Legend
	p.Legend = plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size = 11
	legend.Padding = vg.Points(5)
	canvas, err := draw.NewFormattedCanvas(figureWidth, figureHeight, "png")
	if err != nil {
		return err
	}
	c := draw.New(canvas)
	legendWidth := 5.2 * vg.Centimeter
	p.Draw(draw.Crop(c, vg.Points(8), -legendWidth, vg.Points(8), -vg.Points(8)))
	legend.Draw(draw.Crop(c, c.Max.X-legendWidth+vg.Points(8), 0, 0, -2*vg.Centimeter))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		// The error of the write matters more.
		_ = f.Close()
		return err
	}
	return f.Close()
}

// wholeTicks marks whole numbers from 1.
type wholeTicks struct{ most int }

// Ticks implements plot.Ticker.
func (t wholeTicks) Ticks(_, _ float64) (out []plot.Tick) {
	for i := 1; i <= t.most; i++ {
		out = append(out, plot.Tick{Value: float64(i), Label: fmt.Sprint(i)})
	}
	return out
}

// decadeTicks marks powers of ten with labels, and their multiples without.
type decadeTicks struct{}

// Ticks implements plot.Ticker.
func (decadeTicks) Ticks(low, high float64) (out []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		v := math.Pow(10, e)
		out = append(out, plot.Tick{Value: v, Label: shortNumber(v)})
		for i := 2.0; i < 10; i++ {
			out = append(out, plot.Tick{Value: i * v})
		}
	}
	return out
}

// shortNumber formats a number with a unit prefix.
func shortNumber(v float64) string {
	for _, u := range []struct {
		from float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.from {
			return fmt.Sprintf("%.4g %s", v/u.from, u.name)
		}
	}
	return fmt.Sprintf("%.4g", v)
}

// tableRows are the rows of table 1: the two of the paper, and their variants here.
var tableRows = []struct{ name, sample string }{
	{"Insertions: load of a table, new memory", "load, new pages"},
	{"Insertions: load of a table, recycled memory", "load, recycled pages"},
	{"Insertions: commits of 100,000", "insert, 100000 a commit"},
	{"Updates: commits of 1,000,000", bulkName(bulkMax)},
	{"Updates: commits of 100,000", bulkName(100_000)},
	{"Updates: commits of 1,000", bulkName(1000)},
	{"Updates: commits of 1", bulkName(1)},
}

// drawTable draws table 1 as text: throughput and time of a change, on one processor.
func (r *Report) drawTable(path string) error {
	lines := [][3]string{{"Operation", "per second", "time"}}
	for _, t := range tableRows {
		for _, row := range r.Rows {
			if row.Name == t.sample {
				lines = append(lines, [3]string{t.name, shortNumber(1e9 / row.Median), fmt.Sprintf("%.3f µs", row.Median/1e3)})
			}
		}
	}
	// No row was measured.
	if len(lines) == 1 {
		return nil
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Write operations on one processor, %.3g M road segments, %s", float64(r.Records)/1e6, r.Processor)
	p.Title.TextStyle.Font.Size, p.Title.Padding = 14, vg.Points(6)
	p.HideAxes()
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 1, -float64(len(lines)), 1.2
	labels := plotter.XYLabels{}
	for i, line := range lines {
		for j, text := range line {
			labels.XYs = append(labels.XYs, plotter.XY{X: []float64{0.02, 0.62, 0.82}[j], Y: -float64(i)})
			labels.Labels = append(labels.Labels, text)
		}
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range text.TextStyle {
		text.TextStyle[i].Font.Size = font.Length(13)
	}
	rule, err := plotter.NewLine(plotter.XYs{{X: 0.02, Y: -0.25}, {X: 0.98, Y: -0.25}})
	if err != nil {
		return err
	}
	rule.Color = color.Gray{96}
	p.Add(text, rule)
	return p.Save(figureWidth, vg.Length(len(lines)+2)*vg.Centimeter, path)
}
