package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/imagecmd"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// testSnapshot runs the commands for images against a running demo.
func testSnapshot(t *testing.T, layout *demo.Layout) {
	for _, name := range []string{"ZRH", "GVA"} {
		ok(t, "put", "airports", name, "location=47.4,8.5", "name="+name, "--from", "frankfurt")
	}
	node := ""
	await(t, "an image with the airports", settleWait, func() bool {
		var images []imagecmd.ImageDoc
		okJSON(t, &images, "snapshot", "ls")
		for _, d := range images {
			// The nodes of an earlier test may be ending.
			if d.Cluster != layout.ClusterID {
				continue
			}
			if d.Publisher != "alive" {
				t.Fatalf("%+v", d)
			}
			if _, _, code := runIn(t.Context(), "", "snapshot", "get", d.Node, "airports", "ZRH"); code == exit.OK {
				node = d.Node
			}
		}
		return node != ""
	})
	var published struct{ Version uint64 }
	okJSON(t, &published, "snapshot", "publish", node)
	var stat imagecmd.StatDoc
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
	var d imagecmd.DiffDoc
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
	fails(t, exit.Precondition, "snapshot", "load", file, stat.Path, "--replace")
	fails(t, exit.NotFound, "snapshot", "stat", "n99")
	fails(t, exit.NotFound, "snapshot", "get", node, "airports", "nowhere")
	fails(t, exit.Usage, "snapshot", "bbox", node, "airports", "1,2,3")
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
	if code != exit.Failure || !strings.Contains(stdout, "root") {
		t.Errorf("a damaged image: exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestSnapshotNothing guards the errors for images that do not exist.
func TestSnapshotNothing(t *testing.T) {
	dir := t.TempDir()
	if got := ok(t, "snapshot", "ls", "--snapshot-dir", dir, "-o", "json"); got != "[]\n" {
		t.Errorf("ls: %q", got)
	}
	fails(t, exit.NotFound, "snapshot", "verify", dir)
	fails(t, exit.NotFound, "snapshot", "stat", "n1", "--snapshot-dir", dir)
	fails(t, exit.Usage, "snapshot", "publish", "nobody")
	fails(t, exit.Usage, "start", "--region", "frankfurt", "--insecure", "--dir", dir, "--snapshot-dir", "/dev/null/images")
}

// TestSnapshotMessages guards that errors of images say what is wrong and what to do, and name no
// functions.
func TestSnapshotMessages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster", "n1")
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	must(err)
	roads, err := p.Table(snapshot.TableSpec{ID: 1, Name: "roads"})
	must(err)
	commit := p.Begin()
	must(commit.Put(roads, snapshot.Record{Key: format.Key{Number: 42}, Value: rhumb.EncodeOpaque(nil, []byte("A1"))}))
	_, err = commit.Publish(snapshot.CommitInfo{})
	must(err)
	must(p.Close())
	empty, file := t.TempDir(), filepath.Join(t.TempDir(), "new", "image"+inspect.FileSuffix)
	ok(t, "snapshot", "save", dir, file) // makes the folder
	must(os.WriteFile(filepath.Join(empty, "bad.rhs"), []byte("garbage"), 0o600))
	for _, tc := range []struct {
		args, want string
		code       int
	}{
		{"get " + dir, "rhumb snapshot get IMAGE TABLE KEY", exit.Usage},
		{"get " + dir + " roads x", `table "roads" has numbers as keys, and "x" is not a number`, exit.Usage},
		{"get " + dir + " rivers 1", "only roads;", exit.NotFound},
		{"verify " + empty, "`rhumb snapshot ls` lists images", exit.NotFound},
		{"stat " + filepath.Join(empty, "bad.rhs"), "is not a saved image, or is truncated", exit.Failure},
		{"save " + dir + " " + file, "give a path that does not", exit.Precondition},
		{"save " + dir + " /dev/null/x.rhs", "/dev/null: not a directory", exit.Failure},
		{"load " + file + " " + dir, "or replace it with --replace", exit.Precondition},
		{"bbox " + dir + " roads 1,2,3,4", "keeps no spatial index; `rhumb table create NAME --snapshot=spatial`", exit.Usage},
		{"bbox " + dir + " roads -10,35,-9,45", "keeps no spatial index", exit.Usage}, // no flag
		{"get " + dir + " roads 43", `table roads has no record "43" in version 1 of the image`, exit.NotFound},
		{"get " + file + " rivers 1", file + ` has no table "rivers"`, exit.NotFound},
		{"ls --snapshot-dir " + file, "not a directory", exit.Usage},
		{"ls --snapshot-dir " + dir + "/nowhere", "no such file or directory", exit.Usage},
	} {
		stdout, stderr, code := runIn(t.Context(), "", append([]string{"snapshot"}, strings.Fields(tc.args)...)...)
		if code != tc.code || !strings.Contains(stderr, tc.want) || strings.Contains(stderr, "inspect.") || strings.Contains(stderr, "reader.") || stdout != "" {
			t.Errorf("rhumb snapshot %s: exit %d, %q", tc.args, code, stderr)
		}
	}
}

// TestSnapshotNamesWhatItLacks guards that the nearest record of an image does not pass for the
// nearest record of the cluster.
func TestSnapshotNamesWhatItLacks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "image")
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	must(err)
	t.Cleanup(func() { _ = p.Close() })
	cars, err := p.Table(snapshot.TableSpec{ID: 1, Name: "cars", KeyKind: format.KeyName, Spatial: true, LocationField: "location"})
	must(err)
	c := p.Begin()
	at := format.MakePoint(rhumb.Point{Lat: 60, Lon: -45})
	must(c.Put(cars, snapshot.Record{Key: format.Key{Name: []byte("greenland")}, Value: rhumb.EncodeOpaque(nil, []byte("x")), Box: at, HasBox: true}))
	_, err = c.Publish(snapshot.CommitInfo{})
	must(err)
	b, err := format.EncodeRegions(format.Regions{Tables: map[string]format.TableRegions{"cars": {Lacks: []string{"virginia"}}}})
	must(err)
	must(os.WriteFile(filepath.Join(dir, format.RegionsName), b, 0o600))
	for query, place := range map[string]string{"nearest": "39.9,-75.2,1", "radius": "39.9,-75.2,5000000", "bbox": "-80,30,-40,70"} {
		stdout, stderr, code := runIn(t.Context(), "", "snapshot", query, dir, "cars", place)
		if code != exit.OK || !strings.Contains(stdout, "greenland") || !strings.Contains(stderr, "lacks all or some records of virginia") {
			t.Errorf("%s: exit %d\n%s%s", query, code, stdout, stderr)
		}
		stdout, stderr, _ = runIn(t.Context(), "", "snapshot", query, dir, "cars", place, "-o", "json")
		if !strings.Contains(stdout, `"lacks_regions":["virginia"]`) || !strings.Contains(stderr, "virginia") {
			t.Errorf("%s -o json: %s%s", query, stdout, stderr)
		}
	}
}
