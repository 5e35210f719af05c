// Package load drives a key-value store with a fixed number of callers in a closed loop, and
// measures throughput, latency and the processor time of the server processes. Rhumb and its peers
// run under the same loop, so that their figures can be compared as ratios within one run.
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

// Op is the operation of a call.
type Op string

// The operations.
const (
	Put Op = "put"
	Get Op = "get"
	// Create writes a record under a name that no call has used before, without a home. Update
	// changes a field of an existing record.
	Create Op = "create"
	Update Op = "update"
)

// Ops returns all operations.
func Ops() []Op { return []Op{Put, Get, Create, Update} }

// Case is one measurement.
type Case struct {
	Op Op `json:"op"`
	// Callers is the number of callers, each with one call in progress.
	Callers int `json:"callers"`
	// ValueBytes is the size of a value.
	ValueBytes int `json:"value_bytes"`
	// Batch is the number of keys per call; 0 counts as 1.
	Batch int `json:"batch,omitempty"`
	// Keys is the number of keys that each caller uses in turn, a multiple of Batch. Create ignores
	// it: its key numbers never repeat.
	Keys int `json:"keys"`
	// Warm is how long the loop runs before the measurement, Measure how long it is measured.
	Warm    time.Duration `json:"warm_ns"`
	Measure time.Duration `json:"measure_ns"`
}

// Result is the result of a case.
type Result struct {
	Case
	// Ops is the number of keys of the successful calls that ended during the measurement, Errors
	// of the failed ones. FirstError is the first error.
	Ops        int64  `json:"ops"`
	Errors     int64  `json:"errors"`
	FirstError string `json:"first_error,omitempty"`
	// OpsPerSecond is Ops divided by the measured time.
	OpsPerSecond float64 `json:"ops_per_second"`
	// P50, P99 and Max are latencies of calls in microseconds.
	P50 int64 `json:"p50_us"`
	P99 int64 `json:"p99_us"`
	Max int64 `json:"max_us"`
	// ServerCPU is the processor time of all server processes divided by Ops, in microseconds.
	// ClientCPU is that of this process.
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
}

// Call executes one operation on Case.Batch consecutive keys of a caller, starting at key.
type Call func(ctx context.Context, op Op, caller, key int, value []byte) error

// latencyMaxUs bounds the histogram. Longer calls count as this long.
const latencyMaxUs = 60_000_000

// Run executes call as c describes, and measures the processor time of the server processes pids.
func Run(ctx context.Context, c Case, pids []int, call Call) Result {
	c.Batch = max(c.Batch, 1)
	value := make([]byte, c.ValueBytes)
	// Random bytes, so that no store gains by compressing them; a fixed seed keeps runs comparable.
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(value) // never fails
	callers := make([]*caller, c.Callers)
	var measuring, stop atomic.Bool
	var wait sync.WaitGroup
	for i := range callers {
		callers[i] = &caller{id: i, hist: hdrhistogram.New(1, latencyMaxUs, 3)}
		wait.Go(func() { callers[i].runLoop(ctx, c, value, call, &measuring, &stop) })
	}
	sleepFor(ctx, c.Warm)
	// Processor time and operations must cover the same interval, so both are taken at its ends.
	self := []int{os.Getpid()}
	cpu, own := CPU(pids), CPU(self)
	start := time.Now()
	measuring.Store(true)
	sleepFor(ctx, c.Measure)
	// Calls that are still in progress belong to no measurement.
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

// sleepFor waits for d, or until ctx ends.
func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// caller is one caller with its own histogram, so that callers share nothing while they are
// measured.
type caller struct {
	id     int
	hist   *hdrhistogram.Histogram
	errors int64
	first  error
}

// runLoop makes calls until stop is set.
func (c *caller) runLoop(ctx context.Context, cs Case, value []byte, call Call, measuring, stop *atomic.Bool) {
	for i := 0; !stop.Load() && ctx.Err() == nil; i++ {
		begin := time.Now()
		key := i * cs.Batch
		// Keys repeat, except for Create.
		if cs.Op != Create {
			key %= cs.Keys
		}
		err := call(ctx, cs.Op, c.id, key, value)
		// Calls that end during the measurement count: a rule that required them to begin then
		// would drop all calls as long as the measurement.
		if !measuring.Load() {
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

// summarise merges the callers. Callers count calls, and the result counts keys.
func summarise(c Case, callers []*caller, took time.Duration) Result {
	r := Result{Case: c}
	all := hdrhistogram.New(1, latencyMaxUs, 3)
	for _, w := range callers {
		// Quantiles of all calls, not means of the quantiles of callers.
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
