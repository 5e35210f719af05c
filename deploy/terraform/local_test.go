package terraform_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/deploy/hosts"
)

var local = flag.Bool("local", false, "bring up hosts on this machine by the local layer; needs root")

// localCluster is a cluster that the local layer brings up in a network and in folders of the test.
type localCluster struct {
	t       *testing.T
	dir     string // of state, programs, hosts and the operator
	network netip.Prefix
}

// newLocal builds the programs and destroys the cluster at the end of the test.
func newLocal(t *testing.T) *localCluster {
	t.Helper()
	if !*local {
		t.Skip("brings up hosts only with -local")
	}
	if err := hosts.Supported(); err != nil {
		t.Skip(err)
	}
	// The layer renders the firewall of each host for nft.
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the program nft: install nftables")
	}
	c := &localCluster{t: t, dir: t.TempDir(), network: freeNetwork(t)}
	for name, env := range map[string]string{"rhumb": "", "hostctl": "CGO_ENABLED=0"} {
		source := map[string]string{"rhumb": "../../cmd/rhumb", "hostctl": "../hostctl"}[name]
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(c.dir, "bin", name), source)
		if env != "" {
			cmd.Env = append(os.Environ(), env)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", source, err, out)
		}
	}
	t.Setenv("TF_DATA_DIR", filepath.Join(c.dir, "terraform")) // nothing appears in the work tree
	mustTerraform(t, "local", "init", "-backend=false")
	t.Cleanup(c.clean)
	return c
}

// clean removes the hosts even if the test or Terraform failed, and keeps the reason.
func (c *localCluster) clean() {
	fleet, release, err := hosts.Open(filepath.Join(c.dir, "hosts"))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer release()
	if c.t.Failed() {
		for _, h := range fleet.Hosts() {
			log, _ := os.ReadFile(h.LogFile("rhumb"))
			lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
			c.t.Logf("log of %s:\n%s", h.Name(), bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
		}
	}
	if err := fleet.Destroy(); err != nil {
		c.t.Error(err)
	}
}

// freeNetwork returns a network that no interface of this machine uses, from the end of the range in which hostctl looks for one.
func freeNetwork(t *testing.T) netip.Prefix {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for n := 126; n >= 77; n-- {
		network := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, 0}), 16)
		if !slices.ContainsFunc(addrs, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Overlaps(network)
		}) {
			return network
		}
	}
	t.Skip("no network of 10.77.0.0/16 to 10.126.0.0/16 is free; remove fleets with hostctl destroy")
	return netip.Prefix{}
}

// regionsOf returns the value of the variable that describes the cluster: the given regions with three nodes each.
func regionsOf(names ...string) map[string]any {
	places := map[string][2]float64{"eu": {50.11, 8.68}, "us": {39.04, -77.49}, "ap": {1.29, 103.85}, "af": {-33.92, 18.42}}
	regions := map[string]any{}
	for i, name := range names {
		regions[name] = map[string]any{"ordinal": i + 1, "location": map[string]float64{"lat": places[name][0], "lon": places[name][1]}, "count": 3}
	}
	return regions
}

// run runs a command of Terraform for the given regions.
func (c *localCluster) run(regions map[string]any, args ...string) (string, error) {
	vars, err := json.Marshal(map[string]any{
		"regions": regions, "network": c.network.String(), "state_dir": filepath.Join(c.dir, "hosts"),
		"operator_dir": filepath.Join(c.dir, "operator"), "bin_dir": filepath.Join(c.dir, "bin"),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(c.dir, "vars.tfvars.json")
	if err := os.WriteFile(file, vars, 0o600); err != nil {
		c.t.Fatal(err)
	}
	args = append(args, "-no-color", "-state", filepath.Join(c.dir, "terraform.tfstate"), "-var-file", file)
	return terraform(c.t, "local", args...)
}

func (c *localCluster) mustRun(regions map[string]any, args ...string) string {
	c.t.Helper()
	out, err := c.run(regions, args...)
	if err != nil {
		c.t.Fatalf("terraform %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// rhumb runs a command of the operator, by the context that the layer's output creates.
func (c *localCluster) rhumb(args ...string) (string, error) {
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.dir, "bin", "rhumb"), args...)
	cmd.Env = []string{"HOME=" + c.dir, "XDG_CONFIG_HOME=" + filepath.Join(c.dir, "config"), "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// eventually repeats f until it returns no error or the time is over.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %v", limit, err)
		case <-tick.C:
		}
	}
}

// secrets are texts that the state must not contain: each line of the operator's key, and the beginnings of tokens and keys.
func (c *localCluster) secrets() []string {
	key, err := os.ReadFile(filepath.Join(c.dir, "operator", "operator.key"))
	if err != nil {
		c.t.Fatal(err)
	}
	out := []string{"rhumb1.", "PRIVATE KEY"}
	for line := range strings.Lines(string(key)) {
		if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "-") {
			out = append(out, line)
		}
	}
	return out
}

// TestLocal brings nine hosts in three regions up from one variable, with TLS and an operator's identity. While clients write, it adds a
// region and a node, removes both again, and at the end removes everything. No write may fail, no existing host may be touched but for its firewall, and the state may hold no secret.
func TestLocal(t *testing.T) {
	c := newLocal(t)
	three, four := regionsOf("eu", "us", "ap"), regionsOf("eu", "us", "ap", "af")
	began := time.Now()
	c.mustRun(three, "apply", "-auto-approve")
	applied := time.Since(began)

	// The operator's context is the layer's output.
	context, err := terraform(t, "local", "output", "-no-color", "-raw", "-state", filepath.Join(c.dir, "terraform.tfstate"), "context")
	if err != nil {
		t.Fatal(context)
	}
	if out, err := c.rhumb(append(strings.Fields(context)[1:], "--use")...); err != nil {
		t.Fatalf("%s: %v\n%s", context, err, out)
	}
	eventually(t, time.Minute, func() error {
		out, err := c.rhumb("table", "create", "notes")
		if err != nil && !strings.Contains(out, "exists") {
			return fmt.Errorf("%w: %s", err, out)
		}
		if out, err = c.rhumb("put", "notes", "first", "--text", "answered"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	answered := time.Since(began)
	t.Logf("nine hosts: terraform apply %.1f s, first answered write %.1f s after its start", applied.Seconds(), answered.Seconds())
	eventually(t, time.Minute, func() error { return c.liveNodes(9) })

	// A plan of nothing is empty.
	if out, err := c.run(three, "plan", "-detailed-exitcode"); err != nil {
		t.Errorf("the plan after apply is not empty: %v\n%s", err, out)
	}
	state := readFile(t, filepath.Join(c.dir, "terraform.tfstate"))
	for _, secret := range c.secrets() {
		if strings.Contains(state, secret) {
			t.Errorf("the state contains a secret that begins with %.10s", secret)
		}
	}

	load := c.startLoad()
	c.checkGrowth(four)
	began = time.Now()
	c.mustRun(four, "apply", "-auto-approve")
	applied = time.Since(began)
	eventually(t, time.Minute, func() error { return c.liveNodes(12) })
	joined := time.Since(began)
	// A write to the new region is answered too.
	eventually(t, time.Minute, func() error {
		out, err := c.rhumb("put", "notes", "from-af", "--text", "answered", "--from", "af")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	served := time.Since(began)
	t.Logf("fourth region under load: terraform apply %.1f s, all nodes live after %.1f s, first write there after %.1f s", applied.Seconds(), joined.Seconds(), served.Seconds())
	c.shrink(three, four)
	written, slowest := load.stop(t)
	t.Logf("under load in all: %d writes, 0 failed, slowest %v", written, slowest.Round(time.Millisecond))

	began = time.Now()
	t.Setenv("RHUMB_DATA_LOSS", "accept")
	c.mustRun(three, "destroy", "-auto-approve")
	t.Logf("destroy %.1f s", time.Since(began).Seconds())
	if _, err := os.Stat(filepath.Join(c.dir, "hosts")); err == nil {
		t.Error("the folder of the hosts is still there")
	}
	if _, err := os.Stat(filepath.Join(c.dir, "operator", "operator.key")); err == nil {
		t.Error("the key of the operator is still there")
	}
	for _, name := range layerFiles(t) {
		if strings.Contains(name, ".terraform") || strings.Contains(name, "tfstate") {
			t.Errorf("the test left %s in the work tree", name)
		}
	}
}

// shrink adds a node, removes it, and removes the fourth region, each by one changed variable. The hosts must go only after their
// nodes have left, and the records of the region must stay.
//
// Everything is done by `terraform apply` with another value of the variable, as an operator does it. The load runs on meanwhile, and its
// end judges whether a write failed.
func (c *localCluster) shrink(three, four map[string]any) {
	c.t.Helper()
	more := maps.Clone(four)
	eu := maps.Clone(four["eu"].(map[string]any))
	eu["count"] = 4
	more["eu"] = eu
	began := time.Now()
	c.mustRun(more, "apply", "-auto-approve")
	eventually(c.t, time.Minute, func() error { return c.liveNodes(13) })
	added := time.Since(began)

	began = time.Now()
	c.mustRun(four, "apply", "-auto-approve")
	removed := time.Since(began)
	c.hasLeft("eu-4", 12)
	began = time.Now()
	c.mustRun(three, "apply", "-auto-approve")
	shrunk := time.Since(began)
	for _, name := range []string{"af-1", "af-2", "af-3"} {
		c.hasLeft(name, 9)
	}
	if out, err := c.rhumb("get", "notes", "from-af"); err != nil || !strings.Contains(out, "answered") {
		c.t.Errorf("a record of the removed region: %v\n%s", err, out)
	}
	if out, err := c.rhumb("region", "ls"); err != nil || strings.Contains(out, " af ") {
		c.t.Errorf("the region is there still: %v\n%s", err, out)
	}
	if out, err := c.run(three, "plan", "-detailed-exitcode"); err != nil {
		c.t.Errorf("the plan after the removals is not empty: %v\n%s", err, out)
	}
	c.t.Logf("under load: node added %.1f s, node removed %.1f s, region of three nodes removed %.1f s", added.Seconds(), removed.Seconds(), shrunk.Seconds())
}

// hasLeft checks that a node was removed from the cluster by an operation, and its host from the machine.
func (c *localCluster) hasLeft(name string, live int) {
	c.t.Helper()
	if err := c.liveNodes(live); err != nil {
		c.t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(c.dir, "hosts", "hosts", name)); err == nil {
		c.t.Errorf("the host of %s is there still", name)
	}
	out, err := c.rhumb("node", "ls", "--all", "-o", "json")
	type node struct {
		Name    string `json:"name"`
		Removed bool   `json:"removed"`
	}
	var nodes []node
	if err == nil {
		err = json.Unmarshal([]byte(out), &nodes)
	}
	at := slices.IndexFunc(nodes, func(n node) bool { return n.Name == name })
	if err != nil || at < 0 || !nodes[at].Removed {
		c.t.Errorf("%s was not removed from the cluster: %v\n%s", name, err, out)
	}
}

// layerFiles lists the files of the layer.
func layerFiles(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir("local", func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// liveNodes returns an error unless the cluster has n live nodes.
func (c *localCluster) liveNodes(n int) error {
	out, err := c.rhumb("node", "ls", "-o", "json")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if live := strings.Count(out, `"live"`); live != n {
		return fmt.Errorf("%d nodes are live, want %d: %s", live, n, out)
	}
	return nil
}

// checkGrowth checks that a plan touches only firewalls of the hosts that exist.
func (c *localCluster) checkGrowth(regions map[string]any) {
	c.t.Helper()
	plan := filepath.Join(c.dir, "plan")
	c.mustRun(regions, "plan", "-out", plan)
	out := mustTerraform(c.t, "local", "show", "-json", plan)
	var changes struct {
		Changes []struct {
			Address string `json:"address"`
			Change  struct {
				Actions []string `json:"actions"`
			} `json:"change"`
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &changes); err != nil {
		c.t.Fatal(err)
	}
	kept := 0
	for _, r := range changes.Changes {
		isNew := strings.Contains(r.Address, `"af-`)
		isFirewall := strings.HasPrefix(r.Address, "terraform_data.firewall[")
		// What a node needs to leave the cluster names all nodes, and nothing runs when it changes.
		isLeave := strings.HasPrefix(r.Address, "module.leave.") && slices.Equal(r.Change.Actions, []string{"update"})
		isKept := slices.Equal(r.Change.Actions, []string{"no-op"})
		if isKept {
			kept++
		}
		if !isNew && !isFirewall && !isLeave && !isKept && r.Address != `module.leave.terraform_data.region["af"]` {
			c.t.Errorf("adding a region: %s of %s", r.Change.Actions, r.Address)
		}
	}
	if kept < 3*9 {
		c.t.Errorf("%d objects are kept, want those of nine hosts", kept)
	}
}

// load writes to the cluster from several goroutines until it is stopped.
type load struct {
	cancel  context.CancelFunc
	wait    sync.WaitGroup
	written atomic.Int64
	slowest atomic.Int64
	client  *client.Client
	mu      sync.Mutex // guards failed
	failed  []error
}

const (
	writers     = 8
	loadRate    = 10 * time.Millisecond // pause of each writer between writes
	failuresMax = 10                    // reported
)

func (c *localCluster) startLoad() *load {
	c.t.Helper()
	base := c.network.Addr().As4()
	var addrs []string
	for region := byte(1); region <= 3; region++ {
		addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, base[1], region, 1}), 7600).String())
	}
	dir := filepath.Join(c.dir, "operator")
	ctx, cancel := context.WithCancel(c.t.Context())
	cl, err := client.Open(ctx, client.Config{
		Addrs: addrs, From: "eu",
		TLS: &client.TLS{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "operator.crt"), Key: filepath.Join(dir, "operator.key")},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	l := &load{cancel: cancel, client: cl}
	table, err := cl.Table(ctx, "notes")
	if err != nil {
		c.t.Fatal(err)
	}
	for w := range writers {
		l.wait.Go(func() { l.write(ctx, table, w) })
	}
	return l
}

// write puts records one after the other until ctx ends.
func (l *load) write(ctx context.Context, table *client.Table, writer int) {
	tick := time.NewTicker(loadRate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		// The write is not canceled by the end of the load, so that every write counts.
		_, err := table.Put(context.WithoutCancel(ctx), fmt.Appendf(nil, "load-%d-%d", writer, i), []byte("value"), client.PutOptions{})
		if err != nil {
			l.mu.Lock()
			l.failed = append(l.failed, err)
			l.mu.Unlock()
			continue
		}
		l.written.Add(1)
		for took := int64(time.Since(began)); ; {
			slowest := l.slowest.Load()
			if took <= slowest || l.slowest.CompareAndSwap(slowest, took) {
				break
			}
		}
	}
}

// stop ends the load and fails the test if a write failed.
func (l *load) stop(t *testing.T) (written int64, slowest time.Duration) {
	t.Helper()
	l.cancel()
	l.wait.Wait()
	l.client.Close()
	for _, err := range l.failed[:min(len(l.failed), failuresMax)] {
		t.Errorf("a write failed: %s: %v", rhumb.KindOf(err), err)
	}
	if n := len(l.failed); n > 0 {
		t.Errorf("%d writes failed, %d were answered", n, l.written.Load())
	}
	if l.written.Load() == 0 {
		t.Error("no write was answered")
	}
	return l.written.Load(), time.Duration(l.slowest.Load())
}
