package storage

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
)

// manifestFile is a manifest that is written from its start. Pebble cannot tell a manifest whose end was lost from one that a
// crash interrupted, and a table that was named there would be gone without a word. So each sync of the manifest is put on
// record before Pebble learns of it, and relies on it: before it deletes the log or the tables whose content moved.
type manifestFile struct {
	vfs.File
	name    string
	written int64
	hash    *xxh3.Hasher
	broken  bool
	synced  func(f sealedFile)
}

func (f *manifestFile) Write(p []byte) (int, error) {
	_, _ = f.hash.Write(p) // first: a file may change what it is given
	n, err := f.File.Write(p)
	f.written += int64(n)
	f.broken = f.broken || n < len(p) // Pebble gives up a manifest that it could not write
	return n, err
}

func (f *manifestFile) Sync() error { return f.recordSync(true, f.File.Sync()) }

func (f *manifestFile) SyncData() error { return f.recordSync(true, f.File.SyncData()) }

func (f *manifestFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	return full, f.recordSync(full, err)
}

func (f *manifestFile) recordSync(full bool, err error) error {
	if full && err == nil && !f.broken {
		f.synced(sealedFile{name: f.name, length: f.written, hash: fmt.Sprintf("%x", f.hash.Sum128().Bytes())})
	}
	return err
}

// watchManifest has the syncs of a new manifest of the data directory recorded.
func (s *Store) watchManifest(path string, f vfs.File) vfs.File {
	base := s.fs.PathBase(path)
	if !strings.HasPrefix(base, manifestPrefix) || s.fs.PathDir(path) != s.dataDir() {
		return f
	}
	return &manifestFile{File: f, name: base, hash: xxh3.New(), synced: s.sealManifest}
}

// sealManifest puts a manifest on record as it is after a sync. One that is new is listed beside the one before it until it is
// synced again: Pebble goes over to it a little later. Without a new seal the old one stands, and covers less.
func (s *Store) sealManifest(f sealedFile) {
	s.manifestMu.Lock()
	defer s.manifestMu.Unlock()
	next := s.manifests
	switch n := len(next); {
	case n > 0 && next[n-1].name == f.name:
		next = []sealedFile{f}
	default:
		next = append(next[:n:n], f)
		next = next[max(0, len(next)-2):]
		// What is listed must be there after a crash: the directory is made durable a little later.
		if err := syncDir(s.fs, s.dataDir()); err != nil {
			s.sealFailed(err)
			return
		}
	}
	s.manifests = next
	if err := replaceFile(s.fs, s.cfg.Dir, sealName, (&seal{files: next}).encode()); err != nil {
		s.sealFailed(err)
	}
}

func (s *Store) sealFailed(err error) {
	s.metrics.sealFailures.Inc()
	s.log.Warn("seal not renewed, the old one stands", "store", s.cfg.Dir, "err", err)
}
