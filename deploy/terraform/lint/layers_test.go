// Package lint_test tests the layers of providers whose plugins the tests do not have. It is a module of its own because nothing else
// in Rhumb parses HCL.
package lint_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

var layers = []string{"aws", "azure", "google", "hetzner"}

// module is a parsed Terraform module.
type module struct {
	name   string
	source map[string][]byte // text by file name
	blocks []*hclsyntax.Block
}

func parseModule(t *testing.T, name string) *module {
	t.Helper()
	m := &module{name: name, source: map[string][]byte{}}
	files, err := filepath.Glob(filepath.Join("..", name, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", name, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, diags := hclsyntax.ParseConfig(text, path, hcl.InitialPos)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if formatted := hclwrite.Format(text); string(formatted) != string(text) {
			t.Errorf("%s is not formatted", path)
		}
		m.source[path] = text
		m.blocks = append(m.blocks, file.Body.(*hclsyntax.Body).Blocks...)
	}
	return m
}

// text returns the source of a range.
func (m *module) text(r hcl.Range) string { return string(r.SliceBytes(m.source[r.Filename])) }

// of returns the blocks of a type.
func (m *module) of(kind string) (out []*hclsyntax.Block) {
	for _, b := range m.blocks {
		if b.Type == kind {
			out = append(out, b)
		}
	}
	return out
}

// names returns the last label of each block of a type.
func (m *module) names(kind string) map[string]*hclsyntax.Block {
	out := map[string]*hclsyntax.Block{}
	for _, b := range m.of(kind) {
		out[b.Labels[len(b.Labels)-1]] = b
	}
	return out
}

// declared returns everything that an expression of the module may refer to, as "var.x", "local.x", "module.x", "data.t.x" and "t.x".
func (m *module) declared() map[string]bool {
	out := map[string]bool{}
	for _, b := range m.blocks {
		switch b.Type {
		case "variable":
			out["var."+b.Labels[0]] = true
		case "module":
			out["module."+b.Labels[0]] = true
		case "resource":
			out[b.Labels[0]+"."+b.Labels[1]] = true
		case "data":
			out["data."+b.Labels[0]+"."+b.Labels[1]] = true
		case "locals":
			for name := range b.Body.Attributes {
				out["local."+name] = true
			}
		}
	}
	return out
}

// references calls f for each reference of a body to something outside of its expression.
func references(body *hclsyntax.Body, bound []string, f func(hcl.Traversal)) {
	for _, attr := range body.Attributes {
		for _, ref := range hclsyntax.Variables(attr.Expr) {
			if !slices.Contains(bound, ref.RootName()) {
				f(ref)
			}
		}
	}
	for _, b := range body.Blocks {
		inner := bound
		if b.Type == "dynamic" {
			inner = append(slices.Clone(bound), b.Labels[0])
		}
		if b.Type == "lifecycle" {
			continue // ignore_changes names arguments, not objects
		}
		references(b.Body, inner, f)
	}
}

// dotted returns the first n parts of a reference.
func dotted(ref hcl.Traversal, n int) string {
	parts := []string{ref.RootName()}
	for _, step := range ref[1:] {
		attr, ok := step.(hcl.TraverseAttr)
		if !ok || len(parts) == n {
			break
		}
		parts = append(parts, attr.Name)
	}
	return strings.Join(parts, ".")
}

// A layer refers only to what it declares, passes every input that core requires and no other, and uses only outputs that core has. It
// uses the outputs that make a cluster, and does not replace machines because of new user data.
func TestLayersFitCore(t *testing.T) {
	core := parseModule(t, "core")
	inputs, outputs := core.names("variable"), core.names("output")
	for _, name := range append([]string{"local"}, layers...) {
		m := parseModule(t, name)
		declared, used := m.declared(), map[string]bool{}
		for _, b := range m.blocks {
			if b.Type == "terraform" {
				continue
			}
			bound := []string{"each", "path", "self", "terraform", "count", "destroy"} // destroy is the word of a provisioner
			if b.Type == "variable" {
				bound = append(bound, "string", "number", "bool", "any", "map", "list", "set", "object", "tuple", "optional")
			}
			references(b.Body, bound, func(ref hcl.Traversal) {
				n := 2
				if ref.RootName() == "data" {
					n = 3
				}
				object := dotted(ref, n)
				used[object] = true
				if !declared[object] {
					t.Errorf("%s: %s: %s is not declared", name, ref.SourceRange(), object)
				}
				if object == "module.core" {
					output := strings.TrimPrefix(dotted(ref, 3), "module.core.")
					used["core."+output] = true
					if outputs[output] == nil {
						t.Errorf("%s: %s: core has no output %s", name, ref.SourceRange(), output)
					}
				}
			})
		}
		for object := range declared {
			if (strings.HasPrefix(object, "var.") || strings.HasPrefix(object, "local.")) && !used[object] {
				t.Errorf("%s: nothing uses %s", name, object)
			}
		}
		passed := m.names("module")["core"].Body.Attributes
		for input, variable := range inputs {
			if variable.Body.Attributes["default"] == nil && passed[input] == nil {
				t.Errorf("%s: does not pass %s, which core requires", name, input)
			}
		}
		for input := range passed {
			if input != "source" && inputs[input] == nil {
				t.Errorf("%s: passes %s, which is no input of core", name, input)
			}
		}
		need := []string{"core.nodes", "core.cloud_init", "core.firewall", "core.founder", "core.endpoints", "core.tokens_needed"}
		if name == "local" {
			need = []string{"core.nodes", "core.config", "core.firewall", "core.founder", "core.endpoints"}
		}
		for _, output := range need {
			if !used[output] {
				t.Errorf("%s: does not use %s", name, output)
			}
		}
		if v := m.of("terraform")[0].Body.Attributes["required_version"]; v == nil || m.text(v.Expr.Range()) != `">= 1.11"` {
			t.Errorf("%s: required_version is not >= 1.11", name)
		}
	}
}

// userData names the argument of a machine that holds the cloud-init, by type of resource.
var userData = map[string]string{
	"aws_instance": "user_data", "azurerm_linux_virtual_machine": "custom_data", "google_compute_instance": "metadata", "hcloud_server": "user_data",
}

// New user data replaces no machine, and the README says what was validated.
func TestLayersKeepMachines(t *testing.T) {
	for _, name := range layers {
		m, machines := parseModule(t, name), 0
		for _, b := range m.of("resource") {
			argument, ok := userData[b.Labels[0]]
			if !ok {
				continue
			}
			machines++
			if !strings.Contains(m.text(b.Body.Attributes[argument].Expr.Range()), "module.core.cloud_init[each.key]") {
				t.Errorf("%s: the user data is not core's", name)
			}
			ignored := ""
			for _, inner := range b.Body.Blocks {
				if inner.Type == "lifecycle" {
					ignored = m.text(inner.Body.Attributes["ignore_changes"].Expr.Range())
				}
			}
			if !strings.Contains(ignored, argument) {
				t.Errorf("%s: a change of %s replaces machines: ignore_changes is %s", name, argument, ignored)
			}
		}
		if machines != 1 {
			t.Errorf("%s: %d resources are machines, want 1", name, machines)
		}
		readme, err := os.ReadFile(filepath.Join("..", name, "README.md"))
		if err != nil || !strings.Contains(string(readme), "**Not validated:**") {
			t.Errorf("%s: the README does not say what was not validated: %v", name, err)
		}
	}
}

// Each layer is planned and applied with the example of its regions, a stand-in of terraform_data for each resource. This checks all
// expressions, keys and the order of resources: the first plan must succeed although no address is known. Then a fourth region is
// added, and no machine that exists may change. The region is removed again, and then a node: nodes leave before their machines go, and
// before what admits them does. The names of the arguments remain unchecked.
func TestLayersApplyWithStandIns(t *testing.T) {
	program, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("needs Terraform 1.11 or later in PATH")
	}
	core, err := filepath.Abs("../core")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range layers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			run := func(args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), program, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+os.DevNull, "TF_IN_AUTOMATION=1", "TF_INPUT=0", "CHECKPOINT_DISABLE=1")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("terraform %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			m := parseModule(t, name)
			if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(m.withStandIns(core)), 0o600); err != nil {
				t.Fatal(err)
			}
			example, err := os.ReadFile(filepath.Join("..", name, "regions.example.tfvars"))
			if err != nil {
				t.Fatal(err)
			}
			vars := filepath.Join(dir, "x.tfvars")
			// Both commands succeed, and the cluster is that of the local layer's test.
			tool := filepath.Join(dir, "rhumb")
			if err := os.WriteFile(tool, []byte("#!/bin/sh\necho \"called: $*\" >&2\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			example = fmt.Appendf(example, "\noperator = { rhumb = %q, ca = \"ca.crt\", cert = \"op.crt\", key = \"op.key\" }\n", tool)
			if err := os.WriteFile(vars, example, 0o600); err != nil {
				t.Fatal(err)
			}
			run("init", "-backend=false")
			run("apply", "-auto-approve", "-var-file", vars)
			before := machines(t, run("show", "-json"))
			if len(before) != 9 {
				t.Errorf("%d machines, want 9", len(before))
			}
			// The region sorts before the others.
			more := strings.Replace(string(example), "regions = {",
				"regions = {\n  africa = { ordinal = 4, place = \"af\", location = { lat = -33.92, lon = 18.42 }, count = 3 }", 1)
			if err := os.WriteFile(vars, []byte(more), 0o600); err != nil {
				t.Fatal(err)
			}
			run("apply", "-auto-approve", "-var-file", vars)
			after := machines(t, run("show", "-json"))
			if len(after) != 12 {
				t.Errorf("%d machines after a region was added, want 12", len(after))
			}
			for key, machine := range before {
				if after[key] != machine {
					t.Errorf("machine %s changed when a region was added:\n%.3000s\n%.3000s", key, machine, after[key])
				}
			}
			if err := os.WriteFile(vars, example, 0o600); err != nil {
				t.Fatal(err)
			}
			checkLeaving(t, run("apply", "-no-color", "-auto-approve", "-var-file", vars), `module.leave.terraform_data.region["africa"]`, "region rm africa", "africa")
			if left := machines(t, run("show", "-json")); len(left) != 9 {
				t.Errorf("%d machines after a region was removed, want 9", len(left))
			}
			// The region stays, and one of its nodes goes.
			if err := os.WriteFile(vars, []byte(strings.Replace(string(example), "count = 3", "count = 4", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			run("apply", "-auto-approve", "-var-file", vars)
			fourth := ""
			for key := range machines(t, run("show", "-json")) {
				if strings.HasSuffix(key, "-4") {
					fourth = key
				}
			}
			if err := os.WriteFile(vars, example, 0o600); err != nil {
				t.Fatal(err)
			}
			checkLeaving(t, run("apply", "-no-color", "-auto-approve", "-var-file", vars), fmt.Sprintf("module.leave.terraform_data.node[%q]", fourth), "node decommission "+fourth, fourth)
		})
	}
}

// checkLeaving checks the order in the output of an apply that removes a region or a node: an object of the module leave goes first, with a
// call of a command, and then everything else whose address has a name. A rule that admits all nodes changes last.
func checkLeaving(t *testing.T, out, object, command, name string) {
	t.Helper()
	begun, done := map[string]int{}, map[string]int{}
	for i, line := range strings.Split(out, "\n") {
		address, what, _ := strings.Cut(line, ": ")
		switch {
		case strings.HasPrefix(what, "Destroying..."), strings.HasPrefix(what, "Modifying..."):
			begun[address] = i
		case strings.HasPrefix(what, "Destruction complete"):
			done[address] = i
		}
	}
	last, machines := 0, 0
	for address, at := range done {
		if strings.HasPrefix(address, "module.leave.") {
			last = max(last, at)
		}
	}
	if done[object] == 0 || strings.Count(out, "called: "+command) != 1 {
		t.Errorf("%s did not leave:\n%.5000s", name, out)
	}
	for address, at := range begun {
		// The module's own objects change too: they name all nodes.
		if strings.HasPrefix(address, "module.") {
			continue
		}
		if at < last {
			t.Errorf("%s changed before the nodes had left:\n%.5000s", address, out)
		}
		if strings.Contains(address, name) {
			machines++
		}
	}
	if machines == 0 {
		t.Errorf("nothing of what left was destroyed:\n%.5000s", out)
	}
}

// machines returns the machines of a state as JSON, by key.
func machines(t *testing.T, state string) map[string]string {
	t.Helper()
	var s struct {
		Values struct {
			Root struct {
				Resources []struct {
					Name   string
					Index  any
					Values struct{ Output json.RawMessage }
				}
			} `json:"root_module"`
		}
	}
	if err := json.Unmarshal([]byte(state), &s); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range s.Values.Root.Resources {
		for kind := range userData {
			if strings.HasPrefix(r.Name, kind+"_") {
				out[fmt.Sprint(r.Index)] = string(r.Values.Output)
			}
		}
	}
	return out
}

// sortedNames returns the names of arguments in ascending order.
func sortedNames(attributes hclsyntax.Attributes) []string {
	return slices.Sorted(maps.Keys(attributes))
}
