package inspect

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A copy is made of a live image without asking its publisher for anything. The version is read
// first. Each generation is then captured and written block by block. Every capture happens after
// the version was read, so it contains all records of that version; records of later versions are
// marked as aborted while they are written. Readers of the copy see exactly that version.

// FileSuffix is the end of the name of an image saved in one file: a tar archive of the directory,
// compressed with Zstandard (RFC 8878).
const FileSuffix = ".rhs"

// Progress is called with the number of bytes done and in total; total is 0 if it is unknown.
type Progress func(done, total int64)

// report calls the function, if there is one.
func (p Progress) report(done, total int64) {
	if p != nil {
		p(done, total)
	}
}

// checkCanceled returns an error if ctx was canceled.
func checkCanceled(ctx context.Context, op rhumb.Op) error {
	if ctx.Err() == nil {
		return nil
	}
	return rhumb.E(op, rhumb.Canceled, "canceled before it was done")
}

// Saved describes a saved or loaded image.
type Saved struct {
	Path    string
	Version uint64
	Files   int
	// Bytes is the size of the files of the image.
	Bytes int64
}

// sink receives the files of a saved image, one after the other. Nothing is visible at its path
// before finish, and after abandon nothing is left. So an interrupted save never looks like a
// complete image.
type sink interface {
	createFile(name string, size int64) (io.WriteCloser, error)
	finish() error
	abandon()
}

// Save copies the newest version of the image in a directory, live or not, to a new directory or,
// if the name ends in FileSuffix, to a file. Commits that arrive meanwhile are not in the copy.
// Readers attach to the copy as to any image; its root records a stopped publisher. Save fails with
// kind AlreadyExists if there is something at the path, with Corrupt if the image is damaged, and
// with Canceled if ctx ends; after an error nothing is left.
func Save(ctx context.Context, dir, path string, progress Progress) (Saved, error) {
	const op rhumb.Op = "inspect.Save"
	im, err := Open(dir)
	if err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	defer im.Close()
	if len(im.Faults) > 0 {
		return Saved{}, rhumb.Ef(op, rhumb.Corrupt, "%s is damaged: %s", dir, im.Faults[0])
	}
	to, err := newSink(path)
	if err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	saved, err := im.saveTo(ctx, to, progress)
	if err == nil {
		err = to.finish()
	}
	if err != nil {
		to.abandon()
		return Saved{}, rhumb.Wrap(op, err)
	}
	saved.Path = path
	return saved, nil
}

// saveTo writes the root, the list of regions, and every generation to a sink. It checks ctx after
// each block, so that a cancellation takes effect soon.
func (im *Image) saveTo(ctx context.Context, to sink, progress Progress) (Saved, error) {
	s := Saved{Version: im.Version}
	total := im.totalBytes()
	put := func(name string, size int, write func(io.Writer) error) error {
		w, err := to.createFile(name, int64(size))
		if err != nil {
			return err
		}
		done := s.Bytes
		err = write(io.MultiWriter(w, teller(func(n int) error {
			done += int64(n)
			progress.report(done, total)
			return checkCanceled(ctx, "inspect.Save")
		})))
		s.Files, s.Bytes = s.Files+1, s.Bytes+int64(size)
		return errors.Join(err, w.Close())
	}
	err := put(format.RootName, format.RootSize, func(w io.Writer) error {
		_, err := w.Write(im.sealedRoot())
		return err
	})
	if err == nil {
		err = im.saveRegions(put)
	}
	for i := range im.Tables {
		for _, shard := range im.Tables[i].Shards {
			if err != nil {
				return s, err
			}
			err = put(shard.File, len(shard.m.bytes), func(w io.Writer) error { return im.saveShard(&im.Tables[i], shard, w) })
		}
	}
	return s, err
}

// saveRegions copies the image's list of regions, if there is one.
func (im *Image) saveRegions(put func(string, int, func(io.Writer) error) error) error {
	b, err := regionsFile(im.Dir)
	if err != nil || b == nil {
		return err
	}
	return put(format.RegionsName, len(b), func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// saveShard captures and copies one generation. A file that is truncated meanwhile is an error.
func (im *Image) saveShard(t *Table, s *Shard, w io.Writer) (err error) {
	fault := guardFaults("inspect.Save", s.File, func() {
		g := im.captureSegment(t, s)
		g.sealHeader()
		err = g.writeSealed(w)
	})
	if fault != nil {
		return fault
	}
	return err
}

// sealedRoot returns the root for the copy, which has no publisher.
func (im *Image) sealedRoot() []byte {
	root := append([]byte(nil), im.root...)
	// A copy has no publisher: a reader of an image in this state does not expect a heartbeat.
	le.PutUint64(root[format.RootHeartbeat:], 0)
	le.PutUint32(root[format.RootPID:], 0)
	le.PutUint32(root[format.RootState:], format.StateStopping)
	// The ring is encoded again from the decoded commits: an entry may have been torn when the root
	// was copied.
	clear(root[format.RootRing:][:format.RingSize*format.RingEntrySize])
	for _, c := range im.Commits {
		format.EncodeCommit(root[format.RootRing+int(c.Version%format.RingSize)*format.RingEntrySize:], c)
	}
	return root
}

// newSink returns the sink for a path.
func newSink(path string) (sink, error) {
	const op rhumb.Op = "inspect.newSink"
	if _, err := os.Lstat(path); err == nil {
		return nil, rhumb.Ef(op, rhumb.AlreadyExists, "%s exists; give a path that does not", path)
	}
	if !strings.HasSuffix(path, FileSuffix) {
		return newDirectory(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fileError(op, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fileError(op, err)
	}
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return &archive{path: path, f: f, z: z, t: tar.NewWriter(z)}, nil
}

// archive writes a compressed tar archive under a temporary name in the same directory, so that the
// final rename stays within one file system.
type archive struct {
	path string
	f    *os.File
	z    *zstd.Encoder
	t    *tar.Writer
}

// createFile begins the next file of the archive.
func (a *archive) createFile(name string, size int64) (io.WriteCloser, error) {
	err := a.t.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, Typeflag: tar.TypeReg})
	if err != nil {
		return nil, fileError("inspect.archive", err)
	}
	return member{a.t}, nil
}

// member writes one file of an archive.
type member struct{ t *tar.Writer }

// Write writes a part of the file.
func (m member) Write(p []byte) (int, error) {
	n, err := m.t.Write(p)
	if err != nil {
		err = fileError("inspect.archive", err)
	}
	return n, err
}

// Close fails if the file is shorter than its header declared.
func (m member) Close() error { return m.t.Flush() }

// finish completes the archive and renames it to its path. The file is synced first: after a power
// failure the path must not name an incomplete archive.
func (a *archive) finish() error {
	err := errors.Join(a.t.Close(), a.z.Close(), a.f.Chmod(0o644), a.f.Sync(), a.f.Close())
	if err == nil {
		err = os.Rename(a.f.Name(), a.path)
	}
	if err != nil {
		return fileError("inspect.archive", err)
	}
	return nil
}

// abandon removes the archive.
func (a *archive) abandon() {
	_ = a.z.Close()
	_ = a.f.Close()
	_ = os.Remove(a.f.Name()) // its name is still the temporary one
}

// directory writes files into a temporary directory in the same parent and renames the directory at
// the end.
type directory struct{ path, temporary string }

// newDirectory creates the temporary directory in the parent of the path, so that the rename stays
// within one file system.
func newDirectory(path string) (*directory, error) {
	const op rhumb.Op = "inspect.newDirectory"
	parent := filepath.Dir(filepath.Clean(path))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fileError(op, err)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(path)+".*")
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err != nil {
		return nil, fileError(op, err)
	}
	return &directory{path: filepath.Clean(path), temporary: tmp}, nil
}

// blockSize is the size of the blocks of zeros that are left out of a file.
const blockSize = 64 << 10

// sparse writes a file and leaves out blocks of zeros. Much of a segment is free, and a saved image
// should not take disk space for it.
type sparse struct {
	*os.File
	at int64
}

// Write writes the blocks that are not zero.
func (s *sparse) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		b := p[:min(len(p), blockSize)]
		// The file was truncated to its full size, so blocks that are not written read as zeros.
		if !allZero(b) {
			if _, err := s.WriteAt(b, s.at); err != nil {
				return n, fileError("inspect.write", err)
			}
		}
		n, s.at, p = n+len(b), s.at+int64(len(b)), p[len(b):]
	}
	return n, nil
}

// Close syncs the file, so that its content is on disk before its directory is renamed.
func (s *sparse) Close() error { return errors.Join(s.Sync(), s.File.Close()) }

// createFile creates a file of its full size, all of it a hole.
func (d *directory) createFile(name string, size int64) (io.WriteCloser, error) {
	const op rhumb.Op = "inspect.create"
	f, err := os.OpenFile(filepath.Join(d.temporary, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fileError(op, err)
	}
	if err := f.Truncate(size); err != nil {
		_ = f.Close()
		return nil, fileError(op, err)
	}
	return &sparse{File: f}, nil
}

// finish renames the directory to its path.
func (d *directory) finish() error {
	if err := os.Rename(d.temporary, d.path); err != nil {
		return fileError("inspect.rename", err)
	}
	return nil
}

// abandon removes the temporary directory; after finish there is none.
func (d *directory) abandon() { _ = os.RemoveAll(d.temporary) }

// LoadOptions controls how Load installs an image.
type LoadOptions struct {
	// Replace removes an existing image, unless its publisher is alive.
	Replace  bool
	Progress Progress
}

// Load installs a saved image, a file or a directory, in a directory to which readers attach. It
// checks the image first. It fails with kind AlreadyExists if the directory exists and Replace is
// not set, or if a publisher is alive there, and with Corrupt if the saved image is damaged. If ctx
// ends, Load fails with Canceled and leaves an existing image unchanged.
func Load(ctx context.Context, from, dir string, opt LoadOptions) (Saved, error) {
	const op rhumb.Op = "inspect.Load"
	if err := mayReplace(dir, opt.Replace); err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	// The new image is written to a temporary directory and renamed, so that readers find the old
	// image or the new one and never a part of either.
	to, err := newDirectory(dir)
	if err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	defer to.abandon() // after the rename there is nothing to remove
	saved, err := unpackImage(ctx, from, to, opt.Progress)
	if err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	// The copy is checked and not the source, so that errors of copying are found too.
	report, err := Verify(ctx, to.temporary, VerifyOptions{})
	if err := checkCanceled(ctx, op); err != nil {
		return Saved{}, err
	}
	if err != nil {
		return Saved{}, rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	if len(report.Faults) > 0 {
		return Saved{}, rhumb.Ef(op, rhumb.Corrupt, "%s is damaged: %s", from, report.Faults[0])
	}
	if err := mayReplace(dir, opt.Replace); err != nil { // a publisher may have started meanwhile
		return Saved{}, rhumb.Wrap(op, err)
	}
	// A rename cannot replace a directory that is not empty, so the old image is removed first.
	if err := errors.Join(os.RemoveAll(dir), to.finish()); err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	saved.Path, saved.Version = dir, report.Version
	return saved, nil
}

// mayReplace returns an error if a directory must not be replaced, above all a live image.
func mayReplace(dir string, replace bool) error {
	const op rhumb.Op = "inspect.Load"
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if hasPublisher(dir) {
		return rhumb.Ef(op, rhumb.AlreadyExists, "a publisher is alive in %s; choose another place, or stop the node first", dir)
	}
	if !replace {
		return rhumb.Ef(op, rhumb.AlreadyExists, "%s exists; choose another place, or replace it with --replace", dir)
	}
	// Replace removes the whole directory, so a mistyped path must not be removed.
	if _, err := os.Stat(filepath.Join(dir, format.RootName)); err != nil {
		return rhumb.Ef(op, rhumb.AlreadyExists, "%s exists and holds no image; it is not replaced", dir)
	}
	return nil
}

// hasPublisher reports whether a publisher is alive in a directory, or holds its lock.
func hasPublisher(dir string) bool {
	if im, err := Open(dir); err == nil {
		defer im.Close()
		// The heartbeat is recent. A publisher that hangs still holds its lock, which is checked
		// below.
		if im.Publisher.Alive {
			return true
		}
	}
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	defer f.Close()
	// A publisher that is still opening the image holds the lock before its heartbeat is visible.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// imageFile matches the names of the files of a saved image. An archive may be from an untrusted
// source, and its names must not lead out of the directory. Locks and quarantined files are never
// part of a saved image.
var imageFile = regexp.MustCompile(`^(root|regions\.json|seg\.[0-9]{1,3}\.[0-9]{1,20})$`)

// unpackImage copies the files of a saved image to a sink: those of a directory as Save does, and
// those of an archive one by one.
func unpackImage(ctx context.Context, from string, to *directory, progress Progress) (Saved, error) {
	const op rhumb.Op = "inspect.unpack"
	info, err := os.Stat(from)
	if err != nil {
		return Saved{}, fileError(op, err)
	}
	if info.IsDir() {
		im, err := Open(from)
		if err != nil {
			return Saved{}, err
		}
		defer im.Close()
		if len(im.Faults) > 0 {
			return Saved{}, rhumb.Ef(op, rhumb.Corrupt, "%s is damaged: %s", from, im.Faults[0])
		}
		return im.saveTo(ctx, to, progress)
	}
	f, err := os.Open(from)
	if err != nil {
		return Saved{}, fileError(op, err)
	}
	defer f.Close()
	// One goroutine decodes, so that the file position is a measure of progress.
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return Saved{}, rhumb.Wrap(op, err)
	}
	defer z.Close()
	done := func(int) error {
		at, _ := f.Seek(0, io.SeekCurrent) // for display only
		progress.report(at, info.Size())
		return checkCanceled(ctx, op)
	}
	s, err := extractFiles(tar.NewReader(z), to, done)
	// Errors of tar and zstd have no kind: whatever the cause, the file is not a saved image.
	if err != nil && rhumb.KindOf(err) == rhumb.Other {
		err = rhumb.WrapKind(op, rhumb.Corrupt, fmt.Errorf("%s is not a saved image, or is truncated: %w", from, err))
	}
	return s, err
}

// extractFiles writes the files of an archive.
func extractFiles(t *tar.Reader, to *directory, done teller) (s Saved, err error) {
	const op rhumb.Op = "inspect.extract"
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		// Only plain files with the names of an image are written: a link, or a name with a slash,
		// could lead anywhere.
		if h.Typeflag != tar.TypeReg || !imageFile.MatchString(h.Name) || s.Files > format.ShardsMax {
			return s, rhumb.Ef(op, rhumb.Corrupt, "%q does not belong in a saved image", h.Name)
		}
		w, err := to.createFile(h.Name, h.Size)
		if err != nil {
			return s, err
		}
		// The wrapper hides ReadFrom of the file, which would bypass Write and fill the holes.
		_, err = io.CopyBuffer(struct{ io.Writer }{w}, io.TeeReader(t, done), make([]byte, 1<<20))
		if err = errors.Join(err, w.Close()); err != nil {
			return s, err
		}
		s.Files, s.Bytes = s.Files+1, s.Bytes+h.Size
	}
}

// teller is a Writer that calls itself with the length of each piece; an error ends the copy.
type teller func(n int) error

func (t teller) Write(p []byte) (int, error) { return len(p), t(len(p)) }

// OpenSaved returns a directory with the image at a path: the path itself if it is a directory, or
// a temporary directory with the image of a file, which done removes.
func OpenSaved(ctx context.Context, path string) (dir string, done func(), err error) {
	const op rhumb.Op = "inspect.OpenSaved"
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, fileError(op, err)
	}
	if info.IsDir() {
		return path, func() {}, nil
	}
	tmp, err := os.MkdirTemp("", "rhumb-image-")
	if err != nil {
		return "", nil, fileError(op, err)
	}
	done = func() { _ = os.RemoveAll(tmp) }
	if _, err := Load(ctx, path, filepath.Join(tmp, "image"), LoadOptions{}); err != nil {
		done()
		return "", nil, rhumb.Wrap(op, err)
	}
	return filepath.Join(tmp, "image"), done, nil
}
