package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// kvMetrics holds the metrics of the key-value service.
type kvMetrics struct {
	writeSeconds  prometheus.Histogram
	readSeconds   prometheus.Histogram
	scanSeconds   prometheus.Histogram
	located       *prometheus.CounterVec
	frameRequests prometheus.Histogram
	failed        *prometheus.CounterVec
	forwarded     prometheus.Counter
	confined      prometheus.Counter
	streams       prometheus.Gauge
	links         prometheus.Gauge
	damaged       prometheus.Counter
	cutOff        prometheus.Counter
}

// newMetrics returns the metrics, not registered yet.
func newMetrics() kvMetrics {
	seconds := prometheus.ExponentialBuckets(10e-6, 2, 20) // 10 µs to 5 s
	opts := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "rhumb", Subsystem: "server", Name: name, Help: help, Buckets: seconds}
	}
	frame := opts("frame_requests", "Requests per frame of a client's stream or link.")
	// A client puts up to 1,024 requests into a frame.
	frame.Buckets = prometheus.ExponentialBuckets(1, 2, 14)
	m := kvMetrics{
		writeSeconds:  prometheus.NewHistogram(opts("write_seconds", "Time to answer a write that this node is primary for.")),
		scanSeconds:   prometheus.NewHistogram(opts("scan_seconds", "Time to read one page of a scan of several ranges.")),
		readSeconds:   prometheus.NewHistogram(opts("read_seconds", "Time to answer a read that this node is primary for.")),
		frameRequests: prometheus.NewHistogram(frame),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "failed_total", Help: "Requests that failed, by kind of error.",
		}, []string{"kind"}),
		located: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "located_total", Help: "Names that clients located, by what this node knew of them.",
		}, []string{"existence"}),
		confined: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "confined_total", Help: "Requests that this node did not pass on because their table is confined to other regions.",
		}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "forwarded_total", Help: "Requests passed on to another node.",
		}),
		cutOff: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "cut_off_total", Help: "Streams and links ended because their clients took no answers.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "streams", Help: "Open streams of clients.",
		}),
		links: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "links", Help: "Open links of clients.",
		}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rhumb", Subsystem: "server", Name: "damaged_frames_total", Help: "Frames of links of clients that were damaged on the way, and whose links were closed.",
		}),
	}
	// A counter exists once its label has been used. Created here, all start at 0, and the first
	// failure is an increase that alerts see.
	for _, k := range rhumb.Kinds() {
		m.failed.WithLabelValues(k.String())
	}
	for _, text := range existences {
		m.located.WithLabelValues(text)
	}
	return m
}

// existences holds the labels of api.Undecided, api.Absent and api.Present.
var existences = [...]string{api.Undecided: "undecided", api.Absent: "absent", api.Present: "present"}

// Collectors returns the service's metrics for registration.
func (k *KV) Collectors() []prometheus.Collector {
	m := &k.metrics
	return []prometheus.Collector{m.writeSeconds, m.readSeconds, m.scanSeconds, m.located, m.frameRequests, m.failed, m.forwarded, m.confined, m.streams, m.links, m.damaged, m.cutOff}
}
