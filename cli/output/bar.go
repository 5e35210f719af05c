package output

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	// BarInterval is how often callers that poll a counter should move a bar.
	BarInterval = 200 * time.Millisecond
	barWidth    = 30
)

// Bar returns a progress bar on standard error, or nil if standard error is not a terminal. A total
// of -1 is unknown.
func (p *Printer) Bar(total int64, options ...progressbar.Option) *progressbar.ProgressBar {
	if !IsTerminal(p.Err) {
		return nil
	}
	return progressbar.NewOptions64(total, append([]progressbar.Option{
		progressbar.OptionSetWriter(p.Err), progressbar.OptionSetWidth(barWidth), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionEnableColorCodes(p.allowsColor(p.Err)),
	}, options...)...)
}

// ByteBar returns a function that shows how many of a number of bytes are done, and a function that
// ends the display. show is nil if standard error is not a terminal.
func (p *Printer) ByteBar(what string) (show func(done, total int64), stop func()) {
	bar := p.Bar(-1, progressbar.OptionShowBytes(true), progressbar.OptionSetDescription(what), progressbar.OptionThrottle(BarInterval/2))
	if bar == nil {
		return nil, func() {}
	}
	return func(done, total int64) {
		// The total is known only once the work has begun.
		if total > 0 && bar.GetMax64() != total {
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done) // a failure to draw must not fail the work
	}, func() { _ = bar.Finish() }
}

// StepBar returns a function that counts one step, and a function that ends the display. Where
// standard error is not a terminal, every step is a line.
func (p *Printer) StepBar(total int) (step func(text string), stop func()) {
	bar := p.Bar(int64(total), progressbar.OptionShowCount(), progressbar.OptionSetRenderBlankState(true))
	if bar == nil {
		return func(text string) { p.Notef("%s", text) }, func() {}
	}
	return func(text string) {
		bar.Describe(text)
		_ = bar.Add(1)
	}, func() { _ = bar.Finish() }
}
