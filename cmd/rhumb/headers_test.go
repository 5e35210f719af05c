package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// derivedColumns are those of tables that show in a word what a document has in several fields, or that have a row for each field.
var derivedColumns = map[string]string{
	"LOGIN": "access.go", "SCOPE": "access.go", "IDENTITY": "context.go", "FIELD": "read.go", "TYPE": "read.go",
}

// TestHeadersNameFields guards that whoever has read the header of a table finds the same name in -o json: in lower case, with _ for spaces. A field
// has its unit besides (_bytes, _seconds, _ms), where the table has it in the cell, and "/S" is _per_second. The objects that a table lists are under
// their kind (NODE), and their field may be "id" or "name".
func TestHeadersNameFields(t *testing.T) {
	fields := jsonFields(t, ".", "../../cli/*", "../../client", "../..", "../../audit", "../../ingest", "../../keys")
	headers := 0
	for name, file := range parseDirs(t, ".") {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "AppendHeader" {
				return true
			}
			ast.Inspect(call, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				header, _ := strconv.Unquote(lit.Value)
				headers++
				field := strings.ReplaceAll(strings.ToLower(header), " ", "_")
				if each, ok := strings.CutSuffix(field, "/s"); ok {
					field = each + "_per_second"
				}
				named := slices.ContainsFunc([]string{"", "_bytes", "_seconds", "_ms"}, func(unit string) bool { return fields[field+unit] })
				if !named && derivedColumns[header] != filepath.Base(name) {
					t.Errorf("%s: the column %s has the name of no JSON field", name, header)
				}
				return true
			})
			return true
		})
	}
	if headers < 100 {
		t.Errorf("only %d columns were found", headers)
	}
}

// jsonFields returns the names of all fields that documents of these directories have.
func jsonFields(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	for _, file := range parseDirs(t, dirs...) {
		ast.Inspect(file, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok && f.Tag != nil {
				tag, _ := strconv.Unquote(f.Tag.Value)
				name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				out[name] = true
			}
			return true
		})
	}
	return out
}

// parseDirs returns the Go files of directories that are no tests.
func parseDirs(t *testing.T, dirs ...string) map[string]*ast.File {
	t.Helper()
	out := make(map[string]*ast.File)
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = file
		}
	}
	return out
}
