package gate

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Pace bounds how often each of many callers may do something that costs the node more than the caller, such as filling a log
// of bounded size.
type Pace struct {
	every   time.Duration
	burst   int
	refused prometheus.Counter

	mu sync.Mutex // guards callers
	// callers has one bucket per caller since the start. Only users that exist in the metadata get here, and their
	// number is bounded.
	callers map[string]*rate.Limiter
}

// NewPace returns a Pace that admits burst requests of each caller at once and then one every interval. refused counts
// the requests that wait.
func NewPace(every time.Duration, burst int, refused prometheus.Counter) *Pace {
	return &Pace{every: every, burst: burst, refused: refused, callers: map[string]*rate.Limiter{}}
}

// Take takes a turn of a caller and returns 0, or returns how long the caller has to wait for it.
func (p *Pace) Take(caller string, now time.Time) time.Duration {
	p.mu.Lock()
	l := p.callers[caller]
	if l == nil {
		l = rate.NewLimiter(rate.Every(p.every), p.burst)
		p.callers[caller] = l
	}
	p.mu.Unlock()
	// A refusal takes nothing, so whoever waits as recommended gets the whole rate.
	_, wait := takeNow(l, now, 1)
	if wait > 0 {
		p.refused.Inc()
	}
	return wait
}

// Collectors returns the metrics of the pace.
func (p *Pace) Collectors() []prometheus.Collector { return []prometheus.Collector{p.refused} }
