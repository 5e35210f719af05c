package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
)

// factories run the provider within the test.
var factories = map[string]func() (tfprotov6.ProviderServer, error){
	"rhumb": providerserver.NewProtocol6WithError(&rhumbProvider{}),
}

// is checks attributes of a resource.
func is(name string, pairs ...string) resource.TestCheckFunc {
	var checks []resource.TestCheckFunc
	for i := 0; i+1 < len(pairs); i += 2 {
		checks = append(checks, resource.TestCheckResourceAttr(name, pairs[i], pairs[i+1]))
	}
	return resource.ComposeAggregateTestCheckFunc(checks...)
}

// fails is a step whose plan or apply must fail with a text.
func fails(config, text string) resource.TestStep {
	words := strings.Fields(regexp.QuoteMeta(text))
	return resource.TestStep{Config: config, ExpectError: regexp.MustCompile(strings.Join(words, `\s+`))} // Terraform wraps lines
}

// unchanged is a step that applies a configuration again and plans nothing.
func unchanged(config string) resource.TestStep {
	return resource.TestStep{Config: config, ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}}
}

func test(t *testing.T, steps ...resource.TestStep) {
	t.Helper()
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: factories, Steps: steps})
}

// TestRegion guards that regions are made and adopted, that they cannot move, and that a
// destruction is refused at the plan or forgets.
func TestRegion(t *testing.T) {
	c := sharedCluster(t)
	c.rhumb(t, "region", "add", "zurich", "--location", "47.4,8.5")
	config := `
resource "rhumb_region" "bern" {
  name            = "bern"
  latitude        = 46.9
  longitude       = 7.4
  deletion_policy = "%s"
}
resource "rhumb_region" "tokyo" {
  name            = "tokyo"
  deletion_policy = "%[1]s"
}`
	test(
		t,
		fails(`resource "rhumb_region" "x" { name = "nowhere" }`, "not a well-known region"),
		fails(`resource "rhumb_region" "x" {
  name     = "half"
  latitude = 1
}`, "belong together"),
		fails(`resource "rhumb_region" "x" {
  name      = "pole"
  latitude  = 91
  longitude = 0
}`, "91"),
		fails(`resource "rhumb_region" "x" {
  name      = "zurich"
  latitude  = 1
  longitude = 1
}`, "zurich"),
		resource.TestStep{
			Config: fmt.Sprintf(config, "refuse"),
			Check: resource.ComposeAggregateTestCheckFunc(is("rhumb_region.bern", "latitude", "46.9", "longitude", "7.4", "deletion_policy", "refuse"),
				resource.TestCheckResourceAttrSet("rhumb_region.tokyo", "latitude"), resource.TestCheckResourceAttrSet("rhumb_region.tokyo", "id")),
		},
		unchanged(fmt.Sprintf(config, "refuse")),
		fails(strings.Replace(fmt.Sprintf(config, "refuse"), "46.9", "12", 1), "The region cannot be changed"),
		resource.TestStep{Config: fmt.Sprintf(config, "refuse"), Destroy: true, ExpectError: regexp.MustCompile("cannot be removed")},
		resource.TestStep{ResourceName: "rhumb_region.bern", ImportState: true, ImportStateId: "bern", ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{Config: fmt.Sprintf(config, "forget"), Check: is("rhumb_region.bern", "deletion_policy", "forget")},
	)
	// Forgotten, and still there.
	if !slices.ContainsFunc(c.open(t).Regions(), isNamed("bern")) {
		t.Error("the region is gone")
	}
}

// TestTable guards that a table has the settings of its configuration, keeps them, and is imported
// with them.
func TestTable(t *testing.T) {
	c := sharedCluster(t)
	config := `
resource "rhumb_table" "flights" {
  name            = "tf_flights"
  colocate        = "/"
  location_field  = "where"
  history         = "24h"
  snapshot        = ["spatial", "ordered"]
  replicas        = 1
  min_in_sync     = 1
  hash_slots      = 4
  shard_size      = 1048576
  deletion_policy = "%s"
}
resource "rhumb_table" "plain" {
  name            = "tf_plain"
  replicas        = 1
  deletion_policy = "%[1]s"
}
resource "rhumb_table" "fast" {
  name            = "tf_fast"
  replicas        = 1
  regions         = ["singapore"]
  durability      = "deferred=20ms"
  deletion_policy = "%[1]s"
}`
	bad := func(lines string) string {
		return "resource \"rhumb_table\" \"x\" {\n  name = \"tf_bad\"\n" + lines + "\n}"
	}
	keep := fmt.Sprintf(config, "refuse")
	test(
		t,
		fails(`resource "rhumb_table" "x" { name = "a b" }`, "Invalid value"),
		fails(bad(`colocate = "ab"`), "want one"),
		fails(bad(`history = "a day"`), "not a duration"),
		fails(bad(`mode = "available"`), "not one of strong"),
		fails(bad(`survival = "planet"`), "want zone or region"),
		fails(bad(`durability = "later"`), "durability"),
		fails(bad(`regions = ["nowhere"]`), "nowhere"),
		// A region with one copy of everything cannot be lost.
		fails(bad("survival = \"region\"\nreplicas = 1"), "region"),
		fails(bad(`snapshot = ["fast"]`), "not a feature"),
		fails(bad(`snapshot = ["plain", "spatial"]`), "none of the other features"),
		fails(bad(`replicas = 99`), "replicas is 99"),
		fails(bad("replicas = 1\nmin_in_sync = 3"), "min_in_sync is 3"),
		fails(bad(`deletion_policy = "drop"`), "one of refuse, forget, delete"),
		resource.TestStep{
			Config: keep,
			Check: resource.ComposeAggregateTestCheckFunc(
				is("rhumb_table.flights", "colocate", "/", "history", "24h", "snapshot.#", "2", "mode", "strong", "survival", "zone", "replicas", "1",
					"min_in_sync", "1", "hash_slots", "4", "shard_size", "1048576", "location_field", "where"),
				is("rhumb_table.plain", "snapshot.#", "0", "min_in_sync", "1", "location_field", "location", "history", "0s", "regions.#", "0", "durability", "sync"),
				is("rhumb_table.fast", "regions.#", "1", "regions.0", "singapore", "durability", "deferred=20ms", "survival", "zone"),
			),
		},
		unchanged(keep),
		unchanged(strings.Replace(keep, `"24h"`, `"24h"`, 1)),
		fails(strings.Replace(keep, "hash_slots      = 4", "hash_slots      = 8", 1), "The table cannot be changed"),
		fails(strings.Replace(keep, `"ordered"`, `"summed"`, 1), "The table cannot be changed"),
		fails(strings.Replace(keep, "=20ms", "=30ms", 1), "The table cannot be changed"),
		resource.TestStep{Config: keep, Destroy: true, ExpectError: regexp.MustCompile("is protected")},
		resource.TestStep{ResourceName: "rhumb_table.flights", ImportState: true, ImportStateId: "tf_flights", ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: "rhumb_table.flights", ImportState: true, ImportStateId: "no_such_table", ExpectError: regexp.MustCompile("(?i)non-existent")},
		resource.TestStep{Config: fmt.Sprintf(config, "forget")},
	)
	if !slices.ContainsFunc(c.open(t).Tables(), func(s client.TableStatus) bool { return s.Name == "tf_flights" && s.History == 24*time.Hour }) {
		t.Error("the table is gone")
	}
}

// TestTableIsDeleted destroys a table with the policy to drop it: the cluster has it no more.
func TestTableIsDeleted(t *testing.T) {
	c := sharedCluster(t)
	const config = `resource "rhumb_table" "gone" {
  name            = "tf_gone"
  replicas        = 1
  deletion_policy = "delete"
}`
	test(t, resource.TestStep{Config: config, Check: is("rhumb_table.gone", "deletion_policy", "delete")})
	if slices.ContainsFunc(c.open(t).Tables(), func(s client.TableStatus) bool { return s.Name == "tf_gone" }) {
		t.Error("the table is still there")
	}
}

const accessConfig = `
resource "rhumb_role" "reader" { name = "tf-reader" }
resource "rhumb_role" "writer" { name = "tf-writer" }
resource "rhumb_grant" "read" {
  role   = rhumb_role.reader.name
  table  = "tf_notes"
  rights = ["read"]
}
resource "rhumb_grant" "write" {
  role   = rhumb_role.writer.name
  table  = "tf_notes"
  prefix = "draft/2026/"
  rights = ["read", "write"]
}
resource "rhumb_grant" "watch" {
  role    = rhumb_role.reader.name
  cluster = true
  rights  = ["read"]
}
resource "rhumb_user" "ada" {
  name                = "tf-ada"
  roles               = [rhumb_role.reader.name]
  password_wo         = "correct horse"
  password_wo_version = 1
}
resource "rhumb_user" "batch" {
  name     = "tf-batch"
  disabled = true
}`

// TestAccess guards users, roles and grants: created, changed by Terraform, changed behind its back
// and put right again, imported, removed.
func TestAccess(t *testing.T) {
	c := sharedCluster(t)
	changed := strings.NewReplacer(`rights = ["read", "write"]`, `rights = ["read", "write", "delete"]`,
		`roles               = [rhumb_role.reader.name]`, `roles               = [rhumb_role.writer.name]`,
		"password_wo         = \"correct horse\"\n  password_wo_version = 1", "password_wo         = \"battery staple\"\n  password_wo_version = 2",
		"disabled = true", "disabled = false").Replace(accessConfig)
	imports := func(resourceName, id, by string) resource.TestStep {
		return resource.TestStep{
			ResourceName: resourceName, ImportState: true, ImportStateId: id, ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: by,
			ImportStateVerifyIgnore: []string{"password_wo", "password_wo_version"},
		}
	}
	test(
		t,
		fails(`resource "rhumb_role" "x" { name = "no/slash" }`, "Invalid value"),
		fails(`resource "rhumb_user" "x" {
  name        = "tf-x"
  password_wo = "long enough"
}`, "password_wo_version"),
		fails(`resource "rhumb_user" "x" {
  name                = "tf-x"
  password_wo         = "short"
  password_wo_version = 1
}`, "too short"),
		fails(`resource "rhumb_user" "x" {
  name  = "tf-x"
  roles = ["tf-no-such-role"]
}`, "tf-no-such-role"),
		fails(`resource "rhumb_grant" "x" {
  role   = "tf-r"
  table  = "t"
  rights = ["fly"]
}`, "not a right"),
		fails(`resource "rhumb_grant" "x" {
  role    = "tf-r"
  table   = "t"
  cluster = true
  rights  = ["read"]
}`, "either cluster = true or table"),
		fails(`resource "rhumb_grant" "x" {
  role    = "tf-r"
  cluster = true
  rights  = ["write"]
}`, "Invalid grant"),
		fails(`resource "rhumb_grant" "x" {
  role   = "tf-no-such-role"
  table  = "t"
  rights = ["read"]
}`, "tf-no-such-role"),
		resource.TestStep{
			Config: accessConfig,
			Check: resource.ComposeAggregateTestCheckFunc(
				is("rhumb_user.ada", "has_password", "true", "roles.#", "1", "disabled", "false"),
				is("rhumb_user.batch", "has_password", "false", "roles.#", "0", "disabled", "true"),
				is("rhumb_grant.write", "id", "tf-writer/table/tf_notes/draft/2026/"),
				resource.TestCheckNoResourceAttr("rhumb_user.ada", "password_wo"),
				canLogIn(c, t, "tf-ada", "correct horse", true),
			),
		},
		unchanged(accessConfig),
		imports("rhumb_user.ada", "tf-ada", "name"),
		imports("rhumb_role.reader", "tf-reader", "name"),
		imports("rhumb_grant.write", "tf-writer/table/tf_notes/draft/2026/", "id"),
		imports("rhumb_grant.watch", "tf-reader/cluster", "id"),
		resource.TestStep{ResourceName: "rhumb_grant.read", ImportState: true, ImportStateId: "tf-reader", ExpectError: regexp.MustCompile(`none\s+of\s+ROLE/cluster`)},
		resource.TestStep{
			Config: changed,
			Check: resource.ComposeAggregateTestCheckFunc(
				is("rhumb_grant.write", "rights.#", "3"), is("rhumb_user.batch", "disabled", "false"),
				canLogIn(c, t, "tf-ada", "correct horse", false), canLogIn(c, t, "tf-ada", "battery staple", true),
			),
		},
		// Somebody takes a role, gives a right and drops a user by hand.
		resource.TestStep{
			PreConfig: func() {
				open := c.open(t)
				for _, err := range []error{
					open.UnassignRole(t.Context(), "tf-ada", "tf-writer"), open.DropUser(t.Context(), "tf-batch"),
					open.Grant(t.Context(), "tf-reader", access.Scope{Table: "tf_notes"}, access.Delete),
				} {
					if err != nil {
						t.Error(err)
					}
				}
			},
			Config: changed,
			ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction("rhumb_user.ada", plancheck.ResourceActionUpdate),
				plancheck.ExpectResourceAction("rhumb_user.batch", plancheck.ResourceActionCreate),
				plancheck.ExpectResourceAction("rhumb_grant.read", plancheck.ResourceActionUpdate),
				plancheck.ExpectResourceAction("rhumb_grant.write", plancheck.ResourceActionNoop),
			}},
			Check: resource.ComposeAggregateTestCheckFunc(is("rhumb_user.ada", "roles.#", "1"), is("rhumb_grant.read", "rights.#", "1")),
		},
		unchanged(changed),
	)
	users, err := c.open(t).Users(t.Context())
	if err != nil || slices.ContainsFunc(users, func(u client.UserInfo) bool { return strings.HasPrefix(u.Name, "tf-") }) {
		t.Errorf("users after the destruction: %+v, %v", users, err)
	}
}

// canLogIn checks that a password is accepted, or that it is refused.
func canLogIn(c *testCluster, t *testing.T, user, password string, want bool) resource.TestCheckFunc {
	return func(*terraform.State) error {
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			return err
		}
		args := []string{"whoami", "--ca", c.ca, "--user", user, "--password-file", file, "--addr", c.addrs[0], "--timeout", "5s"}
		cmd := c.command(args...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "RHUMB_CERT=") || strings.HasPrefix(v, "RHUMB_KEY=") })
		out, err := cmd.CombinedOutput()
		if (err == nil) != want {
			return fmt.Errorf("%s logs in with %q: %v, want %v\n%s", user, password, err == nil, want, out)
		}
		return nil
	}
}

// TestNodes guards the data sources.
func TestNodes(t *testing.T) {
	sharedCluster(t)
	test(
		t,
		fails(`data "rhumb_node" "x" { id = "n99" }`, "there is no node n99"),
		fails(`data "rhumb_node" "x" {}`, "either id or name"),
		resource.TestStep{
			Config: `
data "rhumb_nodes" "all" {}
data "rhumb_nodes" "east" { region = "singapore" }
data "rhumb_node" "first" { id = "n1" }
data "rhumb_node" "second" { name = "singapore-1" }`,
			Check: resource.ComposeAggregateTestCheckFunc(
				is("data.rhumb_nodes.all", "nodes.#", "2"), is("data.rhumb_nodes.east", "nodes.#", "1", "nodes.0.region", "singapore"),
				is("data.rhumb_node.first", "region", "frankfurt", "ready", "true", "state", "live"),
				is("data.rhumb_node.second", "region", "singapore"),
			),
		},
	)
}

// TestIdentity guards that the provider takes an identity as the command line does: from its block,
// from a context, and never without one.
func TestIdentity(t *testing.T) {
	c := sharedCluster(t)
	for _, name := range []string{"RHUMB_ADDR", "RHUMB_CA", "RHUMB_CERT", "RHUMB_KEY"} {
		if err := os.Unsetenv(name); err != nil { // sharedCluster puts it back
			t.Fatal(err)
		}
	}
	if err := c.run("context", "add", "acceptance", "--addr", c.addrs[0], "--ca", c.ca, "--cert", c.crt, "--key", c.key, "--replace"); err != nil {
		t.Fatal(err)
	}
	const nodes = "\ndata \"rhumb_nodes\" \"all\" {}\n"
	block := func(lines string) string { return "provider \"rhumb\" {\n" + lines + "\n}" + nodes }
	test(
		t,
		fails(nodes, "no node is named"),
		fails(block(`context = "no-such-context"`), "no-such-context"),
		fails(block(fmt.Sprintf("addr = [%q]", c.addrs[0])), "whom to trust"),
		fails(block(fmt.Sprintf("addr = [%q]\ninsecure = true\nca = %q", c.addrs[0], c.ca)), "cannot be combined"),
		fails(block(fmt.Sprintf("addr = [%q]\nca = %q\nuser = \"ada\"", c.addrs[0], c.ca)), "Terraform cannot ask"),
		fails(block(fmt.Sprintf("addr = [%q]\nca = %q\ntimeout = \"2s\"", c.addrs[0], c.ca)), "certificate"),
		fails(block(`timeout = "soon"`), "Invalid value"),
		resource.TestStep{Config: block(`context = "acceptance"`), Check: is("data.rhumb_nodes.all", "nodes.#", "2")},
		resource.TestStep{
			Config: block(fmt.Sprintf("addr = [%q]\nca = %q\ncert = %q\nkey = %q", c.addrs[1], c.ca, c.crt, c.key)),
			Check:  is("data.rhumb_nodes.all", "nodes.#", "2"),
		},
	)
}

func TestGrantID(t *testing.T) {
	for id, want := range map[string]access.Scope{
		"r/cluster": {Cluster: true}, "r/table/t": {Table: "t"}, "r/table/*": {Table: "*"}, "r/table/t/a/b": {Table: "t", Prefix: "a/b"},
	} {
		role, got, err := parseID(id)
		if err != nil || role != "r" || got != want || idOf(role, got) != id {
			t.Errorf("%s: %q, %+v, %v", id, role, got, err)
		}
	}
	for _, id := range []string{"", "r", "r/", "r/tables/t", "r/table/", "r/cluster/x"} {
		if _, s, err := parseID(id); err == nil {
			t.Errorf("%q is %+v", id, s)
		}
	}
}

func isNamed(name string) func(r rhumb.Region) bool {
	return func(r rhumb.Region) bool { return r.Name == name }
}
