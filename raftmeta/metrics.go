package raftmeta

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.etcd.io/raft/v3"

	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// metrics are the metrics of a group. Without a registerer they are counted but not exported.
type metrics struct {
	leaderChanges prometheus.Counter
	isLeader      prometheus.Gauge
	hasLeader     prometheus.Gauge
	proposals     *prometheus.CounterVec
	proposeTime   prometheus.Histogram
	applyTime     prometheus.Histogram
	entries       prometheus.Counter
	logSize       prometheus.Gauge
	stateSize     prometheus.Gauge
	dropped       prometheus.Counter
	resyncs       prometheus.Counter
	fenced        prometheus.Counter
	// Handovers that nobody adopted in time: withdrawn, and replaced by an election because the primary drains.
	handoversCancelled, handoversElected prometheus.Counter
	merges                               prometheus.Counter
	planRefused                          prometheus.Counter
	yields                               prometheus.Counter
	leadYields, clockYields              prometheus.Counter
	accusedYields                        prometheus.Counter
	silent                               prometheus.Gauge
	short                                prometheus.Gauge
	readmitted                           prometheus.Counter
	recovered                            prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, group GroupID) *metrics {
	if r != nil {
		r = prometheus.WrapRegistererWith(prometheus.Labels{"group": strconv.FormatUint(uint64(group), 10)}, r)
	}
	f := promauto.With(r)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "rhumb", Subsystem: "meta", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts(opts(name, help)))
	}
	histogram := func(name, help string) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rhumb", Subsystem: "meta", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-4, 2, 16),
		})
	}
	given := f.NewCounterVec(prometheus.CounterOpts(opts("handovers_given_up_total", "Prepared handovers that were not adopted in time, by what this leader did.")),
		[]string{"by"})
	return &metrics{
		handoversCancelled: given.WithLabelValues("cancel"), handoversElected: given.WithLabelValues("election"),
		leaderChanges: counter("leader_changes_total", "Changes of the metadata leader seen."),
		isLeader:      gauge("is_leader", "1 while this node leads the metadata group."),
		hasLeader:     gauge("has_leader", "1 while a leader is known."),
		proposals: f.NewCounterVec(prometheus.CounterOpts(opts("proposals_total", "Proposals at this leader by outcome.")),
			[]string{"outcome"}),
		proposeTime:   histogram("propose_seconds", "Time from proposal to result at the leader."),
		applyTime:     histogram("apply_seconds", "Time to apply the committed entries of one round."),
		entries:       counter("entries_applied_total", "Entries applied."),
		logSize:       gauge("log_bytes", "Size of the log."),
		stateSize:     gauge("state_bytes", "Size of the state at the last compaction of the log."),
		dropped:       counter("messages_dropped_total", "Messages dropped because the inbox was full."),
		resyncs:       counter("watch_resyncs_total", "Watches that fell behind and must read everything again."),
		yields:        counter("yields_total", "Ranges moved to another primary because theirs could not commit or was unfit."),
		merges:        counter("merges_started_total", "Merges of small ranges that this leader has started."),
		planRefused:   counter("plan_refused_total", "Commands of this leader's plans that the catalog refused, except those that an earlier change had overtaken."),
		fenced:        counter("nodes_fenced_total", "Nodes fenced by this leader."),
		leadYields:    counter("lead_yields_total", "Attempts of this witness to hand the leadership to a voter that is nearer to the others."),
		accusedYields: counter("accused_yields_total", "Attempts of this node, whose heartbeats others miss, to hand the leadership to one of them."),
		clockYields:   counter("clock_yields_total", "Attempts of this node, whose clock is wrong, to hand the leadership to a voter whose clock is right."),
		silent:        gauge("silent", "1 while this replica does not vote because it has not proved its log since it started."),
		short:         gauge("short", "1 while this replica lacks metadata that it had already made durable."),
		recovered:     gauge("recovered_timestamp_seconds", "Time of the last forced recovery that made this replica the only voter, in seconds since 1970; 0 if never."),
		readmitted:    counter("replicas_readmitted_total", "Replicas that had lost metadata and that this leader removed to readmit them."),
	}
}

func (m *metrics) setLeader(self, known bool) {
	m.leaderChanges.Inc()
	m.isLeader.Set(boolValue(self))
	m.hasLeader.Set(boolValue(known))
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) setProof(silent, short bool) {
	m.silent.Set(boolValue(silent))
	m.short.Set(boolValue(short))
}

// observeProposal counts a proposal by its outcome: done, refused by the catalog, or undecided.
func (m *metrics) observeProposal(err error, res catalog.Result, took time.Duration) {
	outcome := "done"
	switch {
	case err != nil:
		outcome = "undecided"
	case res.Failure != nil:
		outcome = "refused"
	}
	m.proposals.WithLabelValues(outcome).Inc()
	m.proposeTime.Observe(took.Seconds())
}

func (m *metrics) observeApply(entries int, took time.Duration, l *logStore) {
	m.entries.Add(float64(entries))
	m.applyTime.Observe(took.Seconds())
	m.logSize.Set(float64(l.size))
}

func (m *metrics) observeCut(l *logStore) {
	m.logSize.Set(float64(l.size))
	m.stateSize.Set(float64(l.stateSize))
}

// raftLogger sends Raft's own messages to the logger, one level lower than Raft rates them:
// elections and refused votes are normal operation here. Fatal and Panic mean a broken invariant,
// so both panic.
type raftLogger struct{ *slog.Logger }

var _ raft.Logger = raftLogger{}

func (l raftLogger) Debug(v ...any)                   { l.Logger.Debug(fmt.Sprint(v...)) }
func (l raftLogger) Debugf(format string, v ...any)   { l.Logger.Debug(fmt.Sprintf(format, v...)) }
func (l raftLogger) Info(v ...any)                    { l.Logger.Debug(fmt.Sprint(v...)) }
func (l raftLogger) Infof(format string, v ...any)    { l.Logger.Debug(fmt.Sprintf(format, v...)) }
func (l raftLogger) Warning(v ...any)                 { l.Logger.Info(fmt.Sprint(v...)) }
func (l raftLogger) Warningf(format string, v ...any) { l.Logger.Info(fmt.Sprintf(format, v...)) }
func (l raftLogger) Error(v ...any)                   { l.Logger.Warn(fmt.Sprint(v...)) }
func (l raftLogger) Errorf(format string, v ...any)   { l.Logger.Warn(fmt.Sprintf(format, v...)) }
func (l raftLogger) Fatal(v ...any)                   { panic(fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
func (l raftLogger) Panic(v ...any)                   { panic(fmt.Sprint(v...)) }
func (l raftLogger) Panicf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
