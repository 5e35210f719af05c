//go:build linux

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandbox describes the confinement that the launcher sets up before it becomes the service. The launcher reads it as JSON from its
// arguments, so it holds plain data only: the host's first process has resolved names to numbers.
//
// A setting of a unit is obeyed, or listed in passedOver, or refused when the unit is read: an
// unknown setting could be a restriction, and a test that passes without it would fail under
// systemd.
type sandbox struct {
	// WorkingDirectory=, which the user of the service must be able to enter.
	Dir string
	// User= and Group=, resolved on the host. UID 0 stays root.
	UID, GID int
	Groups   []int
	Umask    int
	// Soft and hard limit by number, as for prlimit.
	Limits map[int][2]uint64
	// nil leaves the value of the host's first process.
	OOMScore *int
	// No program that the service starts gains rights by its file.
	NoNewPrivileges bool
	// CapabilityBoundingSet= keeps the capabilities in Keep. Without the setting, Bounded is false and all are kept.
	Bounded bool
	Keep    []int
	// ProtectSystem=strict makes everything read-only but ReadWrite.
	ReadOnly     bool // ProtectSystem=strict
	ReadWrite    []string
	Inaccessible []string
	HideHomes    bool
	// New memory file systems for /tmp and /var/tmp.
	PrivateTmp   bool
	Syscalls     []string // SystemCallFilter=; the launcher resolves it, because the reaper would take the status of a child
	SyscallError string   // SystemCallErrorNumber=
}

// limitNames lists the limits that units may set.
var limitNames = map[string]int{
	"LimitNOFILE": unix.RLIMIT_NOFILE, "LimitMEMLOCK": unix.RLIMIT_MEMLOCK, "LimitCORE": unix.RLIMIT_CORE, "LimitNPROC": unix.RLIMIT_NPROC,
}

// identity reads who the service runs as.
func (r *resolver) identity() {
	s, box := r.u.service, &r.p.box
	// Names are resolved at every start: the package may have added the user since the last one.
	name := s.last("User", "root")
	u, err := user.Lookup(name)
	if err != nil {
		r.fail(fmt.Errorf("the setting User=%s: %w; install the package or add the user", name, err))
		return
	}
	box.UID, err = strconv.Atoi(u.Uid)
	r.fail(err)
	box.GID, err = strconv.Atoi(u.Gid)
	r.fail(err)
	if name := s.last("Group", ""); name != "" {
		box.GID = r.group(name)
	}
	for _, name := range s.words("SupplementaryGroups") {
		box.Groups = append(box.Groups, r.group(name))
	}
	mask, err := strconv.ParseUint(s.last("UMask", "0022"), 8, 32)
	r.fail(err)
	box.Umask = int(mask)
	box.Dir = s.last("WorkingDirectory", "/")
	// systemd sets these for services with User=.
	r.p.environment = append([]string{"USER=" + u.Username, "LOGNAME=" + u.Username, "HOME=" + u.HomeDir}, r.p.environment...)
}

// group returns the ID of a group.
func (r *resolver) group(name string) int {
	g, err := user.LookupGroup(name)
	if err != nil {
		r.fail(err)
		return 0
	}
	id, err := strconv.Atoi(g.Gid)
	r.fail(err)
	return id
}

// limits reads Limit*= and OOMScoreAdjust=. A value is "both" or "soft:hard".
func (r *resolver) limits() {
	s, box := r.u.service, &r.p.box
	box.Limits = map[int][2]uint64{}
	for name, which := range limitNames {
		text := s.last(name, "")
		if text == "" {
			continue
		}
		// One value is both limits.
		soft, hard, both := strings.Cut(text, ":")
		if !both {
			hard = soft
		}
		var pair [2]uint64
		for i, t := range []string{soft, hard} {
			n, err := parseLimit(t)
			if err != nil {
				r.fail(fmt.Errorf("%s=%s: %w", name, text, err))
			}
			pair[i] = n
		}
		box.Limits[which] = pair
	}
	if text := s.last("OOMScoreAdjust", ""); text != "" {
		n, err := strconv.Atoi(text)
		r.fail(err)
		box.OOMScore = &n
	}
}

// parseLimit reads a number with the suffix K, M or G, or infinity.
func parseLimit(text string) (uint64, error) {
	if text == "infinity" {
		return unix.RLIM_INFINITY, nil
	}
	unit := uint64(1)
	switch text[max(len(text)-1, 0):] {
	case "K":
		unit = 1 << 10
	case "M":
		unit = 1 << 20
	case "G":
		unit = 1 << 30
	}
	n, err := strconv.ParseUint(strings.TrimRight(text, "KMG"), 10, 64)
	return n * unit, err
}

// isolation reads the restrictions of view and rights.
func (r *resolver) isolation() {
	s, box := r.u.service, &r.p.box
	box.NoNewPrivileges = s.truth("NoNewPrivileges")
	// Absent means all capabilities, and an empty value means none.
	if _, set := s["CapabilityBoundingSet"]; set {
		box.Bounded = true
		for _, name := range s.words("CapabilityBoundingSet") {
			number, ok := capabilities[name]
			if !ok {
				r.fail(fmt.Errorf("CapabilityBoundingSet=%s: not known here", name))
			}
			box.Keep = append(box.Keep, number)
		}
	}
	switch v := s.last("ProtectSystem", "no"); v {
	case "no":
	case "strict":
		box.ReadOnly = true
	default:
		r.fail(fmt.Errorf("ProtectSystem=%s is not known here", v))
	}
	box.ReadWrite = append(box.ReadWrite, s.words("ReadWritePaths")...)
	// ReadOnlyPaths= adds nothing under ProtectSystem=strict.
	box.Inaccessible = s.words("InaccessiblePaths")
	box.HideHomes = s.last("ProtectHome", "no") != "no"
	box.PrivateTmp = s.truth("PrivateTmp")
	box.Syscalls, box.SyscallError = s["SystemCallFilter"], s.last("SystemCallErrorNumber", "")
}

// capabilities are those that units of this repository name.
var capabilities = map[string]int{
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_IPC_LOCK": unix.CAP_IPC_LOCK, "CAP_SYS_NICE": unix.CAP_SYS_NICE,
}

// launch sets up the sandbox, which is its first argument, and becomes the program of the other arguments. It runs in a mount
// namespace of its own.
func launch(args []string) error {
	if len(args) < 2 {
		return errors.New("want a sandbox and a command")
	}
	var box sandbox
	if err := json.Unmarshal([]byte(args[0]), &box); err != nil {
		return err
	}
	// The groups of calls are listed before the view of the file system and the rights shrink.
	var filter *syscallFilter
	if len(box.Syscalls) > 0 {
		var err error
		if filter, err = newSyscallFilter(box.Syscalls, box.SyscallError); err != nil {
			return err
		}
	}
	// Rights belong to threads. The thread that makes the changes becomes the program.
	runtime.LockOSThread()
	for _, step := range []func() error{box.mounts, box.apply, box.dropRights, filter.load} {
		if err := step(); err != nil {
			return fmt.Errorf("set up the sandbox of %s: %w", args[1], err)
		}
	}
	return fmt.Errorf("start %s: %w", args[1], syscall.Exec(args[1], args[1:], os.Environ()))
}

// mounts changes the view of the file system.
func (b *sandbox) mounts() error {
	// The mount namespace is new, but its mounts still spread to the host until they are private.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// Before everything else becomes read-only.
	if b.PrivateTmp {
		for _, dir := range []string{"/tmp", "/var/tmp"} {
			if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
				return fmt.Errorf("private %s: %w", dir, err)
			}
		}
		b.ReadWrite = append(b.ReadWrite, "/tmp", "/var/tmp")
	}
	if b.HideHomes {
		b.Inaccessible = append(b.Inaccessible, "/home", "/root", "/run/user")
	}
	for _, dir := range b.Inaccessible {
		optional := strings.HasPrefix(dir, "-") || b.HideHomes
		dir = strings.TrimPrefix(dir, "-")
		// A folder without permissions covers the hidden one.
		if _, err := os.Stat(dir); optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "mode=0000"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	if !b.ReadOnly {
		return nil
	}
	return b.makeReadOnly()
}

// makeReadOnly makes everything read-only but /dev, /proc, /sys and the folders that the unit names.
func (b *sandbox) makeReadOnly() error {
	var writable []string
	for _, dir := range append([]string{"/dev", "/proc"}, b.ReadWrite...) {
		dir, optional := strings.CutPrefix(dir, "-")
		if _, err := os.Stat(dir); optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// Bound onto itself, the folder is a mount of its own, which can differ from the mount above.
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
		writable = append(writable, dir)
	}
	// One call changes every mount below /, those that were bound above included. They are made writable again after it.
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, readOnly); err != nil {
		return fmt.Errorf("make / read-only: %w", err)
	}
	for _, dir := range writable {
		if err := unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make %s writable: %w", dir, err)
		}
	}
	return nil
}

// apply sets limits and the like, which need the rights of root.
func (b *sandbox) apply() error {
	// All that needs root comes before dropRights.
	unix.Umask(b.Umask)
	for which, pair := range b.Limits {
		if err := setLimit(which, unix.Rlimit{Cur: pair[0], Max: pair[1]}); err != nil {
			return fmt.Errorf("limit %d: %w", which, err)
		}
	}
	if b.OOMScore != nil {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*b.OOMScore)), 0); err != nil {
			return err
		}
	}
	if b.Bounded {
		// The bounding set limits what programs with file capabilities could regain.
		for number := 0; number <= unix.CAP_LAST_CAP; number++ {
			if containsInt(b.Keep, number) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("drop capability %d: %w", number, err)
			}
		}
	}
	return nil
}

// setLimit sets a limit, or the closest one that this process may set, as systemd does.
func setLimit(which int, limit unix.Rlimit) error {
	err := unix.Prlimit(0, which, &limit, nil)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var now unix.Rlimit
	// Root without CAP_SYS_RESOURCE, as in some virtual machines, cannot exceed the hard limit.
	if err := unix.Prlimit(0, which, nil, &now); err != nil {
		return err
	}
	limit = unix.Rlimit{Cur: min(limit.Cur, now.Max), Max: min(limit.Max, now.Max)}
	return unix.Prlimit(0, which, &limit, nil)
}

// dropRights becomes the user of the service.
func (b *sandbox) dropRights() error {
	if b.UID != 0 {
		// Groups first: the user has no right to change them.
		if err := syscall.Setgroups(b.Groups); err != nil {
			return err
		}
		if err := syscall.Setgid(b.GID); err != nil {
			return err
		}
		if err := syscall.Setuid(b.UID); err != nil {
			return err
		}
	}
	// As the user of the service, so that a folder that the user cannot enter is an error now.
	if err := os.Chdir(b.Dir); err != nil {
		return err
	}
	if b.NoNewPrivileges {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}

// containsInt reports whether a list contains n.
func containsInt(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}
