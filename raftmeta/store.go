package raftmeta

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// The keys of a group in its KV. They stand in stored bytes: append only.
//
//	h          the hard state
//	s          the state transfer behind which the log begins
//	e index(8) an entry
var (
	keyHardState = []byte("h")
	keyTransfer  = []byte("s")
	keyEntry     = []byte("e")
	keyEntryEnd  = []byte("f")
)

func entryKey(index uint64) []byte { return binary.BigEndian.AppendUint64([]byte("e"), index) }

// logStore keeps the log: in memory for Raft to read, in the KV to last. Both always hold the same, save that memory
// forgets the entries behind the state transfer when it starts.
type logStore struct {
	*raft.MemoryStorage
	kv KV
	// size is the bytes of the entries in memory (entries that were replaced count until the log is cut), stateSize those
	// of the state transfer, and kept those of the entries that stayed when the log was cut last.
	size, stateSize, kept int
	// transferred is the index of the state transfer.
	transferred uint64
}

// openLog reads what the KV holds.
func openLog(kv KV) (*logStore, error) {
	l := &logStore{MemoryStorage: raft.NewMemoryStorage(), kv: kv}
	first := uint64(1)
	var transfer raftpb.Snapshot
	if ok, err := l.read(keyTransfer, &transfer); err != nil {
		return nil, err
	} else if ok {
		if err := l.ApplySnapshot(&transfer); err != nil {
			return nil, l.corrupt("state transfer", err)
		}
		l.transferred = transfer.GetMetadata().GetIndex()
		first = l.transferred + 1
		l.stateSize = len(transfer.GetData())
	}
	entries, err := l.readEntries(first)
	if err != nil {
		return nil, err
	}
	if err := l.Append(entries); err != nil {
		return nil, l.corrupt("log", err)
	}
	var hard raftpb.HardState
	if _, err := l.read(keyHardState, &hard); err != nil {
		return nil, err
	}
	if hard.GetCommit() > first-1+uint64(len(entries)) {
		return nil, l.corrupt("hard state", rhumb.Ef("raftmeta.log", rhumb.Corrupt,
			"%d is committed and the log ends at %d", hard.GetCommit(), first-1+uint64(len(entries))))
	}
	if hard.GetCommit() < first-1 { // the commit index of a batch that was not synced
		hard.Commit = proto.Uint64(first - 1)
	}
	return l, l.SetHardState(&hard)
}

// read reads one message; ok is false when there is none.
func (l *logStore) read(key []byte, m proto.Message) (ok bool, err error) {
	value, ok, err := l.kv.Get(key)
	if err != nil || !ok {
		return false, err
	}
	if err := proto.Unmarshal(value, m); err != nil {
		return false, l.corrupt(string(key), err)
	}
	return true, nil
}

// readEntries reads the entries from first on; they must follow one another.
func (l *logStore) readEntries(first uint64) ([]*raftpb.Entry, error) {
	var out []*raftpb.Entry
	for pair, err := range l.kv.Scan(entryKey(first), keyEntryEnd) {
		if err != nil {
			return nil, err
		}
		e := new(raftpb.Entry)
		if err := proto.Unmarshal(pair.Value, e); err != nil {
			return nil, l.corrupt("log", err)
		}
		if e.GetIndex() != first+uint64(len(out)) {
			return nil, l.corrupt("log", rhumb.Ef("raftmeta.log", rhumb.Corrupt, "entry %d stands where %d belongs", e.GetIndex(), first+uint64(len(out))))
		}
		out = append(out, e)
		l.size += len(pair.Value)
	}
	return out, nil
}

func (l *logStore) corrupt(what string, err error) error {
	return &rhumb.Error{Op: "raftmeta.openLog", Kind: rhumb.Corrupt, Msg: "the metadata group's " + what + " cannot be read", Err: err}
}

// save makes durable what a Ready asks for, in one batch, and only then shows it to Raft.
func (l *logStore) save(hard *raftpb.HardState, entries []*raftpb.Entry, transfer *raftpb.Snapshot, sync bool) error {
	b := l.kv.NewBatch()
	if !raft.IsEmptySnap(transfer) {
		b.Set(keyTransfer, marshal(transfer))
		b.DeleteRange(keyEntry, keyEntryEnd)
		sync = true
	}
	if !raft.IsEmptyHardState(hard) {
		b.Set(keyHardState, marshal(hard))
	}
	grown := l.putEntries(b, entries)
	if err := b.Commit(sync); err != nil {
		return err
	}
	if !raft.IsEmptySnap(transfer) {
		if err := l.ApplySnapshot(transfer); err != nil {
			return err
		}
		l.size, l.kept, l.stateSize = 0, 0, len(transfer.GetData())
		l.transferred = transfer.GetMetadata().GetIndex()
	}
	if !raft.IsEmptyHardState(hard) {
		if err := l.SetHardState(hard); err != nil {
			return err
		}
	}
	l.size += grown
	return l.Append(entries)
}

// putEntries adds entries to a batch, and the removal of those they replace. It gives the bytes by which the log grows.
func (l *logStore) putEntries(b KVBatch, entries []*raftpb.Entry) int {
	if len(entries) == 0 {
		return 0
	}
	if last, _ := l.LastIndex(); last >= entries[0].GetIndex() {
		b.DeleteRange(entryKey(entries[0].GetIndex()), keyEntryEnd)
	}
	grown := 0
	for _, e := range entries {
		value := marshal(e)
		b.Set(entryKey(e.GetIndex()), value)
		grown += len(value)
	}
	return grown
}

// compact replaces the log up to the index of a state transfer by it, save for the last keep entries.
func (l *logStore) compact(transfer *raftpb.Snapshot, keep uint64) error {
	index := transfer.GetMetadata().GetIndex()
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	cut := max(index, keep) - keep // the last entry to go
	b := l.kv.NewBatch()
	b.Set(keyTransfer, marshal(transfer))
	b.DeleteRange(keyEntry, entryKey(cut+1))
	if err := b.Commit(true); err != nil {
		return err
	}
	if _, err := l.CreateSnapshot(index, transfer.GetMetadata().GetConfState(), transfer.GetData()); err != nil {
		return err
	}
	l.stateSize, l.transferred = len(transfer.GetData()), index
	if cut >= first {
		l.size -= l.sizeOf(first, cut+1)
		err = l.Compact(cut)
	}
	l.kept = l.size
	return err
}

// sizeOf gives the bytes of the entries lo..hi, hi excluded.
func (l *logStore) sizeOf(lo, hi uint64) int {
	entries, err := l.Entries(lo, hi, 1<<62)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		n += proto.Size(e)
	}
	return n
}

// marshal encodes one of Raft's messages; they all can be.
func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}
