package raftmeta

import (
	"encoding/binary"
	"slices"

	"github.com/fxamacker/cbor/v2"
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
//	l          the record of the replica's lives
//	n node(8)  what is known of another member's lives
var (
	keyHardState = []byte("h")
	keyTransfer  = []byte("s")
	keyEntry     = []byte("e")
	keyEntryEnd  = []byte("f")
	keyRecord    = []byte("l")
	keyOthers    = []byte("n")
	keyOthersEnd = []byte("o")
)

func otherKey(node uint64) []byte { return binary.BigEndian.AppendUint64([]byte("n"), node) }

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

	record record
	// fresh is true when the KV holds nothing: the replica has promised nothing.
	fresh bool
	// lost says what the KV lacks of what was durable; nil when nothing is known to lack.
	lost error
}

// openLog reads what the KV holds. A log that lost its end is opened as far as it goes, and one that cannot be used is
// removed, since the other voters have what it held; lost then says what lacks. A log of the only voter is left as it is.
func openLog(kv KV) (*logStore, error) {
	l, err := readLog(kv, false)
	if err == nil || rhumb.KindOf(err) != rhumb.Corrupt {
		return l, err
	}
	return emptyLog(kv, err)
}

// emptyLog removes a log that cannot be used, if other voters have what it held.
func emptyLog(kv KV, why error) (*logStore, error) {
	l := &logStore{MemoryStorage: raft.NewMemoryStorage(), kv: kv, lost: why}
	if err := l.readRecord(); err != nil || len(l.record.Voters) < 2 {
		return nil, why
	}
	return l, l.wipeLog()
}

// readLog reads what the KV holds. A log of the only voter that lost its end is refused, unless accept is true.
func readLog(kv KV, accept bool) (*logStore, error) {
	l := &logStore{MemoryStorage: raft.NewMemoryStorage(), kv: kv}
	if err := l.readRecord(); err != nil {
		return nil, err
	}
	first, err := l.readTransfer()
	if err != nil {
		return nil, err
	}
	entries, err := l.readEntries(first)
	if err != nil {
		return nil, err
	}
	if err := l.Append(entries); err != nil {
		return nil, l.corruptError("log", err)
	}
	err = l.readHardState(first - 1)
	if err == nil && l.lost != nil && !accept && len(l.record.Voters) < 2 {
		err = l.lost
	}
	return l, err
}

func (l *logStore) readRecord() error {
	value, ok, err := l.kv.Get(keyRecord)
	if err != nil || !ok {
		return err
	}
	if err := cbor.Unmarshal(value, &l.record); err != nil {
		return l.corruptError("record of lives", err)
	}
	return nil
}

// readTransfer reads the state transfer, and returns the index of the first entry behind it.
func (l *logStore) readTransfer() (first uint64, err error) {
	var transfer raftpb.Snapshot
	if ok, err := l.readMessage(keyTransfer, &transfer); err != nil || !ok {
		return 1, err
	}
	if err := l.ApplySnapshot(&transfer); err != nil {
		return 0, l.corruptError("state transfer", err)
	}
	l.transferred, l.stateSize = transfer.GetMetadata().GetIndex(), len(transfer.GetData())
	conf := transfer.GetMetadata().GetConfState()
	l.record.Voters = votingMembers(conf)
	return l.transferred + 1, nil
}

// readHardState reads the hard state of a log that reaches at least to an index. A commit index beyond the last entry is
// that of a log that lost its end.
func (l *logStore) readHardState(from uint64) error {
	hard := new(raftpb.HardState)
	ok, err := l.readMessage(keyHardState, hard)
	if err != nil {
		return err
	}
	last, _ := l.LastIndex()
	lastTerm, _ := l.Term(last)
	l.fresh = !ok && last == 0 && l.record.Life == 0
	if hard.GetCommit() > last || hard.GetTerm() < lastTerm {
		l.lost = l.corruptError("log", rhumb.Ef("raftmeta.log", rhumb.Corrupt, "entry %d is committed in term %d, and the log ends with entry %d of term %d",
			hard.GetCommit(), hard.GetTerm(), last, lastTerm))
	}
	if hard.GetTerm() < lastTerm {
		hard.Term, hard.Vote = proto.Uint64(lastTerm), proto.Uint64(0)
	}
	// The commit index of a batch that was not synced may be older than the state transfer.
	hard.Commit = proto.Uint64(min(max(hard.GetCommit(), from), last))
	return l.SetHardState(hard)
}

// wipe removes log and state, and keeps the lives.
func (l *logStore) wipeLog() error {
	b := l.kv.NewBatch()
	b.Delete(keyHardState)
	b.Delete(keyTransfer)
	b.DeleteRange(keyEntry, keyEntryEnd)
	return rhumb.Wrap("raftmeta.wipe", b.Commit(true))
}

// beginLife stores the record of a new life; lost or short makes it short.
func (l *logStore) beginLife(life uint64, short bool) error {
	l.record = l.record.beginLife(life, short || l.lost != nil)
	return l.saveRecord(nil)
}

// saveRecord makes the record durable, together with a hard state if one is given.
func (l *logStore) saveRecord(hard *raftpb.HardState) error {
	b := l.kv.NewBatch()
	b.Set(keyRecord, encodeCBOR(l.record))
	if hard != nil {
		b.Set(keyHardState, mustMarshal(hard))
	}
	if err := b.Commit(true); err != nil {
		return rhumb.Wrap("raftmeta.saveRecord", err)
	}
	if hard != nil {
		return l.SetHardState(hard)
	}
	return nil
}

// others reads what is known of the lives of other members. What cannot be read is unknown.
func (l *logStore) readOthers() (map[uint64]acquaintance, error) {
	out := make(map[uint64]acquaintance)
	for pair, err := range l.kv.Scan(keyOthers, keyOthersEnd) {
		if err != nil {
			return nil, err
		}
		var a acquaintance
		if len(pair.Key) == 9 && cbor.Unmarshal(pair.Value, &a) == nil {
			out[binary.BigEndian.Uint64(pair.Key[1:])] = a
		}
	}
	return out, nil
}

// saveOther makes durable what is known of another member.
func (l *logStore) saveOther(node uint64, a acquaintance) error {
	b := l.kv.NewBatch()
	b.Set(otherKey(node), encodeCBOR(a))
	return rhumb.Wrap("raftmeta.saveOther", b.Commit(true))
}

// electors returns all nodes whose votes a configuration needs.
func votingMembers(conf *raftpb.ConfState) []uint64 {
	out := slices.Concat(conf.GetVoters(), conf.GetVotersOutgoing())
	slices.Sort(out)
	return slices.Compact(out)
}

// read reads one message; ok is false when there is none.
func (l *logStore) readMessage(key []byte, m proto.Message) (ok bool, err error) {
	value, ok, err := l.kv.Get(key)
	if err != nil || !ok {
		return false, err
	}
	if err := proto.Unmarshal(value, m); err != nil {
		return false, l.corruptError(string(key), err)
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
			return nil, l.corruptError("log", err)
		}
		if e.GetIndex() != first+uint64(len(out)) {
			return nil, l.corruptError("log", rhumb.Ef("raftmeta.log", rhumb.Corrupt, "entry %d stands where %d belongs", e.GetIndex(), first+uint64(len(out))))
		}
		out = append(out, e)
		l.size += len(pair.Value)
	}
	return out, nil
}

func (l *logStore) corruptError(what string, err error) error {
	return &rhumb.Error{Op: "raftmeta.openLog", Kind: rhumb.Corrupt, Msg: "the metadata group's " + what + " cannot be read", Err: err}
}

// save makes durable what a Ready asks for, in one batch, and only then shows it to Raft.
func (l *logStore) saveReady(hard *raftpb.HardState, entries []*raftpb.Entry, transfer *raftpb.Snapshot, sync bool) error {
	b := l.kv.NewBatch()
	if !raft.IsEmptySnap(transfer) {
		l.putTransfer(b, transfer)
		b.DeleteRange(keyEntry, keyEntryEnd)
		sync = true
	}
	if !raft.IsEmptyHardState(hard) {
		b.Set(keyHardState, mustMarshal(hard))
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
		value := mustMarshal(e)
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
	l.putTransfer(b, transfer)
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

// putTransfer adds a state transfer to a batch. The record knows its voters, so that they are known when it is damaged.
func (l *logStore) putTransfer(b KVBatch, transfer *raftpb.Snapshot) {
	l.record.Voters = votingMembers(transfer.GetMetadata().GetConfState())
	b.Set(keyTransfer, mustMarshal(transfer))
	b.Set(keyRecord, encodeCBOR(l.record))
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
func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}
