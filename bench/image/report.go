package image

import (
	"math"
	"slices"
	"time"
)

// Spread is the median of several values with the least and the greatest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf returns the spread of values, or zeros without any.
func spreadOf(vs []float64) Spread {
	if len(vs) == 0 {
		return Spread{}
	}
	vs = slices.Sorted(slices.Values(vs))
	return Spread{vs[len(vs)/2], vs[0], vs[len(vs)-1]}
}

// Goal is one measurable promise of the snapshot tier.
type Goal struct {
	// Number is the number in the list of goals in docs/benchmarks.md. Several lines may share one.
	Number int    `json:"number"`
	Name   string `json:"name"`
	// Least or Most is the bound. Unit is "×" for ratios.
	Least float64 `json:"least,omitempty"`
	Most  float64 `json:"most,omitempty"`
	Unit  string  `json:"unit"`
	Spread
	Reached bool `json:"reached"`
}

// Row is the cost of one case.
type Row struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	Spread
}

// Scale is the result of P concurrent clients.
type Scale struct {
	Case      string  `json:"case"`
	Processes int     `json:"processes"`
	Ops       float64 `json:"ops_per_second"` // of all clients, in elapsed time
	Latency   float64 `json:"latency_us"`     // of one operation
	Scaleup   Spread  `json:"scaleup"`        // P*N(1)*T(1)/(N(P)*T(P)), elapsed time
	ScaleCPU  Spread  `json:"scaleup_cpu"`    // the same, by processor time of each client
}

// Report holds everything that a run measured.
type Report struct {
	Records   int      `json:"records"`
	Rounds    int      `json:"rounds"`
	Mounted   bool     `json:"own_mount"`
	HugeShare float64  `json:"huge_share"` // share of the mapped memory on huge pages
	Bytes     int64    `json:"image_bytes"`
	Shards    int      `json:"shards"`
	Processor string   `json:"processor"`
	CPUs      int      `json:"cpus"`
	Others    float64  `json:"others_cores"` // processor time per second used by other processes
	Seconds   float64  `json:"seconds"`
	Goals     []Goal   `json:"goals"`
	Rows      []Row    `json:"rows"`
	Scale     []Scale  `json:"scale"`
	Notes     []string `json:"notes"`
}

// samples collects values by name, one per round.
type samples struct {
	order  []string
	unit   map[string]string
	values map[string][]float64
}

func newSamples() *samples {
	return &samples{unit: map[string]string{}, values: map[string][]float64{}}
}

// add adds the value of the next round.
func (s *samples) add(name, unit string, v float64) {
	if s.values[name] == nil {
		s.order = append(s.order, name)
		s.unit[name] = unit
	}
	s.values[name] = append(s.values[name], v)
}

// has reports whether all cases were measured.
func (s *samples) has(names ...string) bool {
	for _, n := range names {
		if len(s.values[n]) == 0 {
			return false
		}
	}
	return true
}

// ratioOf returns a/b round by round: both values of a round were measured close together.
func (s *samples) ratioOf(a, b string) Spread {
	var out []float64
	for i := range min(len(s.values[a]), len(s.values[b])) {
		out = append(out, s.values[a][i]/s.values[b][i])
	}
	return spreadOf(out)
}

// spreadFor returns the spread of a case.
func (s *samples) spreadFor(name string) Spread { return spreadOf(s.values[name]) }

// makeRows returns the cases in the order of their first value.
func (s *samples) makeRows() (out []Row) {
	for _, n := range s.order {
		out = append(out, Row{Name: n, Unit: s.unit[n], Spread: s.spreadFor(n)})
	}
	return out
}

// scaleSpread multiplies a spread by f.
func scaleSpread(s Spread, f float64) Spread { return Spread{s.Median * f, s.Min * f, s.Max * f} }

// percentileOf returns a percentile of sorted values, in the nearest-rank definition.
func percentileOf(sorted []int64, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return time.Duration(sorted[min(int(math.Ceil(p*float64(len(sorted)))), len(sorted))-1])
}
