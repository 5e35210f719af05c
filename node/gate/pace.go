package gate

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// paceCallers is how many callers a Pace knows.
const paceCallers = 10_000

// Pace bounds how often each of many callers may do something that costs the node more than the caller, such as filling a log
// of bounded size.
type Pace struct {
	every   time.Duration
	burst   int
	refused prometheus.Counter

	// callers has the buckets of the callers that came last. One that was displaced begins with a new one.
	callers *lru.Cache[string, *rate.Limiter]
}

// NewPace returns a Pace that admits burst requests of each caller at once and then one every interval. refused counts
// the requests that wait.
func NewPace(every time.Duration, burst int, refused prometheus.Counter) *Pace {
	callers, err := lru.New[string, *rate.Limiter](paceCallers)
	if err != nil {
		panic(err) // the size is positive
	}
	return &Pace{every: every, burst: burst, refused: refused, callers: callers}
}

// Take takes a turn of a caller and returns 0, or returns how long the caller has to wait for it.
func (p *Pace) Take(caller string, now time.Time) time.Duration {
	l, ok := p.callers.Get(caller)
	if !ok {
		l = rate.NewLimiter(rate.Every(p.every), p.burst)
		if old, ok, _ := p.callers.PeekOrAdd(caller, l); ok {
			l = old
		}
	}
	// A refusal takes nothing, so whoever waits as recommended gets the whole rate.
	_, wait := takeNow(l, now, 1)
	if wait > 0 {
		p.refused.Inc()
	}
	return wait
}

// Collectors returns the metrics of the pace.
func (p *Pace) Collectors() []prometheus.Collector { return []prometheus.Collector{p.refused} }
