package demo

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rhumbdb/rhumb"
)

// Figures are what the feed of one region did in one second. Field names are stable.
type Figures struct {
	Region          string  `json:"region"`
	WritesPerSecond float64 `json:"writes_per_second"`
	ReadsPerSecond  float64 `json:"reads_per_second"`
	WriteP50        float64 `json:"write_p50_ms"`
	WriteP99        float64 `json:"write_p99_ms"`
	ReadP50         float64 `json:"read_p50_ms"`
	ReadP99         float64 `json:"read_p99_ms"`
	// Locality is the part of all calls that a node of the caller's own region served; 0 without calls.
	Locality float64 `json:"locality"`
	// Primaries counts the ranges whose primary stands in the region.
	Primaries int   `json:"primaries"`
	Errors    int64 `json:"errors"`
	Flights   int   `json:"flights"`
}

// NodeFigures are how one node stands.
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
	// Acknowledged counts all writes of the feed that were acknowledged since the start.
	Acknowledged int64  `json:"acknowledged"`
	LastError    string `json:"last_error,omitempty"`
}

// latencyMax bounds what the histograms tell apart; a longer call counts as this long.
const latencyMax = time.Minute

// meter gathers the calls of one region's feed.
type meter struct {
	mu            sync.Mutex // guards the histograms and the error
	writes, reads *hdrhistogram.Histogram
	lastError     error

	local, remote, errors, acknowledged atomic.Int64
}

func newMeter() *meter {
	histogram := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMax.Microseconds(), 3) }
	return &meter{writes: histogram(), reads: histogram()}
}

// wrote and read take one call.
func (m *meter) wrote(took time.Duration, local bool, err error) { m.take(m.writes, took, local, err) }

func (m *meter) read(took time.Duration, local bool, err error) { m.take(m.reads, took, local, err) }

func (m *meter) take(h *hdrhistogram.Histogram, took time.Duration, local bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	// The value lies within the bounds of the histogram, so it cannot be refused.
	_ = h.RecordValue(min(max(took, time.Microsecond), latencyMax).Microseconds())
}

// flush gives the figures of the time since the last flush, and begins again.
func (m *meter) flush(region string, elapsed time.Duration) Figures {
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
	m.writes.Reset()
	m.reads.Reset()
	return f
}

// takeError gives the last error since it was asked for.
func (m *meter) takeError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.lastError
	m.lastError = nil
	return err
}
