package server

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rhumbdb/rhumb"
)

// Health reports whether a node works.
type Health interface {
	// Live returns nil as long as the process needs no restart.
	Live() error
	// Ready returns nil if the node should get traffic: it belongs to a cluster, knows its metadata
	// and is not draining.
	Ready() error
}

// AdminHandler returns the HTTP interface for operators and their tools: /livez, /readyz, /metrics,
// /debug/pprof and, for the node's image in shared memory, /v1/snapshot/. It has no authorization
// of its own and belongs on a loopback address.
func AdminHandler(h Health, metrics prometheus.Gatherer, image Image) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", healthHandler(h.Live))
	mux.HandleFunc("GET /readyz", healthHandler(h.Ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	// Registered one by one, since importing net/http/pprof registers them on the default mux only.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	handleSnapshot(mux, image)
	return mux
}

// healthHandler returns a handler that answers 200 if check returns nil, else 503 with the reason.
// Supervisors look at the status, operators at the reason.
func healthHandler(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]any{"ok": true}
		if err := check(); err != nil {
			answer = map[string]any{"ok": false, "why": rhumb.Message(err)}
			// Without a body of their own, tools could only say that the node is down, not why.
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(answer) // the asker has gone if this fails
	}
}
