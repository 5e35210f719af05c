package storage

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
)

// manifestFile is a manifest that Pebble writes from its start. Pebble cannot distinguish a
// manifest that lost its end from one that a crash interrupted, and a table that only the lost end
// named would be gone silently. So each sync of the manifest is recorded in the seal before Pebble
// learns of the sync and relies on it: after a sync Pebble deletes the logs and tables whose
// content moved.
//
// The hash is computed while Pebble writes, because reading the manifest again at each sync would
// cost more the longer it is. Only one goroutine at a time writes and syncs a manifest.
type manifestFile struct {
	vfs.File
	name    string
	written int64
	hash    *xxh3.Hasher
	broken  bool
	before  func() error // called before each sync
	synced  func(f sealedFile)
}

// Write implements vfs.File.
func (f *manifestFile) Write(p []byte) (int, error) {
	// The hash comes first, because a vfs.File may modify its argument.
	_, _ = f.hash.Write(p)
	n, err := f.File.Write(p)
	f.written += int64(n)
	// After a short write the hash covers bytes that are not in the file. Pebble abandons a
	// manifest that it could not write, so such a file needs no seal.
	f.broken = f.broken || n < len(p)
	return n, err
}

// Sync implements vfs.File.
func (f *manifestFile) Sync() error {
	if err := f.before(); err != nil {
		return err
	}
	return f.recordSync(true, f.File.Sync())
}

// SyncData implements vfs.File.
func (f *manifestFile) SyncData() error {
	if err := f.before(); err != nil {
		return err
	}
	return f.recordSync(true, f.File.SyncData())
}

// SyncTo implements vfs.File. A partial sync is not recorded: the seal covers whole files.
func (f *manifestFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	return full, f.recordSync(full, err)
}

// recordSync calls the synced function after a complete sync, and returns the error of the sync.
func (f *manifestFile) recordSync(full bool, err error) error {
	if full && err == nil && !f.broken {
		f.synced(sealedFile{name: f.name, length: f.written, hash: fmt.Sprintf("%x", f.hash.Sum128().Bytes())})
	}
	return err
}

// watchManifest wraps a new manifest of the data directory so that its syncs are recorded. It
// returns other files unchanged.
func (s *Store) watchManifest(path string, f vfs.File) vfs.File {
	base := s.fs.PathBase(path)
	if !strings.HasPrefix(base, manifestPrefix) || s.fs.PathDir(path) != s.dataDir() {
		return f
	}
	return &manifestFile{File: f, name: base, hash: xxh3.New(), before: s.syncBeforeTables, synced: s.sealManifest}
}

// sealManifest writes a seal with a manifest as of a sync. The seal lists a new manifest together
// with the previous one until its second sync, because Pebble writes the new manifest first and
// switches the marker file later: a crash in between makes the next start use the previous one. If
// the seal cannot be written, the old seal remains valid and covers less.
func (s *Store) sealManifest(f sealedFile) {
	s.manifestMu.Lock()
	defer s.manifestMu.Unlock()
	next := s.manifests
	switch n := len(next); {
	case n > 0 && next[n-1].name == f.name:
		// The second sync of the same manifest: Pebble uses it now, so the previous one no longer
		// counts.
		next = []sealedFile{f}
	default:
		// The limited capacity makes append copy the list, so that s.manifests is unchanged if the
		// seal is not written below. More than two manifests are never needed: Pebble uses the
		// newest or the one before it.
		next = append(next[:n:n], f)
		next = next[max(0, len(next)-2):]
		// A file that the seal lists must exist after a crash, and Pebble syncs the directory only
		// after this sync of the file.
		if err := syncDir(s.fs, s.dataDir()); err != nil {
			s.sealFailed(err)
			return
		}
	}
	// The list changes in memory even if the seal cannot be written, so that the next sync writes
	// the current state.
	s.manifests = next
	if err := replaceFile(s.fs, s.cfg.Dir, sealName, (&seal{files: next}).encode()); err != nil {
		s.sealFailed(err)
	}
}

// sealFailed records that a seal could not be written.
func (s *Store) sealFailed(err error) {
	s.metrics.sealFailures.Inc()
	s.log.Warn("the seal was not renewed; the previous one remains valid", "store", s.cfg.Dir, "err", err)
}
