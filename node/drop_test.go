package node

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// tableBytes returns the size of the files with records in a node's directory.
func tableBytes(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		// Compactions remove files during the walk.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || filepath.Ext(path) != ".sst" {
			return err
		}
		if info, err := d.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// TestDropTable drops two tables while a node is down: one that shares its ranges with another table, and one that has
// its own. Clients lose them at once. The files of all nodes shrink, also of the node that returns later, and the other
// table keeps its records. A new table of the name is empty.
func TestDropTable(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	first := startNode(t, dirs[0], "singapore", "a")
	if _, err := clusterClient(t, first).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	nodes := []*Node{first}
	for i, zone := range []string{"b", "c"} {
		nodes = append(nodes, startNode(t, dirs[i+1], "singapore", zone, first.Addr()))
	}
	awaitReady(t, nodes...)
	shared, kept := createTable(t, first, "shared", 3), createTable(t, first, "kept", 3)
	var own *rhumbpb.Table
	retry(t, func(ctx context.Context) error {
		resp, err := clusterClient(t, first).CreateTable(ctx, &rhumbpb.CreateTableRequest{Name: "own", Settings: &rhumbpb.ClassSettings{Replicas: 3, HashSlots: 4}})
		own = resp.GetTable()
		return err
	})
	kv := kvClient(t, first)
	noise := make([]byte, 90_000)
	for i := range 60 {
		_, _ = rand.Read(noise)
		put(t, kv, shared.Id, fmt.Sprint("s", i), base64.StdEncoding.EncodeToString(noise))
		put(t, kv, own.Id, fmt.Sprint("o", i), base64.StdEncoding.EncodeToString(noise))
		put(t, kv, kept.Id, fmt.Sprint("k", i), "kept")
	}
	before := make([]int64, 3)
	for i, n := range nodes {
		if err := n.engine.Stores()[0].Flush(); err != nil {
			t.Fatal(err)
		}
		if before[i] = tableBytes(t, dirs[i]); before[i] < 8_000_000 {
			t.Fatalf("node %d holds files of %d bytes", i+1, before[i])
		}
	}
	nodes[2].Close()
	for _, table := range []*rhumbpb.Table{shared, own} {
		retry(t, func(ctx context.Context) error {
			_, err := clusterClient(t, nodes[1]).DropTable(ctx, &rhumbpb.DropTableRequest{Table: table.Name, Id: table.Id})
			return err
		})
		// A repetition, as after a lost answer, is the same drop.
		if _, err := clusterClient(t, nodes[1]).DropTable(t.Context(), &rhumbpb.DropTableRequest{Table: table.Name, Id: table.Id}); err != nil {
			t.Errorf("dropping %s again: %v", table.Name, err)
		}
		_, err := kvClient(t, nodes[1]).Do(t.Context(), &rhumbpb.Request{Hops: 2, Read: &rhumbpb.Read{Table: table.Id, Resolve: true, Names: [][]byte{[]byte("s1")}}})
		if err, _, _ := api.FromStatus("test", err); rhumb.KindOf(err) != rhumb.NotFound {
			t.Errorf("a read of %s: %v", table.Name, err)
		}
	}
	nodes[2] = startNode(t, dirs[2], "singapore", "c", first.Addr())
	awaitReady(t, nodes[2])
	for i, n := range nodes {
		retry(t, func(ctx context.Context) error {
			// Each range keeps the last entries of its log, so writes of the other table push those of the dropped one out.
			for k := range 60 {
				put(t, kv, kept.Id, fmt.Sprint("k", k), "kept")
			}
			if err := n.engine.Stores()[0].Flush(); err != nil {
				return err
			}
			if size := tableBytes(t, dirs[i]); size > before[i]/5 {
				return fmt.Errorf("node %d still holds files of %d bytes; it held %d", i+1, size, before[i])
			}
			st := n.State()
			if _, ok := st.Class(rhumb.ClassID(own.Class)); ok {
				return fmt.Errorf("class %d is still there", own.Class)
			}
			return nil
		})
	}
	for i := range 60 {
		if got := get(t, kv, kept.Id, fmt.Sprint("k", i)); got != "kept" {
			t.Errorf("k%d is %q", i, got)
		}
	}
	again := createTable(t, first, "shared", 3)
	if again.Id == shared.Id {
		t.Errorf("the new table has number %d again", again.Id)
	}
	if got := get(t, kv, again.Id, "s1"); got != "" {
		t.Errorf("the new table has a record of the old one: %.20q", got)
	}
}
