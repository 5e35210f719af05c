package bench

import (
	"cmp"
	"context"
	"fmt"
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
	// ValueBytes is the size of a value; default 64 KiB.
	ValueBytes int
	// Measure is how long each number of callers is measured; default 4 s, after a quarter of that to warm up. The overload
	// lasts twice as long.
	Measure time.Duration
	// Progress is told what is about to run; it may be nil.
	Progress func(text string)
}

func (c *OverloadConfig) setDefaults() {
	if len(c.Callers) == 0 {
		c.Callers = []int{50, 400}
	}
	c.Factor = cmp.Or(c.Factor, 5)
	c.ValueBytes = cmp.Or(c.ValueBytes, 64<<10)
	c.Measure = cmp.Or(c.Measure, 4*time.Second)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
}

// OverloadReport is what RunOverload saw.
type OverloadReport struct {
	// Runs are the measurements, the overload last.
	Runs []OverloadRun `json:"runs"`
	// Peak is the greatest rate of acknowledged writes before the overload, Goodput that of the overload as a share of it.
	Peak    float64 `json:"peak_ops_per_second"`
	Goodput float64 `json:"goodput"`
	// Acked counts the keys with an acknowledged write, Missing those of them that were not found at the end.
	Acked   int `json:"acked_keys"`
	Missing int `json:"missing_keys"`
	// NewLives counts the lives that nodes began meanwhile: a node that is alive and was fenced begins one.
	NewLives int `json:"new_lives"`
}

// OverloadRun is what one number of callers showed.
type OverloadRun struct {
	load.Result
	// Outcomes counts the calls that ended by the kind of their error, "ok" for none, those outside the measured time too.
	Outcomes map[string]int64 `json:"outcomes"`
	// RSS is the greatest resident memory of each node in bytes, without images in shared memory.
	RSS []int64 `json:"rss_bytes"`
}

// overloadTimeout bounds one call: a caller that waits longer than the overload lasts would measure nothing.
const overloadTimeout = 5 * time.Second

// RunOverload measures how many large values a second a cluster takes, then lets a multiple of the callers write, and shows
// what becomes of goodput, memory and outcomes. Every caller writes one key of its own again and again. A caller whose call
// fails makes the next at once.
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
	o := &overload{cfg: cfg, c: c, t: t, report: &OverloadReport{}}
	lives := o.lives()
	most := 0
	for _, n := range cfg.Callers {
		most = max(most, n)
		r := o.run(ctx, n, cfg.Measure)
		o.report.Peak = max(o.report.Peak, r.OpsPerSecond)
	}
	last := o.run(ctx, cfg.Factor*most, 2*cfg.Measure)
	if o.report.Peak > 0 {
		o.report.Goodput = last.OpsPerSecond / o.report.Peak
	}
	o.report.NewLives = o.lives() - lives
	return o.report, o.audit(ctx)
}

type overload struct {
	cfg    OverloadConfig
	c      *client.Client
	t      *client.Table
	report *OverloadReport
	acked  sync.Map // caller -> struct{}
}

func overloadName(caller int) []byte { return fmt.Appendf(nil, "o/%d", caller) }

func (o *overload) run(ctx context.Context, callers int, measure time.Duration) OverloadRun {
	o.cfg.Progress(fmt.Sprintf("%d callers with %d bytes each, for %v", callers, o.cfg.ValueBytes, measure))
	var counts [256]atomic.Int64 // by kind
	var good atomic.Int64
	stop := load.WatchRSS(o.cfg.Cluster.PIDs())
	cs := load.Case{Op: load.Put, Callers: callers, ValueBytes: o.cfg.ValueBytes, Keys: 1, Warm: o.cfg.Measure / 4, Measure: measure}
	run := OverloadRun{Outcomes: map[string]int64{}}
	run.Result = load.Run(ctx, cs, o.cfg.Cluster.PIDs(), func(ctx context.Context, _ load.Op, caller, _ int, value []byte) error {
		_, err := o.t.Put(ctx, overloadName(caller), value, client.PutOptions{})
		if err != nil {
			counts[rhumb.KindOf(err)].Add(1)
			return err
		}
		good.Add(1)
		o.acked.Store(caller, struct{}{})
		return nil
	})
	run.RSS = stop()
	run.Outcomes["ok"] = good.Load()
	for kind := range counts {
		if n := counts[kind].Load(); n > 0 {
			run.Outcomes[rhumb.Kind(kind).String()] = n
		}
	}
	o.report.Runs = append(o.report.Runs, run)
	return run
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
	o.acked.Range(func(caller, _ any) bool {
		o.report.Acked++
		_, err = o.t.Get(ctx, overloadName(caller.(int)), client.GetOptions{})
		for err != nil && rhumb.KindOf(err) != rhumb.NotFound && ctx.Err() == nil {
			_, err = o.t.Get(ctx, overloadName(caller.(int)), client.GetOptions{})
		}
		if rhumb.KindOf(err) == rhumb.NotFound {
			o.report.Missing++
			err = nil
		}
		return err == nil
	})
	return rhumb.Wrap("bench.RunOverload", err)
}
