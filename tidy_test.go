package rhumb_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/rhumbdb/rhumb"

// layers lists every package, lowest first. A package may import only packages on a lower line: there is no sideways and
// no upward import. To add a package, write it here; to break a cycle, declare an interface on the consumer's side
// instead of moving a line.
var layers = [][]string{
	{"."},
	{"identity", "authority/token", "freeport", "node/gate"},
	{"identity/identitytest", "authority/ledger"},
	{"deploy/hosts"},
	{"cli/contexts", "cli/secret", "authority"},
	{"access", "audit", "hlc", "keys", "geo", "entry", "wan", "api/rhumbpb", "bench/chart", "bench/disk", "bench/load", "cli/doctor", "cli/exit", "cli/flags", "node/closed", "node/memory", "snapshot/format", "snapshot/shm"},
	{"cli/settings", "authority/enroll", "storage/nodelog"},
	{"sched", "geo/rtt", "api", "storage", "raftmeta/catalog", "node/replica", "node/lease", "sim/check", "sim/model", "sim/voter", "sim/merging", "snapshot/rtree", "bench/roads"},
	{"api/link", "node/tally"},
	{"raftmeta/place", "node/digest", "node/transfer", "storage/storagetest", "bench/rounds", "client/login", "client/stream", "snapshot/segment", "snapshot/reader"},
	{"raftmeta", "client", "node/session", "snapshot/roll", "snapshot/inspect"},
	{"snapshot", "cli/target", "cli/upgrade"},
	{"node/host", "node/route", "node/peer", "node/admin", "node/server", "node/publish"},
	{"node"},
	{"sim", "bench", "bench/image", "ingest", "demo", "jepsen/local"},
	{"bench/sidebyside", "examples/live", "cli/output", "cli/connect", "cli/health", "cli/probe"},
	{"examples/router", "examples/tiles", "cli/imagecmd", "cli/benchcmd"},
	{"cmd/rhumb", "deploy/hostctl", "deploy/release", "sim/modelcheck", "sim/sizing", "jepsen/chaos"},
}

// pure lists the packages that may not start goroutines or know about clocks, chance, locks, files or the network, so
// that one seed replays one run. Only time's plain data, such as time.Duration, is allowed.
var pure = []string{
	".", "access", "entry", "keys", "geo", "geo/rtt", "raftmeta/place", "raftmeta/catalog", "node/closed", "node/replica", "node/tally", "node/lease",
	"snapshot/format", "snapshot/roll", "snapshot/rtree", "cli/doctor", "cli/exit", "cli/health", "cli/upgrade",
}

// carriesContext lists the pure packages that may import context, because their values travel in one.
var carriesContext = []string{"access"}

var impure = []string{"context", "math/rand", "math/rand/v2", "net", "os", "sync", "sync/atomic", "syscall"}

var impureTime = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// owners names, for each outside module, the only packages that may import it, so that replacing one touches one place.
var owners = map[string][]string{
	"github.com/CycloneDX/cyclonedx-go": {"deploy/release"},
	"github.com/anishathalye/porcupine": {"sim/check"},
	"github.com/cockroachdb/pebble":     {"storage", "storage/nodelog", "storage/storagetest"},
	"github.com/coreos/go-systemd":      {"cmd/rhumb", "deploy/hosts"},
	"github.com/elastic/go-seccomp-bpf": {"deploy/hosts"},
	"github.com/fxamacker/cbor":         {"raftmeta", "raftmeta/catalog"},
	"github.com/hashicorp/golang-lru":   {"client", "node/gate", "node/session"},
	"github.com/hashicorp/go-msgpack":   {"node/peer"},
	"github.com/hashicorp/memberlist":   {"node/peer"},
	"github.com/klauspost/compress":     {"snapshot/inspect"},
	"github.com/knadh/koanf":            {"cli/settings", "node"},
	"github.com/paulmach/orb":           {"examples/tiles"},
	"golang.org/x/time":                 {"jepsen/local", "node/gate", "node/session"},
	"github.com/xdg-go/scram":           {"client/login", "node/session"},
	"github.com/spf13/cobra":            {"cmd/rhumb", "deploy/hostctl", "cli/benchcmd", "cli/flags", "cli/imagecmd", "jepsen/chaos"},
	"go.etcd.io/raft":                   {"raftmeta"},
	"go.yaml.in/yaml":                   {"cli/contexts", "cli/output", "ingest", "wan"},
	"gonum.org/v1/plot":                 {"bench", "bench/chart", "bench/image", "jepsen/local"},
	"github.com/planetscale/vtprotobuf": {"api/rhumbpb"},
	"google.golang.org/grpc":            {"api", "api/link", "api/rhumbpb", "client", "client/login", "client/stream", "identity", "node", "node/peer", "node/server", "node/session"},
	"google.golang.org/protobuf": {
		"api", "api/link", "api/rhumbpb", "node", "node/admin", "node/host", "node/peer", "node/route", "node/server", "node/session",
		"raftmeta", // its messages are raftpb
	},
}

// bannedNames say nothing about what a package provides.
var bannedNames = []string{"base", "common", "core", "helper", "helpers", "lib", "misc", "shared", "types", "util", "utils"}

var todoRE = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)

// depthMax is the greatest number of folders above a Go file.
const depthMax = 2

func TestTidy(t *testing.T) {
	level := map[string]int{}
	for i, dirs := range layers {
		for _, dir := range dirs {
			level[dir] = i
		}
	}
	docs := map[string][]string{}
	fset := token.NewFileSet()
	for _, name := range sourceFiles(t) {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		tidyComments(t, fset, file)
		if ast.IsGenerated(file) || strings.HasSuffix(name, "_test.go") {
			continue
		}
		dir := path.Dir(name)
		docs[dir] = append(docs[dir], file.Doc.Text())
		tidyShape(t, name, file)
		tidyImports(t, level, dir, name, file)
		tidyExported(t, fset, file)
		if slices.Contains(pure, dir) {
			tidyPure(t, fset, dir, file)
		}
	}
	for dir, texts := range docs {
		n := len(slices.DeleteFunc(texts, func(s string) bool { return s == "" }))
		if n != 1 {
			t.Errorf("%s: %d package comments, want 1", dir, n)
		}
	}
}

// sourceFiles lists the Go files of this module.
func sourceFiles(t *testing.T) (names []string) {
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			if path.Ext(name) == ".go" {
				names = append(names, name)
			}
			return nil
		}
		base := path.Base(name)
		if name != "." && (base == "testdata" || strings.HasPrefix(base, ".")) {
			return fs.SkipDir
		}
		if _, err := os.Stat(path.Join(name, "go.mod")); err == nil && name != "." {
			return fs.SkipDir // another module
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// tidyComments checks that a file, tests included, defers no work.
func tidyComments(t *testing.T, fset *token.FileSet, file *ast.File) {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if todoRE.MatchString(c.Text) {
				t.Errorf("%s: do it now or list it in docs/roadmap.md", fset.Position(c.Pos()))
			}
		}
	}
}

// tidyShape checks where a file lies and what its package is called.
func tidyShape(t *testing.T, name string, file *ast.File) {
	if depth := strings.Count(name, "/"); depth > depthMax {
		t.Errorf("%s: %d folders deep, want at most %d", name, depth, depthMax)
	}
	if slices.Contains(bannedNames, file.Name.Name) {
		t.Errorf("%s: package %s says nothing; name what it provides", name, file.Name.Name)
	}
}

// tidyImports checks in which direction one file imports.
func tidyImports(t *testing.T, level map[string]int, dir, name string, file *ast.File) {
	from, ok := level[dir]
	if !ok {
		t.Errorf("%s: package %s is not in layers", name, dir)
	}
	for _, spec := range file.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		for mod, dirs := range owners {
			if strings.HasPrefix(imp, mod) && !slices.Contains(dirs, dir) {
				t.Errorf("%s: imports %s, which belongs to %q", name, imp, dirs)
			}
		}
		to, ours := strings.CutPrefix(imp, module)
		if !ours {
			continue
		}
		to = cmp.Or(strings.TrimPrefix(to, "/"), ".")
		if level[to] >= from {
			t.Errorf("%s: imports %s (layer %d) from layer %d", name, to, level[to], from)
		}
	}
}

// tidyExported checks that every exported name is documented. A group of constants or variables may share one comment;
// methods that only implement fmt.Stringer or error speak for themselves.
func tidyExported(t *testing.T, fset *token.FileSet, file *ast.File) {
	undocumented := func(id *ast.Ident) {
		if id.IsExported() {
			t.Errorf("%s: %s is exported and has no comment", fset.Position(id.Pos()), id.Name)
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && (d.Recv == nil || exportedReceiver(d) && d.Name.Name != "String" && d.Name.Name != "Error") {
				undocumented(d.Name)
			}
		case *ast.GenDecl:
			if d.Doc != nil {
				continue
			}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Doc == nil {
						undocumented(s.Name)
					}
				case *ast.ValueSpec:
					if s.Doc == nil && s.Comment == nil {
						undocumented(s.Names[0])
					}
				}
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	for n := range ast.Preorder(d.Recv.List[0].Type) {
		if id, ok := n.(*ast.Ident); ok {
			return id.IsExported()
		}
	}
	return false
}

// tidyPure checks that one file of a pure package has no hidden input.
func tidyPure(t *testing.T, fset *token.FileSet, dir string, file *ast.File) {
	for _, spec := range file.Imports {
		imp, _ := strconv.Unquote(spec.Path.Value)
		if slices.Contains(impure, imp) && (imp != "context" || !slices.Contains(carriesContext, dir)) {
			t.Errorf("%s: a pure package imports %s", fset.Position(spec.Pos()), imp)
		}
	}
	for n := range ast.Preorder(file) {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s: a pure package starts a goroutine", fset.Position(n.Pos()))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(impureTime, n.Sel.Name) {
				t.Errorf("%s: a pure package calls time.%s", fset.Position(n.Pos()), n.Sel.Name)
			}
		}
	}
}

// TestAssemblyMixesNoEncodings looks for instructions in the old SSE encoding in assembly for amd64, which is AVX all over. On Zen 3
// one such instruction among the others made multi-gets three times as slow.
func TestAssemblyMixesNoEncodings(t *testing.T) {
	vector, old := regexp.MustCompile(`\b[XYZ]\d+\b`), regexp.MustCompile(`^\s+([A-UW-Z]\w*)\s`)
	found := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_amd64.s") {
			return err
		}
		found++
		text, err := os.ReadFile(name)
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if op := old.FindStringSubmatch(code); op != nil && vector.MatchString(code) {
				t.Errorf("%s:%d: %s with a vector register; take V%s", name, i+1, op[1], op[1])
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d files of assembly, %v", found, err)
	}
}
