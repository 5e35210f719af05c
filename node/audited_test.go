package node

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// TestAuditOnFullDisk guards that a node whose audit log has no room refuses administration with a clear error and goes on
// serving records, and that administration returns with the room.
func TestAuditOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts a file system; run as root")
	}
	a := identitytest.New(t)
	// The folder must exist before something can be mounted on it, and a new node wants an empty directory.
	n := startSecureOne(t, a, nil)
	root := n.cfg.Dirs[0]
	n.Close()
	dir := filepath.Join(root, AuditDir)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v; run as root with the capability SYS_ADMIN", err)
	}
	// After the node is closed, and before the folder of the test is removed.
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n = startSecure(t, a, root, "eu-1")
	awaitReady(t, n)
	c, err := client.Open(t.Context(), userConfig(t, a, "app", testPassword, n))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(t.Context(), "flights")
	if err != nil {
		t.Fatal(err)
	}
	// Something else takes the rest of the disk.
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(bytes.Repeat([]byte("x"), 512))
	}
	f.Close()

	ac := accessClient(t, n)
	refusals := 0
	// The last page of the log has room for a few entries.
	for i := range 40 {
		_, err = ac.CreateRole(t.Context(), &rhumbpb.CreateRoleRequest{Name: "role-" + string(rune('a'+i%26)) + string(rune('a'+i/26))})
		if err != nil {
			refusals++
		}
	}
	e, _, _ := api.FromStatus("test", err)
	if k := rhumb.KindOf(e); refusals == 0 || k != rhumb.DiskFull && k != rhumb.Unavailable {
		t.Fatalf("%d of 40 requests were refused, the last one: %v", refusals, err)
	}
	t.Logf("%d of 40 requests were refused: %v", refusals, rhumb.Message(e))
	for i := range 20 {
		if _, err := table.Put(t.Context(), []byte{'k', byte('a' + i)}, []byte("value"), client.PutOptions{}); err != nil {
			t.Fatalf("records are not served while the audit log is full: %v", err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	retry(t, func(ctx context.Context) error {
		_, err := ac.CreateRole(ctx, &rhumbpb.CreateRoleRequest{Name: "later"})
		return err
	})
	n.Close()
	if r, err := audit.Verify(dir, audit.Head{}); err != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAuditOfChanges guards that a revoked certificate and a distrusted authority have entries of their own, that the order to
// publish has an outcome, and that a user who may only create tables cannot fill the log.
func TestAuditOfChanges(t *testing.T) {
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	dir := filepath.Join(n.cfg.Dirs[0], AuditDir)
	conn, err := api.Connect(n.Addr(), nil, credentialsFor(n))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := rhumbpb.NewSecurityClient(conn).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{Serial: "abc123", Why: "lost"}); err != nil {
		t.Fatal(err)
	}
	admin := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: a.Operator(t, "anna").Source(t).ClientConfig(wantNode, "http/1.1")}}
	resp, err := admin.Post("https://"+n.AdminAddr()+"/v1/snapshot/publish", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()

	// The user app has the right admin of the table flights, and asks for it again and again.
	c, err := client.Open(t.Context(), userConfig(t, a, "app", testPassword, n))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	paced := 0
	from := n.guard.audit.Head().Seq
	user, err := api.Connect(n.Addr(), nil, a.Anonymous(t).ClientCredentials(wantNode), login.NewAccount("app", userConfig(t, a, "app", testPassword).Password).Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	for range 2 * recordedBurst {
		_, err := rhumbpb.NewClusterClient(user).CreateTable(t.Context(), &rhumbpb.CreateTableRequest{Name: "flights", Settings: &rhumbpb.ClassSettings{Replicas: 1, HashSlots: 1}})
		if e, _, _ := api.FromStatus("test", err); rhumb.KindOf(e) == rhumb.Overloaded {
			if paced++; rhumb.RetryAfterOf(e) <= 0 {
				t.Error("the refusal does not say when to come back")
			}
		}
	}
	if paced < recordedBurst/2 {
		t.Errorf("%d of %d requests were refused", paced, 2*recordedBurst)
	}
	// Two entries for each request that was accepted, and a few for refusals.
	if grown := n.guard.audit.Head().Seq - from; grown > 3*recordedBurst {
		t.Errorf("the log grew by %d entries", grown)
	}
	n.Close()
	revoked, published := 0, ""
	for e, err := range audit.All(dir) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == audit.Revoke && e.Object == "serial abc123" && e.Detail == "lost" {
			revoked++
		}
		if e.Action == "POST /v1/snapshot/publish" {
			published += e.Outcome + " "
		}
	}
	if revoked != 1 {
		t.Errorf("%d entries of the revocation", revoked)
	}
	if published != "begun ok " && published != "begun "+rhumb.NotFound.String()+" " {
		t.Errorf("the order to publish has the entries %q", published)
	}
}
