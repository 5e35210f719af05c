package load

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Workload is one of the mixes of the Yahoo! Cloud Serving Benchmark, or empty.
type Workload string

// Workloads returns the mixes in their order.
func Workloads() []Workload { return []Workload{"A", "B", "C", "D", "E", "F"} }

// share holds the composition of a workload, in percent. All other calls are reads.
type share struct {
	put, insert, scan, modify int
	latest                    bool // reads prefer the records that were inserted last
}

// shares are those of the core workloads of YCSB. Keys follow a Zipf distribution in all of them.
var shares = map[Workload]share{
	"A": {put: 50},
	"B": {put: 5},
	"C": {},
	"D": {insert: 5, latest: true},
	"E": {insert: 5, scan: 95},
	"F": {modify: 50},
}

// Needs returns the operations that the calls of a case consist of.
func (c Case) Needs() []Op {
	s, ok := shares[c.Workload]
	switch {
	case !ok:
		return []Op{c.Op}
	case s.scan > 0:
		return []Op{Put, Scan}
	}
	return []Op{Put, Get}
}

// ParseWorkload returns the workload with a name in either case, or an error that names all.
func ParseWorkload(name string) (Workload, error) {
	for _, w := range Workloads() {
		if string(w) == name || string(w[0]|0x20) == name {
			return w, nil
		}
	}
	return "", fmt.Errorf("%q is not a workload; want one of %v", name, Workloads())
}

// fillersMax bounds the concurrent calls of Fill.
const fillersMax = 64

// sharedCaller is the number of the caller whose keys the callers of a workload share. No other
// case has so many callers: its puts would change the sizes of the records.
const sharedCaller = 1 << 20

// Filled knows which records a database has. Its zero value is that of an empty one.
type Filled struct {
	// shared are the records of workloads, and own those of the callers of gets, with so many callers.
	shared, own filling
	callers     int
}

// filling identifies records: so many keys of each caller, and the size of their values.
type filling struct{ keys, valueBytes int }

// Fill writes the records that a case reads and that are not there yet, many keys per call. Without
// it a get would compare how databases miss.
func (f *Filled) Fill(ctx context.Context, c Case, many int, call Call) error {
	want := filling{c.Keys, c.ValueBytes}
	switch {
	case c.Workload != "" && f.shared != want:
		if err := fillCallers(ctx, want, sharedCaller, sharedCaller+1, many, call); err != nil {
			return err
		}
		f.shared = want
	case c.Workload == "" && c.Op == Get && (f.own != want || f.callers < c.Callers):
		// More callers need more records, of which those of the first callers are there.
		first := 0
		if f.own == want {
			first = f.callers
		}
		if err := fillCallers(ctx, want, first, c.Callers, many, call); err != nil {
			return err
		}
		f.own, f.callers = want, c.Callers
	}
	return nil
}

// fillCallers writes the records of the callers from first to last-1.
func fillCallers(ctx context.Context, want filling, first, last, many int, call Call) error {
	value := randomValue(want.valueBytes)
	each := (want.keys + many - 1) / many // calls for each caller
	var next atomic.Int64
	failed := make([]error, fillersMax)
	var fillers sync.WaitGroup
	for i := range failed {
		fillers.Go(func() {
			// Calls are numbered over all callers, so that the fillers have work until the last record.
			for failed[i] == nil && ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				caller, key := first+n/each, n%each*many
				if caller >= last {
					return
				}
				failed[i] = fillOnce(ctx, Step{Op: Put, Caller: caller, Key: key, Keys: min(many, want.keys-key), Value: value}, call)
			}
		})
	}
	fillers.Wait()
	// One error is enough: all fillers have mostly the same.
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

const (
	// fillTries bounds the attempts of one call of Fill, fillPause is the pause between two.
	fillTries = 10
	fillPause = 100 * time.Millisecond
)

// fillOnce makes one call of Fill. A filling is not measured, and a put can be repeated: a database that
// is slow or refuses for a moment must not end the whole measurement.
func fillOnce(ctx context.Context, s Step, call Call) (err error) {
	for range fillTries {
		if err = call(ctx, s); err == nil || ctx.Err() != nil {
			return err
		}
		sleepFor(ctx, fillPause)
	}
	return err
}

const (
	// scanRecords is the greatest number of records of one scan; each takes a random number up to it,
	// as YCSB does.
	scanRecords = 100
	// zipfTheta is the skew of YCSB: with 100,000 records, a tenth of the reads hit the most popular.
	zipfTheta = 0.99
)

// mix draws the calls of a workload. All callers share its keys, which have the numbers from 0 on, and
// its inserts, whose numbers begin far away from the keys: the records of an earlier run of the workload
// stay, and an insert must not find one of them.
type mix struct {
	share
	zipf *zipf
	// keys is the number of records before, fresh the key of the first insert, inserted the number
	// of inserts that were begun.
	keys, fresh int
	inserted    atomic.Int64
}

func newMix(c Case) *mix {
	return &mix{share: shares[c.Workload], zipf: newZipf(c.Keys, zipfTheta), keys: c.Keys, fresh: c.Fresh}
}

// callNext makes one call: an operation by its share on a key by its popularity.
func (m *mix) callNext(ctx context.Context, c *caller) error {
	s := Step{Op: Get, Caller: sharedCaller, Keys: 1, Value: c.value}
	// The shares are adjacent intervals of 0 to 99.
	switch n := c.random.IntN(100); {
	case n < m.insert:
		s.Op, s.Key = Put, m.fresh+int(m.inserted.Add(1))-1
		return c.call(ctx, s)
	case n < m.insert+m.put:
		s.Op = Put
	case n < m.insert+m.put+m.scan:
		s.Op, s.Keys = Scan, 1+c.random.IntN(scanRecords)
	case n < m.insert+m.put+m.scan+m.modify:
		s.Key = m.pickKey(c.random)
		// The put depends on the result of the get, so it cannot begin earlier. The record stays the same
		// size, as in YCSB.
		if err := c.call(ctx, s); err != nil {
			return err
		}
		s.Op = Put
		return c.call(ctx, s)
	}
	s.Key = m.pickKey(c.random)
	return c.call(ctx, s)
}

// pickKey returns a key by its popularity.
func (m *mix) pickKey(random *rand.Rand) int {
	rank := m.zipf.draw(random)
	if !m.latest {
		// Popular keys lie anywhere: without the hash they would be neighbours, and share a range
		// or a block.
		return int(scatter(uint64(rank)) % uint64(m.keys))
	}
	// The newest record has the first rank, whether it was there before or not.
	at := m.keys + int(m.inserted.Load()) - 1 - rank
	if at < m.keys {
		return at
	}
	return m.fresh + at - m.keys
}

// scatter mixes the bits of x, as the last steps of SplitMix64 do.
func scatter(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// zipf draws popular ranks more often than others: ranks from 0 to n-1, where rank r has a probability in proportion to 1/(r+1)^theta, by
// the method of Gray and others that YCSB uses. math/rand has only a skew above 1.
type zipf struct {
	n float64 // number of ranks
	// The names are those of the paper: zeta is the sum of all weights, alpha and eta shape the
	// approximation.
	theta, alpha, zeta, eta float64
}

// newZipf adds up n terms, once for a case: 10 ms for a million.
func newZipf(n int, theta float64) *zipf {
	z := &zipf{n: float64(n), theta: theta, alpha: 1 / (1 - theta)}
	for i := range n {
		z.zeta += math.Pow(float64(i+1), -theta)
	}
	z.eta = (1 - math.Pow(2/z.n, 1-theta)) / (1 - (1+math.Pow(0.5, theta))/z.zeta)
	return z
}

// draw returns a rank.
func (z *zipf) draw(random *rand.Rand) int {
	u := random.Float64()
	switch uz := u * z.zeta; {
	case uz < 1: // the first rank, which has the weight 1
		return 0
	case uz < 1+math.Pow(0.5, z.theta):
		return min(1, int(z.n)-1)
	}
	// The method is an approximation, which can exceed the last rank by rounding.
	return min(int(z.n*math.Pow(z.eta*u-z.eta+1, z.alpha)), int(z.n)-1)
}
