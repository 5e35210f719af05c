package rhumb_test

import (
	"io/fs"
	"net/url"
	"os"
	"path"
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
	return slices.ContainsFunc(headingRE.FindAllStringSubmatch(text, -1), func(m []string) bool {
		return anchor(m[1]) == fragment
	})
}

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
