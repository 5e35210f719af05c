package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// poll is the interval of the sources in these tests.
const poll = 5 * time.Millisecond

var wantAnyone = identity.Want{Roles: []identity.Role{identity.RoleNode, identity.RoleUser, identity.RoleOperator}, Optional: true}

// serveEcho serves TLS connections that echo what they get, and returns the address.
func serveEcho(t *testing.T, src *identity.Source, want identity.Want) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	secure := src.NewListener(l, want)
	go func() {
		for {
			conn, err := secure.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// dial connects to an echo server and exchanges one byte, after which both sides have verified each
// other.
func dial(src *identity.Source, addr string, want identity.Want) (*tls.Conn, error) {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := src.Dial(raw, want, "")
	if err := exchange(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func exchange(conn net.Conn) error {
	if _, err := conn.Write([]byte{7}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// awaitEnd waits until a connection has ended.
func awaitEnd(t *testing.T, conn *tls.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection did not end: %v", err)
	}
}

// metric returns the sum of a metric of a source.
func metric(t *testing.T, src *identity.Source, name string) (sum float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(src.Collectors()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			sum += valueOf(m)
		}
		return sum
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func valueOf(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestReloadUnderLoad guards that replaced files take effect without a restart, that no connection
// fails meanwhile, although a certificate and its key are replaced one after the other, and that
// open connections stay.
func TestReloadUnderLoad(t *testing.T) {
	a := identitytest.New(t)
	dir := t.TempDir()
	files := a.Node(t, "eu-1").Files(t, dir)
	server := identitytest.Open(t, identity.SourceConfig{Files: files, Poll: poll})
	addr := serveEcho(t, server, wantAnyone)
	client := a.Operator(t, "ann").Source(t)
	early, err := dial(client, addr, wantNode)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	var stop atomic.Bool
	var work sync.WaitGroup
	var dialled atomic.Int64
	for range 4 {
		work.Go(func() {
			for !stop.Load() {
				conn, err := dial(client, addr, wantNode)
				if err != nil {
					t.Error(err)
					return
				}
				dialled.Add(1)
				_ = conn.Close()
			}
		})
	}
	for range 5 {
		next := a.Node(t, "eu-1")
		next.WriteTo(t, files)
		eventually(t, "the new certificate is not used", func() bool { return server.Leaf().Equal(next.Cert) })
	}
	stop.Store(true)
	work.Wait()
	if dialled.Load() == 0 || exchange(early) != nil {
		t.Errorf("%d connections; the first one: %v", dialled.Load(), exchange(early))
	}
	eventually(t, "6 loads are not counted", func() bool { return metric(t, server, "rhumb_identity_reloads_total") >= 6 })
	if got, want := metric(t, server, "rhumb_identity_certificate_expiry_timestamp_seconds"), float64(server.Leaf().NotAfter.Unix()); got != want {
		t.Errorf("the metric of the expiry is %v, want %v", got, want)
	}
}

// TestBadFilesKeepFormerIdentity guards that files with a mistake change nothing, are counted, and
// are used once they are corrected.
func TestBadFilesKeepFormerIdentity(t *testing.T) {
	a, foreign := identitytest.New(t), identitytest.New(t)
	now := time.Now()
	for name, spoil := range map[string]func(t *testing.T, f identity.Files){
		"another key": func(t *testing.T, f identity.Files) {
			text := a.Node(t, "eu-1").PEM(t).Key
			write(t, f.Key, text)
		},
		"an empty certificate": func(t *testing.T, f identity.Files) { write(t, f.Cert, nil) },
		"half a CA file":       func(t *testing.T, f identity.Files) { write(t, f.CA, []byte("-----BEGIN CERTIFICATE-----\nMIIB")) },
		"a certificate that nobody trusts": func(t *testing.T, f identity.Files) {
			other := identitytest.NewFor(t, a.Cluster).Node(t, "eu-1")
			other.CA = []*x509.Certificate{a.Cert}
			other.WriteTo(t, f)
		},
		"another cluster": func(t *testing.T, f identity.Files) { foreign.Node(t, "eu-1").WriteTo(t, f) },
		"another name":    func(t *testing.T, f identity.Files) { a.Node(t, "eu-2").WriteTo(t, f) },
		"another role":    func(t *testing.T, f identity.Files) { a.User(t, "eu-1").WriteTo(t, f) },
		"an expired certificate": func(t *testing.T, f identity.Files) {
			a.Node(t, "eu-1", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour))).WriteTo(t, f)
		},
		"a key that others may read": func(t *testing.T, f identity.Files) {
			if err := os.Chmod(f.Key, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"no key": func(t *testing.T, f identity.Files) { _ = os.Remove(f.Key) },
		"a key among the authorities": func(t *testing.T, f identity.Files) {
			p := a.Node(t, "eu-1").PEM(t)
			write(t, f.CA, append(p.CA, p.Key...))
		},
		"a member among the authorities": func(t *testing.T, f identity.Files) {
			write(t, f.CA, identity.EncodeCertificates(a.Node(t, "eu-1").Cert))
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := a.Node(t, "eu-1")
			files := first.Files(t, t.TempDir())
			src := identitytest.Open(t, identity.SourceConfig{Files: files, Poll: poll})
			addr := serveEcho(t, src, wantAnyone)
			spoil(t, files)
			eventually(t, "the mistake is not counted", func() bool { return metric(t, src, "rhumb_identity_reload_failures_total") > 0 })
			conn, err := dial(a.Operator(t, "ann").Source(t), addr, wantNode)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			if !src.Leaf().Equal(first.Cert) {
				t.Error("the identity changed")
			}
			next := a.Node(t, "eu-1")
			next.WriteTo(t, files)
			_ = os.Chmod(files.Key, 0o600)
			eventually(t, "corrected files are not used", func() bool { return src.Leaf().Equal(next.Cert) })
		})
	}
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTrustEndsConnections guards that a revoked certificate and a distrusted authority end the
// connections that rely on them, at the server as well as at the client, and no others.
func TestTrustEndsConnections(t *testing.T) {
	a := identitytest.New(t)
	b := identitytest.NewFor(t, a.Cluster)
	both := func(i *identitytest.Issued) *identitytest.Issued {
		i.CA = []*x509.Certificate{a.Cert, b.Cert}
		return i
	}
	node := both(a.Node(t, "eu-1"))
	server := node.Source(t)
	addr := serveEcho(t, server, wantAnyone)
	revoked, old, good := both(a.User(t, "revoked")), both(b.User(t, "old")), both(a.User(t, "good"))
	var conns []*tls.Conn
	goodSource := good.Source(t)
	for _, src := range []*identity.Source{revoked.Source(t), old.Source(t), goodSource, a.Anonymous(t)} {
		conn, err := dial(src, addr, wantNode)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	if n := metric(t, server, "rhumb_identity_connections"); n != 4 {
		t.Errorf("%v connections are watched, want 4", n)
	}
	server.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Serial: identity.SerialOf(revoked.Cert)}}})
	awaitEnd(t, conns[0])
	if _, err := dial(revoked.Source(t), addr, wantNode); err == nil {
		t.Error("a revoked certificate is accepted")
	}
	server.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Serial: identity.SerialOf(revoked.Cert)}}, Distrusted: []string{identity.AuthorityOf(b.Cert)}})
	awaitEnd(t, conns[1])
	if _, err := dial(old.Source(t), addr, wantNode); err == nil {
		t.Error("a distrusted authority is accepted")
	}
	for _, conn := range conns[2:] {
		if err := exchange(conn); err != nil {
			t.Errorf("a connection that is still valid ended: %v", err)
		}
	}
	goodSource.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Serial: identity.SerialOf(node.Cert)}}})
	awaitEnd(t, conns[2])
	eventually(t, "ended connections stay in the list", func() bool { return metric(t, server, "rhumb_identity_connections") == 1 })
	if n := metric(t, server, "rhumb_identity_closed_total"); n != 2 {
		t.Errorf("%v ended connections are counted, want 2", n)
	}
	c := identitytest.NewFor(t, a.Cluster)
	ours := c.Node(t, "eu-2")
	ours.CA = []*x509.Certificate{a.Cert, c.Cert}
	if _, err := dial(ours.Source(t), addr, wantNode); err == nil {
		t.Error("an authority that only the client knows is accepted")
	}
	server.SetTrust(identity.Trust{Authorities: []identity.Vouched{{Cert: c.Cert, Proof: signTrust(t, a.Operator(t, "ann"), c.Cert)}}})
	conn, err := dial(ours.Source(t), addr, wantNode)
	if err != nil {
		t.Errorf("an authority of the metadata is not accepted: %v", err)
	} else {
		_ = conn.Close()
	}
}

// TestAuthorityRemovedFromFile guards that an authority that is removed from the CA file ends its
// connections.
func TestAuthorityRemovedFromFile(t *testing.T) {
	a := identitytest.New(t)
	b := identitytest.NewFor(t, a.Cluster)
	node := a.Node(t, "eu-1")
	node.CA = []*x509.Certificate{a.Cert, b.Cert}
	files := node.Files(t, t.TempDir())
	server := identitytest.Open(t, identity.SourceConfig{Files: files, Poll: poll})
	addr := serveEcho(t, server, wantAnyone)
	user := b.User(t, "app")
	user.CA = []*x509.Certificate{a.Cert}
	// The own certificate of the user must be valid to itself too.
	user.CA = append(user.CA, b.Cert)
	conn, err := dial(user.Source(t), addr, wantNode)
	if err != nil {
		t.Fatal(err)
	}
	write(t, files.CA, identity.EncodeCertificates(a.Cert))
	awaitEnd(t, conn)
}

// TestExpiryEndsConnections guards that a connection does not outlive the certificates of its two
// sides, even if the clock of one side is late, and that a renewed certificate connects again.
func TestExpiryEndsConnections(t *testing.T) {
	late := func() time.Time { return time.Now().Add(-30 * time.Minute) }
	for _, tc := range []struct {
		name         string
		brief, other func() time.Time // clocks of the side whose certificate expires, and of the other
	}{
		{"the other side sees it", late, time.Now},
		{"the own side sees it", time.Now, late},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a := identitytest.New(t)
			brief := identitytest.Valid(time.Now().Add(-time.Hour), time.Now().Truncate(time.Second).Add(4*time.Second))
			files := a.Node(t, "eu-2", brief).Files(t, t.TempDir())
			client := identitytest.Open(t, identity.SourceConfig{Files: files, Poll: poll, Wall: tc.brief})
			server := identitytest.Open(t, identity.SourceConfig{PEM: a.Node(t, "eu-1").PEM(t), Poll: poll, Wall: tc.other})
			addr := serveEcho(t, server, wantAnyone)
			asClient, err := dial(client, addr, wantNode)
			if err != nil {
				t.Fatal(err)
			}
			asServer, err := dial(server, serveEcho(t, client, wantAnyone), wantNode)
			if err != nil {
				t.Fatal(err)
			}
			a.Node(t, "eu-2").WriteTo(t, files)
			eventually(t, "the new certificate is not used", func() bool { return metric(t, client, "rhumb_identity_reloads_total") > 1 })
			renewed, err := dial(client, addr, wantNode)
			if err != nil {
				t.Fatal(err)
			}
			awaitEnd(t, asClient)
			awaitEnd(t, asServer)
			if err := exchange(renewed); err != nil {
				t.Errorf("the connection with the new certificate ended too: %v", err)
			}
			_ = renewed.Close()
		})
	}
}

// TestAnonymousClientPinsCluster guards that a client that knows only an authority, which issues
// certificates for several clusters, stays with the cluster that it reached first, and that a server
// with a copy of a certificate, but not its key, decides nothing.
func TestAnonymousClientPinsCluster(t *testing.T) {
	a := identitytest.New(t)
	second := *a
	second.Cluster[0] ^= 1
	serve := func(i *identitytest.Issued) string {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{i.Cert.Raw}, PrivateKey: i.Key}}, NextProtos: []string{"h2"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(conn, conn) }()
			}
		}()
		return l.Addr().String()
	}
	shake := func(src *identity.Source, addr string) error {
		raw, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		_, _, err = src.ClientCredentials(wantNode).ClientHandshake(t.Context(), addr, raw)
		return err
	}
	copied := second.Node(t, "eu-1")
	copied.Key = a.Node(t, "eu-1").Key
	addr, other, thief := serve(a.Node(t, "eu-1")), serve(second.Node(t, "eu-1")), serve(copied)
	client := a.Anonymous(t)
	if err := shake(client, thief); err == nil || !client.Cluster().IsZero() || metric(t, client, "rhumb_identity_connections") != 0 {
		t.Fatalf("a server without the key: cluster %s, %v", client.Cluster(), err)
	}
	if err := shake(client, addr); err != nil || client.Cluster() != a.Cluster {
		t.Fatal(client.Cluster(), err)
	}
	if err := shake(client, other); identity.ReasonOf(err) != identity.ReasonWrongCluster {
		t.Errorf("another cluster: %v", err)
	}
	pinned := identitytest.Open(t, identity.SourceConfig{PEM: identity.PEM{CA: identity.EncodeCertificates(a.Cert)}, Cluster: second.Cluster})
	if err := shake(pinned, addr); identity.ReasonOf(err) != identity.ReasonWrongCluster {
		t.Errorf("a configured cluster: %v", err)
	}
}

// TestSecretFiles guards that a secret that others may read is refused with the command that
// corrects it.
func TestSecretFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write(t, path, []byte("s"))
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o644: false, 0o604: false, 0o660: false, 0o601: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		b, err := identity.ReadSecret(path)
		if ok && (err != nil || string(b) != "s") || !ok && (rhumb.KindOf(err) != rhumb.PermissionDenied || !strings.Contains(err.Error(), "chmod 600 "+path)) {
			t.Errorf("mode %04o: %q, %v", mode, b, err)
		}
	}
	if _, err := identity.ReadSecret(path + "x"); rhumb.KindOf(err) != rhumb.NotFound {
		t.Error(err)
	}
	if _, err := identity.ReadSecret(filepath.Dir(path)); err == nil {
		t.Error("a folder was read")
	}
}

// TestIntermediateAuthority guards that a chain over an intermediate authority is accepted and that
// distrust of it, or of the root, rejects the chain.
func TestIntermediateAuthority(t *testing.T) {
	root := identitytest.New(t)
	between := root.Intermediate(t)
	leaf := between.Node(t, "eu-1")
	chain := []*x509.Certificate{leaf.Cert, between.Cert}
	v := identity.Verifier{Cluster: root.Cluster, Authorities: []*x509.Certificate{root.Cert}}
	p, err := v.Verify(chain, wantNode, time.Now())
	if err != nil || p.Authority != identity.AuthorityOf(between.Cert) {
		t.Fatal(p.Authority, err)
	}
	for _, ca := range []*x509.Certificate{root.Cert, between.Cert} {
		v.Distrusted = map[string]bool{identity.AuthorityOf(ca): true}
		if _, err := v.Verify(chain, wantNode, time.Now()); identity.ReasonOf(err) != identity.ReasonDistrusted {
			t.Errorf("distrust of %s: %v", ca.Subject, err)
		}
	}
}

// TestContextWithoutConnection guards that a request without TLS has no bearer.
func TestContextWithoutConnection(t *testing.T) {
	if _, ok := identity.PeerFromContext(context.Background()); ok {
		t.Error("a context without a connection has a bearer")
	}
}

// TestClientRejectsServers guards that a client, a person's or a node's, talks to no server but a
// node of its cluster with TLS 1.3, and that the error says why.
func TestClientRejectsServers(t *testing.T) {
	a, foreign := identitytest.New(t), identitytest.New(t)
	same := identitytest.NewFor(t, a.Cluster)
	now := time.Now()
	want := wantNode
	want.Name = "eu-1"
	for _, tc := range []struct {
		name   string
		server *identitytest.Issued // nil for plain text
		tls12  bool
		text   string // empty if the server is accepted
	}{
		{"a node", a.Node(t, "eu-1"), false, ""},
		{"another node", a.Node(t, "eu-2"), false, "belongs to node eu-2; wanted a certificate of a node named eu-1"},
		{"expired", a.Node(t, "eu-1", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour))), false, "expired"},
		{"not yet valid", a.Node(t, "eu-1", identitytest.Valid(now.Add(time.Hour), now.Add(2*time.Hour))), false, "check the clocks"},
		{"self-signed", a.Node(t, "eu-1", identitytest.SelfSigned()), false, "signed by its own key"},
		{"an unknown authority", same.Node(t, "eu-1"), false, "not trusted here"},
		{"another cluster", foreign.Node(t, "eu-1"), false, foreign.Cluster.String()},
		{"a user", a.User(t, "eu-1"), false, "belongs to user eu-1"},
		{"the authority's server", a.Issue(t, identity.RoleAuthority, "eu-1"), false, "belongs to authority eu-1"},
		{"plain text", nil, false, "does not speak TLS"},
		{"TLS 1.2", a.Node(t, "eu-1"), true, "protocol version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				if tc.server == nil {
					_, _ = conn.Write([]byte("220 welcome to plain text\r\n"))
					_, _ = io.Copy(io.Discard, conn)
					return
				}
				cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{tc.server.Cert.Raw}, PrivateKey: tc.server.Key}}, NextProtos: []string{"h2"}}
				if tc.tls12 {
					cfg.MaxVersion = tls.VersionTLS12
				}
				secure := tls.Server(conn, cfg)
				_ = secure.Handshake()
				_, _ = io.Copy(io.Discard, secure)
			}()
			raw, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			src := a.Node(t, "eu-9").Source(t)
			_, _, err = src.ClientCredentials(want).ClientHandshake(t.Context(), l.Addr().String(), raw)
			if tc.text == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(rhumb.Message(err), tc.text) {
				t.Errorf("%v, want %q", err, tc.text)
			}
			if n := metric(t, src, "rhumb_identity_dial_failures_total"); n != 1 {
				t.Errorf("%v failures are counted, want 1", n)
			}
		})
	}
}

// logBook collects log lines.
type logBook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// TestExpiryIsAnnounced guards that the log warns of a certificate that expires soon, before and after
// the end, and not of one with time left.
func TestExpiryIsAnnounced(t *testing.T) {
	a := identitytest.New(t)
	now := time.Now()
	for _, tc := range []struct {
		name     string
		from, to time.Duration // relative to now
		line     string        // empty if there is no warning
	}{
		{"three quarters left", -time.Hour, 3 * time.Hour, ""},
		{"a tenth left", -9 * time.Hour, time.Hour, "expires soon"},
		{"years, and 31 days left", -20_000 * time.Hour, 31 * 24 * time.Hour, ""},
		{"years, and 29 days left", -20_000 * time.Hour, 29 * 24 * time.Hour, "expires soon"},
	} {
		var book logBook
		var offset atomic.Int64
		ticks := make(chan struct{}, 100)
		identitytest.Open(t, identity.SourceConfig{
			PEM:  a.Node(t, "eu-1", identitytest.Valid(now.Add(tc.from), now.Add(tc.to))).PEM(t),
			Poll: poll, Logger: slog.New(slog.NewTextHandler(&book, nil)),
			Wall: func() time.Time {
				select {
				case ticks <- struct{}{}:
				default:
				}
				return now.Add(time.Duration(offset.Load()))
			},
		})
		if tc.line == "" {
			for range 20 {
				<-ticks
			}
			if book.has("expire") {
				t.Errorf("%s: the log warns", tc.name)
			}
			continue
		}
		eventually(t, tc.name+": the log does not warn", func() bool { return book.has("expires soon") })
		offset.Store(int64(tc.to + time.Minute))
		eventually(t, tc.name+": the log does not report the end", func() bool { return book.has("has expired") })
	}
}
