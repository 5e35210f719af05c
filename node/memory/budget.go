package memory

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Budget bounds the bytes of one use of memory on a whole node. It is safe for concurrent use. A
// nil Budget has no bound and counts nothing.
type Budget struct {
	name    string
	most    int64
	used    atomic.Int64
	refused atomic.Uint64
}

// NewBudget returns a budget of most bytes. The name appears in metrics.
func NewBudget(name string, most int64) *Budget { return &Budget{name: name, most: most} }

// TryAcquire takes n bytes if they fit, or if the budget is unused: a request larger than the
// budget is served alone. If TryAcquire returns true, the caller must Release the same n once.
func (b *Budget) TryAcquire(n int64) bool {
	if b == nil || n == 0 {
		return true
	}
	for {
		used := b.used.Load()
		// Checking before adding keeps used below the bound; adding first would reject concurrent callers
		// that fit.
		if used > 0 && used+n > b.most {
			b.refused.Add(1)
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Add takes n bytes even if they do not fit, for memory that is already in use. A negative n
// releases bytes.
func (b *Budget) Add(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

// Release releases n bytes.
func (b *Budget) Release(n int64) { b.Add(-n) }

// Full reports whether nothing more fits. A caller that rejects work for that reason calls Refuse.
func (b *Budget) Full() bool { return b != nil && b.used.Load() >= b.most }

// Refuse counts a rejection that did not go through TryAcquire.
func (b *Budget) Refuse() {
	if b != nil {
		b.refused.Add(1)
	}
}

// Free returns the number of bytes that still fit. It is math.MaxInt64 for a nil Budget.
func (b *Budget) Free() int64 {
	if b == nil {
		return math.MaxInt64
	}
	return max(b.most-b.used.Load(), 0)
}

// Used returns the number of bytes taken.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Most returns the bound in bytes, or 0 for a nil Budget.
func (b *Budget) Most() int64 {
	if b == nil {
		return 0
	}
	return b.most
}

// Collector returns the metrics of budgets, which must not be nil.
func Collector(budgets ...*Budget) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("rhumb_memory_"+name, help, []string{"part"}, nil)
	}
	return &collector{
		budgets: budgets,
		used:    desc("used_bytes", "Bytes in use, by part of the node's memory."),
		most:    desc("most_bytes", "The bound of each part of the node's memory."),
		refused: desc("refused_total", "Requests and messages that were rejected or dropped because their part of the memory was full."),
	}
}

// collector implements prometheus.Collector.
type collector struct {
	budgets             []*Budget
	used, most, refused *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.used, c.most, c.refused} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, b := range c.budgets {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(b.Used()), b.name)
		ch <- prometheus.MustNewConstMetric(c.most, prometheus.GaugeValue, float64(b.most), b.name)
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(b.refused.Load()), b.name)
	}
}
