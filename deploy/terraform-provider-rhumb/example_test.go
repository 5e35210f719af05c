package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExample guards that the example is formatted and valid, and that an installed build of the
// provider plans it against a cluster.
func TestExample(t *testing.T) {
	c := sharedCluster(t)
	if err := c.run("context", "add", "example", "--addr", c.addrs[0], "--ca", c.ca, "--cert", c.crt, "--key", c.key, "--replace"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "terraform-provider-rhumb"), ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	rc := filepath.Join(dir, "terraform.rc")
	text := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"rhumbdb/rhumb\" = %q\n  }\n  direct {}\n}\n", dir)
	if err := os.WriteFile(rc, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	example, err := filepath.Abs("examples/team")
	if err != nil {
		t.Fatal(err)
	}
	terraform := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(os.Getenv("TF_ACC_TERRAFORM_PATH"), append([]string{"-chdir=" + example}, args...)...)
		cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+rc, "TF_DATA_DIR="+filepath.Join(dir, "data"), "TF_VAR_reporting_password=correct horse", "TF_IN_AUTOMATION=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("terraform %s: %v\n%s\n%s", strings.Join(args, " "), err, out, err.(*exec.ExitError).Stderr)
		}
		return string(out)
	}
	terraform("fmt", "-check", "-diff", "-recursive")
	terraform("validate")
	plan, state := filepath.Join(dir, "plan"), filepath.Join(dir, "state")
	terraform("plan", "-input=false", "-var", "context=example", "-state", state, "-out", plan)
	var doc struct {
		Changes []struct {
			Address string
			Change  struct{ Actions []string }
		} `json:"resource_changes"`
	}
	shown := terraform("show", "-json", plan)
	if err := json.Unmarshal([]byte(shown), &doc); err != nil || len(doc.Changes) != 7 {
		t.Errorf("the plan has %d changes, %v: %s", len(doc.Changes), err, shown)
	}
	if strings.Contains(shown, "correct horse") {
		t.Error("the plan holds the password")
	}
	if left, err := filepath.Glob(filepath.Join(example, ".terraform*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
