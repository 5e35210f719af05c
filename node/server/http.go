package server

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rhumbdb/rhumb"
)

// Health answers whether a node works.
type Health interface {
	// Live is nil while the process should be left alone.
	Live() error
	// Ready is nil while the node should get traffic: it belongs to a cluster, knows its metadata and is not draining.
	Ready() error
}

// AdminHandler serves operators and their tools: /livez, /readyz, /metrics, /debug/pprof and, of the node's image,
// /v1/snapshot/. It has no authorisation of its own and belongs on a loopback address.
func AdminHandler(h Health, metrics prometheus.Gatherer, image Image) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", health(h.Live))
	mux.HandleFunc("GET /readyz", health(h.Ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	handleSnapshot(mux, image)
	return mux
}

func health(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]any{"ok": true}
		if err := check(); err != nil {
			answer = map[string]any{"ok": false, "why": rhumb.Message(err)}
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(answer) // the asker has gone if this fails
	}
}
