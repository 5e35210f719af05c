package merging

import (
	"flag"
	"testing"
)

var long = flag.Bool("model.long", false, "exhaust the long presets too")

// presets are the bounds that are exhausted, the last one with -model.long only.
var presets = []Config{
	{Nodes: 2, MinInSync: 1, Writes: 1, Elections: 1, Shrinks: 1, Joins: 1},
	{Nodes: 2, MinInSync: 2, Writes: 1, Elections: 2},
}

// TestRuleIsSafe guards that the merge loses no write and serves no stale read, and that it gets done.
func TestRuleIsSafe(t *testing.T) {
	for i, cfg := range presets {
		if i > 0 && !*long {
			break
		}
		res := Explore(cfg)
		t.Logf("%+v: %d states, %d of them merged", cfg, res.States, res.Merged)
		if res.Broken != "" || res.Merged == 0 {
			t.Errorf("%+v: %v", cfg, &res)
		}
	}
}

// TestMutations guards that every rule is needed.
func TestMutations(t *testing.T) {
	for _, m := range Mutations() {
		t.Run(m.String(), func(t *testing.T) {
			cfg := presets[0]
			cfg.Mutation = m
			res := Explore(cfg)
			if res.Broken == "" {
				t.Error("nothing breaks without the rule")
			}
			t.Logf("%+v: %v", cfg, &res)
		})
	}
}
