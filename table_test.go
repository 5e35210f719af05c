package rhumb

import "testing"

func TestSnapshotFeatures(t *testing.T) {
	for s, want := range map[string]SnapshotFeatures{
		"":                       0,
		"plain":                  SnapshotOn,
		"spatial":                SnapshotOn | SnapshotSpatial,
		"spatial,ordered":        SnapshotOn | SnapshotSpatial | SnapshotOrdered,
		"spatial,ordered,summed": SnapshotNever - 1,
		"never":                  SnapshotNever,
	} {
		got, err := ParseSnapshotFeatures(s)
		if err != nil || got != want || got.String() != s || got.Validate() != nil {
			t.Errorf("%q is %d (%q), %v; want %d", s, got, got, err, want)
		}
	}
	if got, err := ParseSnapshotFeatures("ordered,spatial"); err != nil || got.String() != "spatial,ordered" {
		t.Errorf("features in another order: %q, %v", got, err)
	}
	for _, s := range []string{"hash", "spatial,", "Spatial", "never,spatial", "spatial,never"} {
		if _, err := ParseSnapshotFeatures(s); KindOf(err) != InvalidArgument {
			t.Errorf("%q is refused with %v", s, err)
		}
	}
	for _, f := range []SnapshotFeatures{SnapshotSpatial, SnapshotNever | SnapshotOn, SnapshotNever | SnapshotSpatial, 32, 255} {
		if KindOf(f.Validate()) != InvalidArgument {
			t.Errorf("features %d are not refused", f)
		}
	}
}

// TestParseSurvival guards the texts of survival goals.
func TestParseSurvival(t *testing.T) {
	for text, want := range map[string]Survival{"": 0, "zone": SurviveZone, "region": SurviveRegion} {
		if s, err := ParseSurvival(text); err != nil || s != want {
			t.Errorf("%q: %v, %v; want %v", text, s, err, want)
		}
	}
	if s, err := ParseSurvival("Zone"); KindOf(err) != InvalidArgument {
		t.Errorf("Zone is accepted as %v: %v", s, err)
	}
}
