package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/freeport"
)

// The acceptance tests run a secured cluster of real processes: an authority and one node in each
// of two regions, built from this repository.

const (
	// buildWait bounds the build of the program, bootWait the start of the cluster.
	buildWait = 10 * time.Minute
	bootWait  = time.Minute
)

// testCluster is a secured cluster of processes.
type testCluster struct {
	dir, binary  string
	addrs        []string
	ca, crt, key string // of an operator
}

var (
	startOnce sync.Once
	shared    *testCluster
	startErr  error
	stops     []func()
)

// TestMain ends the cluster that the tests have shared.
func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range stops {
		stop()
	}
	os.Exit(code)
}

// sharedCluster returns a cluster that all acceptance tests use.
func sharedCluster(t *testing.T) *testCluster {
	t.Helper()
	if os.Getenv("TF_ACC") == "" {
		t.Skip("an acceptance test; `make provider-test` sets TF_ACC")
	}
	startOnce.Do(func() { shared, startErr = startCluster() })
	if startErr != nil {
		t.Fatal(startErr)
	}
	// The configuration of this machine must not matter.
	for name, value := range map[string]string{
		"RHUMB_ADDR": strings.Join(shared.addrs, ","), "RHUMB_CA": shared.ca, "RHUMB_CERT": shared.crt, "RHUMB_KEY": shared.key,
		"RHUMB_CONFIG": filepath.Join(shared.dir, "empty.yaml"), "XDG_CONFIG_HOME": filepath.Join(shared.dir, "config"),
	} {
		t.Setenv(name, value)
	}
	return shared
}

func startCluster() (c *testCluster, err error) {
	c = &testCluster{}
	if c.dir, err = os.MkdirTemp("", "rhumb-provider-test-"); err != nil {
		return nil, err
	}
	stops = append(stops, func() { _ = os.RemoveAll(c.dir) })
	c.binary = filepath.Join(c.dir, "rhumb")
	if err := os.WriteFile(filepath.Join(c.dir, "empty.yaml"), nil, 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildWait)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", c.binary, "./cmd/rhumb")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %v\n%s", err, out)
	}
	return c, c.start()
}

// start makes the authority and the nodes, and waits until they serve.
func (c *testCluster) start() error {
	authority, at := filepath.Join(c.dir, "authority"), freeAddr()
	operator := filepath.Join(c.dir, "operator")
	if err := c.run("init", "--authority", authority, "--advertise", at); err != nil {
		return err
	}
	if err := c.run("authority", "operator", "terraform", "--authority", authority, "--out", operator); err != nil {
		return err
	}
	c.ca, c.crt, c.key = filepath.Join(operator, "ca.crt"), filepath.Join(operator, "operator.crt"), filepath.Join(operator, "operator.key")
	if err := c.spawn("authority", "serve", "--authority", authority, "--listen", at); err != nil {
		return err
	}
	for i, region := range []string{"frankfurt", "singapore"} {
		token := filepath.Join(c.dir, region+".token")
		args := []string{"token", "create", "--authority", authority, "--node", region + "-1", "--out", token}
		if i == 0 {
			args = append(args, "--founder")
		}
		if err := c.run(args...); err != nil {
			return err
		}
		addr := freeAddr()
		args = []string{
			"start", "--region", region, "--dir", filepath.Join(c.dir, region), "--token", token, "--addr", addr, "--heartbeat-addr", freeAddr(),
			"--gossip-addr", freeAddr(), "--admin-addr", freeAddr(), "--memory", "512MiB", "--drain-timeout", "1s", "--snapshot-dir", filepath.Join(c.dir, "images"),
		}
		if i > 0 {
			args = append(args, "--join", c.addrs[0])
		}
		if err := c.spawn(args...); err != nil {
			return err
		}
		c.addrs = append(c.addrs, addr)
	}
	for deadline := time.Now().Add(bootWait); ; time.Sleep(200 * time.Millisecond) {
		out, err := c.command(append([]string{"node", "ls", "-o", "json", "--timeout", "2s"}, c.identity()...)...).Output()
		var nodes []struct{ Ready bool }
		if err == nil && json.Unmarshal(out, &nodes) == nil && len(nodes) == 2 && nodes[0].Ready && nodes[1].Ready {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the cluster is not ready after %v: %v\n%s", bootWait, err, out)
		}
	}
}

// identity returns the flags that connect as the operator.
func (c *testCluster) identity() []string {
	args := []string{"--ca", c.ca, "--cert", c.crt, "--key", c.key}
	for _, a := range c.addrs {
		args = append(args, "--addr", a)
	}
	return args
}

func (c *testCluster) command(args ...string) *exec.Cmd {
	cmd := exec.Command(c.binary, args...)
	cmd.Env = append(os.Environ(), "RHUMB_CONFIG="+filepath.Join(c.dir, "empty.yaml"), "XDG_CONFIG_HOME="+filepath.Join(c.dir, "config"))
	return cmd
}

// run runs a command to its end.
func (c *testCluster) run(args ...string) error {
	if out, err := c.command(args...).CombinedOutput(); err != nil {
		return fmt.Errorf("rhumb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// spawn starts a process that TestMain ends.
func (c *testCluster) spawn(args ...string) error {
	cmd := c.command(args...)
	logs, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("%d.log", len(stops))))
	if err != nil {
		return err
	}
	cmd.Stderr = logs
	if err := cmd.Start(); err != nil {
		return err
	}
	// Before the directory is removed.
	stops = append([]func(){func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = logs.Close()
	}}, stops...)
	return nil
}

// rhumb changes the cluster behind Terraform's back.
func (c *testCluster) rhumb(t *testing.T, args ...string) {
	t.Helper()
	if err := c.run(append(args, c.identity()...)...); err != nil {
		t.Fatal(err)
	}
}

// open returns a client with an operator's identity.
func (c *testCluster) open(t *testing.T) *client.Client {
	t.Helper()
	to := target.Target{Addrs: c.addrs, CA: c.ca, Cert: c.crt, Key: c.key, Timeout: 10 * time.Second}
	cfg, err := to.Config()
	if err != nil {
		t.Fatal(err)
	}
	open, err := client.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(open.Close)
	return open
}

// freeAddr returns an address on which nothing listens.
func freeAddr() string {
	addrs, err := freeport.Take(1)
	if err != nil {
		panic(err)
	}
	return addrs[0]
}
