package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Directories of transfers, below that of the store. A start keeps the exports that are complete, which their
// description shows, and the installs that a mark names, so that both sides continue.
const (
	transferName = "transfer"
	outName      = "out"
	inName       = "in"
)

// ExportOptions describes a set that is to be made.
type ExportOptions struct {
	// Donor, Life and Number become part of the set's identity.
	Donor  rhumb.NodeID
	Life   rhumb.BootSeq
	Number uint64
	// Commit is the commit position that the replica knows. The stored one may be older, because it
	// is written with the next entry.
	Commit Commit
	// Pace, if set, is called before bytes are written. It may wait, and ends the export by an error.
	Pace func(ctx context.Context, bytes int) error
}

// Export is a copy of a range in tables of its own, made from one moment of the database. The donor
// holds no lock and no iterator while the copy is sent, so a slow receiver costs it nothing but the
// space of the files.
type Export struct {
	Set
	s   *Store
	dir string
}

// Export writes a set of a range that the store holds. The range may be written and collected at the
// same time.
//
// Everything is checked while it is read: Pebble verifies the checksum of each block, and the entries
// that are still in the log are compared with their hashes. If something is damaged, Export fails
// with Corrupt, so that a damaged copy is never a source.
func (s *Store) Export(ctx context.Context, id rhumb.RangeID, o ExportOptions) (_ *Export, err error) {
	const op rhumb.Op = "storage.Store.Export"
	if err := s.Writable(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	rs := s.rangeOf(id)
	if rs == nil || s.RangeDamaged(id) {
		return nil, rhumb.Ef(op, rhumb.NotFound, "%s holds no intact copy of range %s", s.cfg.Dir, id)
	}
	e := &Export{s: s, dir: s.fs.PathJoin(s.cfg.Dir, transferName, outName, fmt.Sprintf("%d-%d-%d-%d", id.Region, id.Slot, o.Life, o.Number))}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := makeDir(s.fs, e.dir); err != nil {
		return nil, err
	}
	// The iterator is one view of the database for everything below.
	span := transferSpan(id, rs.copyState().LastSlot)
	it, err := s.newWholeIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { err = errors.Join(err, s.dbError(op, it.Close())) }()
	if err := e.describe(op, id, o, it); err != nil {
		return nil, err
	}
	if err := e.checkLog(op, it); err != nil {
		return nil, err
	}
	w := &exporter{e: e, ctx: ctx, pace: o.Pace, sum: sha256.New()}
	if err := w.writeFiles(op, it); err != nil {
		return nil, err
	}
	e.SHA256 = w.sum.Sum(nil)
	// Last, after the tables are synced: a directory with a description is a whole set.
	return e, replaceFile(s.fs, e.dir, setFileName, e.Encode())
}

// Exports returns the complete sets that earlier starts of the store made, so that a receiver continues after the
// donor was killed, at the chunk that it lacks. A set depends on nothing that a start changes: it holds entries
// that were committed when it was made, and each chunk is compared with its checksum before it is sent. The
// caller closes those that nobody reads.
func (s *Store) Exports() (out []*Export) {
	parent := s.fs.PathJoin(s.cfg.Dir, transferName, outName)
	// A directory that cannot be listed has no sets to offer; the receivers begin with others.
	names, _ := s.fs.List(parent)
	slices.Sort(names)
	for _, n := range names {
		e := &Export{s: s, dir: s.fs.PathJoin(parent, n)}
		b, err := readFile(s.fs, s.fs.PathJoin(e.dir, setFileName))
		if err != nil {
			continue
		}
		set, err := DecodeSet(b)
		if err != nil {
			continue
		}
		e.Set = *set
		out = append(out, e)
	}
	return out
}

// cleanExports removes the directories of exports that an end of the process interrupted, and those whose description
// cannot be read.
func (s *Store) cleanExports(op rhumb.Op) error {
	parent := s.fs.PathJoin(s.cfg.Dir, transferName, outName)
	names, err := s.fs.List(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError(op, parent, err)
	}
	whole := map[string]bool{}
	for _, e := range s.Exports() {
		whole[s.fs.PathBase(e.dir)] = true
	}
	for _, n := range names {
		if whole[n] {
			continue
		}
		if err := removeAll(s.fs, s.fs.PathJoin(parent, n)); err != nil {
			return err
		}
	}
	return nil
}

// transferSpan returns the keys of a range. Unlike keys.RangeSpan it always has an upper end, which
// excising needs.
func transferSpan(id rhumb.RangeID, last rhumb.Slot) keys.Span {
	span := keys.RangeSpan(id, last)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return span
}

// describe reads the state of the range under the iterator.
func (e *Export) describe(op rhumb.Op, id rhumb.RangeID, o ExportOptions, it *pebble.Iterator) error {
	rs, err := e.s.loadRange(op, it, nil, id)
	if err != nil {
		return err
	}
	st := &rs.log
	if st.Quarantine != "" {
		return rhumb.Ef(op, rhumb.NotFound, "the copy of range %s in %s is quarantined: %s", id, e.s.cfg.Dir, st.Quarantine)
	}
	// A commit position beyond the last entry of this view would claim entries that are not here.
	if o.Commit.Seq > st.Commit && o.Commit.Seq <= st.Last.Seq {
		st.Commit, st.CommitHLC = o.Commit.Seq, o.Commit.HLC
	}
	e.ID = SetID{Range: id, Donor: o.Donor, Life: o.Life, Number: o.Number, Last: st.Last}
	e.Commit, e.Promised = st.Commit, max(st.Promised, st.Last.Epoch)
	add := func(f keys.StateField, v []byte) { e.State = append(e.State, SetField{byte(f), v}) }
	add(keys.StateRange, encodeRange(id, st.LastSlot))
	if st.base.pos.Seq != 0 {
		add(keys.StateBase, encodeBase(st.base))
	}
	add(keys.StateCommit, encodeWords(uint64(st.Commit), uint64(st.CommitHLC)))
	if rs.collected != 0 {
		add(keys.StateCollected, encodeWords(rs.collected))
	}
	if st.estimated {
		add(keys.StateSplit, encodeWords(st.given))
	}
	if st.End.Seq != 0 {
		add(keys.StateEnd, encodeEnd(st.End))
	}
	if len(st.merged) > 0 {
		add(keys.StateMerged, encodeSlots(st.merged))
	}
	if len(st.Lineage) > 0 {
		add(keys.StateLineage, encodeLineage(st.Lineage))
	}
	if st.Trim != 0 {
		add(keys.StateTrim, encodeWords(uint64(st.Trim), uint64(st.trimHLC), st.trimmed))
	}
	return nil
}

// checkLog compares the entries after the trim position with their hashes. The tables that follow
// hold them, and the receiver takes them as they are.
func (e *Export) checkLog(op rhumb.Op, view *pebble.Iterator) error {
	rs, err := e.state()
	if err != nil {
		return err
	}
	id := e.ID.Range
	log, err := view.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: keys.AppendLog(nil, id, rs.log.Trim+1), UpperBound: keys.KindSpan(id, keys.KindLog).Upper}})
	if err != nil {
		return e.s.dbError(op, err)
	}
	defer func() { _ = log.Close() }()
	data, err := view.Clone(pebble.CloneOptions{})
	if err != nil {
		return e.s.dbError(op, err)
	}
	defer func() { _ = data.Close() }()
	want := rs.log.Trim + 1
	for ok := log.First(); ok; ok = log.Next() {
		found, _, err := e.s.entryUnder(op, id, want, log, data)
		if err != nil {
			return err
		}
		if found == nil {
			break
		}
		want++
	}
	if err := log.Error(); err != nil {
		return e.s.dbError(op, err)
	}
	// Only a log without entries of its own ends at its base.
	if want != e.ID.Last.Seq+1 && e.ID.Last.Seq != rs.log.base.pos.Seq {
		return e.s.badRecord(op, id, want, rhumb.E(op, rhumb.Corrupt, "the record is missing"))
	}
	return nil
}

// exporter writes the files of an export.
type exporter struct {
	e    *Export
	ctx  context.Context
	pace func(ctx context.Context, bytes int) error
	sum  hash.Hash
	out  *sstable.Writer
	file *exportFile
	opts sstable.WriterOptions
	raw  int64 // bytes of keys and values in the current file
	owed int   // bytes of keys and values that were not paced yet
}

// paceEvery is how many bytes are written between two calls of Pace, and roomEvery the bytes
// between two checks of the disk.
const (
	paceEvery = 256 << 10
	roomEvery = 8 << 20
)

// writeFiles writes the keys of the range except its state into tables. The tables must not overlap
// the keys of the state, because the receiver adds a table with those.
func (w *exporter) writeFiles(op rhumb.Op, it *pebble.Iterator) error {
	s := w.e.s
	w.opts = s.tableOptions()
	state := keys.KindSpan(w.e.ID.Range, keys.KindState)
	after := false
	defer w.abandon()
	room := int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		key := it.Key()
		if keys.Compare(key, state.Lower) >= 0 {
			if keys.Compare(key, state.Upper) < 0 {
				continue
			}
			// The first key after the state begins a new table.
			if !after {
				after = true
				if err := w.finishFile(op); err != nil {
					return err
				}
			}
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return s.dbError(op, err)
		}
		n := len(key) + len(value)
		if room += int64(n); room >= roomEvery {
			room = 0
			if err := s.Writable(); err != nil {
				return rhumb.Wrap(op, err)
			}
		}
		if err := w.add(op, key, value, n); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return s.dbError(op, err)
	}
	return w.finishFile(op)
}

// add writes one key.
func (w *exporter) add(op rhumb.Op, key, value []byte, n int) error {
	if w.owed += n; w.owed >= paceEvery {
		// A long export must end soon after the store is asked to close.
		if err := w.ctx.Err(); err != nil {
			return rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		if w.pace != nil {
			if err := w.pace(w.ctx, w.owed); err != nil {
				return rhumb.Wrap(op, err)
			}
		}
		w.owed = 0
	}
	if w.out == nil {
		if err := w.beginFile(op); err != nil {
			return err
		}
	}
	if err := w.out.Set(key, value); err != nil {
		return w.e.s.dbError(op, err)
	}
	w.e.Keys++
	if w.raw += int64(n); w.raw >= setFileBytes {
		return w.finishFile(op)
	}
	return nil
}

// beginFile creates the next table.
func (w *exporter) beginFile(op rhumb.Op) error {
	if len(w.e.Files) >= SetFilesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "range %s has more than %d tables of %d bytes", w.e.ID.Range, SetFilesMax, setFileBytes)
	}
	path := w.e.path(len(w.e.Files))
	f, err := w.e.s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError(op, path, err)
	}
	w.file = &exportFile{File: f, sum: w.sum}
	w.out = sstable.NewWriter(objstorageprovider.NewFileWritable(w.file), w.opts)
	return nil
}

// finishFile completes the current table, if there is one.
func (w *exporter) finishFile(op rhumb.Op) error {
	if w.out == nil {
		return nil
	}
	out, file := w.out, w.file
	w.out, w.file, w.raw = nil, nil, 0
	if err := out.Close(); err != nil {
		return w.e.s.dbError(op, err)
	}
	w.e.Files = append(w.e.Files, SetFile{Bytes: file.written, Chunks: file.finish()})
	return nil
}

// abandon closes the table that an error left open.
func (w *exporter) abandon() {
	if w.out != nil {
		_ = w.out.Close()
	}
}

// exportFile computes the checksums of a file from the bytes that are written, before the disk can
// change them.
type exportFile struct {
	vfs.File
	sum     hash.Hash
	written int64
	chunk   uint32
	chunks  []uint32
}

// Write implements vfs.File.
func (f *exportFile) Write(p []byte) (int, error) {
	_, _ = f.sum.Write(p)
	for rest := p; len(rest) > 0; {
		n := min(len(rest), int(ChunkBytes-f.written%ChunkBytes))
		f.chunk = crc32.Update(f.chunk, castagnoli, rest[:n])
		f.written += int64(n)
		if f.written%ChunkBytes == 0 {
			f.chunks, f.chunk = append(f.chunks, f.chunk), 0
		}
		rest = rest[n:]
	}
	// Last, because a vfs.File may modify its argument.
	return f.File.Write(p)
}

// finish returns the checksums of all chunks.
func (f *exportFile) finish() []uint32 {
	if f.written%ChunkBytes != 0 {
		f.chunks = append(f.chunks, f.chunk)
	}
	return f.chunks
}

// tableOptions returns the options of tables that are written outside of the database.
func (s *Store) tableOptions() sstable.WriterOptions {
	o := s.pebbleOptions()
	o.EnsureDefaults()
	// Excising leaves nothing below the tables, so they become part of the last level. The recipient may still have
	// the oldest format that is supported.
	return o.MakeWriterOptions(len(o.Levels)-1, pebbleBase.MaxTableFormat())
}

// path returns the path of a file of the export.
func (e *Export) path(file int) string { return e.s.fs.PathJoin(e.dir, fileName(file)) }

// fileName returns the name of a file of a set.
func fileName(file int) string { return fmt.Sprintf("%05d%s", file, tableSuffix) }

// Chunk reads one chunk. It fails with Corrupt if the file has changed since it was written.
func (e *Export) Chunk(chunk int) ([]byte, error) {
	const op rhumb.Op = "storage.Export.Chunk"
	file, at, size, sum, ok := e.chunkAt(chunk)
	if !ok {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "set %s has %d chunks, not %d", e.ID, e.Chunks(), chunk+1)
	}
	b, err := readChunk(e.s.fs, e.path(file), at, size)
	if err != nil {
		return nil, ioError(op, e.path(file), err)
	}
	if crc32.Checksum(b, castagnoli) != sum {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s:%d: the checksum of the chunk does not match", e.path(file), at)
	}
	return b, nil
}

// readChunk reads a part of a file; a file that is too short returns io.ErrUnexpectedEOF.
func readChunk(fsys vfs.FS, path string, at int64, size int) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, at)
	if n == size {
		err = nil // a read up to the end may also report the end
	} else if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, errors.Join(err, f.Close())
}

// Close removes the files of the export.
func (e *Export) Close() error { return removeAll(e.s.fs, e.dir) }

// removeAll removes a directory that may not exist.
func removeAll(fsys vfs.FS, dir string) error {
	if err := fsys.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("storage.removeAll", dir, err)
	}
	return nil
}
