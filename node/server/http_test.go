package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/audit"
)

// gauge returns the value of one of a service's metrics.
func gauge(t *testing.T, kv *KV, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(kv.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() // it is one of them
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// fakeHealth is a node that can be made unready.
type fakeHealth struct{ unready atomic.Bool }

func (h *fakeHealth) Live() error { return nil }

func (h *fakeHealth) Ready() error {
	if h.unready.Load() {
		return rhumb.E("test", rhumb.Unavailable, "the node is draining")
	}
	return nil
}

// TestAdminHandler guards what tools of operators depend on: status codes, names of metrics,
// profiles.
func TestAdminHandler(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	if _, err, _ := do(t, c, getReq(0, rhumb.RangeID{Region: 9}, "a")); err.Kind != rhumb.NotFound {
		t.Fatal(err)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(kv.Collectors()...)
	h := &fakeHealth{}
	s := httptest.NewServer(AdminHandler(h, r, noImage{}, anyone{}))
	defer s.Close()
	for _, tc := range []struct {
		path    string
		unready bool
		code    int
		says    string
	}{
		{"/livez", false, http.StatusOK, `"ok":true`},
		{"/readyz", false, http.StatusOK, `"ok":true`},
		{"/livez", true, http.StatusOK, `"ok":true`},
		{"/readyz", true, http.StatusServiceUnavailable, "draining"},
		{"/metrics", false, http.StatusOK, `rhumb_server_failed_total{kind="not_found"} 1`},
		{"/debug/pprof/", false, http.StatusOK, "goroutine"},
		{"/debug/pprof/heap", false, http.StatusOK, ""},
		{"/debug/pprof/cmdline", false, http.StatusOK, ""},
		{"/elsewhere", false, http.StatusNotFound, ""},
	} {
		h.unready.Store(tc.unready)
		resp, err := http.Get(s.URL + tc.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.code || !strings.Contains(string(body), tc.says) {
			t.Errorf("%s: %d %.200q, want %d with %q", tc.path, resp.StatusCode, body, tc.code, tc.says)
		}
	}
}

// anyone is a caller of an insecure node.
type anyone struct{}

func (anyone) Identify(*http.Request) (access.Principal, error) {
	return access.Principal{Kind: access.KindInsecure}, nil
}

func (anyone) Allows(who access.Principal, right access.Rights) bool {
	return (*access.Policy)(nil).AllowsCluster(who, right)
}

func (anyone) MayRead(who access.Principal, table string) bool {
	return (*access.Policy)(nil).Of(who).Allows(access.Read, table, nil)
}

func (anyone) Record(context.Context, audit.Event) error { return nil }

// headerCallers identifies callers by a header.
type headerCallers struct{ anyone }

func (headerCallers) Identify(r *http.Request) (access.Principal, error) {
	switch r.Header.Get("Who") {
	case "operator":
		return access.Principal{Kind: access.KindOperator, Name: "anna"}, nil
	case "user":
		return access.Principal{Kind: access.KindUser, Name: "app"}, nil
	case "admin":
		return access.Principal{Kind: access.KindUser, Name: "adm"}, nil
	case "hasty":
		return access.Principal{}, &rhumb.Error{Kind: rhumb.Overloaded, RetryAfter: 1500 * time.Millisecond, Msg: "later"}
	}
	return access.Principal{}, access.ErrAnonymous
}

// Allows lets the user adm administer the cluster. No grant lets it read records.
func (c headerCallers) Allows(who access.Principal, right access.Rights) bool {
	return who.Name == "adm" || c.anyone.Allows(who, right)
}

func (headerCallers) Record(context.Context, audit.Event) error {
	return rhumb.E("test", rhumb.DiskFull, "the disk is full")
}

// Strangers get a bare status code from /livez and /readyz and nothing else, callers without rights nothing either,
// and what cannot be recorded is not done.
func TestAdminHandlerGuards(t *testing.T) {
	h := AdminHandler(&fakeHealth{}, prometheus.NewRegistry(), noImage{}, headerCallers{})
	for _, tc := range []struct {
		who, method, path string
		code              int
		body              bool
	}{
		{"", "GET", "/livez", 200, false},
		{"", "GET", "/readyz", 200, false},
		{"user", "GET", "/readyz", 200, false},
		{"operator", "GET", "/readyz", 200, true},
		{"", "GET", "/metrics", 401, true},
		{"", "GET", "/debug/pprof/", 401, true},
		{"", "GET", "/v1/snapshot/", 401, true},
		{"", "POST", "/v1/snapshot/publish", 401, true},
		{"", "GET", "/", 401, true},
		{"", "GET", "/no/such/path", 401, true},
		{"", "POST", "/livez", 401, true},
		// The mux would redirect these, and so tell that the other path exists.
		{"", "GET", "//metrics", 401, true},
		{"", "GET", "/debug/pprof", 401, true},
		{"", "GET", "/v1/snapshot", 401, true},
		{"", "GET", "/livez/../metrics", 401, true},
		{"admin", "GET", "/metrics", 200, false},
		{"admin", "GET", "/debug/pprof/", 200, true},
		{"admin", "GET", "/v1/snapshot/flights", 403, true},
		{"admin", "GET", "/v1/snapshot/flights/SWR8", 403, true},
		{"operator", "GET", "/v1/snapshot/flights", 503, true},
		{"", "OPTIONS", "/metrics", 401, true},
		{"user", "GET", "/metrics", 403, true},
		{"user", "GET", "/debug/pprof/heap", 403, true},
		{"user", "POST", "/v1/snapshot/publish", 403, true},
		{"hasty", "GET", "/metrics", 429, true},
		{"operator", "GET", "/metrics", 200, true},
		{"operator", "GET", "/no/such/path", 404, true},
		{"operator", "POST", "/v1/snapshot/publish", 503, true},
	} {
		r := httptest.NewRequest(tc.method, tc.path, nil)
		r.Header.Set("Who", tc.who)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tc.code || !tc.body && w.Body.Len() > 0 {
			t.Errorf("%s: %s %s: %d, %q", tc.who, tc.method, tc.path, w.Code, w.Body)
		}
		if tc.code == 429 && w.Header().Get("Retry-After") != "2" || tc.code == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %s: headers %v", tc.who, tc.path, w.Header())
		}
	}
}
