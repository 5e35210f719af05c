//go:build linux

package hosts

import (
	"net/netip"
	"path/filepath"
	"testing"
)

// TestAddAt guards that a host gets the address that the caller computed before the host existed, whatever the order of the hosts, and
// that no address is given twice.
func TestAddAt(t *testing.T) {
	f := newFleet(t, Spec{Name: "laptop"})
	base := f.Network().Addr().As4()
	at := func(region, n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, base[1], region, n}) }
	for _, tt := range []struct {
		spec   Spec
		addr   netip.Addr
		refuse bool
	}{
		{Spec{Name: "us-3", Region: "us"}, at(2, 3), false},
		{Spec{Name: "eu-1", Region: "eu"}, at(1, 1), false},
		{Spec{Name: "eu-1", Region: "eu"}, at(1, 1), false}, // again
		{Spec{Name: "eu-1", Region: "eu"}, at(1, 2), true},
		{Spec{Name: "eu-2", Region: "eu"}, at(1, 1), true},
		{Spec{Name: "eu-2", Region: "eu"}, f.Gateway(), true},
		{Spec{Name: "eu-2", Region: "eu"}, netip.MustParseAddr("192.0.2.1"), true},
	} {
		err := f.AddAt(tt.spec, tt.addr)
		if (err != nil) != tt.refuse {
			t.Errorf("%s at %s: %v", tt.spec.Name, tt.addr, err)
			continue
		}
		if h, err := f.Host(tt.spec.Name); !tt.refuse && (err != nil || h.Address() != tt.addr || !h.Up()) {
			t.Errorf("%s at %s: %+v, %v", tt.spec.Name, tt.addr, h, err)
		}
	}
	if len(f.Hosts()) != 3 {
		t.Errorf("%d hosts, want 3: a refused host must leave nothing", len(f.Hosts()))
	}
}

// TestIsLeft guards that the hosts of a run which still works are never taken for left ones.
func TestIsLeft(t *testing.T) {
	dir := t.TempDir()
	if IsLeft(dir) || IsLeft(filepath.Join(dir, "missing")) {
		t.Error("a folder without a fleet counts as one")
	}
	f, release, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if IsLeft(dir) {
		t.Error("a fleet that has no host yet counts as left")
	}
	if err := f.save(); err != nil {
		t.Fatal(err)
	}
	if IsLeft(dir) {
		t.Error("an open fleet counts as left")
	}
	if release(); !IsLeft(dir) {
		t.Error("a fleet whose process has ended does not count as left")
	}
}
