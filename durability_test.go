package rhumb_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestParseDurability guards the texts of durability, which users type and programs read.
func TestParseDurability(t *testing.T) {
	for text, want := range map[string]rhumb.Durability{
		"": rhumb.Synced, "sync": rhumb.Synced, "deferred=1ms": rhumb.DeferMin, "deferred=10s": rhumb.DeferMax,
		"deferred=50ms": rhumb.Durability(50 * time.Millisecond),
	} {
		d, err := rhumb.ParseDurability(text)
		if err != nil || d != want {
			t.Errorf("%q: %v, %v; want %v", text, d, err, want)
		}
		if again, err := rhumb.ParseDurability(d.String()); err != nil || again != d {
			t.Errorf("%q becomes %q, which is %v, %v", text, d, again, err)
		}
	}
	for _, text := range []string{"deferred", "deferred=", "deferred=0s", "deferred=-5ms", "deferred=999us", "deferred=11s", "async", "sync=5ms", "50ms"} {
		if d, err := rhumb.ParseDurability(text); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%q is accepted as %v: %v", text, d, err)
		}
	}
	b, err := json.Marshal(rhumb.ClassSettings{Durability: rhumb.Durability(50 * time.Millisecond)})
	var c rhumb.ClassSettings
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.Durability.Window() != 50*time.Millisecond {
		t.Errorf("JSON %s becomes %v, %v", b, c.Durability, err)
	}
}
