package node

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/node/server"
)

// phases measures the parts of the start of a process, from its first statement to its first answer.
// Later lives of the node in the same process are not measured: their stores are open already.
//
// The phases of the stores overlap if a node has several, and each counts as long as in the slowest
// store. All other phases follow each other, and ports is everything else before the node
// listens. A node without a cluster waits in metadata until it is founded or joins, so that phase is
// long in the first start of a node and short in all later ones.
type phases struct {
	gauge *prometheus.GaugeVec

	mu    sync.Mutex // guards since, took and done
	since time.Time  // the end of the last phase
	took  []server.StartPhase
	done  bool
}

func newPhases(started time.Time) *phases {
	return &phases{since: started, gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "rhumb", Subsystem: "node", Name: "start_seconds",
		Help: "Time that each phase of the start of this process took: check, replay and load of the stores, ports, metadata, replicas, and total.",
	}, []string{"phase"})}
}

// note records the duration of a phase.
func (p *phases) note(phase string, took time.Duration) {
	p.gauge.WithLabelValues(phase).Set(took.Seconds())
	p.took = append(p.took, server.StartPhase{Name: phase, Took: took})
}

// end ends a phase that began with the end of the last one. Parts of it that were measured apart
// are subtracted.
func (p *phases) end(phase string, parts ...time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return
	}
	now := time.Now()
	took := now.Sub(p.since)
	for _, part := range parts {
		took -= part
	}
	p.since = now
	p.note(phase, max(took, 0))
}

// add records a part that was measured elsewhere.
func (p *phases) add(phase string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(phase, took)
}

// finish ends the start, and returns the phases for the log, or nil if the start had ended before.
func (p *phases) finish(started time.Time) []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return nil
	}
	p.done = true
	p.note("total", time.Since(started))
	var names []any
	for _, phase := range p.took {
		names = append(names, phase.Name, phase.Took.Round(time.Millisecond))
	}
	return names
}

// list returns the phases so far.
func (p *phases) list() []server.StartPhase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.took)
}
