package raftmeta

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// TestInspectLog inspects logs that are complete, end before their commit index, have a gap, or are
// damaged.
func TestInspectLog(t *testing.T) {
	entry := func(index uint64) []byte {
		return mustMarshal(&raftpb.Entry{Index: proto.Uint64(index), Term: proto.Uint64(2)})
	}
	hard := mustMarshal(&raftpb.HardState{Term: proto.Uint64(2), Vote: proto.Uint64(3), Commit: proto.Uint64(15)})
	transfer := mustMarshal(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: proto.Uint64(10), Term: proto.Uint64(1), ConfState: &raftpb.ConfState{}}})
	fill := func(change func(b KVBatch)) KV {
		kv := newMemKV()
		b := kv.NewBatch()
		b.Set(keyHardState, hard)
		b.Set(keyTransfer, transfer)
		for index := uint64(9); index <= 16; index++ { // two stayed behind the transfer
			b.Set(entryKey(index), entry(index))
		}
		change(b)
		if err := b.Commit(true); err != nil {
			t.Fatal(err)
		}
		return kv
	}
	whole := LogCondition{Term: 2, Vote: 3, Commit: 15, Transfer: 10, Last: 16}
	for name, c := range map[string]struct {
		change func(b KVBatch)
		want   LogCondition
		short  bool
	}{
		"whole":   {func(KVBatch) {}, whole, false},
		"no end":  {func(b KVBatch) { b.DeleteRange(entryKey(13), keyEntryEnd) }, LogCondition{Term: 2, Vote: 3, Commit: 15, Transfer: 10, Last: 12}, true},
		"a gap":   {func(b KVBatch) { b.Delete(entryKey(12)) }, LogCondition{Term: 2, Vote: 3, Commit: 15, Transfer: 10, Last: 11, Gap: 13}, true},
		"no log":  {func(b KVBatch) { b.DeleteRange(keyEntry, keyEntryEnd) }, LogCondition{Term: 2, Vote: 3, Commit: 15, Transfer: 10, Last: 10}, true},
		"nothing": {func(b KVBatch) { b.DeleteRange([]byte{0}, []byte{0xff}) }, LogCondition{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := InspectLog(fill(c.change))
			if err != nil || got != c.want || got.Short() != c.short {
				t.Errorf("%+v, short %v, %v; want %+v, %v", got, got.Short(), err, c.want, c.short)
			}
		})
	}
	if _, err := InspectLog(fill(func(b KVBatch) { b.Set(keyHardState, []byte{0xff}) })); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a damaged hard state: %v, want corrupt", err)
	}
}
