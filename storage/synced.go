package storage

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/zeebo/xxh3"
)

// The SYNCED file records how far the newest log file was synced. It has two slots, each in a disk
// sector of its own, that are written in turn: a write that a crash interrupts leaves the other
// slot intact. Integers are big endian:
//
//	offset  size
//	 0       8   magic "RHUMBSYN"
//	 8       8   generation: the slot with the greater one counts
//	16       8   first log file whose content may be in no table; a lower bound
//	24       8   newest log file; 0 in a store with a log of its own (package nodelog)
//	32       8   bytes of that file that were synced, or number of the record; a lower bound
//	40       8   xxh3-64 of all bytes before
//
// A slot is written after each sync of the log and before that sync is reported, but it is itself
// synced only in the background: a second sync for each sync would double the latency of a commit.
// If the process is killed, the file is exact. After a power loss it may be older, and then the
// promises in the log count, which lack at most the last sync (decision 16).
const (
	syncedName     = "SYNCED"
	syncedMagic    = "RHUMBSYN"
	syncedSize     = 48
	syncedSector   = 4096
	syncedFileSize = 2 * syncedSector
)

// logLengths receives how far log files are durable. It is the boundary between a store and its
// log, which is Pebble's for now.
type logLengths interface {
	// began reports that a log file is new, or reused, and therefore empty.
	began(number uint64)
	// synced reports that so many bytes of the newest log file are durable. It is called before the
	// sync is reported.
	synced(number uint64, length int64)
}

// syncedState is the content of a slot.
type syncedState struct {
	generation uint64
	first      uint64
	number     uint64
	length     int64
}

// encode returns the content of a slot.
func (st *syncedState) encode() []byte {
	b := make([]byte, 0, syncedSize)
	b = append(b, syncedMagic...)
	b = append(b, encodeWords(st.generation, st.first, st.number, uint64(st.length))...)
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
}

// decodeSynced decodes both slots and returns the newer one. A slot that was never written is all
// zero. fault is the offset of a slot that is neither that nor valid, or -1.
func decodeSynced(b []byte) (st syncedState, fault int64) {
	fault = -1
	for at := 0; at < syncedFileSize; at += syncedSector {
		if len(b) < at+syncedSize {
			// A file that is too short: replaceFile creates it with its full size.
			return st, int64(len(b))
		}
		// Three kinds of slots: never written, damaged, and valid. Of the valid ones the newer
		// counts.
		slot := b[at : at+syncedSize]
		switch {
		case allZero(slot):
		case string(slot[:8]) != syncedMagic || binary.BigEndian.Uint64(slot[40:]) != xxh3.Hash(slot[:40]):
			fault = int64(at)
		case wordAt(slot, 1) > st.generation:
			st = syncedState{wordAt(slot, 1), wordAt(slot, 2), wordAt(slot, 3), int64(wordAt(slot, 4))}
		}
	}
	return st, fault
}

// readSynced reads the SYNCED file of a store; found is false if there is none, as in stores of
// earlier builds.
func readSynced(fsys vfs.FS, dir string) (st syncedState, found bool, fault int64, err error) {
	path := fsys.PathJoin(dir, syncedName)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return st, false, -1, nil
	}
	if err != nil {
		return st, false, -1, ioError("storage.Open", path, err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return st, false, -1, ioError("storage.Open", path, err)
	}
	st, fault = decodeSynced(b)
	return st, true, fault, nil
}

// lostSynced returns the fault of a SYNCED file that has no intact slot, or does not exist, although the store needs it;
// nil if the file is as it should be. A log of the store's own that keeps keys was opened after both slots were durable, and
// without them the end of that log could be missing unnoticed.
func (h *header) lostSynced(fsys vfs.FS, dir string, st syncedState, found bool) (*Fault, error) {
	if !h.nodeLog || !h.logKeeps || st.generation > 0 {
		return nil, nil
	}
	// A database that was set aside took the file with it. The file is durable again before the next database exists.
	data := fsys.PathJoin(dir, dataName)
	if _, err := fsys.Stat(data); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, ioError("storage.Open", data, err)
	}
	what := "the file is missing"
	if found {
		what = "the file has no intact slot"
	}
	return &Fault{fsys.PathJoin(dir, syncedName), -1, what + ", so nothing says how far the log of the store was synced"}, nil
}

// syncedFile is the SYNCED file of an open store.
type syncedFile struct {
	mu     sync.Mutex // guards all below
	f      vfs.File
	state  syncedState
	dirty  bool
	failed func(error)
}

// openSynced opens or creates the SYNCED file and makes a first state durable. failed is called if
// a later slot cannot be written: the length on disk is then lower than it could be, which is safe.
func openSynced(fsys vfs.FS, dir string, st syncedState, failed func(error)) (*syncedFile, error) {
	const op rhumb.Op = "storage.Open"
	path := fsys.PathJoin(dir, syncedName)
	if err := syncedFull(fsys, dir, path, st); err != nil {
		return nil, err
	}
	f, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, ioError(op, path, err)
	}
	// The file is written in place from here on. replaceFile for every sync would be a rename and
	// three syncs.
	s := &syncedFile{f: f, state: st, failed: failed}
	// Both slots are written, so that a damaged one is replaced.
	for range 2 {
		if err = s.writeSlot(); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, ioError(op, path, errors.Join(err, f.Close()))
	}
	return s, nil
}

// syncedFull makes sure that the file has its full size, so that writing a slot never needs space
// on a full disk. A new file holds st: a crash before the next slot is written must not forget it.
func syncedFull(fsys vfs.FS, dir, path string, st syncedState) error {
	if info, err := fsys.Stat(path); err == nil && info.Size() == syncedFileSize {
		return nil
	}
	// The slot that generation selects, so that the next write goes to the other one.
	b := make([]byte, syncedFileSize)
	if st.generation > 0 {
		copy(b[int64(st.generation%2)*syncedSector:], st.encode())
	}
	return replaceFile(fsys, dir, syncedName, b)
}

// writeSlot writes the next slot. s.mu is held, or no other goroutine knows s.
func (s *syncedFile) writeSlot() error {
	// The generation grows even if the write fails, so that the next write goes to the other slot
	// and the failed one cannot be the newest.
	s.state.generation++
	// Consecutive generations alternate between the slots.
	at := int64(s.state.generation%2) * syncedSector
	_, err := s.f.WriteAt(s.state.encode(), at)
	s.dirty = true
	return err
}

// updateState changes the state and writes it. An error is reported and not returned: the sync that
// caused the update has succeeded.
func (s *syncedFile) updateState(change func(st *syncedState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
	if err := s.writeSlot(); err != nil {
		s.failed(err)
	}
}

// began implements logLengths.
func (s *syncedFile) began(number uint64) {
	s.updateState(func(st *syncedState) {
		st.number, st.length = number, 0
		// The first log of a store: no older one exists.
		if st.first == 0 {
			st.first = number
		}
	})
}

// synced implements logLengths.
func (s *syncedFile) synced(number uint64, length int64) {
	s.updateState(func(st *syncedState) {
		// Pebble closes a log, with a last sync, after it has created the next one. Such a sync
		// must not count for the next log.
		if number == st.number {
			st.length = max(st.length, length)
		}
	})
}

// flushed reports that the content of all log files before first is in tables.
func (s *syncedFile) flushed(first uint64) {
	s.updateState(func(st *syncedState) { st.first = max(st.first, first) })
}

// onlyNewest records that the content of all log files but the newest is in tables, and returns
// once that is durable.
func (s *syncedFile) onlyNewest() error {
	s.updateState(func(st *syncedState) { st.first = st.number })
	return s.sync()
}

// useRecords begins to record numbers of a log of the store's own. Logs of the database before first are not needed. It returns once that is durable: the
// numbers of a new log begin again, and a greater one of the log before would look like a loss.
func (s *syncedFile) useRecords(first, synced uint64) error {
	s.updateState(func(st *syncedState) { st.first, st.number, st.length = first, 0, int64(synced) })
	return s.sync()
}

// syncedRecords makes sure that a slot says that the record with a number is synced, and is called before anybody learns that. now returns
// the greatest number that is synced by now: one write serves all callers that wait meanwhile.
func (s *syncedFile) syncedRecords(number uint64, now func() uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(s.state.length) >= number {
		return
	}
	s.state.length = int64(now())
	if err := s.writeSlot(); err != nil {
		s.failed(err)
	}
}

// sync makes the newest slot durable.
func (s *syncedFile) sync() error {
	s.mu.Lock()
	f, dirty := s.f, s.dirty
	// Cleared before the sync, because a slot that is written during the sync may not be part of
	// it.
	s.dirty = false
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	// The lock is not held, because a sync of the log, which updates the state, must not wait for
	// this one.
	return f.SyncData()
}

// close makes the newest slot durable and closes the file.
func (s *syncedFile) close() error { return errors.Join(s.f.Sync(), s.f.Close()) }
