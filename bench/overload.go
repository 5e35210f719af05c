package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/client"
)

// OverloadConfig says what RunOverload does.
type OverloadConfig struct {
	Cluster *Cluster
	// Callers are the numbers of callers among which the peak is sought; default 50, 400.
	Callers []int
	// Factor times the greatest of Callers overload the cluster; default 5.
	Factor int
	// Rounds is how often the overload is measured, each time between two measurements of the peak; default 3.
	Rounds int
	// ValueBytes is the size of a value; default 64 KiB.
	ValueBytes int
	// Measure is how long each number of callers is measured; default 4 s, after a quarter of that to warm up. The overload and
	// the peaks beside it last twice as long.
	Measure time.Duration
	// Progress is told what is about to run; it may be nil.
	Progress func(text string)
}

func (c *OverloadConfig) setDefaults() {
	if len(c.Callers) == 0 {
		c.Callers = []int{50, 400}
	}
	c.Factor = cmp.Or(c.Factor, 5)
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.ValueBytes = cmp.Or(c.ValueBytes, 64<<10)
	c.Measure = cmp.Or(c.Measure, 4*time.Second)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
}

// Phase says what a run of RunOverload is for.
type Phase string

// The phases: runs that find the number of callers of the peak, runs with that number, and runs with a multiple of the callers.
const (
	PhaseSearch   Phase = "search"
	PhasePeak     Phase = "peak"
	PhaseOverload Phase = "overload"
)

// OverloadReport is what RunOverload saw.
type OverloadReport struct {
	// Runs are the measurements in their order.
	Runs []OverloadRun `json:"runs"`
	// Peak is the rate of acknowledged writes of the runs at the peak, Goodput that of the overloads, each as a share of the
	// mean of the two peaks beside it.
	Peak    Spread `json:"peak_ops_per_second"`
	Goodput Spread `json:"goodput"`
	// Acked counts the keys with an acknowledged write, Missing those of them that were not found at the end.
	Acked   int `json:"acked_keys"`
	Missing int `json:"missing_keys"`
	// NewLives counts the lives that nodes began meanwhile: a node that is alive and was fenced begins one.
	NewLives int `json:"new_lives"`
}

// OverloadRun is what one number of callers showed.
type OverloadRun struct {
	load.Result
	Phase Phase `json:"phase"`
	// Outcomes counts the calls that ended by the kind of their error, "ok" for none, those outside the measured time too.
	Outcomes map[string]int64 `json:"outcomes"`
	// Unknown holds the texts of a few calls whose outcome stayed unknown.
	Unknown []string `json:"unknown,omitempty"`
	// Attempts counts the requests that the calls made of the client's links, those that a link refused unsent too.
	Attempts uint64 `json:"attempts"`
	// ClientCPU is the processor time of the callers' process per successful call, in microseconds.
	ClientCPU float64 `json:"client_cpu_us"`
	// RSS is the greatest resident memory of each node in bytes, without images in shared memory.
	RSS []int64 `json:"rss_bytes"`
}

const (
	// overloadTimeout bounds one call: a caller that waits longer than the overload lasts would measure nothing.
	overloadTimeout = 5 * time.Second
	// overloadTexts is how many unknown outcomes of a run are kept.
	overloadTexts = 5
)

// RunOverload measures how many large values a second a cluster takes, then lets a multiple of the callers write, and shows
// what becomes of goodput, memory and outcomes. A caller whose call fails makes the next at once. All runs write the same
// keys, so that the load differs in nothing but its callers, and each overload stands between two measurements of the peak: a
// disk that is slower for some seconds is slower for both.
func RunOverload(ctx context.Context, cfg OverloadConfig) (*OverloadReport, error) {
	cfg.setDefaults()
	c, err := client.Open(ctx, client.Config{Addrs: cfg.Cluster.Addrs(), Insecure: true, Timeout: overloadTimeout})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "overload", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	most := cfg.Factor * slices.Max(cfg.Callers)
	o := &overload{cfg: cfg, c: c, t: t, keys: most, report: &OverloadReport{}}
	lives := o.lives()
	best, rate := 0, 0.0
	for _, n := range cfg.Callers {
		if r := o.run(ctx, PhaseSearch, n); best == 0 || r.OpsPerSecond > rate {
			best, rate = n, r.OpsPerSecond
		}
	}
	o.run(ctx, PhasePeak, best)
	for range cfg.Rounds {
		o.run(ctx, PhaseOverload, most)
		o.run(ctx, PhasePeak, best)
	}
	o.report.summarise()
	o.report.NewLives = o.lives() - lives
	return o.report, o.audit(ctx)
}

// summarise computes the figures that several runs make.
func (r *OverloadReport) summarise() {
	var peaks, shares []float64
	for i, x := range r.Runs {
		switch x.Phase {
		case PhasePeak:
			peaks = append(peaks, x.OpsPerSecond)
		case PhaseOverload: // between two peaks
			if beside := r.Runs[i-1].OpsPerSecond + r.Runs[i+1].OpsPerSecond; beside > 0 {
				shares = append(shares, 2*x.OpsPerSecond/beside)
			}
		}
	}
	same := func(x float64) float64 { return x }
	r.Peak, r.Goodput = spread(peaks, same), spread(shares, same)
}

type overload struct {
	cfg    OverloadConfig
	c      *client.Client
	t      *client.Table
	keys   int
	report *OverloadReport
	acked  sync.Map // key -> struct{}
}

func overloadName(key int) []byte { return fmt.Appendf(nil, "o/%d", key) }

func (o *overload) run(ctx context.Context, phase Phase, callers int) *OverloadRun {
	measure := o.cfg.Measure
	if phase != PhaseSearch { // as long at the peak as under overload: a store takes more for some seconds than it can keep up
		measure *= 2
	}
	o.cfg.Progress(fmt.Sprintf("%s: %d callers with %d bytes each, for %v", phase, callers, o.cfg.ValueBytes, measure))
	var counts [256]atomic.Int64 // by kind
	var good atomic.Int64
	var mu sync.Mutex // guards run.Unknown
	run := OverloadRun{Phase: phase, Outcomes: map[string]int64{}}
	attempts, cpu := o.c.Metrics().Requests, load.CPU([]int{os.Getpid()})
	stop := load.WatchRSS(o.cfg.Cluster.PIDs())
	cs := load.Case{Op: load.Put, Callers: callers, ValueBytes: o.cfg.ValueBytes, Keys: o.keys, Warm: o.cfg.Measure / 4, Measure: measure}
	run.Result = load.Run(ctx, cs, o.cfg.Cluster.PIDs(), func(ctx context.Context, _ load.Op, caller, i int, value []byte) error {
		key := (caller + i*callers) % o.keys
		_, err := o.t.Put(ctx, overloadName(key), value, client.PutOptions{})
		if err == nil {
			good.Add(1)
			o.acked.Store(key, struct{}{})
			return nil
		}
		counts[rhumb.KindOf(err)].Add(1)
		if rhumb.KindOf(err) == rhumb.Unknown {
			mu.Lock()
			defer mu.Unlock()
			if len(run.Unknown) < overloadTexts {
				run.Unknown = append(run.Unknown, err.Error())
			}
		}
		return err
	})
	run.RSS = stop()
	run.Attempts = o.c.Metrics().Requests - attempts
	run.ClientCPU = float64((load.CPU([]int{os.Getpid()}) - cpu).Microseconds()) / float64(max(good.Load(), 1))
	run.Outcomes["ok"] = good.Load()
	for kind := range counts {
		if n := counts[kind].Load(); n > 0 {
			run.Outcomes[rhumb.Kind(kind).String()] = n
		}
	}
	o.report.Runs = append(o.report.Runs, run)
	return &run
}

// lives counts the lives of all nodes so far.
func (o *overload) lives() (n int) {
	for _, d := range o.c.Nodes() {
		n += int(d.Boot)
	}
	return n
}

// auditMax bounds the search for all keys: a cluster that just lost a node to overload takes a while.
const auditMax = 20 * time.Second

// audit looks for every key that was acknowledged.
func (o *overload) audit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	var err error
	o.acked.Range(func(key, _ any) bool {
		o.report.Acked++
		_, err = o.t.Get(ctx, overloadName(key.(int)), client.GetOptions{})
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
