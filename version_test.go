package rhumb

import (
	"strings"
	"testing"
)

// TestVersions guards the list of versions: without gaps, each feature in exactly one of them, and the
// newest one supported.
func TestVersions(t *testing.T) {
	seen := map[Feature]ClusterVersion{}
	for i, v := range versions {
		if v.version != VersionBase+ClusterVersion(i) {
			t.Errorf("version %d at place %d", v.version, i)
		}
		for _, f := range v.features {
			if seen[f] != 0 {
				t.Errorf("feature %s came with versions %d and %d", f, seen[f], v.version)
			}
			seen[f] = v.version
		}
	}
	if last := versions[len(versions)-1].version; last != VersionNewest || VersionNewest-VersionOldest > 1 {
		t.Errorf("the list ends at %d, and the program supports %d to %d", last, VersionOldest, VersionNewest)
	}
	for f := NoFeature + 1; f < featureEnd; f++ {
		if f.String() == "" || seen[f] == 0 || seen[f] != f.Since() {
			t.Errorf("feature %d: name %q, since %d", f, f, f.Since())
		}
		if !VersionNewest.Has(f) || VersionBase.Has(f) {
			t.Errorf("feature %s: base has it: %v, newest has it: %v", f, VersionBase.Has(f), VersionNewest.Has(f))
		}
	}
	if VersionNewest.Has(featureEnd) || !VersionBase.Has(NoFeature) {
		t.Error("an unknown feature is on, or the absence of one is off")
	}
}

// TestBuild guards that the text of a build survives the way through the metadata, and that an old program
// never counts as a new one.
func TestBuild(t *testing.T) {
	for _, b := range []Build{ThisBuild("0.14.0-3-gabc"), {"dev", 1, 1}, {"", 1, 2}, {"a cluster/x", 2, 3}} {
		if got := ParseBuild(b.String()); got != b {
			t.Errorf("%q parsed as %+v, want %+v", b.String(), got, b)
		}
	}
	for _, s := range []string{"", "dev", "dev cluster/", "dev cluster/2", "dev cluster/3-2", "dev cluster/0-2", "dev cluster/1-x", "dev cluster/1-2x"} {
		if got := ParseBuild(s); got.Supports(2) || !got.Supports(1) || got.Program != s {
			t.Errorf("%q parsed as %+v", s, got)
		}
	}
	b := Build{"0.14.0", 2, 3}
	for v, want := range map[ClusterVersion]string{1: "upgrade the cluster to version 2 first", 2: "", 3: "", 4: "install release"} {
		err := b.CheckActive(v)
		if (err == nil) != (want == "") || err != nil && (KindOf(err) != Incompatible || !strings.Contains(err.Error(), want)) {
			t.Errorf("version %d: %v, want %q", v, err, want)
		}
	}
}
