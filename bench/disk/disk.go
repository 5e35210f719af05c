// Package disk makes disks that a test can stop: an ext4 file system in a file,
// mounted through a loop device. The kernel freezes such a file system on
// demand. Processes that write or sync then wait, and cannot even be killed, as
// with a disk that does not answer. Reads of cached blocks continue.
package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Size is the size of each disk. The file is sparse.
const Size = 4 << 30

// thawAfter bounds a freeze, whatever becomes of the program that froze the
// disk.
const thawAfter = 90 * time.Second

// Disk is a mounted disk.
type Disk struct {
	image string // the file with the file system
	At    string // the directory where it is mounted
}

// At returns the disk in a file that is, or was, mounted at a directory.
func At(image, at string) Disk { return Disk{image, at} }

// Missing returns what this machine lacks for disks of their own, or "".
func Missing() string {
	if os.Geteuid() != 0 {
		return "only root can mount disks"
	}
	for program, from := range map[string]string{"mkfs.ext4": "e2fsprogs", "fsfreeze": "util-linux"} {
		if _, err := exec.LookPath(program); err != nil {
			return "install the package " + from
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "the kernel has no loop devices"
	}
	return ""
}

// runProgram runs a program of this machine. The error has its output.
func runProgram(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// Mount makes an empty disk in a new file and mounts it at a directory.
func Mount(ctx context.Context, image, at string) (Disk, error) {
	d := Disk{image, at}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return d, err
	}
	// Longer than its blocks: only blocks that are written take space.
	if err := os.Truncate(image, Size); err != nil {
		return d, err
	}
	// Without blocks that are reserved for root, so that a test can fill all of
	// it.
	if err := runProgram(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return d, err
	}
	return d, runProgram(ctx, "mount", "-o", "loop", image, at)
}

// Remove unmounts the disk, if its file exists, and removes the file.
func (d Disk) Remove(ctx context.Context) error {
	if _, err := os.Stat(d.image); err != nil {
		return nil
	}
	// Lazily: mounts in other namespaces disappear a moment after their
	// processes.
	return errors.Join(runProgram(ctx, "umount", "-l", d.At), os.Remove(d.image))
}

// FIFREEZE and FITHAW of linux/fs.h.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

// Freeze stops all writes to the disk. Thaw continues them.
func (d Disk) Freeze() error { return d.control(ioctlFreeze) }

// Thaw continues the writes to a frozen disk.
func (d Disk) Thaw() error { return d.control(ioctlThaw) }

// control asks the kernel to freeze or thaw the file system.
func (d Disk) control(request uint) error {
	f, err := os.Open(d.At)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return os.NewSyscallError("ioctl", unix.IoctlSetInt(int(f.Fd()), request, 0))
}

// Guard starts a process that thaws the disk after a while, in case that this
// program dies. stop ends the process.
func (d Disk) Guard() (stop func(), err error) {
	// The path is an argument of the shell, and not a part of its script.
	c := exec.Command("sh", "-c", fmt.Sprintf(`sleep %d; fsfreeze -u "$1"`, int(thawAfter.Seconds())), "sh", d.At)
	// A group of its own, so that an interrupt from the terminal does not end
	// it before the disk is thawed.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		return nil, err
	}
	// The shell and its sleep end together.
	return func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait()
	}, nil
}

// Probe writes and syncs a file on the disk, and returns how long that took.
// lost+found belongs to the file system, and nodes ignore it.
func (d Disk) Probe() (took time.Duration, err error) {
	began := time.Now()
	f, err := os.Create(filepath.Join(d.At, "lost+found", "probe"))
	if err != nil {
		return 0, err
	}
	_, err = f.WriteString("probe")
	err = errors.Join(err, f.Sync(), f.Close())
	return time.Since(began), err
}
