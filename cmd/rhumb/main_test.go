package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/health"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/settings"
	"github.com/rhumbdb/rhumb/client"
)

// asProgram makes the test binary behave as the program, so that a demo under test can start it as
// its nodes.
const asProgram = "GO_TEST_RUNS_RHUMB"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Args = withClockFile(os.Args)
		main()
		return
	}
	must(os.Setenv(asProgram, "1"))
	dir, err := os.MkdirTemp("", "rhumb-cli-test-")
	must(err)
	// A demo or a configuration of this machine must not affect the tests.
	must(os.Setenv("RHUMB_DEMO", filepath.Join(dir, "no-demo.json")))
	must(os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")))
	must(os.Setenv("RHUMB_SNAPSHOT_DIR", filepath.Join(dir, "images")))
	must(os.Setenv("RHUMB_CONFIG", filepath.Join(dir, "empty.yaml")))
	must(os.WriteFile(filepath.Join(dir, "empty.yaml"), nil, 0o600))
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// runIn runs one command line in this process and returns what it wrote and its exit code.
func runIn(ctx context.Context, stdin string, args ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = run(ctx, args, streams{in: strings.NewReader(stdin), out: &out, err: &err})
	return out.String(), err.String(), code
}

// TestCommandLine is a transcript of command lines that need no cluster: help, errors, exit codes.
func TestCommandLine(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			dir := t.TempDir()
			t.Chdir(dir)
			if d.Cmd == "file" {
				// A file for the command line on the first line of the input; the rest is its
				// content.
				command, content, _ := strings.Cut(d.Input, "\n")
				must(os.WriteFile("file", []byte(content), 0o600))
				return transcript(t, strings.Fields(command), dir)
			}
			return transcript(t, splitWords(d.Input), dir)
		})
	})
}

// splitWords cuts a command line at spaces; single quotes keep words together.
func splitWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// transcript runs a command line and returns what it prints, with the directory replaced, which differs from run to run.
func transcript(t *testing.T, args []string, dir string) string {
	stdout, stderr, code := runIn(t.Context(), "", args...)
	text := strings.ReplaceAll(stdout+prefixed("stderr: ", stderr), dir, "DIR")
	return strings.TrimRight(text, "\n") + fmt.Sprintf("\nexit %d\n", code)
}

func prefixed(prefix, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(prefix + line)
	}
	return b.String()
}

// TestHelp guards that every command has a short text, an example of its own, and a page of help
// that needs no cluster.
func TestHelp(t *testing.T) {
	root := newApp(streams{}).rootCommand()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		path := strings.TrimPrefix(c.CommandPath(), "rhumb")
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("rhumb%s: short text %q", path, c.Short)
		}
		if c.Example == "" && !c.HasSubCommands() {
			t.Errorf("rhumb%s has no example", path)
		}
		if c.Example != "" && !strings.Contains(c.Example, "rhumb"+path) {
			t.Errorf("rhumb%s: its example is another command's", path)
		}
		stdout, stderr, code := runIn(t.Context(), "", append(strings.Fields(path), "--help")...)
		if code != exit.OK || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("rhumb%s --help: exit %d\n%s%s", path, code, stdout, stderr)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if value, _ := pflag.UnquoteUsage(f); f.Value.Type() == "bool" && value != "" {
				t.Errorf("rhumb%s --%s takes no value, its help shows %q", path, f.Name, value)
			}
		})
		names := map[string]bool{}
		for _, sub := range c.Commands() {
			if names[sub.Name()] {
				t.Errorf("rhumb%s has two commands %s", path, sub.Name())
			}
			names[sub.Name()] = true
			if !sub.Hidden { // a part of another command in a process of its own
				walk(sub)
			}
		}
	}
	walk(root)
}

// errorDoc is an error as programs get it.
type errorDoc struct {
	Error struct {
		Kind     string `yaml:"kind"`
		Op       string `yaml:"op"`
		Message  string `yaml:"message"`
		NextStep string `yaml:"next_step"`
		ExitCode int    `yaml:"exit_code"`
	} `yaml:"error"`
}

// decodeError decodes one document. JSON is YAML too.
func decodeError(text string) (doc errorDoc, err error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return doc, err
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return doc, fmt.Errorf("more than one document: %v", err)
	}
	return doc, nil
}

// TestErrorsAsDocuments guards that an error is one document on standard error, even if the command
// line itself is wrong, in each form and from each command.
func TestErrorsAsDocuments(t *testing.T) {
	lines := []string{
		"get flights x -o json", "get -o yaml", "no-such-command -ojson", "no-such-command -o=yaml", "scan a --no-such-flag --output=jsonl",
		"key explain zz -o json", "key explain zz -o yaml", "get a b --addr 127.0.0.1:1 --insecure --timeout 1s -o json",
		"get a b --addr 127.0.0.1:1 --insecure --timeout 1s -o yaml",
	}
	eachCommand(newApp(streams{}).rootCommand(), func(c *cobra.Command) {
		for _, format := range []string{output.JSON, output.YAML, output.JSONL} {
			lines = append(lines, strings.TrimPrefix(c.CommandPath(), "rhumb ")+" --no-such-flag -o "+format)
		}
	})
	for _, args := range lines {
		stdout, stderr, code := runIn(t.Context(), "", strings.Fields(args)...)
		doc, err := decodeError(stderr)
		if err != nil {
			t.Errorf("%s: %v in %q", args, err, stderr)
		}
		if isJSON := json.Valid([]byte(stderr)); isJSON == strings.Contains(args, "yaml") {
			t.Errorf("%s: JSON %v: %q", args, isJSON, stderr)
		}
		if stdout != "" || doc.Error.Kind == "" || doc.Error.Message == "" || doc.Error.ExitCode != code || code == exit.OK {
			t.Errorf("%s: exit %d, %+v, stdout %q", args, code, doc.Error, stdout)
		}
	}
}

// shape describes a document without its values, which may change from one run to the next: the
// keys, and the types of what they hold.
func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = shape(v[k])
		}
		return v
	case []any:
		for i := range v {
			v[i] = shape(v[i])
		}
		return v
	case nil, string, bool:
		return fmt.Sprintf("%T", v)
	}
	return "number"
}

// sameInAllForms runs a command in each form and fails if the documents differ.
func sameInAllForms(t *testing.T, args ...string) {
	t.Helper()
	shapes := map[string]string{}
	for _, format := range []string{output.JSON, output.YAML, output.JSONL} {
		text := ok(t, append(args, "-o", format)...)
		var docs []any
		dec := yaml.NewDecoder(strings.NewReader(text))
		if format != output.YAML {
			text = strings.ReplaceAll(text, "\n", "\n---\n") // lines are documents
			dec = yaml.NewDecoder(strings.NewReader(strings.TrimSuffix(text, "---\n")))
		}
		for {
			var doc any
			if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("rhumb %s -o %s: %v in %s", strings.Join(args, " "), format, err, text)
			}
			docs = append(docs, shape(doc))
		}
		// A list is one document, except as lines.
		if list, is := firstOf(docs).([]any); is && len(docs) == 1 {
			docs = list
		}
		shapes[format] = fmt.Sprint(docs)
	}
	if shapes[output.JSON] != shapes[output.YAML] || shapes[output.JSON] != shapes[output.JSONL] {
		t.Errorf("rhumb %s differs:\n%v", strings.Join(args, " "), shapes)
	}
}

func firstOf(docs []any) any {
	if len(docs) == 0 {
		return nil
	}
	return docs[0]
}

// TestForms guards that commands which need no cluster print the same document in each form.
func TestForms(t *testing.T) {
	for _, args := range []string{"version", "config show", "config check", "key explain 00000001000004020000010000000029"} {
		sameInAllForms(t, strings.Fields(args)...)
	}
	sameInAllForms(t, "snapshot", "ls", "--snapshot-dir", t.TempDir())
}

// TestSettings guards that flags win over the environment, which wins over the file, and that
// `config show` prints where a value is from.
func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rhumb.yaml")
	must(os.WriteFile(path, []byte("output: json\ntimeout: 3s\naddr: [127.0.0.1:1, 127.0.0.1:2]\nfrom: bern\n"), 0o600))
	t.Setenv("RHUMB_TIMEOUT", "4s")
	t.Setenv("RHUMB_FROM", "basel")
	a := newApp(streams{})
	root := a.rootCommand()
	root.SetArgs([]string{"status", "--config", path, "--from", "zurich"})
	root.SetOut(&bytes.Buffer{})
	root.SetErr(&bytes.Buffer{})
	if err := root.Execute(); err == nil {
		t.Error("a status without a cluster succeeded")
	}
	if a.Format != "json" || a.conn.Timeout.String() != "4s" || a.conn.From != "zurich" || strings.Join(a.conn.Addrs, " ") != "127.0.0.1:1 127.0.0.1:2" {
		t.Errorf("output %q, timeout %v, from %q, addrs %v", a.Format, a.conn.Timeout, a.conn.From, a.conn.Addrs)
	}

	stdout, _, code := runIn(t.Context(), "", "config", "show", "--config", path)
	var docs []settingDoc
	if err := json.Unmarshal([]byte(stdout), &docs); err != nil || code != exit.OK {
		t.Fatalf("config show: %d, %v, %s", code, err, stdout)
	}
	origins := map[string]string{}
	for _, d := range docs {
		origins[d.Key] = d.Value + " from " + d.Origin
	}
	for key, want := range map[string]string{"timeout": "4s from environment RHUMB_TIMEOUT", "output": "json from " + path, "zone": "a from default", "gossip_addr": "127.0.0.1:7602 from default"} {
		if origins[key] != want {
			t.Errorf("%s: %q, want %q", key, origins[key], want)
		}
	}
}

// TestSettingsAreFlags guards that every setting is a flag of some command.
func TestSettingsAreFlags(t *testing.T) {
	flags := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, s := range settings.All {
			if c.Flag(s.Flag()) != nil {
				flags[s.Key] = true
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newApp(streams{}).rootCommand())
	for _, s := range settings.All {
		if !flags[s.Key] {
			t.Errorf("setting %s is no flag of any command", s.Key)
		}
	}
}

// TestUnknownVariables guards that `config check` reports variables that name no setting, and that
// other commands ignore them.
func TestUnknownVariables(t *testing.T) {
	t.Setenv("RHUMB_TIMEOOT", "1s")
	if _, stderr, code := runIn(t.Context(), "", "config", "check"); code != exit.Usage || !strings.Contains(stderr, "RHUMB_TIMEOOT") {
		t.Errorf("config check: exit %d, %s", code, stderr)
	}
	if _, stderr, code := runIn(t.Context(), "", "version"); code != exit.OK {
		t.Errorf("version: exit %d, %s", code, stderr)
	}
}

// TestCompletion guards that each shell gets a script.
func TestCompletion(t *testing.T) {
	for _, shell := range shells {
		if stdout, stderr, code := runIn(t.Context(), "", "completion", shell); code != exit.OK || !strings.Contains(stdout, "rhumb") {
			t.Errorf("completion %s: exit %d, %s", shell, code, stderr)
		}
	}
}

// TestZeroIsNoDefault guards that an explicit 0 is rejected and not taken for the default.
func TestZeroIsNoDefault(t *testing.T) {
	for _, args := range []string{
		"table create t --replicas 0", "table create t --replicas=-1", "table create t --min-in-sync 0", "table create t --hash-slots 0",
		"table create t --shard-size 0", "ingest --table flights --replicas 0 x", "ingest --table flights --workers 0 x",
		"ingest --table flights --merge 0 x", "ingest --table flights --retry-for 0s x", "start --cache-size 0", "start --snapshot-budget 0",
		"start --snapshot-leash 0s", "start --snapshot-overdue 0",
	} {
		_, stderr, code := runIn(t.Context(), "", strings.Fields(args)...)
		if code != exit.Usage || !strings.Contains(stderr, "want more than 0") {
			t.Errorf("rhumb %s: exit %d, %s", args, code, stderr)
		}
	}
}

// TestEmptyIsNotAbsent guards that an empty or zero value, most likely a variable of a script that has no value, is rejected where
// leaving it out means more: all names of a table, any cluster, no check of the head, the default lifetime. All fail before a
// command connects or opens an authority.
func TestEmptyIsNotAbsent(t *testing.T) {
	authority := filepath.Join(t.TempDir(), "authority")
	for _, tt := range []struct{ args, want string }{
		{"grant r --table t --rights read --prefix ''", "--prefix is empty"},
		{"grant r --table t --rights read --prefix 0x", "--prefix is empty"},
		{"revoke r --table t --rights read --prefix ''", "--prefix is empty"},
		{"audit verify . --head ''", "--head is empty"},
		{"context use ''", "name a context"},
		{"token create --node n --ttl 0s --authority " + authority, "--ttl 0s"},
		{"token create --node n --node n --out-dir x --authority " + authority, "given twice"},
		{"cert create user u --out x --ttl 0s --authority " + authority, "--ttl 0s"},
		{"status --ca x --cluster 00000000000000000000000000000000", "the ID of no cluster"},
	} {
		_, stderr, code := runIn(t.Context(), "", splitWords(tt.args)...)
		if code != exit.Usage || !strings.Contains(stderr, tt.want) {
			t.Errorf("rhumb %s: exit %d, %s", tt.args, code, stderr)
		}
	}
}

// TestNobodyHasNoName guards that a result which no node served, such as deleting a record that
// does not exist, names no node and no range.
func TestNobodyHasNoName(t *testing.T) {
	doc := names{}.describeWrite("t", client.Result{Key: rhumb.Key{Name: []byte("gone")}})
	if doc.Receipt.Node != "" || doc.Receipt.Range != "" || doc.Home != "" || doc.Region != "" {
		t.Errorf("%+v", doc)
	}
	if r := (names{}).describeRange(&rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: 2}}); r.Primary != "" || r.Preferred != "" || r.ID != "1/2" {
		t.Errorf("%+v", r)
	}
}

// TestStatusSaysThatItIsACopy guards that a status without a metadata leader is marked as possibly
// old.
func TestStatusSaysThatItIsACopy(t *testing.T) {
	for leader, want := range map[rhumb.NodeID]bool{rhumb.NoNode: true, 1: false} {
		got := health.Judge(health.View{Revision: 7, Nodes: []client.NodeStatus{{Node: rhumb.Node{ID: 1, State: rhumb.NodeLive, Voter: true}, Ready: true, MetadataLeader: leader}}}).Problems
		if slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, "one node's copy, revision 7") }) != want {
			t.Errorf("leader %s: %q", leader, got)
		}
	}
}
