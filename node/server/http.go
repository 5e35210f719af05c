package server

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/audit"
)

// Health reports whether a node works.
type Health interface {
	// Live returns nil as long as the process needs no restart.
	Live() error
	// Ready returns nil if the node should get traffic: it belongs to a cluster, knows its metadata
	// and is not draining.
	Ready() error
}

// Callers identifies the callers of the port for operators.
type Callers interface {
	// Identify returns the caller of a request. An error says how to identify.
	Identify(r *http.Request) (access.Principal, error)
	// Allows reports whether a caller has a right to the cluster.
	Allows(who access.Principal, right access.Rights) bool
	// Record records an administrative request before it is carried out.
	Record(ctx context.Context, e audit.Event) error
}

// AdminHandler returns the HTTP interface for operators and their tools: /livez, /readyz, /metrics,
// /debug/pprof and, for the node's image in shared memory, /v1/snapshot/. Everybody gets a bare status code
// from /livez and /readyz. Everything else needs the right to read the cluster, and what shows records or
// memory, or changes something, the right to administer it.
func AdminHandler(h Health, metrics prometheus.Gatherer, image Image, callers Callers) http.Handler {
	mux := http.NewServeMux()
	read := func(pattern string, next http.Handler) {
		mux.Handle(pattern, &guarded{callers, access.Read, next})
	}
	admin := func(pattern string, next http.HandlerFunc) {
		mux.Handle(pattern, &guarded{callers, access.Admin, next})
	}
	mux.HandleFunc("GET /livez", healthHandler(h.Live, callers))
	mux.HandleFunc("GET /readyz", healthHandler(h.Ready, callers))
	read("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	// Registered one by one, since importing net/http/pprof registers them on the default mux only.
	// Profiles show names of keys, and cost the node time.
	admin("GET /debug/pprof/", pprof.Index)
	admin("GET /debug/pprof/cmdline", pprof.Cmdline)
	admin("GET /debug/pprof/profile", pprof.Profile)
	admin("GET /debug/pprof/symbol", pprof.Symbol)
	admin("GET /debug/pprof/trace", pprof.Trace)
	handleSnapshot(admin, image)
	// A stranger must not learn which other paths exist.
	admin("/", http.NotFound)
	return mux
}

// bodyMax bounds the body of a request; none has one.
const bodyMax = 64 << 10

// guarded lets callers with a right to the cluster pass.
type guarded struct {
	callers Callers
	right   access.Rights
	next    http.Handler
}

// ServeHTTP implements http.Handler.
func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := g.callers.Identify(r)
	if err == nil && !g.callers.Allows(who, g.right) {
		err = rhumb.Ef("server.AdminHandler", rhumb.PermissionDenied, "%s lacks the right %s to the cluster; an administrator grants it with rhumb grant ROLE --cluster-wide --rights %s", who, g.right, g.right)
	}
	if err != nil {
		refuseHTTP(w, err)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, bodyMax)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		e := audit.Event{Kind: audit.Admin, Caller: who.String(), Address: r.RemoteAddr, Action: r.Method + " " + r.URL.Path, Outcome: audit.OutcomeBegun}
		if err := g.callers.Record(r.Context(), e); err != nil {
			refuseHTTP(w, err)
			return
		}
		answer := &answered{ResponseWriter: w, code: http.StatusOK}
		w = answer
		// Deferred: a handler that panics has not failed silently. The request was carried out, so its outcome is recorded even if the
		// caller has left; if that fails, the log has the beginning.
		defer func() {
			if e.Outcome = audit.OutcomeOK; answer.code >= http.StatusBadRequest {
				e.Outcome = answer.outcome()
			}
			_ = g.callers.Record(context.WithoutCancel(r.Context()), e)
		}()
	}
	g.next.ServeHTTP(w, r)
}

// answered remembers the status and the kind of error of an answer for the audit log.
type answered struct {
	http.ResponseWriter
	code int
	kind rhumb.Kind // set by writeAnswer, 0 otherwise
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController find the connection.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// outcome returns the kind of the error, or the status of an answer that is not from writeAnswer, such as 404.
func (a *answered) outcome() string {
	if a.kind != 0 {
		return a.kind.String()
	}
	return "status " + strconv.Itoa(a.code)
}

// refuseHTTP answers a request that is not allowed.
func refuseHTTP(w http.ResponseWriter, err error) {
	code := http.StatusServiceUnavailable
	switch rhumb.KindOf(err) {
	case rhumb.Unauthenticated:
		code = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", `Basic realm="rhumb", charset="UTF-8"`)
	case rhumb.PermissionDenied:
		code = http.StatusForbidden
	case rhumb.Overloaded:
		code = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(rhumb.RetryAfterOf(err).Seconds()))))
	}
	http.Error(w, rhumb.Message(err), code)
}

// healthHandler returns a handler that answers 200 if check returns nil, else 503. Supervisors look at the
// status. Callers who may read the cluster get the reason too.
func healthHandler(check func() error, callers Callers) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := check()
		code := http.StatusOK
		if err != nil {
			code = http.StatusServiceUnavailable
		}
		// Only if the caller says who it is: probes do not, and must not be slowed down.
		who, ierr := callers.Identify(r)
		if ierr != nil || !callers.Allows(who, access.Read) {
			w.WriteHeader(code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		answer := map[string]any{"ok": true}
		if err != nil {
			// Without a body of their own, tools could only say that the node is down, not why.
			answer = map[string]any{"ok": false, "why": rhumb.Message(err)}
		}
		_ = json.NewEncoder(w).Encode(answer) // the asker has gone if this fails
	}
}
