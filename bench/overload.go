package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/client"
)

// OverloadConfig configures RunOverload.
type OverloadConfig struct {
	Cluster *Cluster
	// Callers are the numbers of callers among which the peak is searched, by default 50 and 400.
	Callers []int
	// Factors times the greatest of Callers are the numbers of callers of the overloads. The default
	// is 5.
	Factors []int
	// Rounds is the number of overloads with each factor, each between two measurements of the peak.
	// The default is 3.
	Rounds int
	// ValueBytes is the size of a value, by default 64 KiB.
	ValueBytes int
	// Measure is how long each number of callers is measured, by default 4 s, after a quarter of
	// that for warming up. Overloads and the peaks between them take twice as long.
	Measure time.Duration
	// Progress receives a line about the next run. It may be nil.
	Progress func(text string)
}

// setDefaults fills in what the caller left open.
func (c *OverloadConfig) setDefaults() {
	if len(c.Callers) == 0 {
		c.Callers = []int{50, 400}
	}
	if len(c.Factors) == 0 {
		c.Factors = []int{5}
	}
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.ValueBytes = cmp.Or(c.ValueBytes, 64<<10)
	c.Measure = cmp.Or(c.Measure, 4*time.Second)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
}

// Phase is the purpose of a run of RunOverload.
type Phase string

// The phases: runs that find the number of callers at the peak, runs with that number, and runs
// with a multiple of the callers.
const (
	PhaseSearch   Phase = "search"
	PhasePeak     Phase = "peak"
	PhaseOverload Phase = "overload"
)

// OverloadReport is the result of RunOverload.
type OverloadReport struct {
	// Runs are the measurements in their order.
	Runs []OverloadRun `json:"runs"`
	// Peak is the rate of acknowledged writes at the peak.
	Peak rounds.Spread `json:"peak_ops_per_second"`
	// Overloads has one element for each factor.
	Overloads []OverloadFactor `json:"overloads"`
	// Acked counts the keys with an acknowledged write, Missing those of them that were not found
	// at the end.
	Acked   int `json:"acked_keys"`
	Missing int `json:"missing_keys"`
	// NewLives counts the lives that nodes began during the measurement. A live node begins one if
	// it was fenced, so overload must not cause any.
	NewLives int `json:"new_lives"`
}

// OverloadFactor is the summary of the overloads with one factor.
type OverloadFactor struct {
	Factor int `json:"factor"`
	// Goodput is the rate of acknowledged writes of each overload as a share of the mean of the
	// peaks before and after it.
	Goodput rounds.Spread `json:"goodput"`
	// RSS is the greatest resident memory of a node in bytes.
	RSS int64 `json:"rss_bytes"`
}

// OverloadRun is the result of one run.
type OverloadRun struct {
	load.Result
	Phase Phase `json:"phase"`
	// Factor is that of an overload, 0 in other phases.
	Factor int `json:"factor,omitempty"`
	// Outcomes counts the calls by the kind of their error, "ok" for success, including calls
	// outside the measured time.
	Outcomes map[string]int64 `json:"outcomes"`
	// Unknown holds the error texts of a few calls whose outcome is unknown.
	Unknown []string `json:"unknown,omitempty"`
	// Attempts counts the requests of the calls, including those that the client refused before
	// sending. Sent counts those that nodes got.
	Attempts uint64 `json:"attempts"`
	Sent     uint64 `json:"sent"`
	// RSS is the greatest resident memory of each node in bytes, without images in shared memory.
	RSS []int64 `json:"rss_bytes"`
}

const (
	// overloadTimeout bounds one call. A caller that waited longer than the overload lasts would
	// measure nothing.
	overloadTimeout = 5 * time.Second
	// overloadTexts is the number of unknown outcomes that a run keeps.
	overloadTexts = 5
)

// RunOverload measures the rate of large values that a cluster accepts, then lets a multiple of the
// callers write, and reports goodput, memory and outcomes. A caller whose call fails makes the next
// one at once. All runs write the same keys, so that runs differ only in their callers. Each
// overload is between two measurements of the peak, because a disk that is slow for some seconds is
// slow for both.
func RunOverload(ctx context.Context, cfg OverloadConfig) (*OverloadReport, error) {
	cfg.setDefaults()
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(overloadTimeout))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "overload", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	usual := slices.Max(cfg.Callers)
	o := &overload{cfg: cfg, c: c, t: t, keys: slices.Max(cfg.Factors) * usual, report: &OverloadReport{}}
	lives := o.sumLives()
	best, rate := 0, 0.0
	// The peak depends on the machine, so it is searched first.
	for _, n := range cfg.Callers {
		// The first number of callers wins ties and rates of 0.
		if r := o.runPhase(ctx, PhaseSearch, 0, n); best == 0 || r.OpsPerSecond > rate {
			best, rate = n, r.OpsPerSecond
		}
	}
	o.runPhase(ctx, PhasePeak, 0, best)
	for range cfg.Rounds {
		// The factors take turns, so that a slow phase of the machine affects all of them.
		for _, factor := range cfg.Factors {
			o.runPhase(ctx, PhaseOverload, factor, factor*usual)
			o.runPhase(ctx, PhasePeak, 0, best)
		}
	}
	o.report.summarise()
	o.report.NewLives = o.sumLives() - lives
	return o.report, o.countMissing(ctx)
}

// summarise computes the figures over all runs.
func (r *OverloadReport) summarise() {
	var peaks []float64
	shares, rss := map[int][]float64{}, map[int]int64{}
	for i, x := range r.Runs {
		switch x.Phase {
		case PhasePeak:
			peaks = append(peaks, x.OpsPerSecond)
		case PhaseOverload:
			// Every overload is between two peaks.
			if beside := r.Runs[i-1].OpsPerSecond + r.Runs[i+1].OpsPerSecond; beside > 0 {
				shares[x.Factor] = append(shares[x.Factor], 2*x.OpsPerSecond/beside)
			}
			for _, bytes := range x.RSS {
				rss[x.Factor] = max(rss[x.Factor], bytes)
			}
		}
	}
	same := func(x float64) float64 { return x }
	r.Peak = rounds.SpreadOf(peaks, same)
	for _, factor := range slices.Sorted(maps.Keys(shares)) {
		r.Overloads = append(r.Overloads, OverloadFactor{Factor: factor, Goodput: rounds.SpreadOf(shares[factor], same), RSS: rss[factor]})
	}
}

// overload is a run of RunOverload.
type overload struct {
	cfg    OverloadConfig
	c      *client.Client
	t      *client.Table
	keys   int
	report *OverloadReport
	acked  sync.Map // key -> struct{}
}

// overloadName returns the name of a key.
func overloadName(key int) []byte { return fmt.Appendf(nil, "o/%d", key) }

// runPhase runs one measurement and adds it to the report.
func (o *overload) runPhase(ctx context.Context, phase Phase, factor, callers int) *OverloadRun {
	measure := o.cfg.Measure
	// Peaks take as long as overloads: for some seconds a store accepts more than it can sustain.
	if phase != PhaseSearch {
		measure *= 2
	}
	o.cfg.Progress(fmt.Sprintf("%s: %d callers with %d bytes each, for %v", phase, callers, o.cfg.ValueBytes, measure))
	var counts [256]atomic.Int64 // by kind
	var good atomic.Int64
	var mu sync.Mutex // guards run.Unknown
	run := OverloadRun{Phase: phase, Factor: factor, Outcomes: map[string]int64{}}
	// Counters are read before and after the run, which includes the warm-up.
	before := o.c.Metrics()
	stop := load.WatchRSS(o.cfg.Cluster.PIDs())
	cs := load.Case{Op: load.Put, Callers: callers, ValueBytes: o.cfg.ValueBytes, Keys: o.keys, Warm: o.cfg.Measure / 4, Measure: measure}
	run.Result = load.Run(ctx, cs, o.cfg.Cluster.PIDs(), func(ctx context.Context, s load.Step) error {
		// Callers use disjoint keys until they wrap around, so every key is written by some caller.
		key := (s.Caller + s.Key*callers) % o.keys
		_, err := o.t.Put(ctx, overloadName(key), s.Value, client.PutOptions{})
		if err == nil {
			good.Add(1)
			o.acked.Store(key, struct{}{})
			return nil
		}
		counts[rhumb.KindOf(err)].Add(1)
		if rhumb.KindOf(err) == rhumb.Unknown {
			mu.Lock()
			defer mu.Unlock()
			// A few texts show the cause; thousands of equal ones would fill the report.
			if len(run.Unknown) < overloadTexts {
				run.Unknown = append(run.Unknown, err.Error())
			}
		}
		return err
	})
	run.RSS = stop()
	after := o.c.Metrics()
	run.Attempts, run.Sent = after.Requests-before.Requests, after.Sent-before.Sent
	run.Outcomes["ok"] = good.Load()
	for kind := range counts {
		if n := counts[kind].Load(); n > 0 {
			run.Outcomes[rhumb.Kind(kind).String()] = n
		}
	}
	o.report.Runs = append(o.report.Runs, run)
	return &run
}

// sumLives returns the sum of the lives of all nodes.
func (o *overload) sumLives() (n int) {
	for _, d := range o.c.Nodes() {
		n += int(d.Boot)
	}
	return n
}

// auditMax bounds the reading of all keys: a cluster that lost a node to overload needs time to
// recover.
const auditMax = 20 * time.Second

// countMissing reads every acknowledged key and counts the missing ones.
func (o *overload) countMissing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	var err error
	o.acked.Range(func(key, _ any) bool {
		o.report.Acked++
		_, err = o.t.Get(ctx, overloadName(key.(int)), client.GetOptions{})
		// Only NotFound is a loss; any other error is retried until auditMax.
		for err != nil && rhumb.KindOf(err) != rhumb.NotFound && ctx.Err() == nil {
			_, err = o.t.Get(ctx, overloadName(key.(int)), client.GetOptions{})
		}
		if rhumb.KindOf(err) == rhumb.NotFound {
			o.report.Missing++
			err = nil
		}
		return err == nil
	})
	return rhumb.Wrap("bench.RunOverload", err)
}
