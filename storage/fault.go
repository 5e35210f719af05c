package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
)

// Fault is something that is wrong with the bytes of a file.
type Fault struct {
	// File is the path of the file, Offset the first byte of the damaged block where that is known, -1 otherwise.
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	// What says what is wrong.
	What string `json:"what"`
}

// String gives "file:offset: what".
func (f Fault) String() string {
	if f.Offset < 0 {
		return f.File + ": " + f.What
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Offset, f.What)
}

// faultError is a fault as the cause of an error.
type faultError struct{ fault Fault }

func (e *faultError) Error() string { return e.fault.String() }

// dbError turns an error of the database into one of rhumb's; nil stays nil. Damage is Corrupt and names file and offset, a
// full disk is DiskFull, any other failure of the disk is Unavailable.
func (s *Store) dbError(op rhumb.Op, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*rhumb.Error](err); ok {
		return rhumb.Wrap(op, err)
	}
	if pebble.IsCorruptionError(err) {
		return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{faultOf(s.cfg.Dir, err)}}
	}
	return ioError(op, s.cfg.Dir, err)
}

// ioError gives a failure of the file system a kind and a place; nil stays nil.
func ioError(op rhumb.Op, path string, err error) error {
	if err == nil {
		return nil
	}
	kind := rhumb.Unavailable
	if errors.Is(err, syscall.ENOSPC) {
		kind = rhumb.DiskFull
	}
	return &rhumb.Error{Op: op, Kind: kind, Msg: path, Err: err}
}

// accessError is ioError for the first touch of a directory: what is not allowed there is said as that.
func accessError(op rhumb.Op, dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return rhumb.Ef(op, rhumb.PermissionDenied, "user %d may not write to %s: %v; change its owner or mode, or use another directory", os.Getuid(), dir, rhumb.Message(err))
	}
	return ioError(op, dir, err)
}

// lockError tells a directory whose lock another process has from one whose lock cannot be tried: the lock is refused with a
// bare number, its file with a path.
func lockError(op rhumb.Op, dir, owner string, err error) error {
	if _, onFile := errors.AsType[*fs.PathError](err); onFile {
		return accessError(op, dir, err)
	}
	return rhumb.Ef(op, rhumb.Unavailable, "%s is in use by another process%s; stop it, or use another directory: %v", dir, owner, err)
}

// blockAt finds the offset in what Pebble says of a damaged block.
var blockAt = regexp.MustCompile(`block (\d+)/\d+`)

func faultOf(dir string, err error) Fault {
	f := Fault{File: dir, Offset: -1, What: err.Error()}
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		f.File = info.Path
		f.What = info.Details.Error()
	}
	if m := blockAt.FindStringSubmatch(f.What); m != nil {
		if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
			f.Offset = n
		}
	}
	return f
}
