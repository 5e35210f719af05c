package local

import (
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	canvas "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Sizes of the picture. Each chart has the width of the whole, so that a moment is at the same place in all of them.
const (
	pictureWidth  = 34 * vg.Centimeter
	pictureHeight = 20 * vg.Centimeter
	// pictureBucket is the time of one point of a line. A gap of a second is four points wide.
	pictureBucket = 250 * time.Millisecond
)

// Colours of the picture. The two of the bands separate the time of the fault from the time until the cluster was whole again.
var (
	colorFault  = color.NRGBA{214, 39, 40, 60}
	colorHeal   = color.NRGBA{255, 187, 120, 70}
	colorFast   = color.NRGBA{31, 119, 180, 255}
	colorSlow   = color.NRGBA{148, 103, 189, 255}
	colorFailed = color.NRGBA{214, 39, 40, 255}
)

// nodeColors are those of the nodes in the picture of resources.
var nodeColors = []color.Color{
	color.NRGBA{31, 119, 180, 255},
	color.NRGBA{255, 127, 14, 255},
	color.NRGBA{44, 160, 44, 255},
	color.NRGBA{214, 39, 40, 255},
	color.NRGBA{148, 103, 189, 255},
	color.NRGBA{140, 86, 75, 255},
}

// bucketed holds the figures of the calls in one bucket.
type bucketed struct {
	took           []time.Duration
	answered, lost int
}

// buckets sorts the calls by the time at which they ended. A call that waited for a failover thus stands where its answer came, and the
// time before has no answers.
func (r *Result) buckets() []bucketed {
	out := make([]bucketed, r.Length/pictureBucket+1)
	for _, c := range r.Calls {
		i := int((c.At + c.Took) / pictureBucket)
		if i >= len(out) {
			continue // after the faults, while the histories were checked
		}
		b := &out[i]
		b.took = append(b.took, c.Took)
		if c.OK {
			b.answered++
		} else {
			b.lost++
		}
	}
	return out
}

// percentile returns the value below which a share of the sorted values lie, in milliseconds.
func percentile(sorted []time.Duration, share float64) float64 {
	return float64(sorted[int(share*float64(len(sorted)-1))]) / float64(time.Millisecond)
}

// Draw draws the run as a PNG file: answers and failed calls a second above, latencies below, with the faults as bands across both.
func (r *Result) Draw(path string) error {
	var answered, failed, median, worst plotter.XYs
	perSecond := float64(time.Second / pictureBucket)
	for i, b := range r.buckets() {
		at := (time.Duration(i) * pictureBucket).Seconds()
		answered = append(answered, plotter.XY{X: at, Y: float64(b.answered) * perSecond})
		failed = append(failed, plotter.XY{X: at, Y: float64(b.lost) * perSecond})
		if len(b.took) == 0 {
			continue // no latency is not a latency of zero
		}
		slices.Sort(b.took)
		median = append(median, plotter.XY{X: at, Y: percentile(b.took, 0.5)})
		worst = append(worst, plotter.XY{X: at, Y: percentile(b.took, 1)})
	}
	above, below := plot.New(), plot.New()
	above.Y.Label.Text, below.Y.Label.Text = "calls per second", "latency in ms (log)"
	below.X.Label.Text = "seconds"
	below.Y.Scale, below.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	for _, l := range []struct {
		p     *plot.Plot
		name  string
		xys   plotter.XYs
		color color.Color
	}{
		{above, "answered", answered, colorFast},
		{above, "failed", failed, colorFailed},
		{below, "median", median, colorFast},
		{below, "greatest", worst, colorSlow},
	} {
		line, err := plotter.NewLine(l.xys)
		if err != nil {
			return err
		}
		line.Color = l.color
		l.p.Add(line)
		l.p.Legend.Add(l.name, line)
	}
	for _, p := range []*plot.Plot{above, below} {
		p.Legend.Top = true
		p.X.Min, p.X.Max = 0, r.Length.Seconds()
		if err := r.addBands(p, p == above); err != nil {
			return err
		}
	}
	return save(path, above, below)
}

// addBands draws each fault as a band over the height of the chart, with its name if named is set. Bands are added after the lines, whose
// range of values they take; they are transparent.
func (r *Result) addBands(p *plot.Plot, named bool) error {
	var names plotter.XYLabels
	for _, w := range r.Windows {
		for _, band := range []struct {
			from, to time.Duration
			color    color.Color
		}{{w.From, w.To, colorFault}, {w.To, w.Whole, colorHeal}} {
			from, to := band.from.Seconds(), band.to.Seconds()
			polygon, err := plotter.NewPolygon(plotter.XYs{{X: from, Y: p.Y.Min}, {X: from, Y: p.Y.Max}, {X: to, Y: p.Y.Max}, {X: to, Y: p.Y.Min}})
			if err != nil {
				return err
			}
			polygon.Color, polygon.LineStyle.Width = band.color, 0
			p.Add(polygon)
		}
		names.XYs = append(names.XYs, plotter.XY{X: w.From.Seconds(), Y: p.Y.Max})
		names.Labels = append(names.Labels, w.What)
	}
	if !named || len(names.Labels) == 0 {
		return nil
	}
	labels, err := plotter.NewLabels(names)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		// Upwards, because faults follow each other faster than their names are long.
		labels.TextStyle[i].Rotation, labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = 1.5708, text.XRight, text.YTop
	}
	p.Add(labels)
	return nil
}

// save draws charts below each other into one PNG file.
func save(path string, charts ...*plot.Plot) (err error) {
	pixels := vgimg.New(pictureWidth, pictureHeight)
	tiles := canvas.Tiles{Rows: len(charts), Cols: 1, PadY: vg.Points(6)}
	column := make([][]*plot.Plot, len(charts))
	for i, p := range charts {
		column[i] = []*plot.Plot{p}
	}
	// Align makes the charts equally wide without their axes.
	for i, row := range plot.Align(column, tiles, canvas.New(pixels)) {
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
	_, err = vgimg.PngCanvas{Canvas: pixels}.WriteTo(f)
	return err
}
