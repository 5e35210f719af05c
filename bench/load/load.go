// Package load drives a key-value store with a fixed number of callers in a closed loop and measures it: throughput,
// latency and the processor time of the server's processes. Rhumb and its peers are driven by the same loop, so that
// their figures can be compared as ratios within one run.
package load

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Op is what one call does.
type Op string

// The operations.
const (
	Put Op = "put"
	Get Op = "get"
	// Create writes a record under a name that no call has used before, without a home; Update changes a field of a record
	// that exists.
	Create Op = "create"
	Update Op = "update"
)

// Ops lists the operations.
func Ops() []Op { return []Op{Put, Get, Create, Update} }

// Case is one measurement.
type Case struct {
	Op Op `json:"op"`
	// Callers is the number of callers, each with one call under way.
	Callers int `json:"callers"`
	// ValueBytes is the size of a value.
	ValueBytes int `json:"value_bytes"`
	// Batch is the number of keys that one call works on; 0 counts as 1.
	Batch int `json:"batch,omitempty"`
	// Keys is the number of keys that each caller uses in turn, a multiple of Batch. Create does not use it: its key numbers
	// never repeat.
	Keys int `json:"keys"`
	// Warm and Measure are how long the loop runs before and while it is measured.
	Warm    time.Duration `json:"warm_ns"`
	Measure time.Duration `json:"measure_ns"`
}

// Result is what a case showed.
type Result struct {
	Case
	// Ops is the number of keys of the calls that ended with success while measured, Errors of those that failed, FirstError the
	// first of these.
	Ops        int64  `json:"ops"`
	Errors     int64  `json:"errors"`
	FirstError string `json:"first_error,omitempty"`
	// OpsPerSecond is Ops by the time that was measured.
	OpsPerSecond float64 `json:"ops_per_second"`
	// P50, P99 and Max are latencies of calls in microseconds.
	P50 int64 `json:"p50_us"`
	P99 int64 `json:"p99_us"`
	Max int64 `json:"max_us"`
	// ServerCPU is the processor time of all server processes by Ops, in microseconds; ClientCPU that of this process.
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
}

// Call does one operation on Case.Batch keys of a caller, of which key is the first number.
type Call func(ctx context.Context, op Op, caller, key int, value []byte) error

// latencyMaxUs bounds what the histogram tells apart; longer calls count as this long.
const latencyMaxUs = 60_000_000

// Run drives call as c says and measures the processor time of the server processes pids.
func Run(ctx context.Context, c Case, pids []int, call Call) Result {
	c.Batch = max(c.Batch, 1)
	value := make([]byte, c.ValueBytes)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(value) // never fails
	callers := make([]*caller, c.Callers)
	var measuring, stop atomic.Bool
	var wait sync.WaitGroup
	for i := range callers {
		callers[i] = &caller{id: i, hist: hdrhistogram.New(1, latencyMaxUs, 3)}
		wait.Go(func() { callers[i].loop(ctx, c, value, call, &measuring, &stop) })
	}
	sleep(ctx, c.Warm)
	self := []int{os.Getpid()}
	cpu, own := CPU(pids), CPU(self)
	start := time.Now()
	measuring.Store(true)
	sleep(ctx, c.Measure)
	measuring.Store(false)
	took := time.Since(start)
	cpu, own = CPU(pids)-cpu, CPU(self)-own
	stop.Store(true)
	wait.Wait()
	r := summarise(c, callers, took)
	if r.Ops > 0 {
		r.ServerCPU = float64(cpu.Microseconds()) / float64(r.Ops)
		r.ClientCPU = float64(own.Microseconds()) / float64(r.Ops)
	}
	return r
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type caller struct {
	id     int
	hist   *hdrhistogram.Histogram
	errors int64
	first  error
}

func (c *caller) loop(ctx context.Context, cs Case, value []byte, call Call, measuring, stop *atomic.Bool) {
	for i := 0; !stop.Load() && ctx.Err() == nil; i++ {
		begin := time.Now()
		key := i * cs.Batch
		if cs.Op != Create {
			key %= cs.Keys
		}
		err := call(ctx, cs.Op, c.id, key, value)
		if !measuring.Load() { // what ends in the measured time counts: calls that take as long as it would be left out otherwise
			continue
		}
		if err != nil {
			c.errors++
			if c.first == nil {
				c.first = err
			}
			continue
		}
		_ = c.hist.RecordValue(min(max(time.Since(begin).Microseconds(), 1), latencyMaxUs)) // always in bounds
	}
}

func summarise(c Case, callers []*caller, took time.Duration) Result {
	r := Result{Case: c}
	all := hdrhistogram.New(1, latencyMaxUs, 3)
	for _, w := range callers {
		all.Merge(w.hist)
		r.Errors += w.errors
		if w.first != nil && r.FirstError == "" {
			r.FirstError = w.first.Error()
		}
	}
	r.Errors *= int64(c.Batch)
	r.Ops = all.TotalCount() * int64(c.Batch)
	r.OpsPerSecond = float64(r.Ops) / took.Seconds()
	r.P50, r.P99, r.Max = all.ValueAtQuantile(50), all.ValueAtQuantile(99), all.Max()
	return r
}
