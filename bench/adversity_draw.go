package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/rhumbdb/rhumb/bench/chart"
)

// adversityBucket is the time of one point of a line.
const adversityBucket = 500 * time.Millisecond

// Draw draws the answered and failed calls a second, and the latencies, with
// the phases as bands. The end of the name of the file, such as .svg or .png,
// decides the format.
func (r *AdversityReport) Draw(path string) error {
	if len(r.Phases) == 0 {
		return errors.New("there is nothing to draw: the run has no phases")
	}
	var bands []chart.Band
	for _, p := range r.Phases {
		// The baseline has no fault and no colour.
		if p.Name == phaseBaseline {
			p.Healed, p.To = p.From, p.From
		}
		bands = append(bands, chart.Band{Name: p.Name, From: p.From, To: p.Healed, Whole: p.To})
	}
	// The time of a call is that of its end: until then nobody knows whether it is
	// answered.
	calls := make([]timedCall, len(r.calls))
	for i, c := range r.calls {
		calls[i] = timedCall{c.end(), c.took, c.ok}
	}
	return drawCalls(path, fmt.Sprintf("%.0f calls a second offered", r.Offered), r.Phases[len(r.Phases)-1].To, calls, bands)
}

// timedCall is a call that ended at a time from the start of a run.
type timedCall struct {
	end, took time.Duration
	ok        bool
}

// drawCalls draws the answered and failed calls a second, and the latencies of
// the answered ones, until the end of a run.
func drawCalls(path, title string, length time.Duration, calls []timedCall, bands []chart.Band) error {
	count := int(length/adversityBucket) + 1
	answered, failed, took := make([]float64, count), make([]float64, count), make([][]time.Duration, count)
	for _, c := range calls {
		i := int(c.end / adversityBucket)
		if i >= count {
			continue // after the last phase
		}
		if !c.ok {
			failed[i]++
			continue
		}
		answered[i]++
		took[i] = append(took[i], c.took)
	}
	above, below := plot.New(), plot.New()
	above.Title.Text = title
	above.Y.Label.Text, below.Y.Label.Text, below.X.Label.Text = "calls per second", "latency in ms (log)", "seconds"
	below.Y.Scale, below.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	median, slow := latencyLines(took)
	if err := errors.Join(
		chart.AddLines(above, chart.Line{Name: "answered", XYs: rateLine(answered), Color: chart.Fast}, chart.Line{Name: "failed", XYs: rateLine(failed), Color: chart.Failed}),
		chart.AddLines(below, chart.Line{Name: "median", XYs: median, Color: chart.Fast}, chart.Line{Name: "99th percentile", XYs: slow, Color: chart.Slow}),
	); err != nil {
		return err
	}
	for _, p := range []*plot.Plot{above, below} {
		p.X.Min, p.X.Max = 0, length.Seconds()
		if err := chart.AddBands(p, bands, p == above); err != nil {
			return err
		}
	}
	return chart.Save(path, above, below)
}

// rateLine returns a line of rates a second from counts for each bucket.
func rateLine(counts []float64) (line plotter.XYs) {
	for i, n := range counts {
		line = append(line, plotter.XY{X: (time.Duration(i) * adversityBucket).Seconds(), Y: n / adversityBucket.Seconds()})
	}
	return line
}

// latencyLines returns the medians and 99th percentiles of the buckets. A
// bucket without a call has no point: no latency is not a latency of zero.
func latencyLines(took [][]time.Duration) (median, slow plotter.XYs) {
	for i, t := range took {
		if len(t) == 0 {
			continue
		}
		slices.Sort(t)
		x := (time.Duration(i) * adversityBucket).Seconds()
		median = append(median, plotter.XY{X: x, Y: milliseconds(t[len(t)/2])})
		slow = append(slow, plotter.XY{X: x, Y: milliseconds(t[len(t)*99/100])})
	}
	return median, slow
}
