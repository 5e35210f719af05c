package node

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// talk connects to a port with a configuration, sends a request, and returns what the server
// answers after the handshake.
func talk(addr string, cfg *tls.Config) ([]byte, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	secure := tls.Client(conn, cfg)
	// The preface of HTTP/2 is a request that an HTTP/1.1 server answers too.
	if _, err := secure.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return nil, err
	}
	b := make([]byte, 1)
	n, err := secure.Read(b)
	return b[:n], err
}

// openConnections returns the number of TLS connections that a node watches.
func openConnections(t *testing.T, n *Node) float64 {
	t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "rhumb_identity_connections" {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatal("the connections are not counted")
	return 0
}

// TestPortsRejectCertificates guards each TLS port of a node against each bad certificate: no byte
// of the application is answered. Good certificates are tried too, so that the test cannot pass
// because nothing works.
func TestPortsRejectCertificates(t *testing.T) {
	a, foreign := identitytest.New(t), identitytest.New(t)
	same := identitytest.NewFor(t, a.Cluster)
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	now := time.Now()
	revoked := a.Node(t, "eu-7")
	n.source.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Serial: identity.SerialOf(revoked.Cert)}}})
	stolen := a.Node(t, "eu-2")
	stolen.Key = a.Node(t, "eu-3").Key
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	const all, some, none = 3, 2, 0 // ports that accept: all, all but heartbeats, none
	count := 0
	for _, tc := range []struct {
		name  string
		cert  *identitytest.Issued // nil for none
		ports int
	}{
		{"a node", a.Node(t, "eu-2"), all},
		{"a user", a.User(t, "app"), some},
		{"an operator", a.Operator(t, "ann"), some},
		{"no certificate", nil, some},
		{"expired", a.Node(t, "eu-2", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Minute))), none},
		{"not yet valid", a.Node(t, "eu-2", identitytest.Valid(now.Add(24*time.Hour), now.Add(48*time.Hour))), none},
		{"an expired user", a.User(t, "app", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Minute))), none},
		{"self-signed", a.Node(t, "eu-2", identitytest.SelfSigned()), none},
		{"an unknown authority of the same name", same.Node(t, "eu-2"), none},
		{"another cluster", foreign.Node(t, "eu-2"), none},
		{"another cluster of the same authority", a.Node(t, "eu-2", identitytest.URIs(t, "rhumb://"+foreign.Cluster.String()+"/node/eu-2")), none},
		{"the authority's server", a.Issue(t, identity.RoleAuthority, "main"), none},
		{"a user with the usages of a node", a.User(t, "app", identitytest.Usages(server, client)), none},
		{"a node with the usages of a user", a.Node(t, "eu-2", identitytest.Usages(client)), none},
		{"no name", a.Node(t, "eu-2", identitytest.URIs(t)), none},
		{"two names", a.Node(t, "eu-2", identitytest.URIs(t, "rhumb://"+a.Cluster.String()+"/node/eu-2", "rhumb://"+a.Cluster.String()+"/operator/ann")), none},
		{"a weak key", a.Node(t, "eu-2", identitytest.RSA(t, 1024)), none},
		{"revoked", revoked, none},
		{"a copy without the key", stolen, none},
	} {
		for i, port := range []struct{ name, addr, proto string }{
			{"main", n.bound.addr, "h2"}, {"admin", n.bound.admin, "http/1.1"}, {"heartbeats", n.bound.heartbeat, "h2"},
		} {
			cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{port.proto}, MinVersion: tls.VersionTLS13}
			if tc.cert != nil {
				cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{tc.cert.Cert.Raw}, PrivateKey: tc.cert.Key}}
			}
			got, err := talk(port.addr, cfg)
			if accepted := len(got) > 0; accepted != (i < tc.ports) {
				t.Errorf("%s on the port for %s: answered %v, want %v: %v", tc.name, port.name, accepted, i < tc.ports, err)
			}
			if i < tc.ports {
				continue
			}
			count++
			// Older versions are refused whatever the certificate.
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS12
			if got, err := talk(port.addr, cfg); len(got) > 0 || err == nil {
				t.Errorf("%s on the port for %s is answered in TLS 1.2", tc.name, port.name)
			}
		}
	}
	t.Logf("%d rejected", count)
	// Rejected connections leave nothing behind.
	for deadline := time.Now().Add(10 * time.Second); openConnections(t, n) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v connections are still open", openConnections(t, n))
		}
	}
}

// TestPortsRefuseDowngrade guards that no port speaks TLS 1.2 or plain text, even with a good
// certificate.
func TestPortsRefuseDowngrade(t *testing.T) {
	a := identitytest.New(t)
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	good := a.Node(t, "eu-2")
	for _, port := range []struct{ name, addr string }{{"main", n.bound.addr}, {"heartbeats", n.bound.heartbeat}, {"admin", n.bound.admin}} {
		for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12} {
			cfg := &tls.Config{
				InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, NextProtos: []string{"h2", "http/1.1"},
				Certificates: []tls.Certificate{{Certificate: [][]byte{good.Cert.Raw}, PrivateKey: good.Key}},
			}
			if got, err := talk(port.addr, cfg); len(got) > 0 || err == nil || !strings.Contains(err.Error(), "protocol version") {
				t.Errorf("%s with version %x: %q, %v", port.name, version, got, err)
			}
		}
		conn, err := net.Dial("tcp", port.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		text, _ := io.ReadAll(bufio.NewReader(conn))
		// The HTTP server explains the mistake in plain text, and nothing else.
		if strings.Contains(string(text), "200") || len(text) > 200 || port.name != "admin" && strings.Contains(string(text), "HTTP") {
			t.Errorf("%s answers plain text with %q", port.name, text)
		}
	}
	plain, err := api.Connect(n.Addr(), nil, api.PlainText())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := rhumbpb.NewClusterClient(plain).Ping(t.Context(), &rhumbpb.PingRequest{}); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("a client in plain text: %v", err)
	}
}

// TestNoPlainTextIsSent guards that a node and a client with TLS send nothing readable to a server
// that speaks plain text: the first bytes are the beginning of a TLS handshake.
func TestNoPlainTextIsSent(t *testing.T) {
	a := identitytest.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(chan []byte, 16)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				b := make([]byte, 3)
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.ReadFull(conn, b); err == nil {
					select {
					case seen <- b:
					default:
					}
				}
			}()
		}
	}()
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1", l.Addr().String())
	for range 3 {
		// A handshake record of TLS begins so.
		if b := <-seen; b[0] != 0x16 || b[1] != 3 {
			t.Fatalf("the node sent %x", b)
		}
	}
	if n.Ready() == nil {
		t.Error("a node that reached nobody is ready")
	}
}

// TestAdminPort guards that the port for operators speaks HTTPS with the certificate of the node.
func TestAdminPort(t *testing.T) {
	a := identitytest.New(t)
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	for _, src := range []*identity.Source{a.Operator(t, "ann").Source(t), a.Anonymous(t)} {
		web := &http.Client{Transport: &http.Transport{TLSClientConfig: src.ClientConfig(wantNode)}, Timeout: 10 * time.Second}
		resp, err := web.Get("https://" + n.AdminAddr() + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.TLS.Version != tls.VersionTLS13 {
			t.Errorf("%s, version %x", resp.Status, resp.TLS.Version)
		}
		web.CloseIdleConnections()
	}
}
