package voter

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

var long = flag.Bool("model.long", false, "exhaust the long presets too")

// modelPage reports what the searches of these tests found.
const modelPage = "../../docs/model.md"

func readModelPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(modelPage)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// thousands formats n with commas, as the page does.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestRuleIsSafe checks that the rule breaks no invariant within the bounds of each preset, and that
// docs/model.md reports what the search finds.
func TestRuleIsSafe(t *testing.T) {
	page := readModelPage(t)
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
			row := fmt.Sprintf("| `%s` | %v | %s | %s | %d |", p.Name, p.Config, thousands(res.States), thousands(res.Transitions), res.Depth)
			if !strings.Contains(page, row) {
				t.Errorf("%s lacks the row\n%s", modelPage, row)
			}
		})
	}
}

// TestFindings checks that every part of the rule is needed, and that exceeding the failures it is
// made for breaks it.
func TestFindings(t *testing.T) {
	page := readModelPage(t)
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
			_, rest, found := strings.Cut(page, "| `"+f.Name+"`: ")
			line, _, _ := strings.Cut(rest, "\n")
			if end := fmt.Sprintf("| %v | %d |", f.Breaks, len(res.Trace)); !found || !strings.HasSuffix(line, end) {
				t.Errorf("%s: the row of %s ends with %q, want %q", modelPage, f.Name, line, end)
			}
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

// TestLimits checks that a search which reaches a limit ends and does not count as exhausted.
func TestLimits(t *testing.T) {
	for name, l := range map[string]Limits{"states": {States: 500}, "time": {Time: 1}} {
		res, err := Explore(readmission, l)
		if err != nil || res.Exhausted || res.States == 0 || res.Broken != 0 {
			t.Errorf("%s: exhausted %v after %d states, %v", name, res.Exhausted, res.States, err)
		}
		if max := 2_000; name == "states" && res.States > max {
			t.Errorf("%d states, want about %d", res.States, l.States)
		}
	}
}

// TestTrace checks that a trace is the way to the broken invariant: its steps are possible one after
// another from the start, and only the last breaks anything.
func TestTrace(t *testing.T) {
	f := Findings()[0]
	res, err := Explore(f.Config, Limits{})
	if err != nil || res.Broken == 0 {
		t.Fatalf("broken %v, %v", res.Broken, err)
	}
	cfg := f.Config.withDefaults()
	reached := []state{newState(&cfg)}
	for i, want := range res.Trace {
		var next []state
		broken := false
		for k := range reached {
			g := &stepper{cfg: &cfg}
			for _, st := range g.listSteps(&reached[k]) {
				if st.act.String() != want {
					continue
				}
				broken = broken || st.broken == res.Broken
				if st.broken == 0 {
					next = append(next, st.next)
				}
			}
		}
		if last := i == len(res.Trace)-1; broken != last || len(next) == 0 && !last {
			t.Fatalf("step %d, %q: breaks %v, possible in %d ways", i+1, want, broken, len(next))
		}
		reached = next
	}
	if s := res.String(); !strings.Contains(s, res.Broken.String()) || !strings.Contains(s, "   1  "+res.Trace[0]) {
		t.Errorf("the report lacks the invariant or the first step:\n%s", s)
	}
}
