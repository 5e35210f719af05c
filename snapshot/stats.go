package snapshot

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats counts the work of a publisher since Open, and the memory of its image.
type Stats struct {
	Version uint64 // the newest version
	Commits uint64
	Records uint64 // record versions that commits and loads wrote
	Rolls   uint64
	// Kept is the number of rolls that kept the layout of the base, which are the fast ones.
	Kept    uint64
	Loads   uint64
	Aborted uint64 // records of unfinished commits that Open found
	// Quarantined is the number of files that failed a check.
	Quarantined uint64
	// Live is the number of keys with a visible value in all tables.
	Live int64
	// Bytes is the size of all files. PinnedBytes is the size of the superseded files that readers
	// have mapped, and OverdueBytes the part of these that readers have had for longer than the
	// leash. Bytes less OverdueBytes is within Budget.
	Bytes, PinnedBytes, OverdueBytes, Budget int64
}

// Stats returns the current numbers. Any goroutine may call it.
func (p *Publisher) Stats() Stats {
	c := &p.stats
	return Stats{
		Version: c.version.Load(), Commits: c.commits.Load(), Records: c.records.Load(), Rolls: c.rolls.Load(), Kept: c.kept.Load(), Loads: c.loads.Load(),
		Aborted: c.aborted.Load(), Quarantined: c.quarantined.Load(), Live: c.live.Load(),
		Bytes: p.files.used.Load(), PinnedBytes: p.files.pinned.Load(), OverdueBytes: p.files.overdue.Load(), Budget: p.cfg.Budget,
	}
}

// HugeBytes returns how much of the image this process maps with huge pages, as the kernel reports
// it in /proc/self/smaps, or 0 if that file cannot be read. Reading it takes a millisecond per GiB
// of huge pages and much longer with small ones, so do not call HugeBytes often. Any goroutine may
// call it.
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
		// The kernel counts huge pages of tmpfs in the first field and those of other file systems
		// in the second.
		case ours && (name == "ShmemPmdMapped" || name == "FilePmdMapped"):
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				n += kib << 10
			}
		}
	}
	return n
}

// metrics are what Prometheus collects from a publisher. Most are read from counters only when they
// are collected.
type metrics struct {
	commitSeconds, rollSeconds, loadSeconds prometheus.Histogram
	commitRecords                           prometheus.Histogram
	all                                     []prometheus.Collector
}

// newMetrics returns the metrics of a publisher, registered.
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
	value("overdue_most_bytes", "Greatest size of overdue files that does not count in the budget.", func() float64 { return float64(p.cfg.OverdueMax) })
	value("leash_seconds", "How long readers may keep a superseded file before it is overdue.", func() float64 { return p.cfg.Leash.Seconds() })
	value("huge_bytes", "Bytes of the image that are mapped with huge pages.", func() float64 { return float64(p.HugeBytes()) })
	count("records_total", "Record versions written.", c.records.Load)
	count("kept_rolls_total", "Rolls that could keep the layout of the base, which are fast.", c.kept.Load)
	count("aborted_records_total", "Records of unfinished commits that were found when the image was opened.", c.aborted.Load)
	count("quarantined_total", "Files that failed a check.", c.quarantined.Load)
	return m, m.register(p.cfg.Registerer)
}

// register registers all metrics or none: metrics left by a failed Open would make the next one
// fail.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			m.all = m.all[:i]
			m.unregister(r)
			return err
		}
	}
	return nil
}

// unregister removes the metrics; a nil r has none.
func (m *metrics) unregister(r prometheus.Registerer) {
	if r != nil {
		for _, c := range m.all {
			r.Unregister(c)
		}
	}
}

// observeCommit records a commit.
func (m *metrics) observeCommit(took time.Duration, records uint64) {
	m.commitSeconds.Observe(took.Seconds())
	m.commitRecords.Observe(float64(records))
}
