package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// TestMaterials guards that the bill of materials of a real program names its modules with their checksums, and has the same bytes each
// time. The program is this command: it imports a module.
func TestMaterials(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		if err := writeMaterials(w, program, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two bills of one program differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&a, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if got, want := bom.Metadata.Component.PackageURL, "pkg:golang/github.com/rhumbdb/rhumb@v1.2.3"; got != want {
		t.Errorf("program %s, want %s", got, want)
	}
	seen := map[string]string{}
	for _, c := range *bom.Components {
		seen[c.Name] = c.Version
		if c.Name != "std" && (c.Hashes == nil || len((*c.Hashes)[0].Value) != 64) {
			t.Errorf("%s has no checksum", c.Name)
		}
	}
	if got, want := seen["std"], strings.TrimPrefix(runtime.Version(), "go"); got != want {
		t.Errorf("standard library %q, want %q", got, want)
	}
	if seen["github.com/CycloneDX/cyclonedx-go"] == "" {
		t.Errorf("a module is missing: %v", seen)
	}
}

// TestNoProgram guards that a file which Go has not built is an error that names it.
func TestNoProgram(t *testing.T) {
	name := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(name, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeMaterials(&bytes.Buffer{}, name, "v1"); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want one that names %s", err, name)
	}
	for _, sum := range []string{"", "h1:", "h1:####", "h2:AAAA", "h1:AAAA"} {
		if digest, err := moduleHash(sum); err == nil {
			t.Errorf("checksum %q is %s", sum, digest)
		}
	}
}
