package publish

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	publishSeconds           prometheus.Histogram
	entries, loads, failures prometheus.Counter
}

func newMetrics() metrics {
	return metrics{
		publishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rhumb_publish_seconds", Help: "Time to make a gathered version of the image visible.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 12),
		}),
		entries:  prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_entries_total", Help: "Log entries published in the image."}),
		loads:    prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_loads_total", Help: "Tables read whole into the image."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_failures_total", Help: "Versions that could not be made; readers went on with the one before."}),
	}
}

// Collectors gives the driver's metrics.
func (d *Driver) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.m.publishSeconds, d.m.entries, d.m.loads, d.m.failures}
}
