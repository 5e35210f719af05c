package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// testPassword is the password of the user app.
const testPassword = "correct horse"

// accessClient returns the Access service for an operator.
func accessClient(t *testing.T, n *Node) rhumbpb.AccessClient {
	t.Helper()
	conn, err := api.Connect(n.Addr(), nil, credentialsFor(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rhumbpb.NewAccessClient(conn)
}

// createUser creates a user who may do everything in one table.
func createUser(t *testing.T, n *Node, name, table string) {
	t.Helper()
	v, err := login.NewVerifier(name, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	a := accessClient(t, n)
	if _, err := a.CreateRole(t.Context(), &rhumbpb.CreateRoleRequest{Name: name + "-role"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.AlterGrant(t.Context(), &rhumbpb.AlterGrantRequest{Role: name + "-role", Scope: &rhumbpb.Scope{Table: table}, Add: uint32(access.TableRights)}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CreateUser(t.Context(), &rhumbpb.CreateUserRequest{Name: name, Verifier: api.EncodeVerifier(v), Roles: []string{name + "-role"}}); err != nil {
		t.Fatal(err)
	}
}

// userConfig returns the configuration of a client that logs in.
func userConfig(t *testing.T, a *identitytest.Authority, user, password string, nodes ...*Node) client.Config {
	cfg := client.Config{
		TLS: &client.TLS{PEM: identity.PEM{CA: a.Operator(t, "any").PEM(t).CA}}, User: user,
		Password: func() (string, error) { return password, nil },
	}
	for _, n := range nodes {
		cfg.Addrs = append(cfg.Addrs, n.Addr())
	}
	return cfg
}

// startSecureOne starts a cluster of one node with a table and a user.
func startSecureOne(t *testing.T, a *identitytest.Authority, change func(*Config)) *Node {
	t.Helper()
	cfg := secureConfig(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if change != nil {
		change(&cfg)
	}
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if _, _, err := n.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	retry(t, func(ctx context.Context) error {
		_, err := clusterClient(t, n).CreateTable(ctx, &rhumbpb.CreateTableRequest{Name: "flights", Settings: &rhumbpb.ClassSettings{Replicas: 1, HashSlots: 1}})
		return err
	})
	createUser(t, n, "app", "flights")
	return n
}

// TestUser guards the life of a user with a password: it logs in and works, a wrong password is reported at
// once, a scan ends with Unauthenticated soon after the user is disabled, and the audit log has all of it
// without a password or a verifier.
func TestUser(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	for _, user := range []string{"app", "nobody"} {
		start := time.Now()
		c, err := client.Open(t.Context(), userConfig(t, a, user, "wrong horse", n))
		if err == nil {
			c.Close()
		}
		if rhumb.KindOf(err) != rhumb.Unauthenticated || !strings.Contains(rhumb.Message(err), "the user or the password is wrong") {
			t.Errorf("%s with a wrong password: %v", user, err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("a wrong password was reported after %v", took)
		}
	}
	c, err := client.Open(t.Context(), userConfig(t, a, "app", testPassword, n))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(t.Context(), "flights")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, size int) {
		t.Helper()
		if _, err := table.Put(t.Context(), []byte(name), make([]byte, size), client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("key", 10)
	// More than the network holds, so that the scan waits for its reader.
	for i := range 20 {
		put(fmt.Sprintf("large-%d", i), 1<<20)
	}
	conn, err := api.Connect(n.Addr(), nil, a.Anonymous(t).ClientCredentials(wantNode), login.NewAccount("app", userConfig(t, a, "app", testPassword).Password).Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	scan := beginScan(t, rhumbpb.NewKVClient(conn), uint32(table.Info().ID))
	if _, err := accessClient(t, n).AlterUser(t.Context(), &rhumbpb.AlterUserRequest{Name: "app", Disable: true}); err != nil {
		t.Fatal(err)
	}
	disabled := time.Now()
	// The reader does not read meanwhile: the node must not wait for it.
	time.Sleep(700 * time.Millisecond)
	for err == nil {
		_, err = scan.Recv()
	}
	if grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("the scan ended with %v", err)
	}
	if took := time.Since(disabled); took > 3*time.Second {
		t.Errorf("the scan ended %v after the user was disabled", took)
	}
	if _, err := table.Get(t.Context(), []byte("key-00001"), client.GetOptions{}); rhumb.KindOf(err) != rhumb.Unauthenticated {
		t.Errorf("a disabled user reads: %v", err)
	}
	dir := filepath.Join(n.cfg.Dirs[0], AuditDir)
	n.Close()
	checkAudit(t, dir)
}

// TestStreamsOfOneUser guards that one user cannot take all streams of a node: one more than its share is refused with a time to
// come back, on another connection too, while an operator is served.
func TestStreamsOfOneUser(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, func(cfg *Config) { cfg.Limits.User.Streams = 2 })
	open := func(src *identity.Source) error {
		stream, err := kvAs(t, n, src).Stream(t.Context())
		if err != nil {
			return err
		}
		// The answer to the first request shows that the node has admitted the stream.
		if err := stream.Send(&rhumbpb.ClientFrame{Hello: &rhumbpb.Hello{Protocol: api.Protocol}, Requests: []*rhumbpb.Request{{Id: 1, Read: &rhumbpb.Read{Table: 1, Resolve: true, Names: [][]byte{[]byte("k")}}}}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	app := a.User(t, "app").Source(t)
	for range 2 {
		if err := open(app); err != nil {
			t.Fatal(err)
		}
	}
	err, hint, remote := api.FromStatus("test", open(a.User(t, "app").Source(t)))
	if rhumb.KindOf(err) != rhumb.Overloaded || !remote || rhumb.RetryAfterOf(err) <= 0 {
		t.Errorf("a third stream: %v, %+v, of the node: %v", err, hint, remote)
	}
	if err := open(a.Operator(t, "ann").Source(t)); err != nil {
		t.Errorf("an operator: %v", err)
	}
}

// beginScan begins a scan of the only range of a table and reads its first page.
func beginScan(t *testing.T, kv rhumbpb.KVClient, table uint32) rhumbpb.KV_ScanClient {
	t.Helper()
	scan, err := kv.Scan(t.Context(), &rhumbpb.ScanRequest{Table: table, Region: 1, Slot: 0, BytesMax: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scan.Recv(); err != nil {
		t.Fatal(err)
	}
	return scan
}

// TestScanOfRevokedUser guards that a scan ends in its middle when the certificates of its user are revoked, although the node
// waits for a reader that does not read, and that the certificate opens nothing afterwards.
func TestScanOfRevokedUser(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	info, ok := n.State().TableByName("flights")
	if !ok {
		t.Fatal("the table is missing")
	}
	table, src := uint32(info.ID), a.User(t, "app").Source(t)
	kv := kvAs(t, n, src)
	// More than the network holds.
	for i := range 20 {
		put(t, kv, table, fmt.Sprintf("large-%d", i), strings.Repeat("x", 1<<20))
	}
	scan := beginScan(t, kv, table)
	if _, err := rhumbpb.NewSecurityClient(dialAs(t, n, a.Operator(t, "ann").Source(t))).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{UserName: "app"}); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	var err error
	pages := 1
	for err == nil {
		if _, err = scan.Recv(); err == nil {
			pages++
		}
	}
	if code := grpcstatus.Code(err); code != codes.Unavailable && code != codes.Unauthenticated || pages >= 20 {
		t.Errorf("the scan ended with %v after %d pages", err, pages)
	}
	if took := time.Since(revoked); took > 3*time.Second {
		t.Errorf("the scan ended %v after the revocation", took)
	}
	if _, err := kv.Do(t.Context(), &rhumbpb.Request{Read: &rhumbpb.Read{Table: table, Names: [][]byte{[]byte("large-1")}}}); err == nil {
		t.Error("a revoked certificate reads")
	}
}

// checkAudit checks the audit log of TestUser.
func checkAudit(t *testing.T, dir string) {
	t.Helper()
	if r, err := audit.Verify(dir, audit.Head{}); err != nil || r.Entries < 10 {
		t.Fatalf("%+v, %v", r, err)
	}
	want := map[string]bool{
		"start": false, "admin CreateUser begun": false, "admin CreateUser ok": false, "admin AlterUser ok": false, "login": false, "login_failed": false,
		"logout": false, "stop": false, "admin CreateTable ok": false,
	}
	for e, err := range audit.All(dir) {
		if err != nil {
			t.Fatal(err)
		}
		text := e.Kind
		if e.Kind == audit.Admin {
			text += " " + e.Action + " " + e.Outcome
			if e.Caller != "operator tester" || e.Address == "" || e.Object == "" {
				t.Errorf("%+v does not say who did what", e)
			}
		}
		want[text] = true
	}
	for text, found := range want {
		if !found {
			t.Errorf("no entry %s", text)
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.audit"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || strings.Contains(string(text), "horse") || strings.Contains(string(text), "salt") {
			t.Errorf("%s contains a secret, or %v", f, err)
		}
	}
}

// TestAdminPortNeedsIdentity guards the port for operators on a real secure node.
func TestAdminPortNeedsIdentity(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	clientOf := func(src *identity.Source) *http.Client {
		return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: src.ClientConfig(wantNode, "http/1.1")}}
	}
	stranger, operator := clientOf(a.Anonymous(t)), clientOf(a.Operator(t, "anna").Source(t))
	ask := func(c *http.Client, path, user, password string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+n.AdminAddr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			r.SetBasicAuth(user, password)
		}
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	for _, tc := range []struct {
		name           string
		c              *http.Client
		path           string
		user, password string
		code           int
		body           bool
	}{
		{"a stranger", stranger, "/livez", "", "", 200, false},
		{"a stranger", stranger, "/readyz", "", "", 200, false},
		{"a stranger", stranger, "/metrics", "", "", 401, true},
		{"a wrong password", stranger, "/metrics", "app", "wrong horse", 401, true},
		{"a user without the right", stranger, "/metrics", "app", testPassword, 403, true},
		{"an operator", operator, "/metrics", "", "", 200, true},
		{"an operator", operator, "/debug/pprof/cmdline", "", "", 200, true},
		{"an operator", operator, "/readyz", "", "", 200, true},
	} {
		if code, body := ask(tc.c, tc.path, tc.user, tc.password); code != tc.code || (body != "") != tc.body {
			t.Errorf("%s: %s: %d, %.100q", tc.name, tc.path, code, body)
		}
	}
	// The right to read the cluster opens the metrics, and no more.
	ac := accessClient(t, n)
	if _, err := ac.AlterGrant(t.Context(), &rhumbpb.AlterGrantRequest{Role: "app-role", Scope: &rhumbpb.Scope{Cluster: true}, Add: uint32(access.Read)}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for code := 0; code != 200; time.Sleep(10 * time.Millisecond) {
		if code, _ = ask(stranger, "/metrics", "app", testPassword); time.Now().After(deadline) {
			t.Fatalf("with the right to read the cluster: %d", code)
		}
	}
	if code, _ := ask(stranger, "/debug/pprof/heap", "app", testPassword); code != 403 {
		t.Errorf("a profile for a reader: %d", code)
	}
	// Plain text and old versions of TLS get nothing.
	if resp, err := http.Get("http://" + n.AdminAddr() + "/livez"); err == nil {
		if resp.Body.Close(); resp.StatusCode == 200 {
			t.Error("plain text is answered")
		}
	}
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}}
	if _, err := old.Get("https://" + n.AdminAddr() + "/livez"); err == nil {
		t.Error("TLS 1.2 is answered")
	}
}
