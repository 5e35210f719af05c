package rhumb_test

import (
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	linkRE    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingRE = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenceRE   = regexp.MustCompile("(?ms)^```.*?^```")
	targetRE  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	makeRE    = regexp.MustCompile("(?:`|^|&& )make ([a-z][a-z0-9-]*)")
	anchorRE  = regexp.MustCompile(`<a id="([^"]*)"></a>`)
	testRE    = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	scriptRE  = regexp.MustCompile("`([0-9]{2}_[a-z_]+\\.txt)`")
	bugsRE    = regexp.MustCompile("planted\\s+bugs?\\s+((?:`[a-z-]+`[,\\s]*(?:and\\s+)?)+)")
)

// pages gives the text of every Markdown page by its path.
func pages(t *testing.T) map[string]string {
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		out[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// anchor gives the name under which GitHub links a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c == ' ' || c == '-':
			b.WriteByte('-')
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_':
			b.WriteRune(c)
		}
	}
	return b.String()
}

// Every link of every page leads to a file, and to a heading where it names one.
func TestDocsLinks(t *testing.T) {
	all := pages(t)
	for name, text := range all {
		for _, m := range linkRE.FindAllStringSubmatch(fenceRE.ReplaceAllString(text, ""), -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %q is no link: %v", name, m[1], err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			to := name
			if u.Path != "" {
				to = path.Join(path.Dir(name), u.Path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link to %s leads nowhere", name, m[1])
				continue
			}
			if u.Fragment != "" && !hasHeading(all[to], u.Fragment) {
				t.Errorf("%s: %s has no heading #%s", name, to, u.Fragment)
			}
		}
	}
}

func hasHeading(text, fragment string) bool {
	return hasAnchor(text, fragment) || slices.ContainsFunc(headingRE.FindAllStringSubmatch(text, -1), func(m []string) bool {
		return anchor(m[1]) == fragment
	})
}

func hasAnchor(text, id string) bool { return strings.Contains(text, `<a id="`+id+`"></a>`) }

// Every page under docs can be reached from docs/README.md by following links.
func TestDocsReachable(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{}
	queue := []string{"docs/README.md"}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if reached[name] {
			continue
		}
		reached[name] = true
		for _, m := range linkRE.FindAllStringSubmatch(all[name], -1) {
			to, _, _ := strings.Cut(m[1], "#")
			queue = append(queue, path.Join(path.Dir(name), to))
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("%s cannot be reached from docs/README.md", name)
		}
	}
}

// Every make command that a page names exists.
func TestDocsMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range targetRE.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	for name, text := range pages(t) {
		for line := range strings.Lines(text) {
			for _, m := range makeRE.FindAllStringSubmatch(line, -1) {
				if !targets[m[1]] {
					t.Errorf("%s: the Makefile has no target %s", name, m[1])
				}
			}
		}
	}
}

// The canaries of Jepsen are patches of the present source: one that no longer applies leaves a judge without its test.
func TestCanaryPatches(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is missing, which applies the patches")
	}
	patches, err := filepath.Glob("jepsen/suite/canary/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no patches: %v", err)
	}
	for _, patch := range patches {
		if out, err := exec.CommandContext(t.Context(), git, "apply", "--check", patch).CombinedOutput(); err != nil {
			t.Errorf("%s does not apply: %v\n%s", patch, err, out)
		}
	}
}

const protocolPage = "docs/replication.md"

// citation is a way to cite the protocol: find matches a citation or a list of them, name the names within, and anchor is what
// stands before a name in the anchors of the page. A text without word holds none.
type citation struct {
	word       string
	find, name *regexp.Regexp
	anchor     string
}

const (
	gap = `[\s/]+` // a citation may go on in the next line of a comment
	// modelled is where the mutations of the model, and the table of them, name their rules.
	modelled = `\bRule: "[^"]*"|(?m)^\| \x60[a-z0-9-]+\x60: [^|]*\|[^|]*\|`
	// outside is a text that everybody can have.
	outside = `(?:(?:RFC` + gap + `[0-9]+|TippyDB|thesis),?[\s/(]+)?`
)

var citations = []citation{
	{
		"ule", regexp.MustCompile(`\b[Rr]ules?` + gap + `[A-Z]\b(?:(?:,|,? and|,? or|,? to)` + gap + `[A-Z]\b)*|` + modelled),
		regexp.MustCompile(`(?:^[Rr]ules?` + gap + `|,` + gap + `|(?:and|or|to)` + gap + `|"|\| )([A-Z])\b`), "rule-",
	},
	{"I", regexp.MustCompile(`\bI[0-9]+\b`), regexp.MustCompile(`(I[0-9]+)`), "invariant-"},
	{
		"ection", regexp.MustCompile(outside + `\b[Ss]ections?` + gap + `[0-9]+(?:\.[0-9]+)*|` + modelled),
		regexp.MustCompile(`(?:^[Ss]ections?` + gap + `|"|\| )([0-9]+(?:\.[0-9]+)*)`), "section-",
	},
	// Readers do not have "the design": a citation of it never resolves.
	{"design", regexp.MustCompile(`\b[\w.]+` + gap + `of` + gap + `the` + gap + `design\b`), regexp.MustCompile(`(.+)`), "design "},
}

// Every rule, invariant and section that code or a document cites has its anchor on the page of the protocol.
func TestDocsCitations(t *testing.T) {
	all := sources(t)
	page := all[protocolPage]
	seen := map[string]bool{}
	for _, m := range anchorRE.FindAllStringSubmatch(page, -1) {
		if seen[m[1]] {
			t.Errorf("%s: the anchor %s stands twice", protocolPage, m[1])
		}
		seen[m[1]] = true
	}
	found := 0
	for name, text := range all {
		if name == "docs_test.go" {
			continue
		}
		for _, c := range citations {
			if !strings.Contains(text, c.word) {
				continue
			}
			for _, at := range c.find.FindAllStringIndex(text, -1) {
				for _, m := range c.name.FindAllStringSubmatch(text[at[0]:at[1]], -1) {
					found++
					if id := c.anchor + strings.ToLower(strings.ReplaceAll(m[1], ".", "-")); !hasAnchor(page, id) {
						t.Errorf("%s:%d: %q cites what %s has no anchor %q for", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], protocolPage, id)
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d citations were found", found)
	}
}

// Every test, transcript and planted bug that a document names exists.
func TestDocsNameTests(t *testing.T) {
	all := sources(t)
	exists := map[string]bool{}
	for name, text := range all {
		exists[path.Base(name)] = true
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "storage/storagetest/") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(text, -1) {
			exists[m[1]] = true
		}
	}
	for name, text := range all {
		if !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, re := range []*regexp.Regexp{testRE, scriptRE} {
			for _, m := range re.FindAllStringSubmatch(text, -1) {
				if !exists[m[1]] {
					t.Errorf("%s: there is no %s", name, m[1])
				}
			}
		}
		for _, m := range bugsRE.FindAllStringSubmatch(text, -1) {
			for _, bug := range strings.FieldsFunc(m[1], func(c rune) bool { return c != '-' && (c < 'a' || c > 'z') }) {
				if bug != "and" && !strings.Contains(all["sim/bug.go"], `"`+bug+`"`) {
					t.Errorf("%s: there is no planted bug %s", name, bug)
				}
			}
		}
	}
}

// sources reads everything that people write and read, by its path.
func sources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".md", ".proto", ".txt"}, path.Ext(name)):
			return nil
		}
		text, err := os.ReadFile(name)
		out[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
