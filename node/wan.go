package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/wan"
)

// place returns where the node stands in the latency file: at its address if the file names it, else in its region.
func (c *Config) place() string {
	if c.WAN.Names(c.Addr) {
		return c.Addr
	}
	return c.Region
}

// dialer returns what connections to other nodes are made with.
func (c *Config) dialer() api.DialFunc { return api.DialFunc(c.WAN.Dialer(c.place())) }

// newWithheld makes the counter of bytes that cuts of the latency file withheld.
func newWithheld(w *wan.Network) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "wan", Name: "withheld_bytes_total",
		Help: "Bytes to and from other nodes that a cut in the latency file held back, or that a half-open connection lost.",
	}, func() float64 { return float64(w.Withheld()) })
}
