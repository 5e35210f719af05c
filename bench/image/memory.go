package image

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// memory is a directory in memory that is removed at the end.
type memory struct {
	dir     string
	mounted bool
}

// makeMemory mounts a file system in memory that supports huge pages on request. Without the
// privilege to mount, it creates a directory in parent or in /dev/shm.
func makeMemory(parent string) (m memory, err error) {
	if parent == "" {
		if m.dir, err = os.MkdirTemp("", "rhumb-image-"); err != nil {
			return m, err
		}
		if err = unix.Mount("rhumb-bench", m.dir, "tmpfs", 0, "huge=advise,mode=0755,size=90%"); err == nil {
			m.mounted = true
			return m, nil
		}
		if err = os.Remove(m.dir); err != nil {
			return m, err
		}
		parent = "/dev/shm"
	}
	m.dir, err = os.MkdirTemp(parent, "rhumb-image-")
	return m, err
}

// path returns the path of a file in the directory.
func (m *memory) path(name string) string { return filepath.Join(m.dir, name) }

// remove unmounts and removes the directory.
func (m *memory) remove() error {
	var err error
	if m.mounted {
		// MNT_DETACH succeeds even if a process still has the memory mapped.
		err = unix.Unmount(m.dir, unix.MNT_DETACH)
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}
