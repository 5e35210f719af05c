package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// testSnapshot does with the images of a running demo what a person can do.
func testSnapshot(t *testing.T, layout *demo.Layout) {
	for _, name := range []string{"ZRH", "GVA"} {
		ok(t, "put", "airports", name, "location=47.4,8.5", "name="+name, "--from", "frankfurt")
	}
	node := ""
	await(t, "an image with the airports", settleWait, func() bool {
		var images []imageDoc
		okJSON(t, &images, "snapshot", "ls")
		for _, d := range images {
			if d.Publisher != "alive" || d.Cluster != layout.ClusterID {
				t.Fatalf("%+v", d)
			}
			if _, _, code := runIn(t.Context(), "", "snapshot", "get", d.Node, "airports", "ZRH"); code == exitOK {
				node = d.Node
			}
		}
		return node != ""
	})
	var published struct{ Version uint64 }
	okJSON(t, &published, "snapshot", "publish", node)
	var stat statDoc
	okJSON(t, &stat, "snapshot", "stat", node)
	if stat.Version < published.Version || published.Version == 0 || len(stat.Positions) == 0 || len(stat.Commits) == 0 || len(stat.Shards) < 2 || len(stat.Faults) != 0 {
		t.Errorf("published %+v, stat %+v", published, stat)
	}
	if got := ok(t, "snapshot", "nearest", node, "airports", "47.4,8.5,1", "--geojson"); !strings.Contains(got, "[8.5,47.4]") {
		t.Errorf("nearest: %s", got)
	}
	file := filepath.Join(t.TempDir(), "image"+inspect.FileSuffix)
	ok(t, "snapshot", "save", node, file)
	ok(t, "put", "airports", "ZRH", "location=47.4,8.5", "name=changed", "--from", "frankfurt")
	okJSON(t, &published, "snapshot", "publish", node)
	var d diffDoc
	await(t, "the change in the image", settleWait, func() bool {
		okJSON(t, &d, "snapshot", "diff", file, node, "--table", "airports")
		return len(d.Tables) == 1 && d.Tables[0].Changed == 1
	})
	if len(d.Keys) != 1 || d.Keys[0].Key != "ZRH" || d.Keys[0].Is.Fields["name"] != "changed" || d.Keys[0].Was.Fields["name"] != "ZRH" {
		t.Errorf("diff: %+v", d)
	}
	ok(t, "snapshot", "verify", node, "--deep")
	dir := filepath.Join(t.TempDir(), "loaded")
	ok(t, "snapshot", "load", file, dir)
	testDamagedImage(t, dir)
	fails(t, exitPrecondition, "snapshot", "load", file, stat.Path, "--replace")
	fails(t, exitNotFound, "snapshot", "stat", "n99")
	fails(t, exitNotFound, "snapshot", "get", node, "airports", "nowhere")
	fails(t, exitUsage, "snapshot", "bbox", node, "airports", "1,2,3")
	for _, args := range []string{"ls", "stat " + node, "scan " + node + " airports", "pins --all", "diff " + file + " " + node} {
		if text := ok(t, append([]string{"snapshot"}, strings.Fields(args)...)...); !strings.Contains(text, "\n") || strings.Contains(text, "%!") {
			t.Errorf("rhumb snapshot %s prints %q", args, text)
		}
	}
}

func testDamagedImage(t *testing.T, dir string) {
	ok(t, "snapshot", "verify", dir, "--deep")
	root := filepath.Join(dir, format.RootName)
	b, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	b[format.RootTables+20] ^= 1
	must(os.WriteFile(root, b, 0o600))
	stdout, stderr, code := runIn(t.Context(), "", "snapshot", "verify", dir)
	if code != exitFailure || !strings.Contains(stdout, "root") {
		t.Errorf("a damaged image: exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestSnapshotNothing guards what is said where there is no image.
func TestSnapshotNothing(t *testing.T) {
	dir := t.TempDir()
	if got := ok(t, "snapshot", "ls", "--snapshot-dir", dir, "-o", "json"); got != "[]\n" {
		t.Errorf("ls: %q", got)
	}
	fails(t, exitNotFound, "snapshot", "verify", dir)
	fails(t, exitNotFound, "snapshot", "stat", "n1", "--snapshot-dir", dir)
	fails(t, exitUsage, "snapshot", "publish", "nobody")
}
