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
	// MayRead reports whether a caller may read all records of a table.
	MayRead(who access.Principal, table string) bool
	// Record records an administrative request before it is carried out.
	Record(ctx context.Context, e audit.Event) error
}

// AdminHandler returns the HTTP interface for operators and their tools: /livez, /readyz, /metrics,
// /debug/pprof and, for the node's image in shared memory, /v1/snapshot/. Everybody gets a bare status code
// from /livez and /readyz. Everything else needs the right to read the cluster, and what shows memory or changes
// something, the right to administer it. Records of an image need the right to read their table as well.
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
	handleSnapshot(admin, image, callers)
	// A stranger must not learn which other paths exist.
	admin("/", http.NotFound)
	return &strangers{callers, mux}
}

// strangers lets only callers who may read the cluster pass to paths other than those for probes. The mux itself
// redirects some paths, which would show strangers that they exist.
type strangers struct {
	callers Callers
	next    http.Handler
}

// ServeHTTP implements http.Handler.
func (s *strangers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// These identify their callers themselves, and answer everybody.
	if (r.URL.Path == "/livez" || r.URL.Path == "/readyz") && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		s.next.ServeHTTP(w, r)
		return
	}
	who, err := s.callers.Identify(r)
	if err == nil && !s.callers.Allows(who, access.Read) {
		err = errHTTPDenied(who, access.Read)
	}
	if err != nil {
		refuseHTTP(w, err)
		return
	}
	s.next.ServeHTTP(w, r.WithContext(access.WithPrincipal(r.Context(), who)))
}

// errHTTPDenied rejects a caller that lacks a right to the cluster.
func errHTTPDenied(who access.Principal, right access.Rights) error {
	return rhumb.Ef("server.AdminHandler", rhumb.PermissionDenied, "%s lacks the right %s to the cluster; an administrator grants it with rhumb grant ROLE --cluster-wide --rights %s", who, right, right)
}

// bodyMax bounds the body of a request; none has one.
const bodyMax = 64 << 10

// guarded lets callers with a right to the cluster pass. The handler strangers identifies them
// before.
type guarded struct {
	callers Callers
	right   access.Rights
	next    http.Handler
}

// ServeHTTP implements http.Handler.
func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, _ := access.FromContext(r.Context())
	if !g.callers.Allows(who, g.right) {
		refuseHTTP(w, errHTTPDenied(who, g.right))
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
