package rhumb_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quotedRE = regexp.MustCompile("`([^`\n]+)`")
	placeRE  = regexp.MustCompile(`^[a-z_]+(/[a-z_]+)*(\.go|\.proto)?$`)
	goNameRE = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)?$`)
	lifeRE   = regexp.MustCompile(`(?m)^//\t(\S+\.go)\s+(\S+)\s`)
)

// TestChangingPage checks that the files on docs/changing.md exist, and that each name behind a file is declared there. A name in
// backquotes belongs to the file before it in the same item of a list.
func TestChangingPage(t *testing.T) {
	text, err := os.ReadFile("docs/changing.md")
	if err != nil {
		t.Fatal(err)
	}
	files, names := 0, 0
	for _, item := range regexp.MustCompile(`(?m)^(\d+\.|#)`).Split(string(text), -1) {
		place := ""
		for _, m := range quotedRE.FindAllStringSubmatch(item, -1) {
			quoted := m[1]
			switch _, err := os.Stat(quoted); {
			case err == nil:
				place = quoted
				files++
			case placeRE.MatchString(quoted) && strings.ContainsAny(quoted, "/."):
				t.Errorf("docs/changing.md names %s, which does not exist", quoted)
			case place != "" && goNameRE.MatchString(quoted) && quoted != strings.ToLower(quoted) && quoted != strings.ToUpper(quoted):
				names++
				if !declares(t, place, quoted) {
					t.Errorf("docs/changing.md: %s does not declare %s", place, quoted)
				}
			}
		}
	}
	if files < 30 || names < 15 {
		t.Errorf("found %d files and %d names on the page: the test does not read it", files, names)
	}
}

// TestLives checks that the functions which the comment of this package lists on the paths of a Put and a Get exist.
func TestLives(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	steps := lifeRE.FindAllStringSubmatch(string(text), -1)
	if len(steps) < 20 {
		t.Fatalf("found %d steps: the test does not read the comment", len(steps))
	}
	for _, step := range steps {
		if !declares(t, step[1], step[2]) {
			t.Errorf("doc.go: %s does not declare %s", step[1], step[2])
		}
	}
}

// declares reports whether a file, or a Go file of a folder, declares a name, which is NAME or TYPE.METHOD. In a file that is not Go
// the name has to occur as a word.
func declares(t *testing.T, place, name string) bool {
	files := []string{place}
	if info, err := os.Stat(place); err == nil && info.IsDir() {
		files, _ = filepath.Glob(place + "/*.go")
	}
	return slices.ContainsFunc(files, func(file string) bool {
		if path.Ext(file) != ".go" {
			text, err := os.ReadFile(file)
			return err == nil && regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).Match(text)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			return false
		}
		return slices.Contains(declared(parsed), name)
	})
}

// declared returns the names of all functions, methods, types, constants and variables of a file.
func declared(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, receiverPrefix(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	return names
}

// receiverPrefix returns "TYPE." for a method and "" for a function.
func receiverPrefix(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	for n := range ast.Preorder(d.Recv.List[0].Type) {
		if id, ok := n.(*ast.Ident); ok {
			return id.Name + "."
		}
	}
	return ""
}
