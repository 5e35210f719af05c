package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// Install receives a set and puts it in the place of the range. The durable steps, in this order:
//
//  1. The mark: a key of SpaceStore that names the set. It exists before the first byte does.
//  2. The directory in/RANGE with the description of the set and the chunks received so far.
//  3. IngestAndExcise, one atomic step of the database: it removes all keys of the range and adds
//     the tables of the set, together with a table that holds the new state.
//  4. The directory and the mark are removed.
//
// A crash before step 3 leaves the old copy, unchanged, and the mark; the install continues with the
// chunks that are whole. A crash after it leaves the new copy. The start then finds that the copy
// has reached the set, and does step 4. No step leaves a copy in part.
//
// One goroutine uses an Install.
type Install struct {
	*Set
	s   *Store
	dir string
	// next is the first chunk that is missing.
	next int
	// installed is set once the database has the new copy.
	installed bool
	// absorbed are ranges whose slots the set has, and which go with the old copy.
	absorbed []rhumb.RangeID
	// file is open for writing chunks of the file with index at.
	file     vfs.File
	at       int
	unsynced int64
}

const (
	setFileName   = "SET"
	stateFileName = "state" + tableSuffix
	// localInstall is the prefix of the marks in SpaceStore, before the name of the range;
	// localInstallEnd follows all marks.
	localInstall    = "install/"
	localInstallEnd = "install0"
	// installSyncBytes is how much may be lost by a power loss, and is then sent again.
	installSyncBytes = 16 << 20
)

// installMark returns the key of the mark of a range.
func installMark(id rhumb.RangeID) []byte {
	return []byte(localInstall + id.String())
}

// installDir returns the directory of the install of a range.
func (s *Store) installDir(id rhumb.RangeID) string {
	return s.fs.PathJoin(s.cfg.Dir, transferName, inName, fmt.Sprintf("%d-%d", id.Region, id.Slot))
}

// BeginInstall begins to receive a set, or continues after an interruption: chunks of the same set
// that are whole on disk are kept. Chunks of another set are removed.
func (s *Store) BeginInstall(set *Set) (*Install, error) {
	const op rhumb.Op = "storage.Store.BeginInstall"
	if err := s.Writable(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	in := &Install{Set: set, s: s, dir: s.installDir(set.ID.Range), at: -1}
	if old, err := s.readSet(set.ID.Range); err == nil && old.ID == set.ID && string(old.SHA256) == string(set.SHA256) {
		return in, in.findChunks(op)
	}
	// Chunks of another set must be gone before the description of this one exists.
	if err := removeAll(s.fs, in.dir); err != nil {
		return nil, err
	}
	if err := s.Local(SpaceStore).Set(installMark(set.ID.Range), []byte(set.ID.String())); err != nil {
		return nil, err
	}
	if err := makeDir(s.fs, in.dir); err != nil {
		return nil, err
	}
	return in, replaceFile(s.fs, in.dir, setFileName, set.Encode())
}

// readSet reads the description of the set that a range has begun to receive.
func (s *Store) readSet(id rhumb.RangeID) (*Set, error) {
	b, err := readFile(s.fs, s.fs.PathJoin(s.installDir(id), setFileName))
	if err != nil {
		return nil, err
	}
	set, err := DecodeSet(b)
	if err == nil && set.ID.Range != id {
		err = rhumb.Ef("storage.readSet", rhumb.Corrupt, "the set in the directory of range %s is of range %s", id, set.ID.Range)
	}
	return set, err
}

// Installing returns the set that a range has begun to receive, or nil.
func (s *Store) Installing(id rhumb.RangeID) *Set {
	// The directory alone proves nothing: a crash may have come before the mark, or after it was
	// cleared.
	if _, marked, err := s.Local(SpaceStore).Get(installMark(id)); err != nil || !marked {
		return nil
	}
	set, err := s.readSet(id)
	if err != nil {
		return nil
	}
	return set
}

// Installs returns the ranges that have begun to receive a set and have not installed it.
func (s *Store) Installs() (ids []rhumb.RangeID) {
	for p, err := range s.Local(SpaceStore).Scan([]byte(localInstall), []byte(localInstallEnd)) {
		if err != nil {
			// The marks are looked at again; a disk that fails shows elsewhere.
			return ids
		}
		if id, err := rhumb.ParseRangeID(strings.TrimPrefix(string(p.Key), localInstall)); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// DropInstall removes what a range has received of a set. Nobody may be receiving it.
func (s *Store) DropInstall(id rhumb.RangeID) error { return s.dropInstall(id) }

// findChunks finds the first chunk that is not whole on disk. The checksums in the description
// suffice for that, so no journal of received chunks is needed, and a lost write is found too.
func (in *Install) findChunks(op rhumb.Op) error {
	for in.next = 0; in.next < in.Chunks(); in.next++ {
		file, at, size, sum, _ := in.chunkAt(in.next)
		b, err := readChunk(in.s.fs, in.path(file), at, size)
		if err != nil || crc32.Checksum(b, castagnoli) != sum {
			return nil //nolint:nilerr // the chunk is received again, and a disk that fails shows then
		}
	}
	return nil
}

// Next returns the first chunk that is missing. It equals Chunks when all were received.
func (in *Install) Next() int { return in.next }

// BytesBefore returns the size of the chunks before one.
func (in *Install) BytesBefore(chunk int) (n int64) {
	for c := range chunk {
		_, _, size, _, _ := in.chunkAt(c)
		n += int64(size)
	}
	return n
}

// path returns the path of a file of the set.
func (in *Install) path(file int) string { return in.s.fs.PathJoin(in.dir, fileName(file)) }

// Add stores the next chunk. A chunk with a wrong checksum is rejected with Corrupt and changes
// nothing. Chunks come in order.
func (in *Install) Add(chunk int, b []byte) error {
	const op rhumb.Op = "storage.Install.Add"
	file, at, size, sum, ok := in.chunkAt(chunk)
	switch {
	case !ok || chunk != in.next:
		return rhumb.Ef(op, rhumb.InvalidArgument, "chunk %d of set %s was received, and chunk %d is next", chunk, in.ID, in.next)
	case len(b) != size || crc32.Checksum(b, castagnoli) != sum:
		return rhumb.Ef(op, rhumb.Corrupt, "chunk %d of set %s does not match its checksum; it was damaged on the way", chunk, in.ID)
	}
	if err := in.openFile(op, file); err != nil {
		return err
	}
	// The argument is cloned, because a vfs.File may modify it.
	if _, err := in.file.WriteAt(append([]byte(nil), b...), at); err != nil {
		return ioError(op, in.path(file), err)
	}
	in.next++
	if in.unsynced += int64(size); in.unsynced >= installSyncBytes {
		in.unsynced = 0
		if err := in.file.Sync(); err != nil {
			return ioError(op, in.path(file), err)
		}
		// Checked here and not for each chunk: the disk must keep room for commits.
		return rhumb.Wrap(op, in.s.Writable())
	}
	return nil
}

// openFile opens a file of the set for writing, and completes the one before.
func (in *Install) openFile(op rhumb.Op, file int) error {
	if in.file != nil && in.at == file {
		return nil
	}
	if err := in.closeFile(op); err != nil {
		return err
	}
	f, err := in.s.fs.OpenReadWrite(in.path(file), vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError(op, in.path(file), err)
	}
	in.file, in.at = f, file
	return nil
}

// closeFile makes the open file durable and closes it.
func (in *Install) closeFile(op rhumb.Op) error {
	if in.file == nil {
		return nil
	}
	f := in.file
	in.file = nil
	return ioError(op, in.path(in.at), errors.Join(f.Sync(), f.Close()))
}

// Pause keeps the received chunks and releases the files. A later BeginInstall continues.
func (in *Install) Pause() error { return in.closeFile("storage.Install.Pause") }

// Abort ends the install: it removes the received chunks, and then the mark.
func (in *Install) Abort() error {
	return errors.Join(in.closeFile("storage.Install.Abort"), in.s.dropInstall(in.ID.Range))
}

// dropInstall removes the directory and the mark of an install. The mark is last, so that no
// directory is left that nothing names.
func (s *Store) dropInstall(id rhumb.RangeID) error {
	if err := removeAll(s.fs, s.installDir(id)); err != nil {
		return err
	}
	b := s.Local(SpaceStore).NewBatch()
	b.Delete(installMark(id))
	return b.Commit(true)
}

// Verify compares all files as they are on disk with the description. If it fails with Corrupt, the
// set is of no use.
func (in *Install) Verify() error {
	const op rhumb.Op = "storage.Install.Verify"
	if err := in.closeFile(op); err != nil {
		return err
	}
	if in.next < in.Chunks() {
		return rhumb.Ef(op, rhumb.Conflict, "chunk %d of set %s is missing", in.next, in.ID)
	}
	sum := sha256.New()
	for file := range in.Files {
		if err := in.verifyFile(op, file, sum); err != nil {
			return err
		}
	}
	if string(sum.Sum(nil)) != string(in.SHA256) {
		return rhumb.Ef(op, rhumb.Corrupt, "the digest of set %s does not match", in.ID)
	}
	return nil
}

// verifyFile adds the content of a file to the digest and checks that the table holds only keys of
// the range: a table with others would replace keys of another range.
func (in *Install) verifyFile(op rhumb.Op, file int, sum hash.Hash) error {
	f := &in.Files[file]
	path := in.path(file)
	for at := int64(0); at < f.Bytes; at += ChunkBytes {
		b, err := readChunk(in.s.fs, path, at, int(min(ChunkBytes, f.Bytes-at)))
		if err != nil {
			return ioError(op, path, err)
		}
		_, _ = sum.Write(b)
	}
	if err := in.s.syncFile(path); err != nil {
		return err
	}
	first, last, err := tableEnds(in.s.fs, path)
	if err != nil {
		return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Range: in.ID.Range, Msg: path, Err: err}
	}
	set, err := in.state()
	if err != nil {
		return err
	}
	if span := transferSpan(in.ID.Range, set.log.LastSlot); !span.Contains(first) || !span.Contains(last) {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: a table of set %s holds the keys %s to %s, which are not all of range %s", path, in.ID, keys.Format(first), keys.Format(last), in.ID.Range)
	}
	return nil
}

// syncFile makes a file durable that an earlier start may have written.
func (s *Store) syncFile(path string) error {
	f, err := s.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError("storage.syncFile", path, err)
	}
	return ioError("storage.syncFile", path, errors.Join(f.Sync(), f.Close()))
}

// tableEnds returns the first and the last key of a table.
func tableEnds(fsys vfs.FS, path string) (first, last []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, verifyOptions(fsys).MakeReaderOptions())
	if err != nil {
		return nil, nil, errors.Join(err, readable.Close())
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if kv := it.First(); kv != nil {
		first = append([]byte(nil), kv.K.UserKey...)
	}
	if kv := it.Last(); kv != nil {
		last = append([]byte(nil), kv.K.UserKey...)
	}
	if first == nil || last == nil {
		return nil, nil, errors.New("the table is empty")
	}
	return first, last, it.Error()
}

// LastSlot returns the last slot of the range in the set.
func (in *Install) LastSlot() rhumb.Slot {
	set, err := in.state()
	if err != nil {
		return in.ID.Range.Slot
	}
	return max(in.ID.Range.Slot, set.log.LastSlot)
}

// Absorb names other ranges of the store whose slots the set has, because they were merged into its range. Finish removes them in the same
// step. Their writers must be stopped.
func (in *Install) Absorb(ids []rhumb.RangeID) { in.absorbed = ids }

// Finish puts the set in the place of the range and returns the new state. The range's writer must
// be stopped. promised is the greatest epoch that the replica has promised so far: the new copy
// promises no less. least is a position up to which the present copy may hold what others count on:
// a set that is not committed up to there is rejected with Conflict.
//
// After an error the old copy is unchanged, unless Installed reports true.
func (in *Install) Finish(promised rhumb.Epoch, least rhumb.Seq) (RangeState, error) {
	const op rhumb.Op = "storage.Install.Finish"
	s, id := in.s, in.ID.Range
	if in.Commit < least {
		return RangeState{}, rhumb.Ef(op, rhumb.Conflict, "set %s is committed up to %d, but the copy here reaches up to %d", in.ID, in.Commit, least)
	}
	old := s.rangeOf(id)
	if old != nil {
		// A collection that writes after the excision would leave deletions of keys that the new
		// copy may hold.
		old.collecting.Lock()
		defer old.collecting.Unlock()
	}
	for _, other := range in.absorbed {
		if rs := s.rangeOf(other); rs != nil {
			rs.collecting.Lock()
			defer rs.collecting.Unlock()
		}
	}
	if err := in.writeState(op, max(promised, in.Promised)); err != nil {
		return RangeState{}, err
	}
	paths := []string{s.fs.PathJoin(in.dir, stateFileName)}
	for file := range in.Files {
		paths = append(paths, in.path(file))
	}
	set, err := in.state()
	if err != nil {
		return RangeState{}, err
	}
	// The old copy may have more slots, if the range was split meanwhile. None of them is of another range.
	last := set.log.LastSlot
	if old != nil {
		last = max(last, old.copyState().LastSlot)
	}
	span := transferSpan(id, s.clampLast(id, last, in.absorbed...))
	// The database links the files and syncs its directory before it refers to them, and the step
	// is durable when the call returns.
	// Pebble may put the ingestion into its log, and syncs it there.
	defer s.fs.awaitSync(false)()
	err = s.settled(func() error {
		_, err := s.db.IngestAndExcise(context.Background(), paths, nil, nil, pebble.KeyRange{Start: span.Lower, End: span.Upper})
		return err
	})
	if err != nil {
		return RangeState{}, s.dbError(op, err)
	}
	in.installed = true
	s.rows.clear()
	s.forgetRanges(in.absorbed)
	st, err := s.adoptInstalled(op, id, old)
	if err != nil {
		return st, err
	}
	if err := s.dropInstall(id); err != nil {
		s.log.Warn("the mark of a finished install was not removed; the next start removes it", "store", s.cfg.Dir, "range", id, "err", err)
	}
	return st, nil
}

// Installed reports whether the database has the new copy. If Finish fails after that, the store must
// be opened again.
func (in *Install) Installed() bool { return in.installed }

// forgetRanges takes ranges whose keys are gone out of the state in memory.
func (s *Store) forgetRanges(ids []rhumb.RangeID) {
	for _, id := range ids {
		rs := s.rangeOf(id)
		if rs == nil {
			continue
		}
		rs.mu.Lock()
		rs.dropped = true
		rs.mu.Unlock()
		s.names.dropRange(rs)
		s.mu.Lock()
		delete(s.ranges, id)
		s.wide.remove(id)
		s.mu.Unlock()
		s.rangeMended(id)
	}
}

// adoptInstalled makes the state in memory that of the installed copy.
func (s *Store) adoptInstalled(op rhumb.Op, id rhumb.RangeID, old *rangeState) (RangeState, error) {
	span := transferSpan(id, id.Slot)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return RangeState{}, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	rs, err := s.loadRange(op, it, nil, id)
	if err != nil {
		return RangeState{}, err
	}
	if old != nil {
		old.mu.Lock()
		old.dropped = true
		old.mu.Unlock()
		s.names.dropRange(old)
	}
	s.mu.Lock()
	s.ranges[id] = rs
	s.wide.add(id, rs.log.LastSlot)
	s.mu.Unlock()
	// Blocks of the old copy are not reachable any more.
	s.rangeMended(id)
	return rs.copyState(), nil
}

// writeState writes the table with the state of the new copy.
func (in *Install) writeState(op rhumb.Op, promised rhumb.Epoch) error {
	path := in.s.fs.PathJoin(in.dir, stateFileName)
	f, err := in.s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError(op, path, err)
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), in.s.tableOptions())
	for _, field := range in.fieldsWith(promised) {
		if err := w.Set(keys.AppendState(nil, in.ID.Range, keys.StateField(field.Field)), field.Value); err != nil {
			return errors.Join(in.s.dbError(op, err), w.Close())
		}
	}
	// Close syncs the file.
	if err := w.Close(); err != nil {
		return in.s.dbError(op, err)
	}
	return syncDir(in.s.fs, in.dir)
}

// cleanTransfers removes what transfers of earlier starts left: incomplete exports, directories of installs
// without a mark, and installs that were completed or whose description cannot be read.
func (s *Store) cleanTransfers(op rhumb.Op) error {
	if err := s.cleanExports(op); err != nil {
		return err
	}
	keep := map[string]bool{}
	for p, err := range s.Local(SpaceStore).Scan([]byte(localInstall), []byte(localInstallEnd)) {
		if err != nil {
			return err
		}
		id, err := rhumb.ParseRangeID(strings.TrimPrefix(string(p.Key), localInstall))
		if err != nil {
			return rhumb.Ef(op, rhumb.Corrupt, "%s: the mark %q names no range", s.cfg.Dir, p.Key)
		}
		set, err := s.readSet(id)
		// A copy that has reached the set's commit position is the installed one, or needs the set
		// no more.
		done := err != nil || s.hasReached(id, set.ID.Last, set.Commit)
		if done {
			if err := s.dropInstall(id); err != nil {
				return err
			}
			continue
		}
		keep[s.fs.PathBase(s.installDir(id))] = true
	}
	parent := s.fs.PathJoin(s.cfg.Dir, transferName, inName)
	names, err := s.fs.List(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError(op, parent, err)
	}
	for _, n := range names {
		if keep[n] {
			continue
		}
		if err := removeAll(s.fs, s.fs.PathJoin(parent, n)); err != nil {
			return err
		}
	}
	return nil
}

// hasReached reports whether the copy of a range holds everything that a set would add as final.
func (s *Store) hasReached(id rhumb.RangeID, last entry.Position, commit rhumb.Seq) bool {
	st, ok := s.State(id)
	return ok && (st.Commit >= commit && commit > 0 || st.Last == last)
}
