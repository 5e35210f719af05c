package transfer

import "github.com/prometheus/client_golang/prometheus"

// metrics are the counters of a manager.
type metrics struct {
	started, completed, failed, abandoned, damaged prometheus.Counter
	received, resumed, sent, exported              prometheus.Counter
}

// newMetrics returns counters that start at zero with each life of the node.
func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "transfer", Name: name, Help: help})
	}
	return metrics{
		started:   counter("started_total", "Attempts to copy a range to this node."),
		completed: counter("completed_total", "Ranges that were copied to this node."),
		failed:    counter("failed_total", "Attempts to copy a range that failed; they are repeated."),
		abandoned: counter("abandoned_total", "Sets that were begun and given up."),
		damaged:   counter("damaged_chunks_total", "Chunks that arrived damaged and were read again."),
		received:  counter("received_bytes_total", "Bytes of chunks that arrived."),
		resumed:   counter("resumed_bytes_total", "Bytes that an earlier attempt had received and that were not sent again."),
		sent:      counter("sent_bytes_total", "Bytes of chunks that were sent."),
		exported:  counter("exported_bytes_total", "Bytes of sets that were made for other nodes."),
	}
}

// Collectors returns the metrics for registration.
func (m *Manager) Collectors() []prometheus.Collector {
	c := &m.m
	return []prometheus.Collector{
		c.started, c.completed, c.failed, c.abandoned, c.damaged, c.received, c.resumed, c.sent, c.exported,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "transfer", Name: "remaining_bytes", Help: "Bytes that the transfers in progress have yet to receive.",
		}, func() (n float64) {
			for _, p := range m.Progress() {
				n += float64(p.Of - p.Done)
			}
			return n
		}),
	}
}
