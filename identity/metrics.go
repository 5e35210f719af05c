package identity

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics holds the metrics of a Source.
//
// Every way in which an identity fails has a counter, because the causes are on other machines: a
// node that refuses a certificate cannot ask its bearer, and the bearer learns only that the
// connection ended.
type metrics struct {
	reloads, failures prometheus.Counter
	// rejected counts failed handshakes of this side as a server, refused those as a client.
	rejected, refused, closed *prometheus.CounterVec
	expiry, trust             prometheus.GaugeFunc
	open, ignored             prometheus.GaugeFunc
	unproven                  prometheus.Counter
}

// newMetrics returns the metrics of a Source.
func newMetrics(s *Source) metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "rhumb", Subsystem: "identity", Name: name, Help: help}
	}
	m := metrics{
		reloads:  prometheus.NewCounter(prometheus.CounterOpts(opts("reloads_total", "Times that the certificate files were loaded."))),
		failures: prometheus.NewCounter(prometheus.CounterOpts(opts("reload_failures_total", "Times that changed certificate files were rejected. The former identity stays in use."))),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts(opts("rejected_total", "Accepted connections that were refused during the TLS handshake.")), []string{"reason"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts(opts("dial_failures_total", "Dialled connections whose TLS handshake failed.")), []string{"reason"}),
		closed:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("closed_total", "Open connections that were closed because their certificate was no longer valid.")), []string{"reason"}),
		expiry: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("certificate_expiry_timestamp_seconds", "End of the validity of the own certificate, in seconds since 1970; 0 without one.")), func() float64 {
			if leaf := s.Leaf(); leaf != nil {
				return float64(leaf.NotAfter.Unix())
			}
			return 0
		}),
		trust: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("authority_expiry_timestamp_seconds", "End of the validity of the trusted authority that expires first, in seconds since 1970; 0 without one.")), func() float64 {
			var first int64
			v := s.verifier.Load()
			for _, c := range v.Authorities {
				// A distrusted authority signs nothing that counts, so its end does not justify an
				// alert.
				if end := c.NotAfter.Unix(); !v.Distrusted[AuthorityOf(c)] && (first == 0 || end < first) {
					first = end
				}
			}
			return float64(first)
		}),
		open: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("connections", "Open TLS connections, of both directions.")), func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.conns))
		}),
		ignored: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("ignored_authorities", "Authorities in the metadata that are not trusted, because no operator has signed for them.")), func() float64 {
			return float64(len(s.Ignored()))
		}),
		unproven: prometheus.NewCounter(prometheus.CounterOpts(opts("unproven_authorities_total", "Times that the metadata named another authority for which no operator has signed."))),
	}
	// Alerts need a value of 0 before the first event.
	for _, r := range Reasons() {
		m.rejected.WithLabelValues(string(r))
		m.refused.WithLabelValues(string(r))
		m.closed.WithLabelValues(string(r))
	}
	return m
}

// Collectors returns the metrics of the Source.
func (s *Source) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.m.reloads, s.m.failures, s.m.rejected, s.m.refused, s.m.closed, s.m.expiry, s.m.trust, s.m.open, s.m.ignored, s.m.unproven}
}
