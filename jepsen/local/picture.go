package local

import (
	"errors"
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/rhumbdb/rhumb/bench/chart"
)

// A point of a line is pictureBucket of a run, so that a gap of a second is four points wide, and
// more in a run of more than pictureMost points.
const (
	pictureBucket = 250 * time.Millisecond
	pictureMost   = 3000
)

// bucket returns the time of one point.
func (r *Result) bucket() time.Duration { return max(pictureBucket, r.Length/pictureMost) }

// namedBands bounds the faults whose names fit into a picture.
const namedBands = 40

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

// buckets sorts the calls by the time at which they ended. A call that waited for a
// failover thus stands where its answer came, and the time before has no answers.
func (r *Result) buckets() []bucketed {
	out := make([]bucketed, r.Length/r.bucket()+1)
	for _, c := range r.Calls {
		i := int((c.At + c.Took) / r.bucket())
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

// percentile returns the value below which a share of the sorted values lie, in
// milliseconds.
func percentile(sorted []time.Duration, share float64) float64 {
	return float64(sorted[int(share*float64(len(sorted)-1))]) / float64(time.Millisecond)
}

// Draw draws the run as a PNG file: answers and failed calls a second above, latencies
// below, with the faults as bands across both.
func (r *Result) Draw(path string) error {
	var answered, failed, median, worst plotter.XYs
	perSecond := 1 / r.bucket().Seconds()
	for i, b := range r.buckets() {
		at := (time.Duration(i) * r.bucket()).Seconds()
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
	above.Title.Text = r.title()
	below.X.Label.Text = "seconds (red: a fault lasts; cream: until the cluster is whole)"
	below.Y.Scale, below.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if err := errors.Join(
		chart.AddLines(above, chart.Line{Name: "answered", XYs: answered, Color: chart.Fast}, chart.Line{Name: "failed", XYs: failed, Color: chart.Failed}),
		chart.AddLines(below, chart.Line{Name: "median", XYs: median, Color: chart.Fast}, chart.Line{Name: "greatest", XYs: worst, Color: chart.Slow}),
	); err != nil {
		return err
	}
	for _, p := range []*plot.Plot{above, below} {
		p.X.Min, p.X.Max = 0, r.Length.Seconds()
		if err := chart.AddBands(p, r.bands(), p == above && len(r.Windows) <= namedBands); err != nil {
			return err
		}
	}
	return chart.Save(path, above, below)
}

// title returns the verdict with the seed and the program.
func (r *Result) title() string {
	verdict := "valid"
	if len(r.Broken) > 0 {
		verdict = "NOT VALID"
	}
	return fmt.Sprintf("%s, faults: %d, seed %d, program %s", verdict, len(r.Windows), r.Plan.Seed, r.Program)
}

// bands returns the faults as bands of a chart.
func (r *Result) bands() (out []chart.Band) {
	for _, w := range r.Windows {
		out = append(out, chart.Band{Name: w.What, From: w.From, To: w.To, Whole: w.Whole})
	}
	return out
}
