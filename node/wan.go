package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/wan"
)

// wanPlace returns the place of the node in the latency file: its address if the file names it, or
// its region.
func (c *Config) wanPlace() string {
	if c.WAN.Names(c.Addr) {
		return c.Addr
	}
	return c.Region
}

// peerDialer returns the dialer of connections to other nodes.
func (c *Config) peerDialer() api.DialFunc { return api.DialFunc(c.WAN.Dialer(c.wanPlace())) }

// newWithheld returns the counter of bytes that cuts in the latency file withheld.
func newWithheld(w *wan.Network) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "wan", Name: "withheld_bytes_total",
		Help: "Bytes to and from other nodes that a cut in the latency file held back, or that a half-open connection lost.",
	}, func() float64 { return float64(w.Withheld()) })
}
