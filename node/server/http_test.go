package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
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
	s := httptest.NewServer(AdminHandler(h, r, noImage{}))
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
