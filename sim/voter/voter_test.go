package voter

import (
	"flag"
	"reflect"
	"strings"
	"testing"
)

var long = flag.Bool("model.long", false, "exhaust the long presets too")

// TestRuleIsSafe checks that the rule breaks no invariant within the bounds of each preset.
func TestRuleIsSafe(t *testing.T) {
	for _, p := range Presets() {
		t.Run(p.Name, func(t *testing.T) {
			if !p.Short && !*long {
				t.Skip("exhausted with -model.long only")
			}
			t.Parallel()
			res, err := Explore(p.Config, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if res.Broken != 0 || !res.Exhausted {
				t.Fatalf("%v: exhausted %v, %v", p.Config, res.Exhausted, &res)
			}
			t.Logf("%v: %d states, %d transitions, depth %d, %.1fs", p.Config, res.States, res.Transitions, res.Depth, res.Elapsed.Seconds())
		})
	}
}

// TestFindings checks that every part of the rule is needed, and that exceeding the failures it is
// made for breaks it.
func TestFindings(t *testing.T) {
	caught := map[Mutation]bool{WholeRule: true}
	for _, f := range Findings() {
		caught[f.Mutation] = true
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			res, err := Explore(f.Config, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if res.Broken != f.Breaks {
				t.Errorf("%v: %d states, want broken: %v\n%v", f.Config, res.States, f.Breaks, &res)
			}
			t.Logf("%s: %v after %d steps; %d states, %.1fs", f.Name, res.Broken, len(res.Trace), res.States, res.Elapsed.Seconds())
		})
	}
	for m := range mutations {
		if !caught[m] {
			t.Errorf("mutation %d is not in the table", m)
		}
	}
}

// TestStateHasNoPadding checks that a state consists of one-byte fields, on which hashing and ==
// depend.
func TestStateHasNoPadding(t *testing.T) {
	var walk func(reflect.Type) uintptr
	walk = func(ty reflect.Type) uintptr {
		switch ty.Kind() {
		case reflect.Struct:
			var n uintptr
			for f := range ty.Fields() {
				n += walk(f.Type)
			}
			return n
		case reflect.Array:
			return uintptr(ty.Len()) * walk(ty.Elem())
		case reflect.Uint8:
			return 1
		}
		t.Fatalf("%v is in the state and is not one byte", ty)
		return 0
	}
	ty := reflect.TypeFor[state]()
	if n := walk(ty); n != ty.Size() {
		t.Errorf("fields take %d bytes of %d", n, ty.Size())
	}
}

// TestFingerprintIgnoresNames checks that fingerprints do not depend on the names of voters.
func TestFingerprintIgnoresNames(t *testing.T) {
	cfg := Config{
		Voters: 3, Terms: 3, Entries: 3, Restarts: 3, Damages: 2, Damaged: 2, Messages: 2, Asking: true, Admission: true, Images: true,
	}.withDefaults()
	names := allRenamings(cfg.Voters)
	s := newState(&cfg)
	g := &stepper{cfg: &cfg}
	for n := range 2000 {
		print := s.fingerprint(names)
		for k := range names {
			if u := s.renameVoters(&names[k]); u.fingerprint(names) != print {
				t.Fatalf("step %d: renamed by %v the fingerprint differs", n, names[k])
			}
		}
		steps := g.listSteps(&s)
		if len(steps) == 0 {
			s = newState(&cfg)
			continue
		}
		s = steps[n*7919%len(steps)].next
		s.dropDeadMessages(&cfg)
	}
}

func TestValidate(t *testing.T) {
	for want, cfg := range map[string]Config{
		"Voters is 4":    {Voters: 4, Terms: 1, Messages: 1},
		"Terms is 0":     {Voters: 3, Messages: 1},
		"Answers is 3":   {Voters: 3, Terms: 1, Messages: 1, Answers: 3},
		"Damages is 2":   {Voters: 3, Terms: 1, Messages: 1, Restarts: 1, Damages: 2},
		"Messages is 0,": {Voters: 3, Terms: 1},
	} {
		if _, err := Explore(cfg, Limits{States: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}
