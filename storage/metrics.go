package storage

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a store's own counters. Pebble's are read when they are scraped (see
// pebbleCollector).
type metrics struct {
	syncSeconds      prometheus.Histogram
	corruptions      prometheus.Counter
	readErrors       prometheus.Counter
	unreadable       prometheus.Counter
	misuses          prometheus.Counter
	stalls           prometheus.Counter
	logStalls        prometheus.Counter
	logCopied        prometheus.Counter
	backgroundErrors prometheus.Counter
	damages          prometheus.Counter
	lengthFailures   prometheus.Counter
	sealFailures     prometheus.Counter
	reserveReleases  prometheus.Counter
	reserveFailures  prometheus.Counter
	nameReads        prometheus.Counter
	nameWalks        prometheus.Counter
	nameEvictions    prometheus.Counter
	rowHits          prometheus.Counter
	rowMisses        prometheus.Counter
	rowEvictions     prometheus.Counter
	diskState        prometheus.Gauge
	fillRate         prometheus.Gauge
	reserve          prometheus.Gauge
}

// constLabels distinguishes the stores of a node.
func constLabels(dir string) prometheus.Labels { return prometheus.Labels{"store": dir} }

// newMetrics returns the metrics of a store that are not registered yet.
func newMetrics(dir string) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "storage", Name: name, Help: help, ConstLabels: constLabels(dir)})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rhumb", Subsystem: "storage", Name: name, Help: help, ConstLabels: constLabels(dir)})
	}
	return metrics{
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rhumb", Subsystem: "storage", Name: "log_sync_seconds", Help: "Time of one sync of the log.",
			ConstLabels: constLabels(dir), Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16),
		}),
		corruptions:      counter("corruptions_total", "Damaged blocks met by reads and compactions."),
		readErrors:       counter("read_errors_total", "Reads of files that the disk refused."),
		unreadable:       counter("unreadable_total", "Places of tables that the disk refused to read for so long that they count as damaged."),
		misuses:          counter("misuses_total", "SINGLEDELs that deleted nothing, or more than one value."),
		stalls:           counter("write_stalls_total", "Times that writes waited for a flush or compaction."),
		logStalls:        counter("log_stalls_total", "Times that writes waited for a flush because the log was full."),
		logCopied:        counter("log_copied_total", "Log records and results of requests that were still needed when the log of the store needed their room."),
		backgroundErrors: counter("background_errors_total", "Flushes and compactions that failed."),
		damages:          counter("damages_total", "Damaged files found, without whose damaged part the store continues."),
		lengthFailures:   counter("synced_length_failures_total", "Synced lengths of the log that could not be recorded."),
		sealFailures:     counter("seal_failures_total", "Seals that could not be renewed."),
		reserveReleases:  counter("reserve_releases_total", "Times that the disk was full and its reserve was released for the metadata group."),
		reserveFailures:  counter("reserve_failures_total", "Times that the reserve could not be created or released."),
		nameReads:        counter("name_reads_total", "Times that a scan took the next names of a range from memory."),
		nameWalks:        counter("name_walks_total", "Times that a scan read the next names of a range from each of its slots."),
		nameEvictions:    counter("name_evictions_total", "Parts of tables whose names were dropped from memory for others."),
		rowHits:          counter("row_hits_total", "Reads of a record by name that found it in memory."),
		rowMisses:        counter("row_misses_total", "Reads of a record by name that asked the database."),
		rowEvictions:     counter("row_evictions_total", "Records that were dropped from memory for others."),
		diskState:        gauge("disk_state", "0 healthy, 1 refusing writes, 2 full."),
		fillRate:         gauge("disk_fill_bytes_per_second", "How fast the disk fills."),
		reserve:          gauge("reserve_bytes", "Disk space reserved for the metadata group."),
	}
}

// Collectors returns the store's metrics for registration.
func (s *Store) Collectors() []prometheus.Collector {
	m := &s.metrics
	return []prometheus.Collector{
		m.syncSeconds, m.corruptions, m.readErrors, m.unreadable, m.misuses, m.stalls, m.logStalls, m.logCopied, newKeptCollector(s), m.backgroundErrors, m.damages, m.lengthFailures, m.sealFailures,
		m.reserveReleases, m.reserveFailures, m.diskState, m.fillRate, m.reserve,
		m.nameReads, m.nameWalks, m.nameEvictions, newNamesCollector(s), m.rowHits, m.rowMisses, m.rowEvictions, newRowsCollector(s), newDamageCollector(s), newUnreadCollector(s), newPebbleCollector(s),
	}
}

// newDamageCollector returns a metric that reports whether the store is short.
func newDamageCollector(s *Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "storage", Name: "short", ConstLabels: constLabels(s.cfg.Dir),
		Help: "1 while the store may lack data that it had made durable.",
	}, func() float64 {
		if s.Short() {
			return 1
		}
		return 0
	})
}

// newUnreadCollector returns the metric of the places that cannot be read.
func newUnreadCollector(s *Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "storage", Name: "unread_places", ConstLabels: constLabels(s.cfg.Dir),
		Help: "Places of files that the disk refused to read and has not let read since.",
	}, func() float64 { return float64(s.UnreadPlaces()) })
}

// newKeptCollector returns the metric of the memory of log records and results.
func newKeptCollector(s *Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "storage", Name: "log_kept_bytes", ConstLabels: constLabels(s.cfg.Dir),
		Help: "Memory of the log records and results of requests that are in the log of the store and not in its database.",
	}, func() float64 { return float64(s.kept.usage()) })
}

// newNamesCollector returns the metric of the memory of names.
func newNamesCollector(s *Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "storage", Name: "name_bytes", ConstLabels: constLabels(s.cfg.Dir),
		Help: "Memory of the names that are kept in order for scans.",
	}, func() float64 {
		s.names.mu.Lock()
		defer s.names.mu.Unlock()
		return float64(s.names.bytes)
	})
}

// newRowsCollector returns the metric of the memory of records.
func newRowsCollector(s *Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "storage", Name: "row_bytes", ConstLabels: constLabels(s.cfg.Dir),
		Help: "Memory of the records that are kept for reads by name.",
	}, func() float64 {
		bytes, _ := s.rows.usage()
		return float64(bytes)
	})
}

// readErrorEvery is the least time between two messages about reads that the disk refused. A bad disk refuses thousands a second.
const readErrorEvery = time.Second

// readRefused counts a read that the disk refused, remembers its place, and reports some of them.
func (s *Store) readRefused(p readSpot, err error) {
	s.metrics.readErrors.Inc()
	s.refusals.note(p)
	now := time.Now().UnixNano()
	last := s.readErrorAt.Load()
	// Of callers at the same time one reports.
	if now-last < int64(readErrorEvery) || !s.readErrorAt.CompareAndSwap(last, now) {
		return
	}
	s.log.Error("the disk refused a read", "store", s.cfg.Dir, "file", p.path, "err", err)
}

// syncTook records the duration of a sync of the log.
func (s *Store) syncTook(d time.Duration) { s.metrics.syncSeconds.Observe(d.Seconds()) }

// pebbleCollector reads Pebble's metrics when they are scraped. One call of DB.Metrics, which takes
// Pebble's locks, then serves all of them.
type pebbleCollector struct {
	s      *Store
	gauges []pebbleGauge
}

// pebbleGauge is one metric and how it is read.
type pebbleGauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*pebble.Metrics) float64
}

// newPebbleCollector returns the metrics of the store's database.
func newPebbleCollector(s *Store) *pebbleCollector {
	c := &pebbleCollector{s: s}
	add := func(kind prometheus.ValueType, name, help string, read func(*pebble.Metrics) float64) {
		c.gauges = append(c.gauges, pebbleGauge{prometheus.NewDesc("rhumb_storage_"+name, help, nil, constLabels(s.cfg.Dir)), kind, read})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "disk_used_bytes", "Bytes in the store's files.", func(m *pebble.Metrics) float64 { return float64(m.DiskSpaceUsage()) })
	add(gauge, "memtable_bytes", "Bytes in memtables.", func(m *pebble.Metrics) float64 { return float64(m.MemTable.Size) })
	add(gauge, "tables", "Table files.", func(m *pebble.Metrics) float64 { t := m.Total(); return float64(t.TablesCount) })
	add(gauge, "read_amplification", "Levels that a read may have to examine.", func(m *pebble.Metrics) float64 { return float64(m.ReadAmp()) })
	add(gauge, "compaction_debt_bytes", "Bytes that compactions have yet to rewrite.", func(m *pebble.Metrics) float64 { return float64(m.Compact.EstimatedDebt) })
	add(counter, "compactions_total", "Completed compactions.", func(m *pebble.Metrics) float64 { return float64(m.Compact.Count) })
	add(counter, "flushes_total", "Completed flushes.", func(m *pebble.Metrics) float64 { return float64(m.Flush.Count) })
	add(counter, "cache_hits_total", "Blocks found in the cache.", func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Hits) })
	add(gauge, "cache_bytes", "Memory of the block cache, which all stores of the process share. It is not part of Go's heap.", func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Size) })
	add(counter, "cache_misses_total", "Blocks read from disk.", func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Misses) })
	add(counter, "log_written_bytes_total", "Bytes written to the log.", func(m *pebble.Metrics) float64 {
		if s.own != nil {
			return float64(s.own.written.Load())
		}
		return float64(m.WAL.BytesWritten)
	})
	add(counter, "log_payload_bytes_total", "Bytes of batches written to the log.", func(m *pebble.Metrics) float64 {
		if s.own != nil {
			return float64(s.own.bytes.Load())
		}
		return float64(m.WAL.BytesIn)
	})
	add(gauge, "log_unsynced_bytes", "Bytes of the log that the operating system has and that are not synced.", func(*pebble.Metrics) float64 {
		if s.own != nil {
			return float64(s.own.log.Unsynced())
		}
		return float64(s.fs.unsynced())
	})
	return c
}

// Describe implements prometheus.Collector.
func (c *pebbleCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range c.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (c *pebbleCollector) Collect(ch chan<- prometheus.Metric) {
	// A scrape may come while the node stops. The lock keeps the database open until the scrape is
	// done, and a closed database has no metrics.
	c.s.closeMu.RLock()
	defer c.s.closeMu.RUnlock()
	if c.s.closed {
		return
	}
	m := c.s.db.Metrics()
	for _, g := range c.gauges {
		ch <- prometheus.MustNewConstMetric(g.desc, g.kind, g.read(m))
	}
}
