package wan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

const threeRegions = `
round_trips_ms:
  singapore: {frankfurt: 156, virginia: 253.5}
  frankfurt: {virginia: 88}
addresses:
  127.0.0.1:7401: singapore
  127.0.0.1:7402: frankfurt
  127.0.0.1:7403: virginia
`

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       string // part of the error; "" for none
	}{
		{"three regions", threeRegions, ""},
		{"one region needs no round trips", "addresses: {'a:1': x, 'b:1': x}", ""},
		{"cut", threeRegions + "cut: [[singapore, virginia]]", ""},
		{"jitter", threeRegions + "jitter_ms: 2.5", ""},
		{"empty", "", "empty"},
		{"unknown key", threeRegions + "jitter: 3", "jitter"},
		{"key twice", threeRegions + "addresses: {}", "already defined"},
		{"second document", threeRegions + "---\n{}\n", "second document"},
		{"not YAML", "addresses: [", "yaml"},
		{"wrong type", "addresses: 7", "cannot unmarshal"},
		{"missing pair", "round_trips_ms: {a: {b: 1}}\naddresses: {'h:1': c}", "no round trip between a and c; no round trip between b and c"},
		{"pair twice", "round_trips_ms: {a: {b: 1}, b: {a: 1}}", "between a and b is given twice"},
		{"negative", "round_trips_ms: {a: {b: -1}}", "a to b is -1 ms"},
		{"not a number", "round_trips_ms: {a: {b: .nan}}", "a to b is NaN ms"},
		{"endless", "round_trips_ms: {a: {b: .inf}}", "a to b is +Inf ms"},
		{"longer than a minute", "round_trips_ms: {a: {b: 60001}}", "want 0 to 60000"},
		{"nameless region", "round_trips_ms: {a: {'': 1}}", "has no name"},
		{"bad jitter", "round_trips_ms: {a: {b: 1}}\njitter_ms: -1", "jitter_ms is -1"},
		{"bad address", "addresses: {localhost: a}", `"localhost" is not of the form host:port`},
		{"address without region", "addresses: {'h:1': ''}", "has no region"},
		{"nodes", threeRegions + "nodes: {a: ['127.0.0.1:7401'], b: ['127.0.0.1:7402']}\ncut_one_way: [[a, b]]\nhalf_open: [[b, virginia]]", ""},
		{"node with a region's name", threeRegions + "nodes: {virginia: ['127.0.0.1:7401']}", "want a name that no region has"},
		{"node at an unknown address", threeRegions + "nodes: {a: ['127.0.0.1:7409']}", "is not listed under addresses"},
		{"address of two nodes", threeRegions + "nodes: {a: ['127.0.0.1:7401'], b: ['127.0.0.1:7401']}", "belongs to node a and to node b"},
		{"half-open stranger", threeRegions + "half_open: [[a, virginia]]", "half_open [\"a\" \"virginia\"] does not name"},
		{"cut of one", threeRegions + "cut: [[singapore]]", "does not name two regions"},
		{"cut of a stranger", threeRegions + "cut: [[singapore, mars]]", "does not name two regions"},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			f, err := Parse([]byte(tc.text))
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Fatalf("error %v, want one with %q", err, tc.want)
			case tc.want != "":
				if rhumb.KindOf(err) != rhumb.InvalidArgument {
					t.Errorf("kind %v", rhumb.KindOf(err))
				}
				return
			}
			text, err := f.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Parse(text); err != nil {
				t.Errorf("what Marshal wrote is refused: %v\n%s", err, text)
			}
		})
	}
}

func TestFileLookups(t *testing.T) {
	f, err := Parse([]byte(threeRegions + "jitter_ms: 2"))
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"127.0.0.1:7401": "singapore", "localhost:7402": "frankfurt", "[::1]:7403": "virginia",
		"127.0.0.1:9": "", "example.com:7401": "", "nonsense": "",
	} {
		if got, ok := f.RegionOf(addr); got != want || ok != (want != "") {
			t.Errorf("%s: region %q %v, want %q", addr, got, ok, want)
		}
	}
	for _, tc := range []struct {
		a, b string
		want time.Duration
		ok   bool
	}{
		{"singapore", "virginia", 253500 * time.Microsecond, true},
		{"virginia", "singapore", 253500 * time.Microsecond, true},
		{"virginia", "virginia", 0, true},
		{"virginia", "mars", 0, false},
	} {
		if got, ok := f.RoundTrip(tc.a, tc.b); got != tc.want || ok != tc.ok {
			t.Errorf("%s to %s: %v %v, want %v %v", tc.a, tc.b, got, ok, tc.want, tc.ok)
		}
	}
	if got := strings.Join(f.Regions(), " "); got != "frankfurt singapore virginia" {
		t.Errorf("regions %q", got)
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latency.yaml")
	if _, err := ReadFile(path); rhumb.KindOf(err) != rhumb.NotFound || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("nonsense: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), path) {
		t.Errorf("bad file: %v", err)
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latency.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(threeRegions)
	n, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.RoundTrip("frankfurt", "virginia"); got != 88*time.Millisecond {
		t.Fatalf("round trip %v", got)
	}
	write(strings.Replace(threeRegions, "virginia: 88", "virginia: 90", 1) + "cut: [[singapore, virginia]]")
	if err := n.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := n.RoundTrip("frankfurt", "virginia"); got != 90*time.Millisecond {
		t.Errorf("round trip %v after reload, want 90ms", got)
	}
	if linkOf(n, "virginia", "singapore").cutChan() == nil || linkOf(n, "singapore", "virginia").cutChan() == nil {
		t.Error("the link is not cut after reload")
	}
	write("nonsense: 1")
	if err := n.Reload(); err == nil {
		t.Error("a bad file was put in force")
	}
	if got := n.RoundTrip("frankfurt", "virginia"); got != 90*time.Millisecond {
		t.Errorf("a bad file changed the round trip to %v", got)
	}
	write(threeRegions)
	if err := n.Reload(); err != nil || linkOf(n, "virginia", "singapore").cutChan() != nil {
		t.Errorf("the link did not heal: %v", err)
	}
	if err := New(&File{}).Reload(); err != nil {
		t.Errorf("a network without a path: %v", err)
	}
}

// linkOf returns one direction between two regions.
func linkOf(n *Network, from, to string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(pair{place{region: from}, place{region: to}})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(threeRegions))
	f.Add([]byte("cut: [[a]]\njitter_ms: 1e400"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if err != nil {
			return
		}
		for _, a := range file.Regions() {
			for _, b := range file.Regions() {
				if d, ok := file.RoundTrip(a, b); !ok || d < 0 || d > RoundTripMax {
					t.Fatalf("%s to %s: %v %v in a valid file", a, b, d, ok)
				}
			}
		}
	})
}
