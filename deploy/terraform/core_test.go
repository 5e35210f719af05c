// Package terraform_test tests the Terraform modules in the folders below.
package terraform_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// terraform runs the program in dir without reading the configuration of the user who runs the tests.
func terraform(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("needs Terraform 1.11 or later in PATH")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+os.DevNull, "TF_IN_AUTOMATION=1", "TF_INPUT=0", "CHECKPOINT_DISABLE=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mustTerraform fails the test with the output of a command that fails.
func mustTerraform(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := terraform(t, dir, args...)
	if err != nil {
		t.Fatalf("terraform %s in %s: %v\n%s", strings.Join(args, " "), dir, err, out)
	}
	return out
}

// copyModule copies a module without its tests, so that init and apply leave nothing in the work tree.
func copyModule(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".terraform", "tests", "terraform.tfstate"} {
		if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// The module is formatted and valid, and its own tests pass.
func TestCore(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("core")); err != nil {
		t.Fatal(err)
	}
	mustTerraform(t, ".", "fmt", "-check", "-recursive", "-diff")
	mustTerraform(t, dir, "init", "-backend=false")
	mustTerraform(t, dir, "validate")
	out := mustTerraform(t, dir, "test", "-json")
	var passed, refused int
	for line := range strings.Lines(out) {
		var event struct {
			Type    string `json:"type"`
			Message string `json:"@message"`
			TestRun struct {
				Path, Run, Status string
			} `json:"test_run"`
		}
		if json.Unmarshal([]byte(line), &event) != nil || event.Type != "test_run" || event.TestRun.Status != "pass" {
			continue
		}
		passed++
		if strings.Contains(event.TestRun.Path, "bad_inputs") {
			refused++
		}
	}
	t.Logf("%d runs passed, %d of them with bad input", passed, refused)
	if passed < 50 || refused < 30 {
		t.Errorf("%d runs passed, %d of them with bad input; the output was:\n%s", passed, refused, out)
	}
}

var (
	runRE       = regexp.MustCompile(`(?ms)^run "([a-z0-9_]+)" \{\n(.*?)^\}`)
	variablesRE = regexp.MustCompile(`(?ms)^  variables \{\n(.*?)^  \}`)
	defaultsRE  = regexp.MustCompile(`(?ms)^variables \{\n(.*?)^\}`)
	frameRE     = regexp.MustCompile(`(?m)^[│╷╵] ?`)
)

// Each bad input of the module's tests is refused with the message in testdata/bad_inputs.txt. Terraform's tests compare only which
// variable refuses, so an input could be refused for a reason that the test did not mean.
func TestBadInputMessages(t *testing.T) {
	text, err := os.ReadFile("core/tests/bad_inputs.tftest.hcl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copyModule(t, "core", dir)
	mustTerraform(t, dir, "init", "-backend=false")
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	defaults := write("valid.tfvars", defaultsRE.FindStringSubmatch(string(text))[1])
	var got bytes.Buffer
	for _, run := range runRE.FindAllStringSubmatch(string(text), -1) {
		changed := write("bad.tfvars", variablesRE.FindStringSubmatch(run[2])[1])
		out, err := terraform(t, dir, "plan", "-no-color", "-refresh=false", "-lock=false", "-var-file", defaults, "-var-file", changed)
		if err == nil {
			t.Errorf("%s: accepted", run[1])
		}
		fmt.Fprintf(&got, "%s\n", run[1])
		for _, message := range refusals(out) {
			fmt.Fprintf(&got, "\t%s\n", message)
		}
	}
	compareGolden(t, "testdata/bad_inputs.txt", got.Bytes())
}

// refusals returns the messages of failed validations in the output of terraform, each on one line.
func refusals(out string) (messages []string) {
	for _, block := range strings.Split(frameRE.ReplaceAllString(out, ""), "Error: ")[1:] {
		title, body, _ := strings.Cut(block, "\n")
		if title != "Invalid value for variable" {
			messages = append(messages, title) // an error of the module itself: the golden file shows it
			continue
		}
		// The excerpt of the source and the values precede the message; a blank line separates them.
		body, _, _ = strings.Cut(body, "This was checked by")
		paragraphs := strings.Split(strings.TrimSpace(body), "\n\n")
		messages = append(messages, strings.Join(strings.Fields(paragraphs[len(paragraphs)-1]), " "))
	}
	slices.Sort(messages)
	return messages
}

func compareGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s, run with -rewrite and review the difference:\n%s", path, got)
	}
}

// cloudConfig holds every key that the template may use. Decoding is strict because the schema of cloud-init accepts unknown keys
// at the top.
type cloudConfig struct {
	Hostname         string   `yaml:"hostname"`
	PreserveHostname bool     `yaml:"preserve_hostname"`
	PackageUpdate    bool     `yaml:"package_update"`
	Packages         []string `yaml:"packages"`
	FsSetup          []struct {
		Device, Filesystem, Label string
		Overwrite                 bool
	} `yaml:"fs_setup"`
	Mounts     [][]string `yaml:"mounts"`
	WriteFiles []struct {
		Path, Owner, Permissions, Content string
	} `yaml:"write_files"`
	Runcmd [][]string `yaml:"runcmd"`
}

// The golden cloud-init files, which the module's tests compare with what it renders, are YAML of the known keys and write the golden
// configuration. No secret is in a file that others can read.
func TestGoldenCloudInit(t *testing.T) {
	for _, node := range []string{"eu-1", "ap-3"} {
		text := readFile(t, "core/tests/golden/"+node+".cloud-init.yaml")
		var c cloudConfig
		d := yaml.NewDecoder(strings.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&c); err != nil {
			t.Errorf("%s: %v", node, err)
			continue
		}
		if c.Hostname != node {
			t.Errorf("%s: hostname %q", node, c.Hostname)
		}
		files := map[string]string{}
		for _, f := range c.WriteFiles {
			files[f.Path] = f.Content
			if strings.Contains(f.Content, "rhumb1.") && f.Permissions != "0600" {
				t.Errorf("%s: %s contains a token and has permissions %s", node, f.Path, f.Permissions)
			}
		}
		want := strings.TrimSpace(readFile(t, "core/tests/golden/"+node+".rhumb.yaml"))
		if got := strings.TrimSpace(files["/etc/rhumb/rhumb.yaml"]); got != want {
			t.Errorf("%s: writes the configuration\n%s\nwant\n%s", node, got, want)
		}
		if !slices.ContainsFunc(c.Runcmd, func(cmd []string) bool { return slices.Equal(cmd, []string{"systemctl", "enable", "rhumb.service"}) }) {
			t.Errorf("%s: nothing enables the service: %v", node, c.Runcmd)
		}
		// Without a token the node could not get its certificate: the operator starts it together with the token.
		starts := slices.ContainsFunc(c.Runcmd, func(cmd []string) bool { return slices.Contains(cmd, "start") })
		if _, token := files["/etc/rhumb/token"]; token != starts {
			t.Errorf("%s: token %t, but the service starts: %t", node, token, starts)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cloud-init's own program accepts the golden files, and refuses one with a wrong type, so that the check is known to check.
// RHUMB_CLOUD_INIT names the folder of cloud-init's Python packages; schema.sh fetches it from Debian.
func TestCloudInitSchema(t *testing.T) {
	check := func(file string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "./schema.sh", file)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	golden, err := filepath.Glob("core/tests/golden/*.cloud-init.yaml")
	if err != nil || len(golden) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range golden {
		out, err := check(file)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
			t.Skip(strings.TrimSpace(out))
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	text := strings.Replace(readFile(t, golden[0]), "permissions:", "permision:", 1)
	if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := check(bad); err == nil {
		t.Errorf("a file with a misspelt key was accepted:\n%s", out)
	}
}

// The module predicts the number of voters as the planner chooses it.
func TestVoterCount(t *testing.T) {
	dir := t.TempDir()
	copyModule(t, "core", dir)
	mustTerraform(t, dir, "init", "-backend=false")
	for _, tt := range []struct{ regions, nodes int }{{1, 1}, {1, 2}, {1, 3}, {2, 1}, {3, 1}, {3, 3}, {4, 1}, {5, 1}, {6, 2}} {
		type location struct {
			Lat float64 `json:"lat"`
			Lon float64 `json:"lon"`
		}
		type region struct {
			Ordinal  int      `json:"ordinal"`
			Location location `json:"location"`
			Count    int      `json:"count"`
		}
		regions, addresses := map[string]region{}, map[string]map[string]string{}
		for r := range tt.regions {
			name := fmt.Sprintf("r%d", r+1)
			regions[name] = region{Ordinal: r + 1, Count: tt.nodes}
			for n := range tt.nodes {
				addresses[fmt.Sprintf("%s-%d", name, n+1)] = map[string]string{"advertise": fmt.Sprintf("10.0.%d.%d", r+1, n+1)}
			}
		}
		vars, err := json.Marshal(map[string]any{"regions": regions, "addresses": addresses, "replicas": 1})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "vars.tfvars.json")
		if err := os.WriteFile(file, vars, 0o600); err != nil {
			t.Fatal(err)
		}
		mustTerraform(t, dir, "apply", "-auto-approve", "-var-file", file)
		var voters struct{ Count int }
		if err := json.Unmarshal([]byte(mustTerraform(t, dir, "output", "-json", "voters")), &voters); err != nil {
			t.Fatal(err)
		}
		if want := rhumb.VoterCount(tt.regions*tt.nodes, tt.regions); voters.Count != want {
			t.Errorf("%d regions of %d nodes: %d voters, want %d", tt.regions, tt.nodes, voters.Count, want)
		}
	}
}

// The program accepts the golden configuration: every key is a setting.
func TestGoldenConfigIsAccepted(t *testing.T) {
	program := buildRhumb(t)
	for _, node := range []string{"eu-1", "ap-3"} {
		cmd := exec.CommandContext(t.Context(), program, "config", "check", "core/tests/golden/"+node+".rhumb.yaml")
		cmd.Env = []string{"HOME=" + t.TempDir()}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", node, err, out)
		}
	}
}

// buildRhumb builds the program into a folder of the test.
func buildRhumb(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rhumb")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "../../cmd/rhumb")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}
