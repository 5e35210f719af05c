package lint_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// computed holds what a provider computes, by type of resource: an address of its own for each key, and names.
var computed = map[string]string{
	"aws_eip":                `public_ip = format("203.0.%d.%d", module.core.regions[each.value.region].ordinal, each.value.ordinal)`,
	"azurerm_public_ip":      `ip_address = format("203.0.%d.%d", module.core.regions[each.value.region].ordinal, each.value.ordinal)`,
	"google_compute_address": `address = format("203.0.%d.%d", module.core.regions[each.value.region].ordinal, each.value.ordinal)`,
	"hcloud_primary_ip":      `ip_address = format("203.0.%d.%d", module.core.regions[each.value.region].ordinal, each.value.ordinal)`,
	"aws_key_pair":           `key_name = "generated"`,
}

// withStandIns returns the module as one file in which each resource and data source is a terraform_data whose input has the same
// arguments, so that Terraform evaluates every expression without the provider.
func (m *module) withStandIns(core string) string {
	var b strings.Builder
	rewrite := m.rewriter()
	for _, block := range m.blocks {
		switch block.Type {
		case "variable", "locals", "output":
			b.WriteString(rewrite(m.text(block.Range())))
		case "module":
			text := strings.Replace(m.text(block.Range()), `"../core"`, fmt.Sprintf("%q", core), 1)
			text = strings.Replace(text, `"../leave"`, fmt.Sprintf("%q", filepath.Join(filepath.Dir(core), "leave")), 1)
			b.WriteString(rewrite(text))
		case "resource", "data":
			fmt.Fprintf(&b, "resource \"terraform_data\" %q {\n", strings.Join(block.Labels, "_"))
			if depends := block.Body.Attributes["depends_on"]; depends != nil {
				fmt.Fprintf(&b, "  depends_on = %s\n", rewrite(m.text(depends.Expr.Range())))
			}
			key := `"one"`
			if each := block.Body.Attributes["for_each"]; each != nil {
				fmt.Fprintf(&b, "  for_each = %s\n", rewrite(m.text(each.Expr.Range())))
				key = "each.key"
			}
			fmt.Fprintf(&b, "  input = {\n    id = format(\"%s/%%s\", %s)\n    %s\n", strings.Join(block.Labels, "_"), key, computed[block.Labels[0]])
			b.WriteString(rewrite(m.arguments(block.Body)))
			b.WriteString("  }\n")
			b.WriteString("}")
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// arguments returns the arguments of a body, and its blocks as values, in the form of an object.
func (m *module) arguments(body *hclsyntax.Body) string {
	var b strings.Builder
	for _, name := range sortedNames(body.Attributes) {
		if name != "for_each" && name != "depends_on" {
			fmt.Fprintf(&b, "    %s = %s\n", name, m.text(body.Attributes[name].Expr.Range()))
		}
	}
	blocks := map[string][]string{}
	for _, inner := range body.Blocks {
		switch inner.Type {
		case "lifecycle":
		case "dynamic":
			name := inner.Labels[0]
			fmt.Fprintf(&b, "    %s = [for %s in [for k, v in %s : { key = k, value = v }] : {\n%s}]\n", name, name,
				m.text(inner.Body.Attributes["for_each"].Expr.Range()), m.arguments(inner.Body.Blocks[0].Body))
		default:
			blocks[inner.Type] = append(blocks[inner.Type], "{\n"+m.arguments(inner.Body)+"}")
		}
	}
	for name, values := range blocks {
		fmt.Fprintf(&b, "    %s = [%s]\n", name, strings.Join(values, ", "))
	}
	return b.String()
}

// rewriter returns a function that turns references to resources into references to their stand-ins.
func (m *module) rewriter() func(string) string {
	var types []string
	for _, b := range m.blocks {
		if b.Type == "resource" || b.Type == "data" {
			types = append(types, regexp.QuoteMeta(strings.Join(b.Labels, ".")))
		}
	}
	one := regexp.MustCompile(`(?:data\.)?\b(` + strings.Join(types, "|") + `)(\[[^\]]*\])?\.([a-z_]+)`)
	all := regexp.MustCompile(`(?:data\.)?\b(` + strings.Join(types, "|") + `)( :)`)
	// Elements of depends_on name a resource and nothing of it.
	whole := regexp.MustCompile(`\b(` + strings.Join(types, "|") + `)([,\]])`)
	standIn := func(name string) string { return "terraform_data." + strings.Replace(name, ".", "_", 1) }
	return func(text string) string {
		text = one.ReplaceAllStringFunc(text, func(s string) string {
			parts := one.FindStringSubmatch(s)
			return standIn(parts[1]) + parts[2] + ".output." + parts[3]
		})
		text = whole.ReplaceAllStringFunc(text, func(s string) string {
			parts := whole.FindStringSubmatch(s)
			return standIn(parts[1]) + parts[2]
		})
		return all.ReplaceAllStringFunc(text, func(s string) string {
			parts := all.FindStringSubmatch(s)
			return "{ for k, v in " + standIn(parts[1]) + " : k => v.output }" + parts[2]
		})
	}
}
