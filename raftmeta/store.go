package raftmeta

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// The keys of a group in its KV. They are part of stored bytes: append only.
//
//	h          the hard state
//	s          the state transfer that precedes the log
//	e index(8) an entry
//	l          the record of the replica's lives
//	n node(8)  facts about the lives of another member
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

// logStore holds the log twice: in memory, where Raft reads it, and in the KV, where it lasts. Both
// hold the same entries, except that a restart does not load entries that the state transfer
// covers.
//
// Its invariant is that memory never runs ahead of the KV: each method commits to the KV first and
// changes memory only if that succeeded. Raft therefore never sees an entry that a crash could take
// back.
type logStore struct {
	*raft.MemoryStorage
	kv KV
	// size is the size in bytes of the entries in memory, where replaced entries count until the
	// log is compacted. stateSize is the size of the state transfer. kept is the size of the
	// entries that the last compaction left.
	size, stateSize, kept int
	// transferred is the index of the state transfer.
	transferred uint64

	record record
	// fresh reports that the KV holds nothing, so the replica has promised nothing.
	fresh bool
	// lost describes the durable data that is missing from the KV, or is nil if none is known to be
	// missing.
	lost error
}

// openLog loads the log from the KV. A log that lost its end is used as far as it goes. One that
// cannot be used is removed, because other voters hold its entries. In both cases lost describes
// the damage. The log of a sole voter is never removed: nobody else has it.
func openLog(kv KV) (*logStore, error) {
	l, err := readLog(kv, false)
	// Only damage justifies removing a log. A disk that fails to read may work again after a
	// restart.
	if err == nil || rhumb.KindOf(err) != rhumb.Corrupt {
		return l, err
	}
	return emptyLog(kv, err)
}

// emptyLog removes a log that cannot be used, if other voters have its entries. Otherwise it
// returns an error that wraps why.
func emptyLog(kv KV, why error) (*logStore, error) {
	l := &logStore{MemoryStorage: raft.NewMemoryStorage(), kv: kv, lost: why}
	// The record knows the voters even when the state transfer, which also names them, is damaged.
	if err := l.readRecord(); err != nil || len(l.record.Voters) < 2 {
		return nil, &rhumb.Error{
			Op: "raftmeta.openLog", Kind: rhumb.KindOf(why), Err: why,
			Msg: "no other voter is known to hold this node's metadata, so it was left unchanged; restore the directory from a copy, " +
				"or see rhumb unsafe-recover metadata --help",
		}
	}
	return l, l.wipeLog()
}

// readLog loads the log from the KV. It refuses the log of a sole voter that lost its end, unless
// accept is true: nobody could say how much is missing.
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

// readRecord loads the record of the replica's lives, if there is one.
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

// readTransfer loads the state transfer and returns the index of the first entry after it.
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

// readHardState loads the hard state of a log that reaches at least to index from. A commit index
// beyond the last entry shows that the log lost its end.
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
		l.lost = l.corruptError("log", rhumb.Ef("raftmeta.log", rhumb.Corrupt, "entry %d is committed in term %d, but the log ends at entry %d of term %d",
			hard.GetCommit(), hard.GetTerm(), last, lastTerm))
	}
	// An entry of a term proves that the term was promised. The vote in it is unknown; the proof
	// votes for the replica itself before it takes part.
	if hard.GetTerm() < lastTerm {
		hard.Term, hard.Vote = proto.Uint64(lastTerm), proto.Uint64(0)
	}
	// A commit index is written without a sync of its own, so the stored one may be older than the
	// state transfer. Raft panics on a commit index outside the log.
	hard.Commit = proto.Uint64(min(max(hard.GetCommit(), from), last))
	return l.SetHardState(hard)
}

// wipeLog removes log and state but keeps the lives: the replica must not look like a fresh one.
func (l *logStore) wipeLog() error {
	b := l.kv.NewBatch()
	b.Delete(keyHardState)
	b.Delete(keyTransfer)
	b.DeleteRange(keyEntry, keyEntryEnd)
	return rhumb.Wrap("raftmeta.wipe", b.Commit(true))
}

// beginLife stores the record of a new life. It is short if short is set or something is known to
// be missing.
func (l *logStore) beginLife(life uint64, short bool) error {
	l.record = l.record.beginLife(life, short || l.lost != nil)
	return l.saveRecord(nil)
}

// saveRecord makes the record durable, and with it a hard state unless hard is nil. One batch,
// because a record that has a floor, or is no longer short, without the vote of the hard state would
// allow a second vote.
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

// readOthers loads the facts about the lives of other members. An entry that cannot be decoded
// counts as unknown.
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

// saveOther makes durable the facts about another member.
func (l *logStore) saveOther(node uint64, a acquaintance) error {
	b := l.kv.NewBatch()
	b.Set(otherKey(node), encodeCBOR(a))
	return rhumb.Wrap("raftmeta.saveOther", b.Commit(true))
}

// votingMembers returns all nodes whose votes a configuration needs, including the outgoing voters
// of a joint one.
func votingMembers(conf *raftpb.ConfState) []uint64 {
	out := slices.Concat(conf.GetVoters(), conf.GetVotersOutgoing())
	slices.Sort(out)
	return slices.Compact(out)
}

// readMessage loads the hard state or the state transfer; ok is false if there is none.
func (l *logStore) readMessage(key []byte, m proto.Message) (ok bool, err error) {
	value, ok, err := l.kv.Get(key)
	if err != nil || !ok {
		return false, err
	}
	if err := proto.Unmarshal(value, m); err != nil {
		what := "hard state"
		if bytes.Equal(key, keyTransfer) {
			what = "state transfer"
		}
		return false, l.corruptError(what, err)
	}
	return true, nil
}

// readEntries loads the entries from first on. They must be consecutive.
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
		// A gap makes everything after it useless, since Raft requires consecutive entries.
		if e.GetIndex() != first+uint64(len(out)) {
			return nil, l.corruptError("log", rhumb.Ef("raftmeta.log", rhumb.Corrupt, "entry %d was found in place of entry %d", e.GetIndex(), first+uint64(len(out))))
		}
		out = append(out, e)
		l.size += len(pair.Value)
	}
	return out, nil
}

// corruptError returns the error for a damaged part of the log.
func (l *logStore) corruptError(what string, err error) error {
	return &rhumb.Error{Op: "raftmeta.openLog", Kind: rhumb.Corrupt, Msg: "the metadata group's " + what + " is damaged", Err: err}
}

// saveReady makes the contents of a Ready durable in one batch, and only then shows them to Raft.
// sync may be false if only the commit index changed; the stored one is a lower bound anyway.
func (l *logStore) saveReady(hard *raftpb.HardState, entries []*raftpb.Entry, transfer *raftpb.Snapshot, sync bool) error {
	b := l.kv.NewBatch()
	// The transfer replaces the whole log. It is always synced, because the log that it replaces is
	// deleted with it.
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

// putEntries adds entries to a batch, and the removal of the entries that they replace. It returns
// the number of bytes by which the log grows.
func (l *logStore) putEntries(b KVBatch, entries []*raftpb.Entry) int {
	if len(entries) == 0 {
		return 0
	}
	// Everything from the first new entry on conflicts with the leader's log. A stale entry that
	// stayed would follow the new ones after a restart.
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

// compact replaces the log up to the index of a state transfer by that transfer, except for the
// last keep entries, from which followers that lag a little catch up.
func (l *logStore) compact(transfer *raftpb.Snapshot, keep uint64) error {
	index := transfer.GetMetadata().GetIndex()
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	// The state transfer is written in the batch that removes the entries, so a crash leaves a
	// complete log.
	cut := max(index, keep) - keep // the last entry to remove
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
	// The next compaction counts growth from here.
	l.kept = l.size
	return err
}

// putTransfer adds a state transfer to a batch, and the record, which repeats the voters so that
// they are known if the transfer is damaged.
func (l *logStore) putTransfer(b KVBatch, transfer *raftpb.Snapshot) {
	l.record.Voters = votingMembers(transfer.GetMetadata().GetConfState())
	b.Set(keyTransfer, mustMarshal(transfer))
	b.Set(keyRecord, encodeCBOR(l.record))
}

// sizeOf returns the size in bytes of the entries in [lo, hi).
func (l *logStore) sizeOf(lo, hi uint64) int {
	// The size only decides when to compact, so an error may count as nothing.
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

// mustMarshal encodes one of Raft's messages. Encoding them cannot fail.
func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}
