package terraform_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// hostctl runs a command of hostctl with a standard input.
func (c *localCluster) hostctl(input string, args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.dir, "bin", "hostctl"), args...)
	cmd.Env = append(os.Environ(), "RHUMB_HOSTS="+filepath.Join(c.dir, "hosts"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		problem := ""
		if exit, ok := err.(*exec.ExitError); ok {
			problem = string(exit.Stderr)
		}
		c.t.Fatalf("hostctl %s: %v\n%s%s", strings.Join(args, " "), err, out, problem)
	}
	return string(out)
}

// TestCloudInitOnHost does on a host what cloud-init does with the user data of core: it writes the files and runs the commands, with the
// real Debian package and a real token. The node must found its cluster and serve. Only the download is replaced by a copy.
func TestCloudInitOnHost(t *testing.T) {
	c := newLocal(t)
	deb := buildDeb(t, c.dir)
	c.hostctl("", "up", "--network", c.network.String(), "--others", "authority")
	base := c.network.Addr().As4()
	address := netip.AddrFrom4([4]byte{10, base[1], 1, 1}).String()
	c.hostctl("", "add", "eu-1", "--region", "eu", "--address", address)

	c.hostctl("", "install", "authority", "--binary", filepath.Join(c.dir, "bin", "rhumb"), "--unit", "../systemd/rhumb-authority.service")
	c.hostctl("", "exec", "authority", "--", "install", "-d", "-o", "rhumb-authority", "-g", "rhumb-authority", "-m", "0700", "/var/lib/rhumb-authority")
	c.hostctl("", "exec", "authority", "--", "setpriv", "--reuid", "rhumb-authority", "--regid", "rhumb-authority", "--clear-groups", "sh", "-c",
		"rhumb init --authority /var/lib/rhumb-authority --advertise "+netip.AddrFrom4([4]byte{10, base[1], 0, 10}).String()+" >/dev/null")
	c.hostctl("", "systemctl", "authority", "enable", "--now", "rhumb-authority")
	// As the user of the service: files that root adds to the authority are unreadable to it.
	token := strings.TrimSpace(c.hostctl("", "exec", "authority", "--", "setpriv", "--reuid", "rhumb-authority", "--regid", "rhumb-authority",
		"--clear-groups", "rhumb", "token", "create", "--authority", "/var/lib/rhumb-authority", "--node", "eu-1", "--founder"))

	// The user data is that of core for this cluster.
	sum := sha256.Sum256([]byte(readFile(t, deb)))
	user := renderUserData(t, map[string]any{
		"regions": map[string]any{"eu": map[string]any{
			"ordinal": 1, "count": 1, "zones": []string{"a"}, "memory": "256MiB", "location": map[string]float64{"lat": 50.11, "lon": 8.68},
		}},
		"replicas": 1, "addresses": map[string]any{"eu-1": map[string]string{"advertise": address}},
		"tokens":  map[string]string{"eu-1": token},
		"package": map[string]string{"url": "https://example.com/rhumb.deb", "sha256": fmt.Sprintf("%x", sum)},
	})

	for _, f := range user.WriteFiles {
		script := fmt.Sprintf("mkdir -p %[2]s && cat >%[1]s && chown %[3]s %[1]s && chmod %[4]s %[1]s", f.Path, filepath.Dir(f.Path), f.Owner, f.Permissions)
		c.hostctl(f.Content, "exec", "eu-1", "--", "sh", "-c", script)
	}
	for _, command := range user.Runcmd {
		if command[0] == "curl" {
			c.hostctl("", "cp", deb, "eu-1:/run/rhumb.deb")
			continue
		}
		c.hostctl("", append([]string{"exec", "eu-1", "--"}, command...)...)
	}

	// The package has not replaced the configuration, and the token is the service's alone.
	if got := c.hostctl("", "exec", "eu-1", "--", "cat", "/etc/rhumb/rhumb.yaml"); got != user.WriteFiles[0].Content {
		t.Errorf("the configuration after the installation is\n%s", got)
	}
	if got := strings.TrimSpace(c.hostctl("", "exec", "eu-1", "--", "stat", "-c", "%U:%G %a", "/etc/rhumb/token")); got != "root:rhumb 640" {
		t.Errorf("the token is %s", got)
	}
	if got := strings.TrimSpace(c.hostctl("", "systemctl", "eu-1", "is-enabled", "rhumb")); got != "enabled" {
		t.Errorf("the service is %s", got)
	}
	c.hostctl("", "exec", "authority", "--", "rhumb", "authority", "operator", "op", "--authority", "/var/lib/rhumb-authority", "--out", "/root/op")
	eventually(t, time.Minute, func() error {
		cmd := exec.CommandContext(t.Context(), filepath.Join(c.dir, "bin", "hostctl"), "exec", "authority", "--", "rhumb", "table", "create", "notes",
			"--replicas", "1", "--addr", address+":7600", "--cert", "/root/op/operator.crt", "--key", "/root/op/operator.key", "--ca", "/root/op/ca.crt")
		cmd.Env = append(os.Environ(), "RHUMB_HOSTS="+filepath.Join(c.dir, "hosts"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// buildDeb builds the Debian package of the program that the test has built.
func buildDeb(t *testing.T, dir string) string {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb: install the Debian package dpkg")
	}
	cmd := exec.CommandContext(t.Context(), "../deb/build.sh", filepath.Join(dir, "bin", "rhumb"), "0.0.1", filepath.Join(dir, "deb"))
	cmd.Env = append(os.Environ(), "COMPRESSION=none") // xz takes half a minute
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "deb", "*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("packages: %v, %v", files, err)
	}
	return files[0]
}

// renderUserData applies core with variables and returns the cloud-init of eu-1.
func renderUserData(t *testing.T, vars map[string]any) (c cloudConfig) {
	t.Helper()
	t.Setenv("TF_DATA_DIR", "") // that of the local layer
	dir := t.TempDir()
	copyModule(t, "core", dir)
	text, err := json.Marshal(vars)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "vars.tfvars.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	mustTerraform(t, dir, "init", "-backend=false")
	mustTerraform(t, dir, "apply", "-auto-approve", "-var-file", file)
	var all map[string]string
	if err := json.Unmarshal([]byte(mustTerraform(t, dir, "output", "-json", "cloud_init")), &all); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(all["eu-1"]), &c); err != nil {
		t.Fatal(err)
	}
	return c
}
