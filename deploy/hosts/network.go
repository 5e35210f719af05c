//go:build linux

package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// The second octets of the networks that a fleet may choose.
const (
	octetFirst = 77
	octetLast  = 126
)

// claimLock keeps fleets from choosing the same network at the same time.
const claimLock = "/run/lock/rhumb-hosts.lock"

// claim chooses the network of the fleet, records it and makes its bridge.
//
// Networks differ between fleets so that tests run at the same time, and so that a forgotten fleet
// of yesterday does not break the one of today.
func (f *Fleet) claim(want netip.Prefix) error {
	if f.rec.Network.IsValid() {
		if want.IsValid() && want != f.rec.Network {
			return fmt.Errorf("the network of the fleet is %s, not %s", f.rec.Network, want)
		}
		// The network was claimed by an earlier call.
		if f.rec.Boot != bootID() {
			// The machine was started again: no process and no interface is left.
			for _, r := range f.rec.Hosts {
				r.PID = 0
			}
		}
		return f.makeBridge()
	}
	if want.IsValid() {
		o := want.Addr().As4()
		if want.Bits() != 16 || !want.Addr().Is4() || want.Masked() != want || o[0] != 10 {
			return fmt.Errorf("network %s: want one like 10.77.0.0/16", want)
		}
	}
	// The lock is for the machine, not for the state directory.
	if err := os.MkdirAll(filepath.Dir(claimLock), 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(claimLock)
	if err != nil {
		return err
	}
	defer unlock()
	taken, err := takenNetworks()
	if err != nil {
		return err
	}
	// Addresses of all interfaces count, not only of other fleets: the machine may itself be in 10.0.0.0/8.
	free := func(p netip.Prefix) bool { return !slices.ContainsFunc(taken, p.Overlaps) }
	if want.IsValid() && !free(want) {
		return fmt.Errorf("network %s overlaps with an address of this machine; name another or none", want)
	}
	// The first free network, so that addresses are the same from run to run on a quiet machine.
	for octet := octetFirst; !want.IsValid() && octet <= octetLast; octet++ {
		if p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(octet), 0, 0}), 16); free(p) {
			want = p
		}
	}
	if !want.IsValid() {
		return fmt.Errorf("all networks from 10.%d.0.0/16 to 10.%d.0.0/16 are in use; destroy a fleet", octetFirst, octetLast)
	}
	// Recorded first: a bridge without a record would never be removed. The lock keeps others from taking the same network
	// before the bridge shows that it is taken.
	f.rec.Network = want
	if err := f.save(); err != nil {
		return err
	}
	return f.makeBridge()
}

// takenNetworks lists the networks of this machine's addresses.
func takenNetworks() (taken []netip.Prefix, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			taken = append(taken, p.Masked())
		}
	}
	return taken, err
}

// octet returns the second octet of the network, which makes names unique on the machine.
func (f *Fleet) octet() byte { return f.rec.Network.Addr().As4()[1] }

// bridge returns the name of the bridge.
func (f *Fleet) bridge() string { return fmt.Sprintf("rhb%d", f.octet()) }

// Gateway returns the address of this machine on the bridge.
func (f *Fleet) Gateway() netip.Addr {
	b := f.rec.Network.Addr().As4()
	b[3] = 1
	return netip.AddrFrom4(b)
}

// makeBridge makes the bridge, unless it is there, and assigns this machine's address on it.
func (f *Fleet) makeBridge() error {
	name := f.bridge()
	// An interrupted run may have made the bridge without an address, so the other steps always run.
	if _, err := net.InterfaceByName(name); err != nil {
		if err := ip("link", "add", "name", name, "type", "bridge"); err != nil {
			return err
		}
	}
	// Both are repeatable.
	return errors.Join(
		ip("addr", "replace", netip.PrefixFrom(f.Gateway(), 16).String(), "dev", name),
		ip("link", "set", name, "up"))
}

// removeBridge removes the bridge, if it is there.
func (f *Fleet) removeBridge() error {
	if _, err := net.InterfaceByName(f.bridge()); err != nil {
		return nil
	}
	return ip("link", "del", f.bridge())
}

// namespace is the name of the host's network namespace.
func (h *Host) namespace() string { return fmt.Sprintf("rh%d-%s", h.fleet.octet(), h.rec.Name) }

// outside is the name of the host's interface on the machine. It has at most 15 bytes.
func (h *Host) outside() string {
	// Long names of regions do not fit, so the name is made of numbers.
	b := h.rec.Address.As4()
	return fmt.Sprintf("rh%d.%d.%d", b[1], b[2], b[3])
}

// Namespace returns the file of the host's network namespace, where iproute2 keeps it alive. It is there from Start to Destroy.
func (h *Host) Namespace() string { return "/run/netns/" + h.namespace() }

// makeNetwork makes the network namespace and connects it to the bridge, unless it is there.
func (h *Host) makeNetwork() error {
	if _, err := net.InterfaceByName(h.outside()); err == nil {
		return nil
	}
	// An interrupted run may have left parts.
	if err := h.removeNetwork(); err != nil {
		return err
	}
	// The last step connects the host. If an earlier one is interrupted, the interface outside is missing or not connected, and
	// the next Start begins again.
	ns := h.namespace()
	for _, args := range [][]string{
		{"netns", "add", ns},
		{"link", "add", h.outside(), "type", "veth", "peer", "name", "eth0", "netns", ns},
		{"-n", ns, "addr", "add", netip.PrefixFrom(h.rec.Address, 16).String(), "dev", "eth0"},
		{"-n", ns, "link", "set", "lo", "up"},
		{"-n", ns, "link", "set", "eth0", "up"},
		{"-n", ns, "route", "add", "default", "via", h.fleet.Gateway().String()},
		{"link", "set", h.outside(), "master", h.fleet.bridge(), "up"},
	} {
		if err := ip(args...); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork removes the veth pair and the namespace, as far as they are there.
func (h *Host) removeNetwork() error {
	if _, err := net.InterfaceByName(h.outside()); err == nil {
		// With one end of the pair the other one goes too, from whatever namespace it is in.
		if err := ip("link", "del", h.outside()); err != nil {
			return err
		}
	}
	if _, err := os.Stat(h.Namespace()); err != nil {
		return nil
	}
	return ip("netns", "del", h.namespace())
}

// ip runs the program of iproute2.
func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Rule admits traffic to a host. What no rule admits is dropped, except answers, pings and traffic of the host with itself.
//
// The fields are those of the core module for Terraform, whose output is given to hosts unchanged:
// a test of the rules on hosts is then a test of the rules for clouds.
type Rule struct {
	Name     string   `json:"name,omitempty"`
	Protocol string   `json:"protocol"` // tcp or udp
	Ports    []uint16 `json:"ports"`
	Sources  []string `json:"sources"` // networks, such as 10.77.0.0/16
}

// Firewall replaces the firewall of the host. No rules at all means that nothing from outside is admitted; see NoFirewall.
func (h *Host) Firewall(rules []Rule) error {
	// One script is one transaction: at no time is the host without rules, and a mistake changes nothing.
	var script strings.Builder
	// The table is added first, because only a table that is there can be deleted.
	script.WriteString("table inet rhumb-hosts\ndelete table inet rhumb-hosts\ntable inet rhumb-hosts {\n\tchain input {\n" +
		"\t\ttype filter hook input priority 0; policy drop;\n\t\tct state established,related accept\n" +
		"\t\tiifname lo accept\n\t\ticmp type echo-request accept\n")
	// The order of the rules has no meaning: each admits, none refuses.
	for i, r := range rules {
		line, err := r.nft()
		if err != nil {
			return fmt.Errorf("firewall of %s: rule %d: %w", h.rec.Name, i+1, err)
		}
		script.WriteString("\t\t" + line + "\n")
	}
	script.WriteString("\t}\n}\n")
	return h.nft(script.String())
}

// NoFirewall removes the firewall of the host.
func (h *Host) NoFirewall() error {
	return h.nft("table inet rhumb-hosts\ndelete table inet rhumb-hosts\n")
}

// nft applies a script in the network namespace of the host, whether or not the host is up.
func (h *Host) nft(script string) error {
	// The program of this machine, because a host needs no nft of its own.
	c := exec.Command("nsenter", "--net="+h.Namespace(), "nft", "-f", "-")
	c.Stdin = strings.NewReader(script)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// nft returns the rule in the language of nft. Every part is checked, because the text becomes part of a script.
func (r Rule) nft() (string, error) {
	if r.Protocol != "tcp" && r.Protocol != "udp" {
		return "", fmt.Errorf("protocol %q is neither tcp nor udp", r.Protocol)
	}
	// An empty set would match everything.
	if len(r.Ports) == 0 || len(r.Sources) == 0 {
		return "", errors.New("a rule has ports and sources")
	}
	var sources []string
	for _, s := range r.Sources {
		p, err := netip.ParsePrefix(s)
		if err != nil || !p.Addr().Is4() {
			return "", fmt.Errorf("source %q is not a network such as 10.77.0.0/16", s)
		}
		// nft rejects networks with bits after the mask.
		sources = append(sources, p.Masked().String())
	}
	ports, err := json.Marshal(r.Ports)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("ip saddr { %s } %s dport { %s } accept", strings.Join(slices.Compact(sources), ", "), r.Protocol,
		strings.Trim(string(ports), "[]")), nil
}
