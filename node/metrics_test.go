package node

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TestMetricsOfDocumentsExist guards that a running node has every metric that the documents
// mention, and that all metrics of Rhumb follow the naming rule.
func TestMetricsOfDocumentsExist(t *testing.T) {
	n := startNode(t, t.TempDir(), "singapore", "a")
	if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	resp, err := http.Get("http://" + n.AdminAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(string(body), -1) {
		have[m[1]] = true
	}
	wellNamed := regexp.MustCompile(`^rhumb_[a-z]+_[a-z_]+$`)
	for name := range have {
		if strings.HasPrefix(name, "rhumb") && !wellNamed.MatchString(name) {
			t.Errorf("%s is not rhumb_<subsystem>_<name>", name)
		}
	}
	for _, file := range []string{"../docs/operations/README.md", "../docs/runbooks/false-failover.md"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("rhumb_[a-z]+_[a-z_]*[a-z]").FindAllString(string(b), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if !have[name] {
				t.Errorf("%s names %s, which a running node does not have", file, name)
			}
		}
	}
}
