package connect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/demo"
)

// TestPlainText guards that nothing is sent in plain text unless the user asks for it, and never to
// another machine.
func TestPlainText(t *testing.T) {
	t.Setenv("RHUMB_DEMO", filepath.Join(t.TempDir(), "no-demo.json"))
	for addr, ok := range map[string]bool{
		"127.0.0.1:7600": true, "127.8.9.1:7600": true, "[::1]:7600": true, "localhost:7600": true,
		"192.0.2.1:7600": false, "0.0.0.0:7600": false, "example.com:7600": false, "localhost.example.com:7600": false, "127.0.0.1": false,
	} {
		f := Flags{Target: target.Target{Addrs: []string{addr}}}
		if _, err := f.Config(); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s without --insecure: %v", addr, err)
		} else if strings.Contains(err.Error(), "demo") {
			t.Errorf("the error for a given address is about a demo: %v", err)
		}
		f.Insecure = true
		if _, err := f.Config(); (err == nil) != ok {
			t.Errorf("%s with --insecure: %v", addr, err)
		}
	}
}

// TestDemoAddrs guards that the nodes of the caller's region come first.
func TestDemoAddrs(t *testing.T) {
	layout := &demo.Layout{Nodes: []demo.Node{{Region: "a", Addr: "1"}, {Region: "b", Addr: "2"}, {Region: "a", Addr: "3"}}}
	if got := demoAddrs(layout, "b"); len(got) != 3 || got[0] != "2" {
		t.Errorf("%q", got)
	}
}

// TestDemoAs guards that the demo is used with the identity of its operator, or with another one if the
// context says that the demo is meant.
func TestDemoAs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.json")
	t.Setenv("RHUMB_DEMO", file)
	pem := func(name string) string { return filepath.Join(filepath.Dir(file), name) }
	for _, name := range []string{"ca", "cert", "key", "mine", "mine.key"} {
		if err := os.WriteFile(pem(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	layout, err := json.Marshal(demo.Layout{
		PID: os.Getpid(), Regions: []demo.Region{{Name: "a"}}, Nodes: []demo.Node{{Region: "a", Addr: "127.0.0.1:1"}},
		Identity: &demo.Identity{CA: pem("ca"), Cert: pem("cert"), Key: pem("key")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, layout, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags Flags
		cert  string // of the connection; "" is an error
	}{
		{Flags{}, pem("cert")},
		{Flags{Context: "demo"}, pem("cert")},
		{Flags{Context: "demo", Target: target.Target{Cert: pem("mine"), Key: pem("mine.key")}}, pem("mine")},
		{Flags{Target: target.Target{Cert: pem("mine"), Key: pem("mine.key")}}, ""},
		{Flags{Context: "demo", Target: target.Target{Cert: pem("gone"), Key: pem("mine.key")}}, ""},
	} {
		cfg, err := tt.flags.Config()
		if (err == nil) != (tt.cert != "") || err == nil && (cfg.TLS.Cert != tt.cert || cfg.TLS.CA != pem("ca") || cfg.Addrs[0] != "127.0.0.1:1") {
			t.Errorf("%+v: %+v, %v", tt.flags, cfg.TLS, err)
		}
		if err != nil && rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%+v: %v", tt.flags, err)
		}
	}
}

// TestParseNode guards how operators name a node: by its number, or by its name if no removed node has it.
func TestParseNode(t *testing.T) {
	nodes := []rhumb.Node{{ID: 4, Name: "eu-1", Forgotten: true}, {ID: 5, Name: "eu-1"}, {ID: 6, Name: "n"}, {ID: 7, Name: "eu-2", Forgotten: true}}
	for in, want := range map[string]rhumb.NodeID{"n3": 3, "12": 12, "eu-1": 5, "n": 6, "eu-2": 0, "x3": 0} {
		node, err := ParseNode(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		got, err := node.Find(nodes)
		if got != want || rhumb.KindOf(err) != map[bool]rhumb.Kind{true: rhumb.NotFound}[want == 0] {
			t.Errorf("%q is %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"n0", "0", "", "-1", "4294967296", "n4294967296", "EU-1", "eu_1", ".."} {
		if _, err := ParseNode(in); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%q: %v", in, err)
		}
	}
	named, err := ParseNodes("eu-1", "n3")
	if ids, findErr := FindNodes(named, nodes); err != nil || findErr != nil || !slices.Equal(ids, []rhumb.NodeID{5, 3}) {
		t.Errorf("%v, %v, %v", ids, err, findErr)
	}
}
