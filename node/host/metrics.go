package host

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics holds the metrics of the host. None carries a key or a range as label.
type metrics struct {
	proposeSeconds   prometheus.Histogram
	syncSeconds      prometheus.Histogram
	commitRanges     prometheus.Histogram
	overloaded       prometheus.Counter
	diskFull         prometheus.Counter
	confirmReads     prometheus.Counter
	readRetries      prometheus.Counter
	conditionReads   prometheus.Counter
	refusedMessages  prometheus.Counter
	droppedMessages  prometheus.Counter
	rangeFull        prometheus.Counter
	metaDropped      prometheus.Counter
	fetchFailed      prometheus.Counter
	collectFailed    prometheus.Counter
	logsShortened    prometheus.Counter
	quarantined      prometheus.Gauge
	discarded        prometheus.Counter
	distrusted       prometheus.Counter
	installed        prometheus.Counter
	healed           prometheus.Counter
	removed          prometheus.Counter
	removedRanges    prometheus.Counter
	splits           prometheus.Counter
	splitsGivenUp    prometheus.Counter
	merges           prometheus.Counter
	mergesGivenUp    prometheus.Counter
	clearedBytes     prometheus.Counter
	clearFailed      prometheus.Counter
	unfit            prometheus.Gauge
	unreadableStores prometheus.Gauge
	clockAhead       prometheus.Gauge
	slowFound        prometheus.Counter
	slowPeers        prometheus.Gauge

	deferredCommits     prometheus.Counter
	deferredWaits       prometheus.Counter
	deferredSyncSeconds prometheus.Histogram
	deferredUnsure      prometheus.Counter
	deferredLost        prometheus.Counter

	handedOver       prometheus.Counter
	handoverTimeouts prometheus.Counter
}

func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "host", Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "rhumb", Subsystem: "host", Name: name, Help: help, Buckets: buckets})
	}
	seconds := prometheus.ExponentialBuckets(50e-6, 2, 18) // 50 µs to 6.5 s
	return metrics{
		proposeSeconds:  histogram("propose_seconds", "Time from a batch's arrival at the host to its answer.", seconds),
		syncSeconds:     histogram("sync_seconds", "Time for a commit to become durable.", seconds),
		commitRanges:    histogram("commit_ranges", "Ranges that share one synced commit.", prometheus.ExponentialBuckets(1, 2, 12)),
		overloaded:      counter("overloaded_total", "Batches rejected because too many batches or bytes wait."),
		diskFull:        counter("disk_full_total", "Batches and entries of peers rejected because the disk is nearly full, and attempts of commits that wait for room."),
		confirmReads:    counter("confirm_reads_total", "Reads that had no lease and asked the metadata group instead."),
		readRetries:     counter("read_retries_total", "Reads that retried because the versions that they needed were collected."),
		conditionReads:  counter("condition_reads_total", "Failed conditions that a lease read decided, without a log entry."),
		refusedMessages: counter("refused_messages_total", "Replication messages that a replica rejected."),
		droppedMessages: counter("dropped_messages_total", "Replication messages dropped because too many bytes wait; they are sent again."),
		rangeFull:       counter("range_full_total", "Batches rejected because they add keys to a range that is too large."),
		metaDropped:     counter("meta_dropped_total", "Metadata proposals dropped because too many were in flight; replicas propose them again."),
		fetchFailed:     counter("fetch_failed_total", "Log reads for lagging peers that failed."),
		collectFailed:   counter("collect_failed_total", "Collections of old log and versions that failed."),
		discarded:       counter("discarded_replicas_total", "Damaged copies of ranges that operators discarded."),
		healed:          counter("healed_replicas_total", "Damaged copies that the node discarded without a person, because other copies are intact."),
		distrusted:      counter("distrusted_replicas_total", "Copies that were quarantined because other replicas have other records."),
		installed:       counter("installed_replicas_total", "Replicas that were replaced by a copy from another node, because their log was trimmed."),
		removed:         counter("removed_replicas_total", "Copies of ranges that were dropped because the metadata places them elsewhere."),
		removedRanges:   counter("removed_ranges_total", "Copies of ranges dropped because the last table of their class was dropped."),
		splits:          counter("splits_total", "Copies of ranges that this node divided, because the range was split."),
		splitsGivenUp:   counter("splits_given_up_total", "Requests to cancel a split, because a copy that the new range counts on is missing for too long."),
		merges:          counter("merges_total", "Copies of ranges that this node united with that of the range before, because the ranges were merged."),
		mergesGivenUp:   counter("merges_given_up_total", "Requests to cancel a merge, because both ranges cannot be merged for too long."),
		clearedBytes:    counter("cleared_bytes_total", "Bytes of dropped tables that were deleted from ranges of other tables, before compression."),
		clearFailed:     counter("clear_failed_total", "Failures to delete what belongs to dropped tables; the next trim of the range or the next start of the node tries again."),
		unfit: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "unfit", Help: "1 while this node yields its primaries because its clock is wrong or its disk is full or slow, or refuses reads.",
		}),
		unreadableStores: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "unreadable_stores", Help: "Stores that have no primaries because their disks refuse reads.",
		}),
		clockAhead: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "clock_ahead_seconds", Help: "How far the wall clock is ahead of the median of the nodes in contact; negative if it is behind.",
		}),
		slowFound: counter("slow_nodes_total", "Times that another node was found to acknowledge much later than others."),
		slowPeers: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "slow_nodes", Help: "Nodes that acknowledge much later than others; ranges do not wait for them if enough other copies are left.",
		}),
		deferredCommits:     counter("deferred_commits_total", "Commits that were acknowledged before they were synced, of tables that defer syncs."),
		deferredWaits:       counter("deferred_waits_total", "Commits of tables that defer syncs that waited for a sync, because an earlier write was not synced within its window."),
		deferredSyncSeconds: histogram("deferred_sync_seconds", "Time for a sync of writes that were acknowledged before.", seconds),
		deferredUnsure:      counter("deferred_unsure_elections_total", "Ranges of tables that defer syncs that began an epoch here although writes of the last window may be lost."),
		deferredLost:        counter("deferred_lost_entries_total", "Entries of the log of this node that the other copies had lost in a power loss, and that their ranges went on without."),
		handedOver:          counter("handovers_total", "Ranges that this node handed over to another node."),
		handoverTimeouts:    counter("handover_timeouts_total", "Requests that waited in vain for a range that was being handed over to this node."),
		logsShortened:       counter("logs_shortened_total", "Times that the log of a range was trimmed because its store kept too much log for lagging replicas."),
		quarantined: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "quarantined_replicas", Help: "Replicas that serve nothing because their data contradicts the protocol.",
		}),
	}
}

// Collectors returns the host's metrics for registration.
func (h *Host) Collectors() []prometheus.Collector {
	m := &h.m
	return []prometheus.Collector{
		m.proposeSeconds, m.syncSeconds, m.commitRanges, m.overloaded, m.diskFull, m.confirmReads, m.readRetries, m.conditionReads,
		m.refusedMessages, m.droppedMessages, m.rangeFull, m.metaDropped, m.fetchFailed, m.collectFailed, m.logsShortened, m.quarantined,
		m.unfit, m.unreadableStores, m.clockAhead, m.slowFound, m.slowPeers, m.discarded, m.distrusted, m.handedOver, m.handoverTimeouts, m.installed, m.healed, m.removed, m.removedRanges, m.splits, m.splitsGivenUp, m.merges, m.mergesGivenUp, m.clearedBytes, m.clearFailed,
		m.deferredCommits, m.deferredWaits, m.deferredSyncSeconds, m.deferredUnsure, m.deferredLost,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "deferred_unsynced_seconds", Help: "Age of the oldest write that is acknowledged and not synced; 0 if there is none.",
		}, func() float64 { return h.unsyncedAge().Seconds() }),
		troubleCollector{h},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "taken_bytes", Help: "Bytes of client batches that are admitted and not answered.",
		}, func() float64 { used, _ := h.admission.readUsage(); return float64(used) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "host", Name: "pace_bytes", Help: "How many bytes of client batches the node admits at a time, by the pace at which it answers them.",
		}, func() float64 { _, pace := h.admission.readUsage(); return float64(pace) }),
	}
}

// troubleCollector counts troubles when it is scraped.
type troubleCollector struct{ h *Host }

var troublesDesc = prometheus.NewDesc("rhumb_host_troubled_replicas",
	"Replicas that are quarantined, that were elected and do not serve yet, or whose log their primary here has trimmed away.", []string{"trouble"}, nil)

// scrapeTimeout bounds how long a scrape waits for a pass.
const scrapeTimeout = time.Second

func (c troubleCollector) Describe(ch chan<- *prometheus.Desc) { ch <- troublesDesc }

// Collect omits the counts if no pass delivers them in time: an old count would hide that the node
// is stuck.
func (c troubleCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	all, err := c.h.Troubles(ctx)
	if err != nil {
		return
	}
	for kind, name := range troubleNames {
		ch <- prometheus.MustNewConstMetric(troublesDesc, prometheus.GaugeValue, float64(all.Counts[kind]), name)
	}
}
