package demo

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rhumbdb/rhumb"
)

// Figures are the figures of one region's feed in one second. Field names are stable.
type Figures struct {
	Region          string  `json:"region"`
	WritesPerSecond float64 `json:"writes_per_second"`
	ReadsPerSecond  float64 `json:"reads_per_second"`
	WriteP50        float64 `json:"write_p50_ms"`
	WriteP99        float64 `json:"write_p99_ms"`
	ReadP50         float64 `json:"read_p50_ms"`
	ReadP99         float64 `json:"read_p99_ms"`
	// Locality is the share of calls that a node of the caller's region served; 0 without calls.
	Locality float64 `json:"locality"`
	// Primaries is the number of ranges whose primary is in the region.
	Primaries int   `json:"primaries"`
	Errors    int64 `json:"errors"`
	Flights   int   `json:"flights"`
}

// NodeFigures are the figures of one node.
type NodeFigures struct {
	ID        rhumb.NodeID `json:"id"`
	Region    string       `json:"region"`
	PID       int          `json:"pid"`
	Up        bool         `json:"up"`
	Primaries int          `json:"primaries"`
}

// Second is one line of `demo --json`.
type Second struct {
	Time    time.Time     `json:"time"`
	Regions []Figures     `json:"regions"`
	Nodes   []NodeFigures `json:"nodes"`
	// Acknowledged is the number of writes of the feed acknowledged since the start.
	Acknowledged int64  `json:"acknowledged"`
	LastError    string `json:"last_error,omitempty"`
}

// latencyMax bounds the values of the histograms. A longer call counts as this long.
const latencyMax = time.Minute

// meter measures the calls of one region's feed. It is safe for concurrent use.
type meter struct {
	mu            sync.Mutex // guards the histograms and lastError
	writes, reads *hdrhistogram.Histogram
	lastError     error

	local, remote, errors, acknowledged atomic.Int64
}

// newMeter returns a meter without calls.
func newMeter() *meter {
	histogram := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMax.Microseconds(), 3) }
	return &meter{writes: histogram(), reads: histogram()}
}

// wrote records one write.
func (m *meter) wrote(took time.Duration, local bool, err error) {
	m.recordCall(m.writes, took, local, err)
}

// read records one read.
func (m *meter) read(took time.Duration, local bool, err error) {
	m.recordCall(m.reads, took, local, err)
}

// recordCall records one call in a histogram.
func (m *meter) recordCall(h *hdrhistogram.Histogram, took time.Duration, local bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A failed call has no latency: a timeout would dominate the percentiles.
	if err != nil {
		m.lastError = err
		m.errors.Add(1)
		return
	}
	if h == m.writes {
		m.acknowledged.Add(1)
	}
	if local {
		m.local.Add(1)
	} else {
		m.remote.Add(1)
	}
	// The value is clamped to the bounds of the histogram, so recording cannot fail.
	_ = h.RecordValue(min(max(took, time.Microsecond), latencyMax).Microseconds())
}

// flushFigures returns the figures since the last flush and resets the meter.
func (m *meter) flushFigures(region string, elapsed time.Duration) Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	ms := func(h *hdrhistogram.Histogram, quantile float64) float64 {
		return float64(h.ValueAtQuantile(quantile)) / 1_000
	}
	f := Figures{
		Region:          region,
		WritesPerSecond: float64(m.writes.TotalCount()) / elapsed.Seconds(),
		ReadsPerSecond:  float64(m.reads.TotalCount()) / elapsed.Seconds(),
		WriteP50:        ms(m.writes, 50), WriteP99: ms(m.writes, 99),
		ReadP50: ms(m.reads, 50), ReadP99: ms(m.reads, 99),
		Errors: m.errors.Swap(0),
	}
	local, remote := m.local.Swap(0), m.remote.Swap(0)
	if local+remote > 0 {
		f.Locality = float64(local) / float64(local+remote)
	}
	// The counters above are swapped one by one under the lock that recordCall holds, so no call is
	// counted in two intervals.
	m.writes.Reset()
	m.reads.Reset()
	return f
}

// takeError returns the last error since the last call, or nil.
func (m *meter) takeError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.lastError
	m.lastError = nil
	return err
}
