package live

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish creates an image with the given number of records in table cars.
func publish(t *testing.T, dir string, records int) {
	t.Helper()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	table, err := pub.Table(snapshot.TableSpec{ID: 1, Name: "cars", KeyKind: format.KeyUint64, Shards: 1})
	check(t, err)
	c := pub.Begin()
	for i := range records {
		check(t, c.Put(table, snapshot.Record{Key: format.Key{Number: uint64(i)}, Value: []byte("v")}))
	}
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	check(t, pub.Close())
}

// TestImage checks that the image with the most records is chosen and that other directories do no
// harm.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	l := &demo.Layout{SnapshotDir: dir, ClusterID: "c"}
	for node, records := range map[string]int{"n1": 3, "n2": 9, "n3": 0} {
		publish(t, filepath.Join(dir, "c", node), records)
	}
	check(t, os.Mkdir(filepath.Join(dir, "c", "n4"), 0o755))
	got, err := Image(l, "cars")
	if want := filepath.Join(dir, "c", "n2"); err != nil || got != want {
		t.Errorf("image %s, %v; want %s", got, err, want)
	}
	if _, err := Image(l, "boats"); err == nil {
		t.Error("an image was found that has the table boats")
	}
}

// TestDemo checks that the error without a demo explains how to start one.
func TestDemo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.json")
	t.Setenv("RHUMB_DEMO", path)
	if _, err := Demo(); err == nil || !strings.Contains(err.Error(), "rhumb demo") {
		t.Errorf("error %v", err)
	}
	check(t, (&demo.Layout{PID: os.Getpid(), Nodes: []demo.Node{{Addr: "a:1"}, {Addr: "b:2"}}}).Save(path))
	l, err := Demo()
	check(t, err)
	if got := Addrs(l); !slices.Equal(got, []string{"a:1", "b:2"}) {
		t.Errorf("addresses %v", got)
	}
}
