package model

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	long = flag.Bool("model.long", false, "exhaust the long presets too and walk for minutes")
	seed = flag.Uint64("model.seed", 1, "seed of the random walks")
)

// modelPage reports what the searches of these tests found.
const modelPage = "../../docs/model.md"

// wantRow checks that the page reports a result: the row of a name ends with the given columns.
func wantRow(t *testing.T, name, end string) {
	t.Helper()
	page, err := os.ReadFile(modelPage)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n| `"+name+"`")
	if line, _, _ := strings.Cut(rest, "\n"); !strings.HasSuffix(line, end) {
		t.Errorf("%s: the row of %s ends with %q, want %q", modelPage, name, line, end)
	}
}

// thousands formats n with commas, as the page does.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestProtocolIsSafe checks that the protocol breaks no invariant within the bounds of each preset, and that docs/model.md reports the sizes
// of the searches.
func TestProtocolIsSafe(t *testing.T) {
	var (
		mu    sync.Mutex // guards taken
		taken [actionKinds]int
	)
	t.Run("exhaust", func(t *testing.T) {
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
				if res.Violation != nil {
					t.Fatalf("%v\n%v", p.Config, res.Violation)
				}
				if !res.Exhausted {
					t.Fatalf("%v: not exhausted after %d states", p.Config, res.States)
				}
				wantRow(t, p.Name, fmt.Sprintf("| %s | %s | %d |", thousands(res.States), thousands(res.Transitions), res.Depth))
				mu.Lock()
				defer mu.Unlock()
				for k, n := range res.taken {
					taken[k] += n
				}
				t.Logf("%v: %d states, %d transitions, depth %d, %.1fs", p.Config, res.States, res.Transitions, res.Depth, res.Elapsed.Seconds())
			})
		}
	})
	if t.Failed() {
		return
	}
	for k := actWrite; k < actionKinds; k++ {
		// No node waits with an alarm while the damage is within the bounds.
		if taken[k] == 0 && k != actAlarm {
			t.Errorf("no preset ever takes the step %q", Action{kind: k})
		}
	}
}

// TestWalksAreSafe follows random walks to states beyond the exhaustive searches.
func TestWalksAreSafe(t *testing.T) {
	limits := Limits{Steps: 200_000}
	if *long {
		limits = Limits{Time: 5 * time.Minute}
	}
	for _, p := range Walks() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", *seed)
			res, err := Walk(p.Config, *seed, limits)
			if err != nil {
				t.Fatal(err)
			}
			if res.Violation != nil {
				t.Fatalf("%v\n%v", p.Config, res.Violation)
			}
			t.Logf("%v: %d steps, %.1fs", p.Config, res.Transitions, res.Elapsed.Seconds())
		})
	}
}

// TestWalkIsReproducible checks that a seed determines a walk.
func TestWalkIsReproducible(t *testing.T) {
	cfg := Walks()[0].Config
	a, err := Walk(cfg, 7, Limits{Steps: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Walk(cfg, 7, Limits{Steps: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Walk(cfg, 8, Limits{Steps: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	if a.taken != b.taken || a.taken == c.taken {
		t.Errorf("seed 7 took %v, then %v; seed 8 %v", a.taken, b.taken, c.taken)
	}
}

// TestReductionsHideNothing checks the reductions: without them every mutation breaks the same
// invariant after the same number of steps, and the whole protocol breaks none.
func TestReductionsHideNothing(t *testing.T) {
	for _, name := range []string{
		"", "fence", "elect-from-isr", "shrink-after-commit", "join-from-start", "compare-and-set",
		"new-epoch-after-restart", "handover-no-pending", "publish-needs-all", "closed-fenced", "durable-clock",
		"exclusion-listed", "exclusion-after-restart",
		"relearn", "prepare-quorum", "best-by-end", "life-counted", "fetch-recounts", "match-per-life", "lives-from-proposer",
	} {
		t.Run("without "+name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Epochs: 2, Messages: 1, Rounds: 1, Secondaries: 2}
			if f, ok := MutationByName(name); ok {
				cfg = f.Config
			}
			want := explore(t, cfg)
			cfg.raw = true
			if got := explore(t, cfg); !sameVerdict(want, got) {
				t.Errorf("with dead information kept: %v, want %v", got, want)
			}
			cfg.raw, cfg.named = false, true
			if got := explore(t, cfg); !sameVerdict(want, got) {
				t.Errorf("with names kept: %v, want %v", got, want)
			}
		})
	}
}

func explore(t *testing.T, cfg Config) Result {
	t.Helper()
	res, err := Explore(cfg, Limits{States: 2_000_000})
	if err != nil {
		t.Fatal(err)
	}
	if res.Violation == nil && !res.Exhausted {
		t.Fatalf("%v: not exhausted after %d states", cfg, res.States)
	}
	return res
}

// sameVerdict compares verdicts. Which of several shortest traces is found may differ.
func sameVerdict(a, b Result) bool {
	if a.Violation == nil || b.Violation == nil {
		return a.Violation == b.Violation
	}
	return a.Violation.Invariant == b.Violation.Invariant && len(a.Violation.Trace) == len(b.Violation.Trace)
}

// TestStateHasNoPadding checks that a state consists of one-byte fields, on which rawBytes and ==
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

// TestFingerprintIgnoresNames checks, in every state of a walk, that fingerprints and marks do not
// depend on the names of replicas and that different states differ in them.
func TestFingerprintIgnoresNames(t *testing.T) {
	for _, p := range Walks() {
		cfg := p.Config.withDefaults()
		s := newState(&cfg)
		g := &stepper{cfg: &cfg}
		for n := range 300 {
			print := s.fingerprint(false)
			for k := range renamings {
				r := &renamings[k]
				u := s.renamed(r)
				if u.fingerprint(false) != print {
					t.Fatalf("%s: step %d: renamed by %v the fingerprint differs", p.Name, n, *r)
				}
				for i := range Replicas {
					if u.replicaMark(int(r[i])) != s.replicaMark(i) {
						t.Fatalf("%s: step %d: mark of %d renamed by %v differs", p.Name, n, i, *r)
					}
				}
			}
			steps := g.successors(&s)
			if len(steps) == 0 {
				break
			}
			next := steps[n*7919%len(steps)].next
			cfg.normaliseState(&next)
			if u := next; u != s && u.fingerprint(true) == s.fingerprint(true) {
				t.Fatalf("%s: step %d: two states share a fingerprint", p.Name, n)
			}
			again := next
			cfg.normaliseState(&again)
			if again != next {
				t.Fatalf("%s: step %d: normalising twice changes the state", p.Name, n)
			}
			s = next
		}
	}
}

func TestQuorums(t *testing.T) {
	for _, c := range []struct {
		members    set
		slack, min int
		ack, elect int
	}{
		{0b111, 0, 2, 3, 1},
		{0b110, 0, 2, 2, 1},
		{0b111, 1, 2, 2, 2},
		{0b101, 1, 2, 2, 1},
		{0b111, 1, 3, 3, 1},
		{0b001, 0, 1, 1, 1},
	} {
		cfg := Config{Slack: c.slack, MinInSync: c.min}
		if a, e := cfg.ackQuorum(c.members), cfg.electQuorum(c.members); a != c.ack || e != c.elect {
			t.Errorf("%03b slack %d min %d: %d to commit, %d to elect; want %d, %d", c.members, c.slack, c.min, a, e, c.ack, c.elect)
		}
	}
}

func TestVisited(t *testing.T) {
	v := newVisited()
	const n = 20_000 // grows the table several times
	for i := range uint32(n) {
		if got, fresh := v.add(uint64(i)*0x9e3779b97f4a7c15, i/2); got != i || !fresh {
			t.Fatalf("state %d got number %d, fresh %v", i, got, fresh)
		}
	}
	for i := range uint32(n) {
		if got, fresh := v.add(uint64(i)*0x9e3779b97f4a7c15, 0); got != i || fresh {
			t.Fatalf("state %d found again as %d, fresh %v", i, got, fresh)
		}
	}
	path := v.pathTo(n - 1)
	if last := path[len(path)-1]; last != v.prints[n-1] || len(path) != 15 {
		t.Errorf("path of %d steps ends at %x", len(path), last)
	}
}

func TestLimits(t *testing.T) {
	res, err := Explore(small, Limits{States: 500})
	if err != nil || res.Exhausted || res.States < 500 || res.States > 600 {
		t.Errorf("limit of 500 states: %d states, exhausted %v, %v", res.States, res.Exhausted, err)
	}
	if _, err := Walk(small, 1, Limits{}); err == nil {
		t.Error("a walk without an end was begun")
	}
}

func TestConfigValidate(t *testing.T) {
	for want, cfg := range map[string]Config{
		"Epochs is 0":               {Messages: 1, Secondaries: 2},
		"Writes is 8":               {Epochs: 1, Writes: 8, Messages: 1, Secondaries: 2},
		"Messages is 5":             {Epochs: 1, Messages: 5, Secondaries: 2},
		"Slack is 2":                {Epochs: 1, Messages: 1, Secondaries: 2, Slack: 2},
		"MinInSync is 3":            {Epochs: 1, Messages: 1, Secondaries: 1, MinInSync: 3},
		"Damages is 8":              {Epochs: 1, Messages: 1, Secondaries: 2, Damages: 8},
		"Closed is 4, want 0 to 3":  {Epochs: 1, Messages: 1, Secondaries: 2, Closed: 4},
		"Secondaries is 0, want 1 ": {Epochs: 1, Messages: 1},
	} {
		if _, err := Explore(cfg, Limits{States: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}
