package authority

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
)

// serveAuthority serves an authority until the test ends.
func serveAuthority(t *testing.T, a *Authority) (addr string) {
	t.Helper()
	s, err := NewServer(a)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	return l.Addr().String()
}

// browse returns a client that trusts the authority by its certificate, as tools of operators do.
func browse(t *testing.T, a *Authority, pair ...tls.Certificate) *http.Client {
	t.Helper()
	ca, err := a.CA()
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: pair, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
	}}
}

func post(t *testing.T, c *http.Client, url, body string) (status int, doc ErrorDoc) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	if resp.Header.Get("Date") == "" {
		t.Error("the answer has no time")
	}
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	_ = json.Unmarshal(text, &doc)
	return resp.StatusCode, doc
}

// TestServer guards the answers that strangers get: errors with a kind, and nothing else.
func TestServer(t *testing.T) {
	c := newClock()
	c.now = time.Now()
	a := newAuthority(t, c)
	addr := serveAuthority(t, a)
	cl := browse(t, a)
	url := "https://" + addr
	for _, test := range []struct {
		path, body string
		status     int
		kind       rhumb.Kind
	}{
		{PathEnrol, "", http.StatusBadRequest, rhumb.InvalidArgument},
		{PathEnrol, "[1,2", http.StatusBadRequest, rhumb.InvalidArgument},
		{PathEnrol, `{"token":"hunter2"}`, http.StatusBadRequest, rhumb.InvalidArgument},
		{PathEnrol, `{"token":"` + strings.Repeat("x", bodySizeMax) + `"}`, http.StatusRequestEntityTooLarge, rhumb.TooLarge},
		{PathRenew, `{}`, http.StatusUnauthorized, rhumb.Unauthenticated},
		{PathCheck, `{}`, http.StatusUnauthorized, rhumb.Unauthenticated},
	} {
		if status, doc := post(t, cl, url+test.path, test.body); status != test.status || doc.Error.Kind != test.kind.String() {
			t.Errorf("POST %s %.20q: %d %+v", test.path, test.body, status, doc)
		}
	}
	for path, want := range map[string]int{PathLive: 200, PathEnrol: 405, "/": 404, "/v1/../authority.key": 404, "/metrics": 200} {
		resp, err := cl.Get(url + path)
		must(t, err)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || path == PathLive && len(text) > 0 {
			t.Errorf("GET %s: %d %s", path, resp.StatusCode, text)
		}
		if path == "/metrics" && !bytes.Contains(text, []byte(`rhumb_authority_requests_total{path="/v1/renew",result="unauthenticated"} 1`)) {
			t.Errorf("metrics: %s", text)
		}
	}
	req, err := http.NewRequest(http.MethodGet, url+PathLive, nil)
	must(t, err)
	req.Header.Set("X", strings.Repeat("x", 64<<10))
	if resp, err := cl.Do(req); err == nil && resp.StatusCode == http.StatusOK {
		t.Error("a header of 64 KiB is accepted")
	}
	// Guessing is slowed down, and the answer says when to come back.
	limited := false
	for range failuresBurst + 1 {
		status, doc := post(t, cl, url+PathEnrol, "{}")
		limited = limited || status == http.StatusTooManyRequests && doc.Error.RetryAfterMillis > 0
	}
	if !limited {
		t.Errorf("%d failures in a row are not limited", failuresBurst+1)
	}
}

// TestMetricsForOperators guards that only operators and this machine see metrics.
func TestMetricsForOperators(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	s, err := NewServer(a)
	must(t, err)
	for name, test := range map[string]struct {
		remote string
		chain  []*x509.Certificate
		want   int
	}{
		"this machine": {"127.0.0.1:1234", nil, 200},
		"nobody":       {"192.0.2.1:1234", nil, 401},
		"a user":       {"192.0.2.1:1234", issueFor(t, a, identity.RoleUser), 401},
		"an operator":  {"[2001:db8::1]:1234", issueFor(t, a, identity.RoleOperator), 200},
	} {
		w := &recorder{header: http.Header{}}
		s.serveMetrics(w, &http.Request{Method: http.MethodGet, RemoteAddr: test.remote, TLS: &tls.ConnectionState{PeerCertificates: test.chain}, Header: http.Header{}})
		if w.status != test.want {
			t.Errorf("%s: %d, want %d", name, w.status, test.want)
		}
	}
}

// recorder records the status of an answer.
type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(200)
	return len(b), nil
}

// TestBadConnections guards that the port outlives everything that is not TLS 1.3, and connections
// that do nothing.
func TestBadConnections(t *testing.T) {
	c := newClock()
	c.now = time.Now()
	a := newAuthority(t, c)
	addr := serveAuthority(t, a)
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	for name, bytes := range map[string][]byte{"random": noise, "plain HTTP": []byte("POST /v1/enroll HTTP/1.1\r\nHost: x\r\n\r\n"), "nothing": nil} {
		conn, err := net.Dial("tcp", addr)
		must(t, err)
		_, _ = conn.Write(bytes)
		must(t, conn.SetReadDeadline(time.Now().Add(2*handshakeTimeout)))
		answer, _ := io.ReadAll(conn)
		if len(answer) > 200 || strings.Contains(string(answer), "200 OK") {
			t.Errorf("%s is answered with %q", name, answer)
		}
		_ = conn.Close()
	}
	if conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 is accepted")
	}
	// Idle connections of one address are bounded, and leave room when they close.
	var idle []net.Conn
	for range connsMax {
		conn, err := net.Dial("tcp", addr)
		must(t, err)
		idle = append(idle, conn)
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
	cl := browse(t, a)
	deadline := time.Now().Add(2 * handshakeTimeout)
	for {
		resp, err := cl.Get("https://" + addr + PathLive)
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestServerCertificate guards that the server renews its certificate by itself, also after a
// rotation, and always shows the chain to every trusted key.
func TestServerCertificate(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	s, err := NewServer(a)
	must(t, err)
	first, err := s.certificate()
	must(t, err)
	c.advance(NodeLife / 2)
	if again, _ := s.certificate(); again != first {
		t.Error("renewed at half of its life")
	}
	c.advance(NodeLife / 4)
	second, err := s.certificate()
	must(t, err)
	old, err := a.load()
	must(t, err)
	if _, err := a.Rotate(); err != nil {
		t.Fatal(err)
	}
	third, err := s.certificate()
	must(t, err)
	if second == first || third == second {
		t.Error("not renewed")
	}
	var chain []*x509.Certificate
	for _, der := range third.Certificate {
		cert, err := x509.ParseCertificate(der)
		must(t, err)
		chain = append(chain, cert)
	}
	v := identity.Verifier{Cluster: testCluster, Authorities: []*x509.Certificate{old.current}}
	if _, err := v.Verify(chain, identity.Want{Roles: []identity.Role{identity.RoleAuthority}}, c.now); err != nil {
		t.Error(err)
	}
}

// TestFailureLimit guards the bound of failures and of the addresses that it remembers.
func TestFailureLimit(t *testing.T) {
	l, c := newFailureLimit(), newClock()
	addrA, addrB := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for range failuresBurst {
		must(t, l.check(addrA, c.now))
		l.count(addrA, c.now)
	}
	if err := l.check(addrA, c.now); rhumb.RetryAfterOf(err) != failuresRefill {
		t.Errorf("%v", err)
	}
	must(t, l.check(addrB, c.now))
	c.advance(failuresRefill)
	must(t, l.check(addrA, c.now))
	// A clock that was a day ahead does not lock an address out for a day.
	l.count(addrA, c.now)
	c.advance(-24 * time.Hour)
	_ = l.check(addrA, c.now)
	c.advance(failuresRefill)
	must(t, l.check(addrA, c.now))
	for i := range 3 * failuresAddrs {
		l.count(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), c.now)
	}
	if len(l.addrs) > failuresAddrs {
		t.Errorf("%d addresses are remembered", len(l.addrs))
	}
}
