//go:build linux

package hosts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The program takes other roles under these names of commands. They are not for people.
const (
	roleInit   = "host-init"
	roleLaunch = "host-launch"
)

// TakeRole runs the program as the first process of a host, as the launcher of a service, or as the `systemctl` or `journalctl` of
// a host, if it was started as one of them; then it does not return. Programs that use this package call it first of all.
//
// One binary instead of four: tests build it as the test program itself, so the stand-in that runs
// is always the one of the source under test.
func TakeRole() {
	var err error
	switch name := filepath.Base(os.Args[0]); {
	// By the name of the link that was called.
	case name == "systemctl":
		os.Exit(systemctl(os.Args[1:], os.Stdout, os.Stderr))
	case name == "journalctl":
		os.Exit(journalctl(os.Args[1:], os.Stdout, os.Stderr))
	case len(os.Args) > 1 && os.Args[1] == roleInit:
		err = runInit(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == roleLaunch:
		err = launch(os.Args[2:])
	default:
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// runInit is the first process of a host.
//
// It is a small imitation of systemd and not systemd, which refuses to run in most containers and
// needs control groups that the machines of tests do not delegate.
func runInit(args []string) error {
	ready := os.NewFile(3, "ready")
	syscall.CloseOnExec(3)
	m, listener, err := prepareHost(args)
	if err != nil {
		// The reader of the pipe prints it; a failed write has no other place to go.
		_, _ = io.WriteString(ready, err.Error())
		return err
	}
	// As the first process of its namespace, this one inherits all orphans and must reap them.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGCHLD)
	go m.serve(listener)
	// Whatever waits for a child needs the reaper, which runs below.
	go func() {
		m.startEnabled()
		_, _ = io.WriteString(ready, "ok")
		ready.Close()
	}()
	for s := range signals {
		switch s {
		// Signals are merged: one may mean any number of children.
		case unix.SIGCHLD:
			m.reap()
		case unix.SIGTERM:
			// In the background, because the reaper is needed while services end.
			go func() {
				m.stopAll()
				os.Exit(0) // the kernel ends what is left
			}()
		}
	}
	return nil
}

// prepareHost sets the host up and returns its manager of services with the socket that takes orders.
func prepareHost(args []string) (*manager, *listener, error) {
	// In another place than a new PID namespace it would change the mounts of the machine.
	if len(args) != 5 || os.Getpid() != 1 {
		return nil, nil, errors.New("this is the first process of a host and started by `hostctl up` only")
	}
	r := rootMaker{fleet: args[0], name: args[1]}
	uid, err := strconv.Atoi(args[4])
	if err != nil {
		return nil, nil, err
	}
	if err := r.make(); err != nil {
		return nil, nil, fmt.Errorf("root file system: %w", err)
	}
	// The name is in the host's own namespace.
	if err := unix.Sethostname([]byte(r.name)); err != nil {
		return nil, nil, err
	}
	if err := reserveUsers("/etc/login.defs", uid); err != nil {
		return nil, nil, err
	}
	l, err := listen(controlSocket)
	if err != nil {
		return nil, nil, err
	}
	return newManager(), l, nil
}

// rootMaker makes the root file system of a host, in the mount namespace of its first process.
//
// Its methods do nothing after the first error, so that the order of the mounts reads as a list.
type rootMaker struct {
	fleet, name string
	err         error
}

// boundData lists the folders that are kept on the machine's disk.
var boundData = []string{"/var/lib/rhumb", "/var/lib/rhumb-authority"}

// make builds the root file system and makes it the root of this process.
func (r *rootMaker) make() error {
	layer := filepath.Join(r.fleet, "roots", r.name)
	state := filepath.Join(r.fleet, "hosts", r.name)
	root := filepath.Join(state, "root")
	// Mounts below must not spread to the machine.
	r.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	r.mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+filepath.Join(layer, "upper")+",workdir="+filepath.Join(layer, "work"))
	if r.err != nil {
		return r.err
	}
	// The overlay does not cross mounts: /proc, /sys, /dev and /run of the machine are empty folders here.
	fresh := r.firstBoot(root, layer)
	r.mount("proc", root+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	r.mount("sysfs", root+"/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "")
	r.makeDevices(root + "/dev")
	// Empty at each start, as on a machine.
	r.mount("tmpfs", root+"/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	r.mount("tmpfs", root+"/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	// Maintainer scripts of packages look for this folder before they call systemctl.
	r.folder(root+"/run/systemd/system", 0o755)
	r.folder(root+"/run/lock", 0o755)
	for _, dir := range append([]string{"/root", "/var/log/rhumb-hosts"}, boundData...) {
		// Folders of the state directory, on the machine's disk: syncs cost as much as there.
		from := dataDir(state, dir)
		if dir == "/var/log/rhumb-hosts" {
			from = filepath.Join(state, "log")
		}
		r.folder(from, 0o755)
		r.folder(root+dir, 0o755)
		r.mount(from, root+dir, "", unix.MS_BIND, "")
	}
	// Bound, so that hosts which are added later become known without a restart.
	r.mount(filepath.Join(r.fleet, "hosts", "names"), root+"/etc/hosts", "", unix.MS_BIND, "")
	r.installTool(root, fresh)
	if r.err != nil {
		return r.err
	}
	return pivot(root)
}

// firstBoot hides the machine's own files of Rhumb, once in the life of a host, and reports whether this was the first start.
func (r *rootMaker) firstBoot(root, layer string) bool {
	mark := filepath.Join(layer, "prepared")
	if _, err := os.Stat(mark); err == nil {
		return false
	}
	// On a machine that runs Rhumb itself, a host must begin without its files. Units that the machine has enabled are
	// not for a host either.
	for _, name := range []string{"etc/rhumb", "etc/default/rhumb", "var/lib/rhumb", "var/lib/rhumb-authority", "usr/bin/rhumb", wantsDir} {
		r.keep(os.RemoveAll(filepath.Join(root, name)))
	}
	r.keep(os.WriteFile(filepath.Join(root, "etc/hostname"), []byte(r.name+"\n"), 0o644))
	r.keep(os.WriteFile(mark, nil, 0o644))
	return true
}

// makeDevices makes the devices that programs expect, and memory file systems for shared memory.
func (r *rootMaker) makeDevices(dev string) {
	// Taken from the machine before the new folder hides them.
	r.mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_STRICTATIME, "mode=0755,size=1m")
	devices := []string{"null", "zero", "full", "random", "urandom", "tty"}
	// A kernel without FUSE has no such device. Tests that mount file systems of their own on a host find out when they mount.
	if _, err := os.Stat("/dev/fuse"); err == nil {
		devices = append(devices, "fuse")
	}
	for _, name := range devices {
		if r.err == nil {
			r.keep(os.WriteFile(filepath.Join(dev, name), nil, 0o666))
		}
		// Bound rather than made: file systems of some machines do not admit device nodes.
		r.mount("/dev/"+name, filepath.Join(dev, name), "", unix.MS_BIND, "")
	}
	for _, name := range []string{"pts", "shm"} {
		r.folder(filepath.Join(dev, name), 0o755)
	}
	r.mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
	r.mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	if r.err == nil {
		r.keep(os.Symlink("pts/ptmx", filepath.Join(dev, "ptmx")))
		r.keep(os.Symlink("/proc/self/fd", filepath.Join(dev, "fd")))
		r.keep(os.Symlink("/proc/self/fd/0", filepath.Join(dev, "stdin")))
		r.keep(os.Symlink("/proc/self/fd/1", filepath.Join(dev, "stdout")))
		r.keep(os.Symlink("/proc/self/fd/2", filepath.Join(dev, "stderr")))
	}
}

// toolPath is where a host has this program.
const toolPath = "/usr/lib/rhumb-hosts/hostctl"

// installTool puts this program into the host, in place of the programs that need systemd.
func (r *rootMaker) installTool(root string, fresh bool) {
	r.folder(root+filepath.Dir(toolPath), 0o755)
	if r.err == nil && fresh {
		// An empty file, over which the program is bound at each start.
		r.keep(os.WriteFile(root+toolPath, nil, 0o755))
		// Links rather than copies: one program has all roles.
		for _, name := range []string{"systemctl", "journalctl"} {
			link := filepath.Join(root, "usr/bin", name)
			r.keep(os.RemoveAll(link))
			r.keep(os.Symlink(toolPath, link))
		}
	}
	r.mount(filepath.Join(r.fleet, "hostctl"), root+toolPath, "", unix.MS_BIND, "")
}

// mount mounts unless an earlier step has failed.
func (r *rootMaker) mount(from, to, kind string, flags uintptr, data string) {
	if r.err != nil {
		return
	}
	if err := unix.Mount(from, to, kind, flags, data); err != nil {
		r.err = fmt.Errorf("mount %s %s at %s: %w", kind, from, to, err)
	}
}

// folder makes a folder unless an earlier step has failed.
func (r *rootMaker) folder(dir string, mode os.FileMode) {
	if r.err == nil {
		r.err = os.MkdirAll(dir, mode)
	}
}

// keep keeps the first error.
func (r *rootMaker) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// pivot makes root the root of this process and lets go of the machine's.
func pivot(root string) error {
	// The folder that is both old and new root is addressed as ".".
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is put over the new one and unmounted there, which needs no folder for it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

var systemUsers = regexp.MustCompile(`(?m)^#?\s*SYS_([UG]ID_M(?:IN|AX))\s.*\n`)

// reserveUsers makes useradd choose IDs of system users and groups from the eight after first, which no other host has.
func reserveUsers(name string, first int) error {
	// Repeated at each start, with the same result.
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("IDs of the host's users: %w", err)
	}
	// useradd takes the last free ID of this range for a system user.
	text := systemUsers.ReplaceAllString(string(b), "")
	for _, kind := range []string{"UID", "GID"} {
		text += fmt.Sprintf("SYS_%s_MIN %d\nSYS_%s_MAX %d\n", kind, first, kind, first+7)
	}
	return os.WriteFile(name, []byte(text), 0o644)
}
