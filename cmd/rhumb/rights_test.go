package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// securedCluster is a node with TLS in a process of its own, and certificates for its callers.
type securedCluster struct {
	a    *identitytest.Authority
	addr string
	dir  string
}

// startSecured starts a node with a certificate, and creates its cluster as an operator.
func startSecured(t *testing.T) *securedCluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a process; left out by -short")
	}
	s := &securedCluster{a: identitytest.New(t), addr: freeAddr(t), dir: t.TempDir()}
	files := s.a.Node(t, "eu-1").Files(t, filepath.Join(s.dir, "eu-1"))
	startProcess(t, nil, "start", "--dir", filepath.Join(s.dir, "data"), "--region", "frankfurt", "--zone", "a", "--location", "50.1,8.7",
		"--addr", s.addr, "--heartbeat-addr", freeAddr(t), "--gossip-addr", freeAddr(t), "--admin-addr", freeAddr(t),
		"--cert", files.Cert, "--key", files.Key, "--ca", files.CA, "--memory", "256MiB")
	operator := s.identify(t, "operator")
	last := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the last answer of the node: " + last)
		}
	})
	await(t, "the node", bootWait, func() bool {
		_, stderr, code := runIn(t.Context(), "", append([]string{"init", "--timeout", "1s"}, operator...)...)
		last = stderr
		return code == exit.OK || code == exit.Precondition
	})
	await(t, "the cluster", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", append([]string{"status"}, operator...)...)
		return code == exit.OK
	})
	return s
}

// identify returns the flags with which a caller connects: nobody without a certificate, operator as an operator,
// and everybody else as a user.
func (s *securedCluster) identify(t *testing.T, who string) []string {
	t.Helper()
	dir := filepath.Join(s.dir, who)
	var f identity.Files
	switch who {
	case "nobody":
		f = s.a.User(t, "unused").Files(t, dir)
		return []string{"--addr", s.addr, "--ca", f.CA}
	case "operator":
		f = s.a.Operator(t, "ops").Files(t, dir)
	default:
		f = s.a.User(t, who).Files(t, dir)
	}
	return []string{"--addr", s.addr, "--ca", f.CA, "--cert", f.Cert, "--key", f.Key}
}

// everybody lists the callers of TestRightsOfCommands. stranger has a certificate, and no user in the cluster.
var everybody = strings.Fields("nobody stranger plain reader writer tabadm monitor admin operator")

// commandRights lists for each command line who may run it. {c} is the name of the caller, so that each changes
// objects of its own. {file} is the certificate of an authority that issued nothing.
var commandRights = []struct{ line, may string }{
	{"get flights a/1", "reader operator"},
	{"get flights b/1", "reader operator"},
	{"get hidden a/1", "operator"},
	{"get absent a/1", "monitor admin operator"},
	{"put flights a/{c} v=1", "writer operator"},
	{"put flights b/{c} v=1", "operator"},
	{"put flights a/{c} v=1 --if-absent", "writer operator"},
	{"put hidden a/{c} v=1", "operator"},
	{"patch flights a/1 x=2", "writer operator"},
	{"insert flights v=1", "operator"},
	{"delete flights a/{c}", "operator"},
	{"batch -", "operator"},
	{"scan flights", "reader operator"},
	{"scan hidden", "operator"},
	{"status", "monitor admin operator"},
	{"node ls", "monitor admin operator"},
	{"node drain n1 --undo", "admin operator"},
	{"node forget n1 --yes", "admin operator"},
	{"upgrade status", "monitor admin operator"},
	{"upgrade finalize --yes", "monitor admin operator"},
	{"node decommission n1 --no-wait", "admin operator"},
	{"node replace n1 n2 --no-wait", "admin operator"},
	{"node rm n1", "admin operator"},
	{"node failback n1", "admin operator"},
	{"range handover 1/0 --to n1", "admin operator"},
	{"range move 1/0 n1 n2 --no-wait", "admin operator"},
	{"range split 1/0 --no-wait", "admin operator"},
	{"range merge 1/0 --dry-run", "admin operator"},
	{"operation ls", "monitor admin operator"},
	{"operation describe op1", "monitor admin operator"},
	{"operation wait op1", "monitor admin operator"},
	{"operation pause op1", "admin operator"},
	{"operation resume op1", "admin operator"},
	{"operation cancel op1", "admin operator"},
	{"rebalance --dry-run", "monitor admin operator"},
	{"plan failover n1", "monitor admin operator"},
	{"rebalance --no-wait", "admin operator"},
	{"voter ls", "monitor admin operator"},
	{"voter move n1 n2 --no-wait", "admin operator"},
	{"voter unpin n1", "admin operator"},
	{"voter lead n1", "admin operator"},
	{"setting ls", "monitor admin operator"},
	{"setting set replace_after 1m", "admin operator"},
	{"setting reset replace_after", "admin operator"},
	{"region ls", "plain reader writer tabadm monitor admin operator"},
	{"region add {c} --location 1,1", "admin operator"},
	{"region rm frankfurt --force --yes", "admin operator"},
	{"range ls", "plain reader writer tabadm monitor admin operator"},
	{"range describe 1/0", "monitor admin operator"},
	{"range verify 1/0", "admin operator"},
	{"range discard 1/0 --node n1", "admin operator"},
	{"unsafe-recover range 1/0 --node n1 --yes", "admin operator"},
	{"unsafe-recover region frankfurt --yes", "admin operator"},
	{"table ls", "plain reader writer tabadm monitor admin operator"},
	{"table describe flights", "reader writer tabadm monitor admin operator"},
	{"table describe hidden", "monitor admin operator"},
	{"table describe absent", "monitor admin operator"},
	{"table create t-{c} --replicas 1", "admin operator"},
	{"table create plans --replicas 1", "tabadm admin operator"},
	{"table unpublish flights", "tabadm admin operator"},
	{"table unpublish absent", "admin operator"},
	{"table drop absent --yes", "monitor admin operator"},
	{"user ls", "plain reader writer tabadm monitor admin operator"},
	{"user create u-{c} --no-password", "admin operator"},
	{"user passwd plain --no-password", "admin operator"},
	{"user disable spare", "admin operator"},
	{"user enable spare", "admin operator"},
	{"user rm u-{c}", "admin operator"},
	{"role ls", "plain reader writer tabadm monitor admin operator"},
	{"role create r-{c}", "admin operator"},
	{"role assign spare r-{c}", "admin operator"},
	{"role unassign spare r-{c}", "admin operator"},
	{"grant r-{c} --table x --rights read", "admin operator"},
	{"grant {c} --cluster-wide --rights admin", "admin operator"},
	{"grant ls", "plain reader writer tabadm monitor admin operator"},
	{"revoke r-{c} --table x --rights read", "admin operator"},
	{"role rm r-{c}", "admin operator"},
	{"whoami", "plain reader writer tabadm monitor admin operator"},
	{"cert ls", "monitor admin operator"},
	{"cert revoke 1234abcd", "admin operator"},
	{"cert trust {file}", "operator"},
	{"cert distrust {file}", "admin operator"},
	{"gossip ls", "monitor admin operator"},
	{"gossip rotate", "admin operator"},
	{"init", "operator"},
	{"ingest --table roads --create-tables --replicas 1 -", "admin operator"},
}

// notOfTheCluster lists commands with the flags of a connection that need no right of their own: they
// run other commands' requests, or read files of this machine.
var notOfTheCluster = []string{"bench kv", "bench ycsb", "context add", "doctor", "snapshot publish"}

// TestRightsOfCommands runs every command that asks a cluster, as each kind of caller, against a secured process. A
// caller without the right gets exit code 6 and no word about tables that it may not see.
func TestRightsOfCommands(t *testing.T) {
	s := startSecured(t)
	operator := s.identify(t, "operator")
	do := func(line string) {
		t.Helper()
		ok(t, append(strings.Fields(line), operator...)...)
	}
	for _, line := range []string{
		"table create flights --replicas 1", "table create hidden --replicas 1 --hash-slots 2",
		"role create reader", "role create writer", "role create tabadm", "role create monitor", "role create admin",
		"grant reader --table flights --rights read", "grant writer --table flights --prefix a/ --rights write",
		"grant tabadm --table plans --rights admin", "grant tabadm --table flights --rights admin",
		"grant monitor --cluster-wide --rights read", "grant admin --cluster-wide --rights admin",
		"user create plain --no-password", "user create spare --no-password",
		"put flights a/1 v=1", "put flights b/1 v=1", "put hidden a/1 v=1",
	} {
		do(line)
	}
	for _, role := range []string{"reader", "writer", "tabadm", "monitor", "admin"} {
		do("user create " + role + " --no-password --role " + role)
	}
	flags := map[string][]string{}
	for _, who := range everybody {
		flags[who] = s.identify(t, who)
	}
	foreign := identitytest.New(t).Node(t, "unused").Files(t, filepath.Join(s.dir, "foreign")).CA
	cases := 0
	for _, c := range commandRights {
		for _, who := range everybody {
			line := strings.NewReplacer("{c}", who, "{file}", foreign).Replace(c.line)
			input := ""
			switch {
			case strings.HasPrefix(line, "batch"):
				input = `{"op":"put","table":"hidden","name":"x","fields":{"v":1}}`
			case strings.HasPrefix(line, "ingest"):
				input = ""
			}
			stdout, stderr, code := runIn(t.Context(), input, append(strings.Fields(line), append(flags[who], "--timeout", "5s")...)...)
			cases++
			denied := code == exit.Auth
			if want := slices.Contains(strings.Fields(c.may), who); denied == want {
				t.Errorf("%s as %s: exit %d\n%.300s%.300s", line, who, code, stdout, stderr)
			}
			// Those who may see all tables get their names.
			sees := slices.Contains([]string{"monitor", "admin", "operator"}, who)
			if !sees && !strings.Contains(line+input, "hidden") && strings.Contains(stdout+stderr, "hidden") {
				t.Errorf("%s as %s shows a hidden table: %s%s", line, who, stdout, stderr)
			}
		}
	}
	t.Logf("%d command lines × callers", cases)
	// What a reader sees is what it was granted.
	if text := ok(t, append([]string{"table", "ls", "-o", "json"}, flags["reader"]...)...); !strings.Contains(text, "flights") || strings.Contains(text, "hidden") {
		t.Errorf("a reader sees %s", text)
	}
	t.Run("revoke", func(t *testing.T) { testRevoke(t, operator) })
	t.Run("words", func(t *testing.T) { testWords(t, operator) })
	// A revoked right is gone with the next request.
	do("revoke reader --table flights --rights read")
	await(t, "the revocation", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", append([]string{"get", "flights", "a/1"}, flags["reader"]...)...)
		return code == exit.Auth
	})
}

// testRevoke guards that a revocation says when there was nothing to revoke, and which rights of the role remain.
func testRevoke(t *testing.T, operator []string) {
	run := func(line string) (stdout, stderr string, code int) {
		return runIn(t.Context(), "", append(strings.Fields(line), operator...)...)
	}
	for _, line := range []string{"role create fleet", "grant fleet --table flights --prefix a/ --rights read,write", "grant fleet --table * --rights read"} {
		ok(t, append(strings.Fields(line), operator...)...)
	}
	for _, tc := range []struct {
		line string
		code int
		says []string
	}{
		{"revoke fleet --table flights --rights read", exit.NotFound, []string{"nothing was revoked", "names that begin with a/ in table flights", "read for all tables"}},
		{"revoke fleet --table flights --rights read --if-exists", exit.OK, []string{"not revoked", "still has all tables: read"}},
		{"revoke nobody --table flights --rights read", exit.NotFound, []string{"nobody"}},
		{"revoke nobody --table flights --rights read --if-exists", exit.OK, nil},
		{"revoke fleet --table flights --prefix a/ --rights delete", exit.NotFound, []string{"nothing was revoked"}},
		{"revoke fleet --table flights --prefix a/ --rights read,delete", exit.OK, []string{"revoked", "still has all tables: read"}},
		{"revoke fleet --table flights --prefix a/ --rights read", exit.NotFound, []string{"nothing was revoked"}},
		{"revoke fleet --table * --rights read -o json", exit.OK, []string{`"done":"revoked"`}},
	} {
		stdout, stderr, code := run(tc.line)
		for _, text := range tc.says {
			if !strings.Contains(stdout+stderr, text) {
				t.Errorf("%s does not say %q: %s%s", tc.line, text, stdout, stderr)
			}
		}
		if code != tc.code {
			t.Errorf("%s: exit %d, want %d: %s%s", tc.line, code, tc.code, stdout, stderr)
		}
	}
}

// testWords guards that commands take names of nodes, that answers name records and tables as people do, and that no table or region
// has a name that means a folder.
func testWords(t *testing.T, operator []string) {
	for _, tc := range []struct {
		line string
		code int
		says string
	}{
		{"node drain eu-1 --undo", exit.OK, "n1"},
		{"node drain eu-7", exit.NotFound, "there is no node eu-7"},
		{"node failback eu-1", exit.OK, "n1"},
		{"range ls --node eu-1", exit.OK, "1/0"},
		{"range verify 1/0 --trust eu-7", exit.NotFound, "there is no node eu-7"},
		{"voter unpin eu-1", exit.OK, ""},
		{"node replace eu-7 eu-1 --no-wait", exit.NotFound, "there is no node eu-7"},
		{"table create .. --replicas 1", exit.Usage, "means a folder"},
		{"table create . --replicas 1", exit.Usage, "means a folder"},
		{"region add .. --location 1,1", exit.Usage, "means a folder"},
		{"table describe flights", exit.OK, "MiB"},
		{"put flights b/1 v=1 --if-absent", exit.Precondition, "record b/1 of table flights exists, with version"},
		{"put flights b/9 v=1 --if-present", exit.Precondition, "record b/9 of table flights does not exist"},
		{"put flights b/1 v=1 --if-version 1@1", exit.Precondition, "the condition wants version 1@1"},
	} {
		stdout, stderr, code := runIn(t.Context(), "", append(strings.Fields(tc.line), operator...)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", tc.line, code, tc.code, tc.says, stdout, stderr)
		}
	}
	home := func(line string) string {
		var doc struct{ Home string }
		must(json.Unmarshal([]byte(ok(t, append(strings.Fields(line), operator...)...)), &doc))
		return doc.Home
	}
	for _, name := range []string{"h/1", "h/2", "h/3", "h/4"} {
		written, read := home("put flights "+name+" v=1 -o json"), home("get flights "+name+" -o json")
		if written != read || home("get flights "+name+" -o json --home "+written) != read {
			t.Errorf("%s has the home %s by put and %s by get", name, written, read)
		}
	}
}

// TestEveryCommandHasRights guards that a new command that asks a cluster appears in commandRights.
func TestEveryCommandHasRights(t *testing.T) {
	eachCommand(newApp(streams{}).rootCommand(), func(c *cobra.Command) {
		if c.Flags().Lookup("addr") == nil || c.Flags().Lookup("timeout") == nil || !c.Runnable() {
			return
		}
		path := strings.TrimPrefix(c.CommandPath(), "rhumb ")
		listed := slices.ContainsFunc(commandRights, func(r struct{ line, may string }) bool {
			return r.line == path || strings.HasPrefix(r.line, path+" ")
		})
		if !listed && !slices.Contains(notOfTheCluster, path) {
			t.Errorf("rhumb %s is in neither commandRights nor notOfTheCluster", path)
		}
	})
}
