// Package load drives a key-value store with a fixed number of callers in a closed loop, and
// measures throughput, latency and the processor time of the server processes. Rhumb and its peers
// run under the same loop, so that their figures can be compared as ratios within one run.
//
// The loop is closed: a caller makes its next call when the last one has ended, so a slow database gets
// less load and not a longer queue. Latencies are those of calls under this load. A pause of the whole
// database is one long call for each caller, and not all the calls that an open loop would have made
// meanwhile: the quantiles say how calls fare, and not how requests that arrive at a fixed rate would.
// `rhumb bench adversity` has such a rate.
//
// Keys are numbers. A target makes names of them, and each caller has keys of its own, except in
// workloads, whose callers share them.
package load

import (
	"cmp"
	"context"
	"errors"
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
	// Append writes a record under a name or at an offset that no call has used before, where the
	// caller is: a feed.
	Append Op = "append"
	// Scan reads records in the order of their names, from a name on.
	Scan Op = "scan"
)

// Ops returns the operations that a person may choose for a case. Scan and Append are parts of other
// measurements.
func Ops() []Op { return []Op{Put, Get, Create, Update} }

// Case is one measurement.
type Case struct {
	// Op is ignored if Workload is set.
	Op Op `json:"op"`
	// Workload mixes operations on keys that all callers share.
	Workload Workload `json:"workload,omitempty"`
	// Callers is the number of callers, each with one call in progress.
	Callers int `json:"callers"`
	// ValueBytes is the size of a value.
	ValueBytes int `json:"value_bytes"`
	// Batch is the number of keys per call; 0 counts as 1.
	Batch int `json:"batch,omitempty"`
	// Keys is the number of keys that each caller uses in turn, a multiple of Batch. Create and
	// Append ignore it: their key numbers never repeat. With a workload it is the number of records
	// that exist before.
	Keys int `json:"keys"`
	// Fresh is the first key number of Append and of the inserts of a workload. No other case of a
	// run has the same.
	Fresh int `json:"fresh,omitempty"`
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
	// P50, P99, P999 and Max are latencies of calls in microseconds.
	P50  int64 `json:"p50_us"`
	P99  int64 `json:"p99_us"`
	P999 int64 `json:"p999_us"`
	Max  int64 `json:"max_us"`
	// ServerCPU is the processor time of all server processes divided by Ops, in microseconds.
	// ClientCPU is that of this process.
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
	// RowHits is the share of reads by name that nodes answered from the records in their memory; 0 if there was none, or it is not known.
	RowHits float64 `json:"row_hits,omitempty"`
	// OtherCores is the number of cores that processes other than the servers and this one kept
	// busy meanwhile.
	OtherCores float64 `json:"other_cores"`
}

// Step is one call of a caller.
type Step struct {
	Op     Op
	Caller int
	// Key is the first of Keys consecutive keys. For Scan, Keys is the greatest number of records.
	Key, Keys int
	// Value is the value to write. It must not be changed.
	Value []byte
	// Written states that the keys of a Get were written before. A call that does not find them
	// returns ErrAbsent.
	Written bool
}

// ErrAbsent is the error of a Get of keys that were written before and are not there.
var ErrAbsent = errors.New("a record that was written before is not there")

// Call executes a step.
type Call func(ctx context.Context, s Step) error

// CallersMax bounds the callers of a case.
const CallersMax = 65_536

// latencyMaxUs bounds the histogram. Longer calls count as this long.
const latencyMaxUs = 60_000_000

// Run executes call as c describes, and measures the processor time of the server processes pids.
func Run(ctx context.Context, c Case, pids []int, call Call) Result {
	c.Batch = max(c.Batch, 1)
	l := &loop{Case: c, call: call, value: randomValue(c.ValueBytes)}
	if c.Workload != "" {
		l.mix = newMix(c)
	}
	callers := make([]*caller, c.Callers)
	var wait sync.WaitGroup
	for i := range callers {
		callers[i] = &caller{loop: l, id: i, hist: hdrhistogram.New(1, latencyMaxUs, 3), random: rand.New(rand.NewPCG(uint64(i), uint64(c.Fresh)))}
		wait.Go(func() { callers[i].runLoop(ctx) })
	}
	sleepFor(ctx, c.Warm)
	// Processor time and operations must cover the same interval, so both are taken at its ends.
	self := []int{os.Getpid()}
	everyone := append(self, pids...)
	cpu, own, machine := CPU(pids), CPU(self), StartUsage(everyone)
	start := time.Now()
	l.measuring.Store(true)
	sleepFor(ctx, c.Measure)
	// Calls that are still in progress belong to no measurement.
	l.measuring.Store(false)
	took := time.Since(start)
	others := machine.OtherCores(everyone)
	cpu, own = CPU(pids)-cpu, CPU(self)-own
	l.stop.Store(true)
	wait.Wait()
	r := summarise(c, callers, took)
	r.OtherCores = others
	if r.Ops > 0 {
		r.ServerCPU = float64(cpu.Microseconds()) / float64(r.Ops)
		r.ClientCPU = float64(own.Microseconds()) / float64(r.Ops)
	}
	return r
}

// randomValue returns n random bytes, so that no store gains by compressing them. The fixed seed
// keeps runs comparable.
func randomValue(n int) []byte {
	value := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(value) // never fails
	return value
}

// sleepFor waits for d, or until ctx ends.
func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// loop is the part of a run that all callers share.
type loop struct {
	Case
	call            Call
	value           []byte
	mix             *mix // nil without a workload
	measuring, stop atomic.Bool
}

// caller is one caller with its own histogram, so that callers share no counter while they are
// measured.
type caller struct {
	*loop
	id     int
	hist   *hdrhistogram.Histogram
	random *rand.Rand
	errors int64
	first  error
}

// runLoop makes calls until stop is set.
func (c *caller) runLoop(ctx context.Context) {
	for i := 0; !c.stop.Load() && ctx.Err() == nil; i++ {
		begin := time.Now()
		var err error
		if c.mix != nil {
			err = c.mix.callNext(ctx, c)
		} else {
			err = c.call(ctx, Step{Op: c.Op, Caller: c.id, Key: c.keyAt(i), Keys: c.Batch, Value: c.value, Written: c.Op == Get})
		}
		// Calls that end during the measurement count: a rule that required them to begin then
		// would drop all calls as long as the measurement.
		if !c.measuring.Load() {
			continue
		}
		if err != nil {
			c.errors++
			c.first = cmp.Or(c.first, err)
			continue
		}
		_ = c.hist.RecordValue(min(max(time.Since(begin).Microseconds(), 1), latencyMaxUs)) // always in bounds
	}
}

// keyAt returns the first key of the i-th call of a caller. Keys repeat, except for Create and
// Append.
func (c *loop) keyAt(i int) int {
	switch c.Op {
	case Create:
		return i * c.Batch
	case Append:
		return c.Fresh + i*c.Batch
	}
	return i * c.Batch % c.Keys
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
	r.P50, r.P99, r.P999, r.Max = all.ValueAtQuantile(50), all.ValueAtQuantile(99), all.ValueAtQuantile(99.9), all.Max()
	return r
}
