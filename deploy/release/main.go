// Command release writes the bill of materials of a program that Go has built: every module in it, with version and checksum, as
// the linker recorded them. The format is CycloneDX in JSON. deploy/release/build.sh calls the command for each release.
//
// The list is taken from the program and not from the module file, so that it describes what is
// shipped: modules that only tests or other platforms use are not in it, and replaced modules are
// named by their replacement.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the program")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: release --version VERSION PROGRAM >PROGRAM.cdx.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := writeMaterials(os.Stdout, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// writeMaterials writes the bill of materials of a program. It has no time and no random serial number, so that a release that is built
// again has the same bytes.
func writeMaterials(w io.Writer, program, version string) error {
	// The linker has recorded the modules of the program. The module file also lists those that only tests need.
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the build information of %s: %w", program, err)
	}
	sum, err := hashFile(program)
	if err != nil {
		return err
	}
	bom := describe(info, version, sum)
	enc := cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON)
	// Releases are compared by people too.
	enc.SetPretty(true)
	return enc.EncodeVersion(bom, cdx.SpecVersion1_5)
}

// describe turns build information into a bill of materials. sum is the SHA-256 of the program.
func describe(info *debug.BuildInfo, version, sum string) *cdx.BOM {
	main := cdx.Component{
		BOMRef: "rhumb", Type: cdx.ComponentTypeApplication, Name: "rhumb", Version: version, PackageURL: packageURL(info.Main.Path, version),
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
	}
	// The flags of the build belong to what makes the bytes.
	properties := []cdx.Property{{Name: "go:version", Value: info.GoVersion}}
	for _, s := range info.Settings {
		properties = append(properties, cdx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	main.Properties = &properties
	// The standard library is in the program too, and has vulnerabilities of its own.
	parts := []cdx.Component{{
		BOMRef: "std", Type: cdx.ComponentTypeLibrary, Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PackageURL: packageURL("std", strings.TrimPrefix(info.GoVersion, "go")),
	}}
	uses := []string{"std"}
	for _, m := range info.Deps {
		// The replacement was compiled, and not the original.
		if m.Replace != nil {
			m = m.Replace
		}
		c := cdx.Component{
			BOMRef: m.Path + "@" + m.Version, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			PackageURL: packageURL(m.Path, m.Version), Scope: cdx.ScopeRequired,
		}
		// A replaced module of this repository has no checksum, and is listed without one.
		if digest, err := moduleHash(m.Sum); err == nil {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest}}
		}
		parts = append(parts, c)
		uses = append(uses, c.BOMRef)
	}
	// All modules hang on the program. Which module needs which is not recorded in a program.
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &uses}}
	return bom
}

// packageURL names a Go module as scanners for vulnerabilities expect it.
func packageURL(path, version string) string { return "pkg:golang/" + path + "@" + version }

// moduleHash returns the hexadecimal digest of a line of go.sum: "h1:" and the base64 of a SHA-256 over the files of the module.
func moduleHash(sum string) (string, error) {
	text, ok := strings.CutPrefix(sum, "h1:")
	if !ok {
		return "", errors.New("unknown kind of checksum")
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("checksum %q: %w", sum, errors.Join(err, errors.New("want 32 bytes")))
	}
	return hex.EncodeToString(b), nil
}

// hashFile returns the SHA-256 of a file.
func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
