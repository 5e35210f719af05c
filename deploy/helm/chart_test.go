// Package helm_test tests the chart with Helm's own packages. It is a module of its own because Helm brings in Kubernetes' libraries.
package helm_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

const cluster = "0194fdc2fa2f4cc081d3ff12045b73c8"

// certificate is the part of cert-manager's Certificate that the chart may use.
type certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretName  string   `json:"secretName"`
		Duration    string   `json:"duration"`
		RenewBefore string   `json:"renewBefore"`
		URIs        []string `json:"uris"`
		DNSNames    []string `json:"dnsNames"`
		Usages      []string `json:"usages"`
		PrivateKey  struct {
			Algorithm      string `json:"algorithm"`
			Size           int    `json:"size"`
			RotationPolicy string `json:"rotationPolicy"`
		} `json:"privateKey"`
		IssuerRef struct{ Group, Kind, Name string } `json:"issuerRef"`
	} `json:"spec"`
}

// objects are the decoded objects of a release, by kind and name.
type objects map[string]any

// get returns an object of a kind.
func get[T any](t *testing.T, all objects, name string) *T {
	t.Helper()
	v, ok := all[name].(*T)
	if !ok {
		t.Fatalf("no %s; there are %v", name, slices.Sorted(maps.Keys(all)))
	}
	return v
}

// render installs the chart without a cluster, which checks the values against the schema, and returns the manifest.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	chart, err := loader.Load("rhumb")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{})
	install.DryRun, install.ClientOnly, install.ReleaseName, install.Namespace = true, true, "rhumb", "data"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.35.0", Major: "1", Minor: "35"}
	release, err := install.Run(chart, parsed)
	if err != nil {
		return "", err
	}
	return release.Manifest, nil
}

// decode decodes each object of a manifest strictly: a misspelt or misplaced field is an error.
func decode(t *testing.T, manifest string) objects {
	t.Helper()
	all := objects{}
	for _, doc := range strings.Split(manifest, "\n---\n") {
		doc = strings.TrimPrefix(doc, "---\n")
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if head.Kind == "" {
			continue // only comments
		}
		var into any
		switch head.APIVersion + " " + head.Kind {
		case "apps/v1 StatefulSet":
			into = &appsv1.StatefulSet{}
		case "v1 ConfigMap":
			into = &corev1.ConfigMap{}
		case "v1 Service":
			into = &corev1.Service{}
		case "v1 ServiceAccount":
			into = &corev1.ServiceAccount{}
		case "policy/v1 PodDisruptionBudget":
			into = &policyv1.PodDisruptionBudget{}
		case "networking.k8s.io/v1 NetworkPolicy":
			into = &networkingv1.NetworkPolicy{}
		case "cert-manager.io/v1 Certificate":
			into = &certificate{}
		default:
			t.Errorf("unexpected %s %s", head.APIVersion, head.Kind)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Errorf("%s %s: %v\n%s", head.Kind, head.Name, err, doc)
		}
		name := head.Kind + "/" + head.Name
		if all[name] != nil {
			t.Errorf("%s stands twice", name)
		}
		if head.Namespace != "data" {
			t.Errorf("%s is in namespace %q", name, head.Namespace)
		}
		all[name] = into
	}
	return all
}

// good lists values for each way to configure the chart.
var good = map[string]string{
	"default": "",
	"csi":     "identity: {mode: csi, cluster: " + cluster + ", issuer: {name: rhumb}}",
	"certificates": "identity: {mode: certificates, cluster: " + cluster + ", issuer: {name: rhumb, kind: ClusterIssuer}}\n" +
		"regions: [{name: eu, location: {lat: 50.11, lon: 8.68}, replicas: 3}, {name: us, location: {lat: 39.04, lon: -77.49}, replicas: 2}]",
	"everything": `
image: {repository: registry.example.com:5000/rhumb, digest: "sha256:` + strings.Repeat("0123456789abcdef", 4) + `", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
regions:
  - {name: eu, location: {lat: 50.11, lon: 8.68}, replicas: 5, nodeSelector: {topology.kubernetes.io/region: eu-central-1}}
join: ["node.example.com", "[2001:db8::1]:17600"]
zones: label
ports: {main: 17600, heartbeat: 17601, gossip: 17602, admin: 17603}
memory: 4GiB
logLevel: debug
storage: {size: 1Ti, className: fast}
sharedMemory: {size: 2Gi}
podAnnotations: {example.com/a: b}
tolerations: [{key: data, operator: Exists, effect: NoSchedule}]
priorityClassName: database
networkPolicy:
  peers: [{ipBlock: {cidr: 203.0.113.0/24}}]
  clients: [{namespaceSelector: {matchLabels: {team: flights}}}]
  operators: [{namespaceSelector: {}, podSelector: {matchLabels: {app: prometheus}}}]
`,
	"nobody": "networkPolicy: {enabled: false, clients: []}",
}

// Each way to configure the chart renders objects that decode strictly.
func TestChartDecodes(t *testing.T) {
	for name, values := range good {
		manifest, err := render(t, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := decode(t, manifest)
		t.Logf("%s: %d objects", name, len(all))
		for key, object := range all {
			if set, ok := object.(*appsv1.StatefulSet); ok {
				checkHardened(t, name+" "+key, set)
			}
		}
	}
}

// checkHardened checks what every pod must have, whatever the values.
func checkHardened(t *testing.T, name string, set *appsv1.StatefulSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	if s := pod.SecurityContext; s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser < 1000 || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("%s: security of the pod: %+v", name, s)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: a token of Kubernetes is mounted", name)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Contains(s.Capabilities.Drop, "ALL") || s.Capabilities.Add != nil {
		t.Errorf("%s: security of the container: %+v", name, s)
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = m.MountPath
		if strings.HasPrefix(m.MountPath, "/run/rhumb") && (!m.ReadOnly || m.SubPath != "" || m.SubPathExpr != "") {
			t.Errorf("%s: %s is writable, or a subpath, which would not follow a rotation", name, m.MountPath)
		}
	}
	for _, v := range pod.Volumes {
		// Nobody but the group of the node reads secrets. The number in the template is octal.
		if v.Secret != nil && *v.Secret.DefaultMode != 0o440 || v.Projected != nil && *v.Projected.DefaultMode != 0o440 {
			t.Errorf("%s: mode of volume %s", name, v.Name)
		}
		if mounted[v.Name] == "" {
			t.Errorf("%s: volume %s is not mounted", name, v.Name)
		}
		if mounted[v.Name] == "/dev/shm" && (v.EmptyDir == nil || v.EmptyDir.Medium != "Memory" || v.EmptyDir.SizeLimit == nil) {
			t.Errorf("%s: /dev/shm is not memory with a bound: %+v", name, v)
		}
		delete(mounted, v.Name)
	}
	delete(mounted, "data")
	if len(mounted) > 0 {
		t.Errorf("%s: mounts without volumes: %v", name, mounted)
	}
	for probe, p := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet.Path != probe || p.HTTPGet.Scheme != "HTTPS" || p.HTTPGet.Port.StrVal != "admin" {
			t.Errorf("%s: probe of %s: %+v", name, probe, p)
		}
	}
	if c.StartupProbe == nil || pod.TerminationGracePeriodSeconds == nil || *pod.TerminationGracePeriodSeconds < 30 {
		t.Errorf("%s: no startup probe, or too little time to stop", name)
	}
	if slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, "insecure") }) {
		t.Errorf("%s: %v", name, c.Args)
	}
}

// The certificates name the pods, and the arguments and volumes fit.
func TestChartIdentity(t *testing.T) {
	manifest, err := render(t, good["certificates"])
	if err != nil {
		t.Fatal(err)
	}
	all := decode(t, manifest)
	c := get[certificate](t, all, "Certificate/rhumb-us-1")
	if want := "rhumb://" + cluster + "/node/rhumb-us-1"; len(c.Spec.URIs) != 1 || c.Spec.URIs[0] != want {
		t.Errorf("URIs are %v, want %s", c.Spec.URIs, want)
	}
	if !slices.Equal(c.Spec.Usages, []string{"digital signature", "server auth", "client auth"}) || c.Spec.PrivateKey.Algorithm != "ECDSA" {
		t.Errorf("certificate: %+v", c.Spec)
	}
	if all["Certificate/rhumb-us-2"] != nil {
		t.Error("a certificate for a pod that does not exist")
	}
	set := get[appsv1.StatefulSet](t, all, "StatefulSet/rhumb-us")
	secrets := map[string]bool{}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				secrets[s.Secret.Name] = true
			}
		}
	}
	if !maps.Equal(secrets, map[string]bool{"rhumb-us-0-identity": true, "rhumb-us-1-identity": true}) {
		t.Errorf("secrets are %v", secrets)
	}

	manifest, err = render(t, good["csi"])
	if err != nil {
		t.Fatal(err)
	}
	set = get[appsv1.StatefulSet](t, decode(t, manifest), "StatefulSet/rhumb-frankfurt")
	i := slices.IndexFunc(set.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil })
	attributes := set.Spec.Template.Spec.Volumes[i].CSI.VolumeAttributes
	if got, want := attributes["csi.cert-manager.io/uri-sans"], "rhumb://"+cluster+"/node/${POD_NAME}"; got != want {
		t.Errorf("URI is %s, want %s", got, want)
	}
}

// Replicas of a region are kept apart, and one at a time may be disrupted.
func TestChartPlacement(t *testing.T) {
	manifest, err := render(t, "")
	if err != nil {
		t.Fatal(err)
	}
	all := decode(t, manifest)
	set := get[appsv1.StatefulSet](t, all, "StatefulSet/rhumb-frankfurt")
	var keys []string
	for _, term := range set.Spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		keys = append(keys, term.TopologyKey)
		for k, v := range term.LabelSelector.MatchLabels {
			if set.Spec.Template.Labels[k] != v {
				t.Errorf("anti-affinity selects %s=%s, which the pods do not have", k, v)
			}
		}
	}
	if !slices.Equal(keys, []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"}) {
		t.Errorf("anti-affinity by %v", keys)
	}
	budget := get[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget/rhumb-frankfurt")
	if budget.Spec.MaxUnavailable.IntVal != 1 || !maps.Equal(budget.Spec.Selector.MatchLabels, set.Spec.Selector.MatchLabels) {
		t.Errorf("budget: %+v", budget.Spec)
	}
	nodes := get[corev1.Service](t, all, "Service/rhumb-nodes")
	if nodes.Spec.ClusterIP != "None" || !nodes.Spec.PublishNotReadyAddresses || set.Spec.ServiceName != nodes.Name {
		t.Errorf("headless service: %+v", nodes.Spec)
	}
	if clients := get[corev1.Service](t, all, "Service/rhumb"); len(clients.Spec.Ports) != 1 || clients.Spec.PublishNotReadyAddresses {
		t.Errorf("service of clients: %+v", clients.Spec)
	}
	for _, service := range []string{"Service/rhumb", "Service/rhumb-nodes"} {
		for k, v := range get[corev1.Service](t, all, service).Spec.Selector {
			if set.Spec.Template.Labels[k] != v {
				t.Errorf("%s selects %s=%s, which the pods do not have", service, k, v)
			}
		}
	}
}

// Heartbeats and gossip are for peers only, and nobody reaches the admin port by default.
func TestChartNetworkPolicy(t *testing.T) {
	for _, tt := range []struct {
		values string
		admin  int // rules that admit the admin port
		rules  int
	}{{"", 0, 2}, {good["everything"], 1, 3}} {
		manifest, err := render(t, tt.values)
		if err != nil {
			t.Fatal(err)
		}
		policy := get[networkingv1.NetworkPolicy](t, decode(t, manifest), "NetworkPolicy/rhumb")
		admitted := map[string]int{}
		for _, rule := range policy.Spec.Ingress {
			if len(rule.From) == 0 {
				t.Error("a rule admits everybody")
			}
			for _, p := range rule.Ports {
				admitted[p.Port.StrVal]++
			}
		}
		if admitted["heartbeat"] != 1 || admitted["gossip"] != 1 || admitted["gossip-udp"] != 1 || admitted["admin"] != tt.admin ||
			len(policy.Spec.Ingress) != tt.rules {
			t.Errorf("%d rules admit %v", len(policy.Spec.Ingress), admitted)
		}
	}
	manifest, err := render(t, good["nobody"])
	if err != nil {
		t.Fatal(err)
	}
	if decode(t, manifest)["NetworkPolicy/rhumb"] != nil {
		t.Error("a policy although it is off")
	}
}

// Helm's linter has no complaint.
func TestChartLint(t *testing.T) {
	for name, values := range good {
		parsed, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		linter := lint.AllWithKubeVersion("rhumb", parsed, "data", &chartutil.KubeVersion{Version: "v1.35.0", Major: "1", Minor: "35"})
		for _, m := range linter.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// bad lists values that are refused, each with the reason.
var bad = []string{
	"regions: []",
	"regions: [{name: eu, replicas: 3}]",
	"regions: [{name: EU, location: {lat: 1, lon: 1}, replicas: 3}]",
	"regions: [{name: 1eu, location: {lat: 1, lon: 1}, replicas: 3}]",
	"regions: [{name: eu-, location: {lat: 1, lon: 1}, replicas: 3}]",
	"regions: [{name: " + strings.Repeat("e", 41) + ", location: {lat: 1, lon: 1}, replicas: 3}]",
	"regions: [{name: eu, location: {lat: 91, lon: 1}, replicas: 3}]",
	"regions: [{name: eu, location: {lat: 1, lon: -181}, replicas: 3}]",
	"regions: [{name: eu, location: {lat: north, lon: 1}, replicas: 3}]",
	"regions: [{name: eu, location: {lat: 1, lon: 1}, replicas: 0}]",
	"regions: [{name: eu, location: {lat: 1, lon: 1}, replicas: 2.5}]",
	"regions: [{name: eu, location: {lat: 1, lon: 1}, replicas: 3, zone: a}]",
	"regions: [{name: eu, location: {lat: 1, lon: 1}, replicas: 3}, {name: eu, location: {lat: 1, lon: 1}, replicas: 3}]",
	"join: [https://example.com]",
	"join: [\"2001:db8::1:7600\"]",
	"zones: rack",
	"identity: {mode: insecure}",
	"identity: {mode: csi}",
	"identity: {mode: csi, cluster: " + cluster + "}",
	"identity: {mode: certificates, issuer: {name: rhumb}}",
	"identity: {mode: csi, cluster: 0194fdc2-fa2f-4cc0-81d3-ff12045b73c8, issuer: {name: rhumb}}",
	"identity: {mode: csi, cluster: my-cluster, issuer: {name: rhumb}}",
	"identity: {mode: csi, cluster: " + cluster + ", issuer: {name: rhumb}, duration: 7d}",
	"identity: {mode: csi, cluster: " + cluster + ", issuer: {name: rhumb}, duration: 24h, renewBefore: 24h}",
	"identity: {tokensSecret: Tokens}",
	"ports: {main: 443}",
	"ports: {main: 7601}",
	"ports: {admin: 65536}",
	"ports: {http: 8080}",
	"memory: 4GB",
	"memory: 4Gi",
	"logLevel: verbose",
	"storage: {size: 100}",
	"storage: {size: 100GB}",
	"sharedMemory: {size: 0}",
	"maxUnavailable: 0",
	"terminationGracePeriodSeconds: 5",
	"user: 0",
	"image: {repository: \"\"}",
	"image: {tag: \"a b\"}",
	"image: {digest: sha256:abc}",
	"image: {pullPolicy: Sometimes}",
	"networkPolicy: {clients: [{}]}",
	"networkPolicy: {clients: [{cidr: 10.0.0.0/8}]}",
	"networkPolicy: {clients: [{ipBlock: {cidr: office}}]}",
	"networkPolicy: {enabled: \"yes\"}",
	"insecure: true",
	"clusterDomain: \"cluster local\"",
	"tokens: {rhumb-eu-0: rhumb1.abc}",
}

// Each bad value is refused with the reason in testdata/bad_values.txt.
func TestChartRefuses(t *testing.T) {
	var got bytes.Buffer
	for _, values := range bad {
		_, err := render(t, values)
		if err == nil {
			t.Errorf("accepted: %s", values)
		}
		fmt.Fprintf(&got, "%s\n", values)
		// The schema reports its findings in no order.
		for _, line := range slices.Sorted(strings.Lines(fmt.Sprint(err))) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "values don't meet") && line != "rhumb:" {
				fmt.Fprintf(&got, "\t%s\n", line)
			}
		}
	}
	t.Logf("%d bad values", len(bad))
	compareGolden(t, "testdata/bad_values.txt", got.Bytes())
}

// The rendered objects are those that were reviewed.
func TestChartGolden(t *testing.T) {
	for _, name := range []string{"certificates", "default"} {
		manifest, err := render(t, good[name])
		if err != nil {
			t.Fatal(err)
		}
		compareGolden(t, filepath.Join("testdata", name+".yaml"), []byte(manifest))
	}
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
