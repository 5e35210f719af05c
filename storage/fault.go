package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// Fault describes damaged bytes of a file.
type Fault struct {
	// File is the path of the file. Offset is the first byte of the damaged block, or -1 if it is
	// not known.
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	// What describes the damage.
	What string `json:"what"`
}

// String returns "file:offset: what".
func (f Fault) String() string {
	if f.Offset < 0 {
		return f.File + ": " + f.What
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Offset, f.What)
}

// faultError is a Fault as the cause of an error. An error that has one in its chain is damage of
// the database that the store knows how to continue from.
type faultError struct{ fault Fault }

func (e *faultError) Error() string { return e.fault.String() }

// dbError converts an error of the database to one of rhumb's kinds; nil stays nil. Damage is
// Corrupt and names file and offset, a full disk is DiskFull, and any other failure of the disk is
// Unavailable.
func (s *Store) dbError(op rhumb.Op, err error) error {
	if err == nil {
		return nil
	}
	// The error has passed through this function already, or this package returned it.
	if _, ok := errors.AsType[*rhumb.Error](err); ok {
		return rhumb.Wrap(op, err)
	}
	if pebble.IsCorruptionError(err) {
		return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{faultOf(s.cfg.Dir, err)}}
	}
	return ioError(op, s.cfg.Dir, err)
}

// ioError returns an error of the file system with a kind and a path; nil stays nil.
func ioError(op rhumb.Op, path string, err error) error { return nodelog.WrapIO(op, path, err) }

// accessError is ioError for the first access to a directory, where a missing permission or a wrong path is the most likely
// mistake. It says what to change.
func accessError(op rhumb.Op, dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return rhumb.Ef(op, rhumb.PermissionDenied, "user %d may not write to %s: %v; change the owner or mode of the directory, or use another one", os.Getuid(), dir, rhumb.Message(err))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%v; use another directory", err)
	}
	return ioError(op, dir, err)
}

// lockError distinguishes a directory that another process has locked from one whose lock file
// cannot be created. Only for the latter Pebble returns an error with a path.
func lockError(op rhumb.Op, dir, owner string, err error) error {
	if _, onFile := errors.AsType[*fs.PathError](err); onFile {
		return accessError(op, dir, err)
	}
	return rhumb.Ef(op, rhumb.Unavailable, "%s is in use by another process%s; stop that process or use another directory", dir, owner)
}

// blockAt finds the offset of the damaged block in Pebble's message. Pebble has no field for it.
var blockAt = regexp.MustCompile(`block (\d+)/\d+`)

// faultOf returns the fault that an error of Pebble describes. The file is dir if the error names
// none.
func faultOf(dir string, err error) Fault {
	f := Fault{File: dir, Offset: -1, What: err.Error()}
	// Pebble attaches the path only to errors of blocks that it read from a file.
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
