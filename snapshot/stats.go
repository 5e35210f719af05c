package snapshot

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats is what a publisher has done and holds.
type Stats struct {
	Version uint64 // the newest
	Commits uint64 // since Open, as all counts
	Records uint64 // written by commits and loads
	Rolls   uint64
	// Kept counts the rolls that could keep the layout of the base, which are fast.
	Kept    uint64
	Loads   uint64
	Aborted uint64 // records of unfinished commits, found by Open
	// Quarantined counts files that failed a check.
	Quarantined uint64
	// Live is the number of keys with a visible value in all tables.
	Live int64
	// Bytes is the size of all files, PinnedBytes that of superseded ones that readers have mapped, and OverdueBytes the part of
	// it that readers have had for longer than the leash. Bytes less OverdueBytes is within Budget.
	Bytes, PinnedBytes, OverdueBytes, Budget int64
}

// Stats may be called by any goroutine.
func (p *Publisher) Stats() Stats {
	c := &p.stats
	return Stats{
		Version: c.version.Load(), Commits: c.commits.Load(), Records: c.records.Load(), Rolls: c.rolls.Load(), Kept: c.kept.Load(), Loads: c.loads.Load(),
		Aborted: c.aborted.Load(), Quarantined: c.quarantined.Load(), Live: c.live.Load(),
		Bytes: p.files.used.Load(), PinnedBytes: p.files.pinned.Load(), OverdueBytes: p.files.overdue.Load(), Budget: p.cfg.Budget,
	}
}

// HugeBytes is how much of the image this process maps with huge pages, as the kernel says in /proc/self/smaps. Reading that
// takes a millisecond for each GiB of huge pages, and much longer where pages are small. Any goroutine may call it.
func (p *Publisher) HugeBytes() (n int64) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0
	}
	defer f.Close()
	ours := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		name, rest, ok := strings.Cut(line, ":")
		switch {
		case !ok || strings.Contains(name, " "): // a mapping: its addresses, and its file at the end
			ours = strings.Contains(line, p.cfg.Dir+"/seg.")
		case ours && (name == "ShmemPmdMapped" || name == "FilePmdMapped"):
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				n += kib << 10
			}
		}
	}
	return n
}

// metrics are the publisher's, as Prometheus sees them.
type metrics struct {
	commitSeconds, rollSeconds, loadSeconds prometheus.Histogram
	commitRecords                           prometheus.Histogram
	all                                     []prometheus.Collector
}

func newMetrics(p *Publisher) (*metrics, error) {
	labels := prometheus.Labels{"image": p.cfg.Dir}
	m := &metrics{}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rhumb", Subsystem: "snapshot", Name: name, Help: help, ConstLabels: labels, Buckets: buckets,
		})
		m.all = append(m.all, h)
		return h
	}
	m.commitSeconds = histogram("commit_seconds", "Time to publish a commit.", prometheus.ExponentialBuckets(1e-6, 4, 12))
	m.rollSeconds = histogram("roll_seconds", "Time to roll a shard.", prometheus.ExponentialBuckets(100e-6, 4, 10))
	m.loadSeconds = histogram("load_seconds", "Time to build the shards of a loaded table.", prometheus.ExponentialBuckets(1e-3, 4, 10))
	m.commitRecords = histogram("commit_records", "Records of a commit.", prometheus.ExponentialBuckets(1, 10, 8))
	c := &p.stats
	value := func(name, help string, read func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "snapshot", Name: name, Help: help, ConstLabels: labels,
		}, read))
	}
	count := func(name, help string, read func() uint64) {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "snapshot", Name: name, Help: help, ConstLabels: labels,
		}, func() float64 { return float64(read()) }))
	}
	value("version", "Newest version of the image.", func() float64 { return float64(c.version.Load()) })
	value("records", "Keys with a visible value.", func() float64 { return float64(c.live.Load()) })
	value("large_shards", "Shards with more records than ShardRecordsMax.", func() float64 { return float64(c.large.Load()) })
	value("image_bytes", "Size of all files of the image.", func() float64 { return float64(p.files.used.Load()) })
	value("overdue_bytes", "Part of the pinned bytes that readers have had for longer than the leash.", func() float64 { return float64(p.files.overdue.Load()) })
	value("pinned_bytes", "Size of superseded files that readers have mapped.", func() float64 { return float64(p.files.pinned.Load()) })
	value("budget_bytes", "Greatest size that the image may have.", func() float64 { return float64(p.cfg.Budget) })
	value("huge_bytes", "Bytes of the image that are mapped with huge pages.", func() float64 { return float64(p.HugeBytes()) })
	count("records_total", "Record versions written.", c.records.Load)
	count("kept_rolls_total", "Rolls that could keep the layout of the base, which are fast.", c.kept.Load)
	count("aborted_records_total", "Records of unfinished commits that were found when the image was opened.", c.aborted.Load)
	count("quarantined_total", "Files that failed a check.", c.quarantined.Load)
	return m, m.register(p.cfg.Registerer)
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			m.all = m.all[:i]
			m.unregister(r) // or the next Open would meet them
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r != nil {
		for _, c := range m.all {
			r.Unregister(c)
		}
	}
}

func (m *metrics) committed(took time.Duration, records uint64) {
	m.commitSeconds.Observe(took.Seconds())
	m.commitRecords.Observe(float64(records))
}

// The structures that are laid over mapped memory have the sizes of the format.
var (
	_ [64 - unsafe.Sizeof(bucket{})]struct{}
	_ [unsafe.Sizeof(bucket{}) - 64]struct{}
	_ [32 - unsafe.Sizeof(deltaEntry{})]struct{}
	_ [24 - unsafe.Sizeof(recordHead{})]struct{}
)
