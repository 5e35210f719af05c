package hosts

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddAt brings up a host at an address of the caller's choice. Tools that compute the addresses of all hosts before the first one is up,
// such as Terraform, need it; Up takes the next free address.
func (f *Fleet) AddAt(spec Spec, addr netip.Addr) error {
	if err := f.recordAt(spec, addr); err != nil {
		return fmt.Errorf("host %s: %w", spec.Name, err)
	}
	return f.Up(netip.Prefix{}, spec)
}

// recordAt records a host before anything of it is made.
func (f *Fleet) recordAt(spec Spec, addr netip.Addr) error {
	if !f.rec.Network.Contains(addr) || addr == f.Gateway() {
		return fmt.Errorf("%s is not an address for a host in the network %s of the fleet", addr, f.rec.Network)
	}
	for _, r := range f.rec.Hosts {
		switch {
		case r.Name == spec.Name && r.Address != addr:
			return fmt.Errorf("the host has the address %s already", r.Address)
		case r.Name != spec.Name && r.Address == addr:
			return fmt.Errorf("%s is the address of %s", addr, r.Name)
		}
	}
	known := slices.ContainsFunc(f.rec.Hosts, func(r *hostRecord) bool { return r.Name == spec.Name })
	if err := f.add(spec); err != nil || known {
		return err
	}
	// add has recorded the next free address, of which nothing is made yet.
	f.rec.Hosts[len(f.rec.Hosts)-1].Address = addr
	return f.save()
}
