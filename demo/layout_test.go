package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
)

// TestRegions guards which values --regions accepts and rejects.
func TestRegions(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string // the names, or a part of the error
		kind  rhumb.Kind
	}{
		{nil, "singapore frankfurt virginia", rhumb.Other},
		{[]string{"Frankfurt", " virginia"}, "frankfurt virginia", rhumb.Other},
		{[]string{"bern=46.9:7.4", "frankfurt"}, "bern frankfurt", rhumb.Other},
		{[]string{"atlantis"}, "not a well-known region", rhumb.InvalidArgument},
		{[]string{"frankfurt", "frankfurt"}, "twice", rhumb.InvalidArgument},
		{[]string{"bern=91:7"}, "NAME=LAT:LON", rhumb.InvalidArgument},
		{strings.Split("a=1:1,b=1:2,c=1:3,d=1:4,e=1:5,f=1:6,g=1:7,h=1:8,i=1:9,j=1:10", ","), "at most 9", rhumb.InvalidArgument},
	} {
		regions, err := parseRegions(c.names)
		var got []string
		for _, r := range regions {
			got = append(got, r.Name)
		}
		if rhumb.KindOf(err) != c.kind || err == nil && strings.Join(got, " ") != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v; want %s", c.names, got, err, c.want)
		}
	}
}

// TestLayout guards that every node has addresses of its own, that each latency setting names them
// all, and that a demo in an existing directory is continued unchanged, or rejected.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	regions, err := parseRegions(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLayout(dir, regions, 3, false)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, n := range l.Nodes {
		for _, addr := range []string{n.Addr, n.HeartbeatAddr, n.GossipAddr, n.AdminAddr} {
			if seen[addr] {
				t.Errorf("address %s is given twice", addr)
			}
			seen[addr] = true
		}
	}
	if len(seen) != 36 {
		t.Errorf("%d addresses for nine nodes, want 36", len(seen))
	}
	for how, want := range map[string]float64{"real": 253.5, "none": 0} {
		file, err := l.latencyFor(how, false)
		if err != nil {
			t.Fatal(err)
		}
		if rtt, ok := file.RoundTrip("singapore", "virginia"); !ok || rtt.Seconds()*1000 != want {
			t.Errorf("--latency %s: singapore to virginia takes %v, %v; want %v ms", how, rtt, ok, want)
		}
		if region, ok := file.RegionOf(l.Nodes[4].GossipAddr); !ok || region != "frankfurt" {
			t.Errorf("--latency %s: %s stands in %q", how, l.Nodes[4].GossipAddr, region)
		}
	}
	if err := l.Save(filepath.Join(dir, layoutName)); err != nil {
		t.Fatal(err)
	}
	again, err := newLayout(dir, regions, 3, false)
	if err != nil || again.Nodes[8] != l.Nodes[8] {
		t.Errorf("the kept demo came back as %+v, %v", again, err)
	}
	if _, err := newLayout(dir, regions, 3, true); rhumb.KindOf(err) != rhumb.Conflict {
		t.Errorf("a demo without TLS is continued with TLS: %v", err)
	}
	if _, err := newLayout(dir, regions, 2, false); rhumb.KindOf(err) != rhumb.Conflict {
		t.Errorf("another shape on a kept directory: %v, want conflict", err)
	}
}

// TestReadLayoutDamaged guards that the error for a damaged file names the file.
func TestReadLayoutDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.json")
	if err := os.WriteFile(path, []byte(`{"nodes":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLayout(path); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// TestListItem guards that a directory with a comma in its name remains one item of a list.
func TestListItem(t *testing.T) {
	for _, dir := range []string{"/data/a", "/data/a,b", `/data/"a",b`, "/data/with space"} {
		var got []string
		fl := pflag.NewFlagSet("start", pflag.ContinueOnError)
		fl.StringSliceVar(&got, "dir", nil, "")
		if err := fl.Parse([]string{"--dir", listItem(dir)}); err != nil || len(got) != 1 || got[0] != dir {
			t.Errorf("%q was read as %q, %v", dir, got, err)
		}
	}
}
