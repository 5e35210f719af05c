package publish

import "github.com/prometheus/client_golang/prometheus"

// metrics holds the metrics of a driver. None carries a range or a table as label.
type metrics struct {
	publishSeconds           prometheus.Histogram
	entries, loads, failures prometheus.Counter
	closedLag                prometheus.Gauge
}

func newMetrics() metrics {
	return metrics{
		publishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rhumb_publish_seconds", Help: "Time to make a gathered version of the image visible.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 12),
		}),
		closedLag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rhumb_publish_closed_lag_seconds", Help: "Age of the newest cut across ranges that the image offers; 0 before the first.",
		}),
		entries:  prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_entries_total", Help: "Log entries published in the image."}),
		loads:    prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_loads_total", Help: "Tables loaded whole into the image."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_publish_failures_total", Help: "Versions that could not be published; readers kept the previous one."}),
	}
}

// Collectors returns the driver's metrics.
func (d *Driver) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.m.publishSeconds, d.m.entries, d.m.loads, d.m.failures, d.m.closedLag}
}
