package ledger

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

// openOwn opens a file in the directory of a ledger. It follows no link and takes no file with a second name: root runs commands on
// the folder of a service, and whoever has the user of the service could otherwise make root write to any file of the host, or
// pass it on.
func openOwn(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, errForeign(path)
	}
	if err != nil {
		return nil, rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(rhumb.WrapKind(opLedger, rhumb.Unavailable, err), f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		return nil, errors.Join(errForeign(path), f.Close())
	}
	return f, nil
}

// errForeign refuses a file that no authority made.
func errForeign(path string) error {
	return rhumb.Ef(opLedger, rhumb.PermissionDenied, "%s is a link or no regular file, which an authority never makes; find out who made it before you remove it", path)
}

// WriteFile replaces a file as a whole: written under another name, synced, renamed, directory
// synced.
//
// Readers without the lock, such as nodes that read a CA file, see the old or the new content and
// nothing between. After a loss of power the same holds, which takes both syncs: without the first
// the new name may have an empty file, without the second the old name may be back.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = handOver(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// handOver changes the owner of a file that root made to the owner of its folder. Root runs
// commands on the folder of a service, and the service has to read the files afterwards.
func handOver(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(f.Name()), &st); err != nil {
		return err
	}
	// A folder that everybody may write to, such as /tmp, has no owner in this sense.
	if st.Mode&0o022 != 0 {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}

// SyncDir syncs the entries of a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
