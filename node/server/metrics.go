package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
)

// metrics of the key-value service.
type metrics struct {
	writeSeconds  prometheus.Histogram
	readSeconds   prometheus.Histogram
	frameRequests prometheus.Histogram
	failed        *prometheus.CounterVec
	forwarded     prometheus.Counter
	streams       prometheus.Gauge
}

func newMetrics() metrics {
	seconds := prometheus.ExponentialBuckets(10e-6, 2, 20) // 10 µs to 5 s
	opts := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "rhumb", Subsystem: "server", Name: name, Help: help, Buckets: seconds}
	}
	frame := opts("frame_requests", "Requests per frame of a client's stream.")
	frame.Buckets = prometheus.ExponentialBuckets(1, 2, 14)
	m := metrics{
		writeSeconds:  prometheus.NewHistogram(opts("write_seconds", "Time to answer a write that this node is primary for.")),
		readSeconds:   prometheus.NewHistogram(opts("read_seconds", "Time to answer a read that this node is primary for.")),
		frameRequests: prometheus.NewHistogram(frame),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "failed_total", Help: "Requests that failed, by kind of error.",
		}, []string{"kind"}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "forwarded_total", Help: "Requests passed on to another node.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "streams", Help: "Open streams of clients.",
		}),
	}
	for _, k := range rhumb.Kinds() { // so that they stand at 0 from the start
		m.failed.WithLabelValues(k.String())
	}
	return m
}

// Collectors gives the service's metrics for registration.
func (k *KV) Collectors() []prometheus.Collector {
	m := &k.m
	return []prometheus.Collector{m.writeSeconds, m.readSeconds, m.frameRequests, m.failed, m.forwarded, m.streams}
}
