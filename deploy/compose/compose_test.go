package compose

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// loadProject reads the compose file as `docker compose` does: against the schema, where an unknown key is an error.
func loadProject(text []byte) (*types.Project, error) {
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  ".",
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: text}},
		Environment: types.Mapping{},
	})
}

// settings returns the names of the variables that the program reads, from its source.
func settings(t *testing.T) (names []string) {
	t.Helper()
	source, err := os.ReadFile("../../cli/settings/settings.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t\{"([a-z_]+)", `).FindAllStringSubmatch(string(source), -1) {
		names = append(names, "RHUMB_"+strings.ToUpper(m[1]))
	}
	if len(names) < 10 {
		t.Fatalf("found only %d settings", len(names))
	}
	return names
}

// TestCompose guards that the file is valid, that it has three nodes in three zones of three regions, and that each service is confined.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := loadProject(text)
	if err != nil {
		t.Fatal(err)
	}
	known := settings(t)
	places, volumes := map[string]string{}, map[string]string{}
	for name, s := range p.Services {
		if s.User != "65532:65532" || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || s.Privileged {
			t.Errorf("%s is not confined: user %q, read-only %t, drops %q, %q", name, s.User, s.ReadOnly, s.CapDrop, s.SecurityOpt)
		}
		if s.MemLimit == 0 || s.PidsLimit == 0 {
			t.Errorf("%s has no limit of memory or processes", name)
		}
		for _, v := range s.Volumes {
			if other, taken := volumes[v.Source]; taken || v.Type != "volume" {
				t.Errorf("%s has the volume %s of %q, type %s", name, v.Source, other, v.Type)
			}
			volumes[v.Source] = name
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes port %s on %q", name, port.Published, port.HostIP)
			}
		}
		for key := range s.Environment {
			if !slices.Contains(known, key) {
				t.Errorf("%s sets %s, which the program does not read", name, key)
			}
		}
		if name == "authority" {
			continue
		}
		value := func(key string) string {
			if v := s.Environment[key]; v != nil {
				return *v
			}
			return ""
		}
		place := value("RHUMB_REGION") + " " + value("RHUMB_ZONE")
		if other, taken := places[place]; taken {
			t.Errorf("%s and %s are both in %s", name, other, place)
		}
		places[place] = name
		if value("RHUMB_ADVERTISE") != name || s.Hostname != name {
			t.Errorf("%s is known as %q and %q", name, value("RHUMB_ADVERTISE"), s.Hostname)
		}
		for _, other := range strings.Split(value("RHUMB_JOIN"), ",") {
			if _, ok := p.Services[other]; !ok {
				t.Errorf("%s joins %q, which is no service", name, other)
			}
		}
		if want := []string{"start", "--token", "/run/secrets/" + name}; !slices.Equal(s.Command, want) || len(s.Secrets) != 1 || s.Secrets[0].Source != name {
			t.Errorf("%s runs %q with %d secrets, want %q", name, s.Command, len(s.Secrets), want)
		}
	}
	regions := map[string]int{}
	for place := range places {
		region, _, _ := strings.Cut(place, " ")
		regions[region]++
	}
	if fmt.Sprint(regions) != "map[frankfurt:3 singapore:3 virginia:3]" {
		t.Errorf("nodes by region: %v", regions)
	}
}

// TestComposeIsStrict guards that the check above can fail: the loader must refuse what compose does not know.
func TestComposeIsStrict(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"read_only: true", "readonly: true"},
		{"  rhumb:\n", "  other:\n"},
		{"pids_limit: 4096", "pids_limit: many"},
		{"secrets: [us-2]", "secrets: [us-9]"},
	} {
		bad := strings.Replace(string(text), c[0], c[1], 1)
		if bad == string(text) {
			t.Fatalf("%q is not in the file", c[0])
		}
		if _, err := loadProject([]byte(bad)); err == nil {
			t.Errorf("accepted %q", c[1])
		}
	}
}
