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

// The SYNCED file says how far the newest log file was synced. It holds two slots, written in turn, each in a disk
// sector of its own. Integers are big endian:
//
//	offset  size
//	 0       8   magic "RHUMBSYN"
//	 8       8   generation: the slot with the greater one counts
//	16       8   first log file whose content is not in tables, as far as known; a lower bound
//	24       8   newest log file
//	32       8   bytes of it that were synced; a lower bound
//	40       8   xxh3-64 of all bytes before
//
// A slot is written after each sync of the log and before anyone learns of that sync, but it is itself synced in the
// background only. So a killed process leaves it exact. A power loss may leave it behind; then the promises inside the
// checkLog count, which lack no more than the last sync.
const (
	syncedName     = "SYNCED"
	syncedMagic    = "RHUMBSYN"
	syncedSize     = 48
	syncedSector   = 4096
	syncedFileSize = 2 * syncedSector
)

// logLengths receives how far log files are durable. It stands between a store and its log, which is Pebble's for now.
type logLengths interface {
	// began says that a log file is new, or used again, and empty.
	began(number uint64)
	// synced says that so many bytes of the newest log file are durable. It is called before the sync is reported.
	synced(number uint64, length int64)
}

// syncedState is the content of a slot.
type syncedState struct {
	generation uint64
	first      uint64
	number     uint64
	length     int64
}

func (st *syncedState) encode() []byte {
	b := make([]byte, 0, syncedSize)
	b = append(b, syncedMagic...)
	b = append(b, encodeWords(st.generation, st.first, st.number, uint64(st.length))...)
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
}

// decodeSynced reads both slots and returns the newer one. A slot that was never written is all zero; fault names the
// offset of one that is neither that nor valid, -1 when there is none.
func decodeSynced(b []byte) (st syncedState, fault int64) {
	fault = -1
	for at := 0; at < syncedFileSize; at += syncedSector {
		if len(b) < at+syncedSize {
			return st, int64(len(b))
		}
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

// readSynced reads the SYNCED file of a store; found is false for a store without one, which an older build wrote.
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

// syncedFile keeps the SYNCED file of an open store.
type syncedFile struct {
	mu     sync.Mutex // guards all below
	f      vfs.File
	state  syncedState
	dirty  bool
	failed func(error)
}

// openSynced opens the SYNCED file, or makes one, and makes a first state durable. failed is called when a slot cannot be
// written: the synced length on disk is then lower than it could be, and nothing else is wrong.
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
	s := &syncedFile{f: f, state: st, failed: failed}
	// Both slots are written: one that is damaged is replaced.
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

// syncedFull makes sure that the file has its full size, so that writing a slot never needs space. A new file holds st: a
// crash before the next slot is written must not forget it.
func syncedFull(fsys vfs.FS, dir, path string, st syncedState) error {
	if info, err := fsys.Stat(path); err == nil && info.Size() == syncedFileSize {
		return nil
	}
	b := make([]byte, syncedFileSize)
	if st.generation > 0 {
		copy(b[int64(st.generation%2)*syncedSector:], st.encode())
	}
	return replaceFile(fsys, dir, syncedName, b)
}

// writeSlot writes the next slot; s.mu is held, or nobody else knows s.
func (s *syncedFile) writeSlot() error {
	s.state.generation++
	at := int64(s.state.generation%2) * syncedSector
	_, err := s.f.WriteAt(s.state.encode(), at)
	s.dirty = true
	return err
}

func (s *syncedFile) updateState(change func(st *syncedState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
	if err := s.writeSlot(); err != nil {
		s.failed(err)
	}
}

func (s *syncedFile) began(number uint64) {
	s.updateState(func(st *syncedState) {
		st.number, st.length = number, 0
		if st.first == 0 {
			st.first = number
		}
	})
}

func (s *syncedFile) synced(number uint64, length int64) {
	s.updateState(func(st *syncedState) {
		if number == st.number {
			st.length = max(st.length, length)
		}
	})
}

// flushed says that the content of all log files before first is in tables.
func (s *syncedFile) flushed(first uint64) {
	s.updateState(func(st *syncedState) { st.first = max(st.first, first) })
}

// onlyNewest says that the content of all log files but the newest is in tables, and makes that durable.
func (s *syncedFile) onlyNewest() error {
	s.updateState(func(st *syncedState) { st.first = st.number })
	return s.sync()
}

// sync makes the newest slot durable if it is not.
func (s *syncedFile) sync() error {
	s.mu.Lock()
	f, dirty := s.f, s.dirty
	s.dirty = false
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	return f.SyncData() // the lock is not held: a sync of the log must not wait for this one
}

func (s *syncedFile) close() error { return errors.Join(s.f.Sync(), s.f.Close()) }
