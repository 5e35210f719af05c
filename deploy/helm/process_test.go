package helm_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

var local = flag.Bool("local", false, "run the rendered containers as processes on hosts of this machine; needs root")

// pods runs the containers of a rendered chart as processes: a host for each pod, with the arguments, environment, configuration, user
// and read-only root file system that the objects demand.
type pods struct {
	t     *testing.T
	dir   string // of programs and hosts
	names []string
	addrs map[string]string
}

const domain = ".rhumb-nodes.data.svc.cluster.local"

// newPods brings up a host for each pod and one for the authority.
func newPods(t *testing.T, mode string, names ...string) *pods {
	t.Helper()
	if !*local {
		t.Skip("starts processes only with -local")
	}
	if os.Geteuid() != 0 {
		t.Skip("brings up hosts; run as root")
	}
	p := &pods{t: t, dir: t.TempDir(), names: names, addrs: map[string]string{}}
	for _, build := range [][]string{{"rhumb", "../../cmd/rhumb"}, {"hostctl", "../hostctl"}} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(p.dir, build[0]), "./"+filepath.Base(build[1]))
		cmd.Dir = filepath.Dir(build[1]) // the main module
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+map[string]string{"rhumb": "1", "hostctl": "0"}[build[0]])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", build[1], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := p.hostctl(context.WithoutCancel(t.Context()), "", "destroy"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	p.must("", "up", "--others", "authority")
	for _, name := range names {
		p.must("", "add", name, "--region", "eu")
	}
	for line := range strings.Lines(p.must("", "list")) {
		fields := strings.Fields(line)
		for _, f := range fields {
			if strings.HasPrefix(f, "10.") {
				p.addrs[fields[0]] = f
			}
		}
	}
	var dns strings.Builder
	for _, name := range names {
		fmt.Fprintf(&dns, "%s %s%s\n", p.addrs[name], name, domain)
	}
	for _, name := range append(names, "authority") {
		p.must("", "cp", filepath.Join(p.dir, "rhumb"), name+":/usr/bin/")
		p.must(dns.String(), "exec", name, "--", "sh", "-c", "cat >>/etc/hosts") // the headless service
	}
	init := []string{"exec", "authority", "--", "rhumb", "init", "--authority", "/root/authority", "--advertise", p.addrs["authority"]}
	if mode == "certificates" {
		// The values of the chart name the cluster. An authority for a cluster of that ID creates no founder's token.
		init = append(init, "--cluster", cluster)
	}
	p.must("", init...)
	p.background("authority", "rhumb", "authority", "serve", "--authority", "/root/authority")
	return p
}

// hostctl runs a command of hostctl with a standard input.
func (p *pods) hostctl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "hostctl"), args...)
	cmd.Env = append(os.Environ(), "RHUMB_HOSTS="+filepath.Join(p.dir, "hosts"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p *pods) must(input string, args ...string) string {
	p.t.Helper()
	out, err := p.hostctl(p.t.Context(), input, args...)
	if err != nil {
		p.t.Fatalf("hostctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// background runs a command on a host until the test ends, and prints the end of its output if the test fails.
func (p *pods) background(host string, args ...string) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "hostctl"), append([]string{"exec", host, "--"}, args...)...)
	cmd.Env = append(os.Environ(), "RHUMB_HOSTS="+filepath.Join(p.dir, "hosts"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed, or the test finds out that it does not answer
	}()
	p.t.Cleanup(func() {
		cancel()
		<-done
		if p.t.Failed() {
			text := out.Bytes()
			p.t.Logf("output of %s:\n%s", host, text[max(0, len(text)-3000):])
		}
	})
}

var variableRE = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// start runs the container of a pod.
func (p *pods) start(pod string, set *appsv1.StatefulSet, config *corev1.ConfigMap) {
	p.t.Helper()
	p.must(config.Data["rhumb.yaml"], "exec", pod, "--", "sh", "-c", "mkdir -p /etc/rhumb && cat >/etc/rhumb/rhumb.yaml")
	user := fmt.Sprint(*set.Spec.Template.Spec.SecurityContext.RunAsUser)
	// As the kubelet does: secrets are root's, and the group of the pod reads them as far as the mode of the volume admits.
	mode := int32(0)
	for _, v := range set.Spec.Template.Spec.Volumes {
		switch {
		case v.Secret != nil:
			mode = *v.Secret.DefaultMode
		case v.Projected != nil:
			mode = *v.Projected.DefaultMode
		}
	}
	p.must("", "exec", pod, "--", "sh", "-c", fmt.Sprintf("chown -R %s:%s /var/lib/rhumb && chgrp -R %s /run/rhumb && find /run/rhumb -type f -exec chmod %o {} +",
		user, user, user, mode))
	container := set.Spec.Template.Spec.Containers[0]
	env := map[string]string{}
	for _, e := range container.Env {
		if e.ValueFrom.FieldRef.FieldPath == "metadata.name" {
			env[e.Name] = pod
		}
	}
	args := []string{"rhumb"}
	for _, a := range container.Args {
		args = append(args, variableRE.ReplaceAllStringFunc(a, func(s string) string { return env[variableRE.FindStringSubmatch(s)[1]] }))
	}
	// As the kubelet does: own mounts, a read-only root, another user, no capabilities.
	script := `mount -o remount,bind,ro / && ! touch /etc/written 2>/dev/null && exec setpriv --reuid ` + user + ` --regid ` + user +
		` --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"`
	p.background(pod, append([]string{"unshare", "--mount", "sh", "-c", script, "sh"}, args...)...)
}

// probe waits until a probe of the container of a pod succeeds, as the kubelet asks: over HTTPS, whatever the certificate says.
func (p *pods) probe(pod string, set *appsv1.StatefulSet, which *corev1.Probe) {
	p.t.Helper()
	ports := set.Spec.Template.Spec.Containers[0].Ports
	i := slices.IndexFunc(ports, func(port corev1.ContainerPort) bool { return port.Name == which.HTTPGet.Port.StrVal })
	url := fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(which.HTTPGet.Scheme)), p.addrs[pod], ports[i].ContainerPort, which.HTTPGet.Path)
	hc := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := hc.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %s", resp.Status)
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("%s: %v", url, err)
		case <-tick.C:
		}
	}
}

// operator runs a command of an operator on the host of the authority.
func (p *pods) operator(addr string, args ...string) string {
	p.t.Helper()
	flags := []string{"--addr", addr, "--cert", "/root/op/operator.crt", "--key", "/root/op/operator.key", "--ca", "/root/op/ca.crt"}
	return p.must("", append(append([]string{"exec", "authority", "--", "rhumb"}, args...), flags...)...)
}

// The containers that the chart renders form a cluster, pass their probes, and serve an operator: with tokens, and with the files of an
// external authority.
func TestChartRuns(t *testing.T) {
	for _, mode := range []string{"tokens", "certificates"} {
		t.Run(mode, func(t *testing.T) {
			names := []string{"rhumb-eu-0", "rhumb-eu-1", "rhumb-eu-2"}
			p := newPods(t, mode, names...)
			manifest, err := render(t, "memory: 256MiB\nregions: [{name: eu, location: {lat: 50.11, lon: 8.68}, replicas: 3}]\nidentity: {mode: "+mode+
				", cluster: "+cluster+", issuer: {name: test}}")
			if err != nil {
				t.Fatal(err)
			}
			all := decode(t, manifest)
			set, config := get[appsv1.StatefulSet](t, all, "StatefulSet/rhumb-eu"), get[corev1.ConfigMap](t, all, "ConfigMap/rhumb-eu")
			p.must("", "exec", "authority", "--", "rhumb", "authority", "operator", "op", "--authority", "/root/authority", "--out", "/root/op")
			for i, pod := range names {
				p.identify(pod, mode, i == 0)
				p.start(pod, set, config)
			}
			probes := set.Spec.Template.Spec.Containers[0]
			for _, pod := range names {
				p.probe(pod, set, probes.StartupProbe)
				p.probe(pod, set, probes.LivenessProbe)
			}
			addr := p.addrs[names[0]] + ":7600"
			if mode == "certificates" {
				p.operator(addr, "init")
			}
			for _, pod := range names {
				p.probe(pod, set, probes.ReadinessProbe)
			}
			p.operator(addr, "table", "create", "notes")
			p.operator(addr, "put", "notes", "a", "--text", "from a chart")
			if out := p.operator(p.addrs[names[2]]+":7600", "get", "notes", "a"); !strings.Contains(out, "from a chart") {
				t.Errorf("get: %s", out)
			}
			// Each pod is a zone of its own, so the replicas of a range are on three pods.
			if out := p.operator(addr, "node", "ls", "-o", "json"); strings.Count(out, `"live"`) != 3 || strings.Count(out, `"zone":"rhumb-eu-`) != 3 {
				t.Errorf("nodes: %s", out)
			}
		})
	}
}

// identify gives a pod its token, or the files that cert-manager would write.
func (p *pods) identify(pod, mode string, founder bool) {
	p.t.Helper()
	if mode == "tokens" {
		args := []string{"exec", "authority", "--", "sh", "-c", "rhumb token create --authority /root/authority --node " + pod + " --out /root/" + pod + ".token >/dev/null 2>&1 && cat /root/" + pod + ".token"}
		if founder {
			args[5] = strings.Replace(args[5], "--node", "--founder --node", 1)
		}
		token := p.must("", args...)
		p.must(token, "exec", pod, "--", "sh", "-c", "mkdir -p /run/rhumb/tokens && cat >/run/rhumb/tokens/"+pod)
		return
	}
	out := "/root/" + pod
	p.must("", "exec", "authority", "--", "rhumb", "cert", "create", "node", pod, "--authority", "/root/authority", "--out", out, "--address", pod+domain)
	for from, to := range map[string]string{"node.crt": "tls.crt", "node.key": "tls.key", "ca.crt": "ca.crt"} {
		text := p.must("", "exec", "authority", "--", "cat", out+"/"+from)
		p.must(text, "exec", pod, "--", "sh", "-c", "mkdir -p /run/rhumb/identity/"+pod+" && cat >/run/rhumb/identity/"+pod+"/"+to)
	}
}
