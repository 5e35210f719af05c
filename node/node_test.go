package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

// logKeepForTests is the log that nodes of startNode keep, 0 for the default.
var logKeepForTests int64

// healAfterForTests is how long nodes of startNode keep damaged copies; by default until a person decides.
var healAfterForTests time.Duration = -1

// startNode starts a node on free loopback ports.
func startNode(t *testing.T, dir, region, zone string, join ...string) *Node {
	t.Helper()
	n, err := Start(Config{
		Dirs: []string{dir}, Region: region, Zone: zone, Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Insecure: true, Join: join,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Snapshot:   SnapshotConfig{Dir: dir + "-images", Leash: imageLeash, OverdueMax: imageOverdueMax},
		CacheBytes: 8 << 20, LogKeep: logKeepForTests, HealAfter: healAfterForTests, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func awaitReady(t *testing.T, nodes ...*Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, n := range nodes {
		if err := n.AwaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func createTable(t *testing.T, n *Node, name string, replicas uint32) *rhumbpb.Table {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := clusterClient(t, n)
	var table *rhumbpb.Table
	await(t, "enough nodes for the copies of the table", func() bool {
		resp, err := c.CreateTable(ctx, &rhumbpb.CreateTableRequest{Name: name, Settings: &rhumbpb.ClassSettings{Replicas: replicas, HashSlots: 8}})
		// A node of a busy machine may be fenced for a moment.
		if err != nil && !strings.Contains(err.Error(), "live nodes") {
			t.Fatal(err)
		}
		table = resp.GetTable()
		return err == nil
	})
	return table
}

func clusterClient(t *testing.T, n *Node) rhumbpb.ClusterClient {
	t.Helper()
	conn, err := api.Connect(n.Addr(), nil, credentialsFor(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rhumbpb.NewClusterClient(conn)
}

// credentialsFor returns the credentials of somebody who may do everything: of anybody at an insecure node, of an operator at
// a secure one.
func credentialsFor(n *Node) api.Credentials {
	if src, ok := operators.Load(n.cfg.Dirs[0]); ok && n.source != nil {
		return src.(*identity.Source).ClientCredentials(wantNode)
	}
	return n.peerCredentials("")
}

// operators holds a source with the certificate of an operator for each folder of a secure node.
var operators sync.Map

func kvClient(t *testing.T, n *Node) rhumbpb.KVClient {
	t.Helper()
	conn, err := api.Connect(n.Addr(), nil, credentialsFor(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rhumbpb.NewKVClient(conn)
}

// put writes one key and retries while the range has no primary.
func put(t *testing.T, kv rhumbpb.KVClient, table uint32, name, value string) {
	t.Helper()
	retry(t, func(ctx context.Context) error {
		_, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{{
			Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: table, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(value)),
		}}}})
		return err
	})
}

func get(t *testing.T, kv rhumbpb.KVClient, table uint32, name string) (value string) {
	t.Helper()
	retry(t, func(ctx context.Context) error {
		resp, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Read: &rhumbpb.Read{Table: table, Resolve: true, Names: [][]byte{[]byte(name)}}})
		if err == nil {
			b, _ := rhumb.DecodeOpaque(resp.Items[0].Value)
			value = string(b)
		}
		return err
	})
	return value
}

func retry(t *testing.T, do func(ctx context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestSingleNode(t *testing.T) {
	dir := t.TempDir()
	n := startNode(t, dir, "singapore", "a")
	if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	table := createTable(t, n, "flights", 1)
	kv := kvClient(t, n)
	for i := range 100 {
		put(t, kv, table.Id, fmt.Sprintf("key-%d", i), fmt.Sprintf("value-%d", i))
	}
	for i := range 100 {
		if got, want := get(t, kv, table.Id, fmt.Sprintf("key-%d", i)), fmt.Sprintf("value-%d", i); got != want {
			t.Fatalf("key-%d is %q, want %q", i, got, want)
		}
	}
	n.Close()
	n = startNode(t, dir, "singapore", "a")
	awaitReady(t, n)
	if got := get(t, kvClient(t, n), table.Id, "key-7"); got != "value-7" {
		t.Fatalf("after a restart key-7 is %q", got)
	}
}

func TestThreeNodesSurviveOne(t *testing.T) {
	nodes := startRegion(t)
	first := nodes[0]
	table := createTable(t, first, "flights", 3)
	kv := kvClient(t, first)
	for i := range 50 {
		put(t, kv, table.Id, fmt.Sprintf("key-%d", i), fmt.Sprintf("value-%d", i))
	}
	start := time.Now()
	nodes[2].Close()
	for i := range 50 {
		put(t, kv, table.Id, fmt.Sprintf("key-%d", i), fmt.Sprintf("new-%d", i))
	}
	t.Logf("writes went on %v after a node stopped", time.Since(start))
	nodes[2] = startAgain(t, nodes[2], first)
	awaitInSync(t, first, 3)
	for i := range 50 {
		if got, want := get(t, kvClient(t, nodes[2]), table.Id, fmt.Sprintf("key-%d", i)), fmt.Sprintf("new-%d", i); got != want {
			t.Fatalf("key-%d is %q, want %q", i, got, want)
		}
	}
}

// awaitInSync waits until every range has the given number of in-sync replicas.
func awaitInSync(t *testing.T, n *Node, want int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		behind := 0
		st := n.State()
		for r := range st.Ranges() {
			if len(r.InSync) < want {
				behind++
			}
		}
		if behind == 0 {
			return
		}
		if time.Now().After(deadline) {
			for r := range st.Ranges() {
				resp, err := clusterClient(t, n).DescribeRange(t.Context(), &rhumbpb.DescribeRangeRequest{Range: api.EncodeRangeID(r.ID)})
				t.Log(resp, err)
			}
			t.Fatalf("%d ranges have fewer than %d in-sync replicas", behind, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
