package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/gate"
)

// useTable writes and reads many keys, so that links are opened, and returns the metrics of the client.
func useTable(t *testing.T, cfg client.Config) client.Metrics {
	t.Helper()
	c, err := client.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(t.Context(), "flights")
	if err != nil {
		t.Fatal(err)
	}
	work := func(i int) {
		name, value := fmt.Appendf(nil, "key-%d", i), fmt.Appendf(nil, "value-%d", i)
		if _, err := table.Put(t.Context(), name, value, client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, err := table.Get(t.Context(), name, client.GetOptions{}); err != nil || !strings.HasSuffix(string(got.Value), string(value)) {
			t.Fatalf("%s: %q, %v", name, got.Value, err)
		}
	}
	for i := range 100 {
		work(i)
	}
	if cfg.GRPC {
		return c.Metrics()
	}
	await(t, "a link", func() bool { work(0); return c.Metrics().Links > 0 })
	for i := range 20 {
		work(i)
	}
	return c.Metrics()
}

// certificateConfig returns the configuration of a client with a certificate.
func certificateConfig(t *testing.T, issued *identitytest.Issued, n *Node) client.Config {
	return client.Config{Addrs: []string{n.Addr()}, TLS: &client.TLS{PEM: issued.PEM(t)}}
}

// TestClientLinks guards that clients of every identity use links, that no request fails meanwhile, and that an option forces gRPC.
func TestClientLinks(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	plain := startNode(t, filepath.Join(t.TempDir(), "plain"), "singapore", "a")
	if _, _, err := plain.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, plain)
	createTable(t, plain, "flights", 1)
	for who, cfg := range map[string]client.Config{
		"an operator":          certificateConfig(t, a.Operator(t, "ann"), n),
		"a user":               certificateConfig(t, a.User(t, "app"), n),
		"a user by password":   userConfig(t, a, "app", testPassword, n),
		"somebody without TLS": {Addrs: []string{plain.Addr()}, Insecure: true},
	} {
		t.Run(who, func(t *testing.T) {
			if m := useTable(t, cfg); m.Links != 1 || m.NoLinks != 0 || m.Broken != 0 || m.Errors != 0 {
				t.Errorf("%+v", m)
			}
			cfg.GRPC = true
			if m := useTable(t, cfg); m.Links != 0 || m.NoLinks != 0 {
				t.Errorf("with gRPC: %+v", m)
			}
		})
	}
	t.Run("by the environment", func(t *testing.T) {
		t.Setenv("RHUMB_CLIENT_GRPC", "true")
		cfg := client.Config{Addrs: []string{plain.Addr()}, Insecure: true}
		cfg.SetDefaults()
		if !cfg.GRPC {
			t.Error("RHUMB_CLIENT_GRPC has no effect")
		}
	})
	await(t, "the end of all links", func() bool { return n.clientLinks.open.Len() == 0 && plain.clientLinks.open.Len() == 0 })
	await(t, "room for streams", func() bool { return n.budgets.streams.Used() == 0 })
}

// dialerAs returns a dialer of links to a node.
func dialerAs(n *Node, src *identity.Source) *link.ClientDialer {
	d := &link.ClientDialer{Addr: n.Addr(), Credentials: api.PlainText()}
	if src != nil {
		d.Credentials = src.ClientCredentials(wantNode, link.ClientProtocols...)
	}
	return d
}

// openLink opens a link, or fails the test.
func openLink(t *testing.T, d *link.ClientDialer, n *Node) *link.Conn {
	t.Helper()
	c, _, err := d.Open(t.Context(), n.Identity().Cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// account returns the login of a user.
func account(user, password string) *login.Account {
	return login.NewAccount(user, func() (string, error) { return password, nil })
}

// TestLinksOfWrongIdentities guards that a link is refused to everybody to whom a stream would be, for the same reason, and that what a refused caller
// sends is not read.
func TestLinksOfWrongIdentities(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	token := func(text string) func(*link.Conn, credentials.AuthInfo) (string, time.Time, error) {
		return func(*link.Conn, credentials.AuthInfo) (string, time.Time, error) { return text, time.Time{}, nil }
	}
	for _, tc := range []struct {
		who     string
		src     *identity.Source
		login   func(*link.Conn, credentials.AuthInfo) (string, time.Time, error)
		cluster rhumb.ClusterID
		want    rhumb.Kind
	}{
		{"nobody", a.Anonymous(t), nil, a.Cluster, rhumb.Unauthenticated},
		{"an invented token", a.Anonymous(t), token("secret"), a.Cluster, rhumb.Unauthenticated},
		{"an invented token with a certificate", a.Operator(t, "ann").Source(t), token("secret"), a.Cluster, rhumb.Unauthenticated},
		{"a wrong password", a.Anonymous(t), account("app", "wrong").LogIn, a.Cluster, rhumb.Unauthenticated},
		{"a user that does not exist", a.User(t, "ghost").Source(t), nil, a.Cluster, rhumb.PermissionDenied},
		{"another cluster", a.Operator(t, "ann").Source(t), nil, rhumb.ClusterID{1}, rhumb.WrongCluster},
	} {
		t.Run(tc.who, func(t *testing.T) {
			d := dialerAs(n, tc.src)
			d.Login = tc.login
			c, _, err := d.Open(t.Context(), tc.cluster)
			if err == nil {
				c.Close()
			}
			if rhumb.KindOf(err) != tc.want {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
	for who, issued := range map[string]*identitytest.Issued{
		"another authority": identitytest.NewFor(t, a.Cluster).Operator(t, "eve"),
		"the past":          a.Operator(t, "old", identitytest.Valid(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))),
	} {
		h := &hostile{t: t, n: n, a: a, ports: map[string]string{"main": n.Addr()}}
		c, err := h.secureAs(issued, "main", link.ClientProtocol)
		if err != nil {
			continue // the node may refuse it in the handshake
		}
		_, _ = c.Write([]byte(link.ClientMagic))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("the node answers a certificate of %s", who)
		}
		_ = c.Close()
	}
	if used := n.budgets.streams.Used(); used != 0 {
		t.Errorf("refused links take %d bytes", used)
	}
}

// TestLinksEndWithRights guards that a link ends soon after its user is disabled or its certificate revoked, as streams do.
func TestLinksEndWithRights(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	createUser(t, n, "bob", "flights")
	d := dialerAs(n, a.Anonymous(t))
	d.Login = account("app", testPassword).LogIn
	byPassword, byCertificate := openLink(t, d, n), openLink(t, dialerAs(n, a.User(t, "bob").Source(t)), n)
	for what, c := range map[string]*link.Conn{"password": byPassword, "certificate": byCertificate} {
		if err := c.WriteFrame(link.KindPing, nil); err != nil {
			t.Fatal(err)
		}
		if kind, _, err := c.NextFrame(link.AnswerBytesMax); err != nil || kind != link.KindPing {
			t.Fatalf("%s: kind %d, %v", what, kind, err)
		}
	}
	if _, err := accessClient(t, n).AlterUser(t.Context(), &rhumbpb.AlterUserRequest{Name: "app", Disable: true}); err != nil {
		t.Fatal(err)
	}
	byPassword.LimitOpening(5 * time.Second)
	kind, content, err := byPassword.NextFrame(link.AnswerBytesMax)
	// Another kind would be a promise that no request was carried out.
	if err != nil || kind != link.KindError || rhumb.KindOf(link.DecodeError(content)) != rhumb.Unavailable || !strings.Contains(link.DecodeError(content).Error(), "disabled") {
		t.Errorf("a disabled user: kind %d, %v, %v", kind, link.DecodeError(content), err)
	}
	security := rhumbpb.NewSecurityClient(dialAs(t, n, a.Operator(t, "ann").Source(t)))
	if _, err := security.RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{UserName: "bob", Why: "test"}); err != nil {
		t.Fatal(err)
	}
	byCertificate.LimitOpening(5 * time.Second)
	for err = nil; err == nil; {
		_, _, err = byCertificate.NextFrame(link.AnswerBytesMax)
	}
	if late, ok := err.(net.Error); ok && late.Timeout() {
		t.Error("the link of a revoked certificate stays open")
	}
	await(t, "the end of both links", func() bool { return n.clientLinks.open.Len() == 0 })
}

// TestLinksCountAsStreams guards that the limit of streams of a user counts links too, and that the end of a link makes room.
func TestLinksCountAsStreams(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, func(cfg *Config) { cfg.Limits.User = gate.Rates{Streams: 2} })
	d := dialerAs(n, a.User(t, "app").Source(t))
	first := openLink(t, d, n)
	openLink(t, d, n)
	if c, _, err := d.Open(t.Context(), a.Cluster); rhumb.KindOf(err) != rhumb.Overloaded {
		t.Fatalf("a third link: %v, %v", c, err)
	}
	first.Close()
	retry(t, func(ctx context.Context) error {
		c, _, err := d.Open(ctx, a.Cluster)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// TestHostileLinks guards the port against bytes on links: whatever somebody sends, before or after the hello, the link ends, and the node serves others.
func TestHostileLinks(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	h := &hostile{t: t, n: n, a: a, ports: map[string]string{"main": n.Addr(), "heartbeat": n.bound.heartbeat}}
	operator := a.Operator(t, "ann")
	frame := func(kind byte, content string) string {
		r := &kept{}
		_ = link.New(r, link.ClientConfig).WriteFrame(kind, func(b []byte) []byte { return append(b, content...) })
		return r.text.String()
	}
	request := string(link.AppendRequests(nil, []*rhumbpb.Request{{Id: 1}}))
	before := heapInUse()
	for what, sent := range map[string]string{
		"nothing":                    "",
		"another magic":              "RHUMBXXX",
		"the magic of nodes":         link.PeerMagic,
		"requests before the hello":  link.ClientMagic + frame(link.KindMessages, request),
		"a ping before the hello":    link.ClientMagic + frame(link.KindPing, ""),
		"an empty login":             link.ClientMagic + frame(link.KindLogin, ""),
		"a login that is no message": link.ClientMagic + frame(link.KindLogin, "\xff\xff\xff"),
		"a hello that is no message": link.ClientMagic + frame(link.KindHello, "\xff\xff\xff"),
		"a large hello":              link.ClientMagic + frame(link.KindHello, strings.Repeat("x", 70_000)),
		"an endless frame":           link.ClientMagic + "\xff\xff\xff\xff\x00\x00\x00\x00\x01",
		"a damaged frame":            link.ClientMagic + "\x00\x00\x00\x02\x00\x00\x00\x00\x01\x01",
		"HTTP/2":                     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a request without a hello":  link.ClientMagic + frame(link.KindHello, "") + frame(link.KindMessages, request),
	} {
		for _, issued := range []*identitytest.Issued{nil, operator} {
			c, err := h.secureAs(issued, "main", link.ClientProtocol)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte(sent))
			if what == "nothing" {
				_ = c.Close()
				continue
			}
			if _, closed := awaitEnd(c); !closed {
				t.Errorf("%s: the connection is still open", what)
			}
			_ = c.Close()
		}
	}
	// The port for heartbeats has no clients.
	if c, err := h.secureAs(operator, "heartbeat", link.ClientProtocol); err == nil {
		t.Error("the port for heartbeats speaks the protocol of clients")
		_ = c.Close()
	}
	// A caller who is known may send large frames, and memory is not reserved for what it only announces.
	for range 200 {
		c := openLink(t, dialerAs(n, operator.Source(t)), n)
		_ = c.WriteMagic("\x01\x00\x00\x00\x00\x00\x00\x00\x02half a frame")
	}
	if grown := heapInUse() - before; grown > heapGrowthMax {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if m := useTable(t, certificateConfig(t, operator, n)); m.Errors != 0 {
		t.Errorf("%+v", m)
	}
}

// TestDamagedHellosAreCounted guards that frames which were damaged on the way count before the hello too, at its place and at that of a login, and that
// invalid ones which arrived as they were sent do not.
func TestDamagedHellosAreCounted(t *testing.T) {
	n := startNode(t, filepath.Join(t.TempDir(), "plain"), "singapore", "a")
	if _, _, err := n.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	want := metric(t, n, "rhumb_server_damaged_frames_total")
	for _, tc := range []struct {
		what, sent string
		counts     bool
	}{
		{"a damaged hello", "\x00\x00\x00\x02\x00\x00\x00\x00\x01\x01", true},
		{"a damaged login", "\x00\x00\x00\x02\x00\x00\x00\x00\x05\x01", true},
		{"a damaged size", "\xff\xff\xff\xff\x00\x00\x00\x00\x01", true},
		{"a hello that is no message", invalidHello(t), false},
	} {
		conn, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(link.ClientMagic + tc.sent)); err != nil {
			t.Fatal(err)
		}
		c := link.New(conn, link.ClientConfig)
		c.LimitOpening(5 * time.Second)
		// The node counts a frame before it answers.
		if kind, content, err := c.ReadFrame(link.HelloBytesMax); err != nil || kind != link.KindError || (rhumb.KindOf(link.DecodeError(content)) == rhumb.Corrupt) != tc.counts {
			t.Errorf("%s: kind %d, %v, %v", tc.what, kind, link.DecodeError(content), err)
		}
		if tc.counts {
			want++
		}
		if got := metric(t, n, "rhumb_server_damaged_frames_total"); got != want {
			t.Errorf("%s: %v damaged frames are counted, want %v", tc.what, got, want)
		}
	}
}

// invalidHello returns a whole frame whose content is no hello.
func invalidHello(t *testing.T) string {
	t.Helper()
	r := &kept{}
	if err := link.New(r, link.ClientConfig).WriteFrame(link.KindHello, func(b []byte) []byte { return append(b, 0xff, 0xff, 0xff) }); err != nil {
		t.Fatal(err)
	}
	return r.text.String()
}

// kept is a connection that keeps what is written.
type kept struct {
	net.Conn
	text strings.Builder
}

func (k *kept) Write(b []byte) (int, error) { return k.text.Write(b) }
