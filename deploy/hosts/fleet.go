//go:build linux

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a fleet.
const (
	// A host costs a process of about 10 MiB and the changes to its root file system.
	hostsMax     = 64
	regionsMax   = 200
	nodesMax     = 200
	rootSizeMax  = "2g" // of all changes to root file systems
	startTimeout = 30 * time.Second
)

// Fleet is a set of hosts that share a bridge and a state directory.
//
// A fleet is the process that opened it plus the record on disk; no daemon exists. Whoever opens
// the directory next, after a crash too, sees everything that was made and can remove it.
type Fleet struct {
	dir string
	rec record
}

// record is the content of state.json. It names everything outside the state directory before that is created.
//
// The record runs ahead of the machine: a name in it may not exist yet, but nothing exists without
// its name. The reverse order would leave bridges and namespaces that nobody knows to be ours.
type record struct {
	Network netip.Prefix // of the bridge; its second octet is part of all names
	Boot    string       // the boot of the machine in which the hosts were started
	Regions []string     // a region's place, from 1, is the third octet of its hosts; "" is a region that was removed
	Hosts   []*hostRecord
}

// hostRecord is the record of one host.
type hostRecord struct {
	Name    string
	Region  string // "" for hosts that are not nodes
	Address netip.Addr
	Seq     int    // makes the user IDs of the host
	PID     int    // of the host's first process; 0 while it is down
	Start   string // when that process started, so that a reused PID is recognised
}

// Spec describes a host to bring up.
type Spec struct {
	Name   string
	Region string // "" for a host in no region, such as the laptop of an operator
}

// Supported returns an error that names the part this machine lacks for hosts.
func Supported() error {
	if os.Geteuid() != 0 {
		return errors.New("hosts need root: they are network and mount namespaces")
	}
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("hosts need the program %s: install iproute2 and util-linux", tool)
		}
	}
	// A kernel with the module but without the file system loaded counts as without: loading needs tools that may be missing.
	kinds, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(kinds), "overlay") {
		return errors.New("hosts need a kernel with overlay file systems")
	}
	return nil
}

// Open returns the fleet that is recorded in dir, or an empty one. The caller must Close it. Processes that open the same
// directory take turns.
//
// The lock is that of a file and not of a process ID in a file, so a crashed process leaves nothing
// to clean up.
func Open(dir string) (*Fleet, func(), error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, err
	}
	// Folders of hosts are readable for services, which run as other users.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	unlock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, nil, err
	}
	f := &Fleet{dir: dir}
	b, err := os.ReadFile(f.path("state.json"))
	if err == nil {
		err = json.Unmarshal(b, &f.rec)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// A damaged record must not be taken for an empty fleet: its hosts would never be removed.
		unlock()
		return nil, nil, fmt.Errorf("read the record of the fleet %s: %w", dir, err)
	}
	return f, unlock, nil
}

// IsLeft reports whether a folder holds a fleet that no process has open: the one that made it has ended without removing
// it.
func IsLeft(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "state.json")); err != nil {
		return false
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// Network returns the network of the fleet; it is invalid before the first Up.
func (f *Fleet) Network() netip.Prefix { return f.rec.Network }

// Hosts returns the hosts of the fleet in the order in which they were added.
func (f *Fleet) Hosts() (hosts []*Host) {
	for _, r := range f.rec.Hosts {
		hosts = append(hosts, &Host{fleet: f, rec: r})
	}
	return hosts
}

// Host returns the host of that name.
func (f *Fleet) Host(name string) (*Host, error) {
	var names []string
	for _, r := range f.rec.Hosts {
		if r.Name == name {
			return &Host{fleet: f, rec: r}, nil
		}
		names = append(names, r.Name)
	}
	return nil, fmt.Errorf("no host %q; there are: %s", name, strings.Join(names, " "))
}

// Up brings up the hosts that are not up. Existing hosts are kept, so that it can be repeated and can add hosts. The
// network is chosen at the first Up if it is not valid: the first free one from 10.77.0.0/16 to 10.126.0.0/16.
func (f *Fleet) Up(network netip.Prefix, specs ...Spec) error {
	if err := Supported(); err != nil {
		return err
	}
	if err := f.claim(network); err != nil {
		return err
	}
	if err := f.mountRoots(); err != nil {
		return err
	}
	if err := f.installTool(); err != nil {
		return err
	}
	// Every host is recorded before the first is made.
	for _, spec := range specs {
		if err := f.add(spec); err != nil {
			return fmt.Errorf("host %s: %w", spec.Name, err)
		}
	}
	if err := f.writeHostsFiles(); err != nil {
		return err
	}
	// Hosts that were killed start again too: up means that all are.
	for _, h := range f.Hosts() {
		if err := h.Start(); err != nil {
			return fmt.Errorf("host %s: %w", h.Name(), err)
		}
	}
	return nil
}

// add records a host.
func (f *Fleet) add(spec Spec) error {
	if !validName(spec.Name) || spec.Region != "" && !validName(spec.Region) {
		return fmt.Errorf("name %q or region %q: names have 1 to 40 of a-z, 0-9 and -, and start with a letter", spec.Name, spec.Region)
	}
	for _, r := range f.rec.Hosts {
		if r.Name == spec.Name {
			if r.Region != spec.Region {
				return fmt.Errorf("the host is in region %q already", r.Region)
			}
			return nil
		}
	}
	if len(f.rec.Hosts) >= hostsMax {
		return fmt.Errorf("a fleet has at most %d hosts", hostsMax)
	}
	r := &hostRecord{Name: spec.Name, Region: spec.Region}
	for _, other := range f.rec.Hosts {
		r.Seq = max(r.Seq, other.Seq+1)
	}
	var err error
	// Recorded before the host is made.
	if r.Address, err = f.freeAddress(spec.Region); err != nil {
		return err
	}
	f.rec.Hosts = append(f.rec.Hosts, r)
	return f.save()
}

// freeAddress returns the first free address of a region: 10.77.REGION.N.
func (f *Fleet) freeAddress(region string) (netip.Addr, error) {
	number := 0
	first := 10 // in no region, after the bridge
	if region != "" {
		if !slices.Contains(f.rec.Regions, region) {
			f.rec.Regions = append(f.rec.Regions, region)
		}
		number, first = slices.Index(f.rec.Regions, region)+1, 1
	}
	if number > regionsMax {
		return netip.Addr{}, fmt.Errorf("a fleet has at most %d regions", regionsMax)
	}
	// The lowest free number is reused, so that a host that replaces another one gets its address, as firewall rules and
	// seeds of the other hosts expect.
	base := f.rec.Network.Addr().As4()
	for n := first; n <= nodesMax; n++ {
		addr := netip.AddrFrom4([4]byte{base[0], base[1], byte(number), byte(n)})
		if !slices.ContainsFunc(f.rec.Hosts, func(r *hostRecord) bool { return r.Address == addr }) {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("a region has at most %d hosts", nodesMax)
}

// Remove ends a host and removes its files.
func (f *Fleet) Remove(name string) error {
	// The order keeps Remove repeatable: the record goes last, when nothing that it names is left.
	h, err := f.Host(name)
	if err != nil {
		return err
	}
	if err := h.Kill(); err != nil {
		return err
	}
	if err := errors.Join(h.removeNetwork(), os.RemoveAll(h.dir()), os.RemoveAll(h.layer())); err != nil {
		return err
	}
	f.rec.Hosts = slices.DeleteFunc(f.rec.Hosts, func(r *hostRecord) bool { return r.Name == name })
	if err := f.save(); err != nil {
		return err
	}
	return f.writeHostsFiles()
}

// Destroy ends the processes of all hosts and removes everything in the record: networks, mounts and files. It can be repeated
// after an interruption at any point.
func (f *Fleet) Destroy() error {
	var failed []error
	// Errors are collected: one host that cannot be removed must not keep the others.
	for _, h := range f.Hosts() {
		failed = append(failed, f.Remove(h.Name()))
	}
	if f.rec.Network.IsValid() {
		failed = append(failed, f.removeBridge())
	}
	failed = append(failed, f.unmountRoots())
	if err := errors.Join(failed...); err != nil {
		return err // the record stays, so that Destroy can be repeated
	}
	f.rec = record{}
	// The lock goes last: it is held.
	for _, name := range []string{"hosts", "roots", "hostctl", "state.json", "lock"} {
		failed = append(failed, os.RemoveAll(f.path(name)))
	}
	os.Remove(f.dir) // only if nobody else has put something there
	return errors.Join(failed...)
}

// save writes the record durably, before anything in it is made.
func (f *Fleet) save() error {
	f.rec.Boot = bootID()
	b, err := json.MarshalIndent(f.rec, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(f.path("state.json"), append(b, '\n'), 0o644)
}

// mountRoots mounts the memory file system for the changes to the root file systems. An overlay cannot keep them on the file
// system of its lower layer, which is the machine's root.
func (f *Fleet) mountRoots() error {
	dir := f.path("roots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A second mount over the first would hide what hosts have changed.
	if mounted, err := isMount(dir); err != nil || mounted {
		return err
	}
	if err := unix.Mount("rhumb-hosts", dir, "tmpfs", 0, "mode=0755,size="+rootSizeMax); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// unmountRoots unmounts the memory file system, if it is mounted.
func (f *Fleet) unmountRoots() error {
	dir := f.path("roots")
	mounted, err := isMount(dir)
	if err != nil || !mounted {
		return err
	}
	// Detached, because the kernel ends a killed host's mount namespace, which uses the folder, a little later.
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// installTool copies this program into the state directory: hosts run it as their first process and as `systemctl`, and outlive
// the file that is running now.
func (f *Fleet) installTool() error {
	to := f.path("hostctl")
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Copied, not linked: a build may replace the file, and a host that starts again must run the same program.
	in, err := os.Open(self)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// writeHostsFiles writes the names of all hosts, which every host reads. The file is bound over /etc/hosts, so it is rewritten in place.
func (f *Fleet) writeHostsFiles() error {
	// Rewritten as a whole: the file is short, and hosts that were removed disappear from it.
	var names strings.Builder
	names.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for _, r := range f.rec.Hosts {
		fmt.Fprintf(&names, "%s %s\n", r.Address, r.Name)
	}
	if err := os.MkdirAll(f.path("hosts"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(f.path("hosts", "names"), []byte(names.String()), 0o644)
}

// path returns the path of a file in the state directory.
func (f *Fleet) path(parts ...string) string {
	return filepath.Join(append([]string{f.dir}, parts...)...)
}

// validName reports whether a name can be part of host names, namespaces and folders without quoting.
func validName(name string) bool {
	if name == "" || len(name) > 40 || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// lockFile takes the lock of a file and returns the function that releases it.
func lockFile(name string) (func(), error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// Closing the file releases the lock, and so does the end of the process.
	return func() { file.Close() }, nil
}

// replaceFile writes a file durably and in one step.
func replaceFile(name string, data []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	// The rename is durable only as far as the data is.
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// isMount reports whether a folder is the root of a mount.
func isMount(dir string) (bool, error) {
	var here, above unix.Stat_t
	err := unix.Lstat(dir, &here)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = unix.Lstat(filepath.Dir(dir), &above)
	}
	// A mount begins another device.
	return here.Dev != above.Dev, err
}

// bootID identifies the boot of this machine: PIDs and interfaces of an earlier one mean nothing.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}
