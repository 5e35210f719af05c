package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/storage"
)

// copies carries the copies of ranges between nodes. It takes the place of the connection for
// transfers of package peer: each chunk is a request of its own, which may be lost, and either node
// may crash between two of them.
type copies struct {
	n *node
	// sets are the descriptions that this life has received. The manager uses the same ones, so a planted bug can
	// make a description fit other bytes.
	sets map[storage.SetID]*storage.Set
}

// newCopies returns the network of one life of a node.
func newCopies(n *node) copies { return copies{n, map[storage.SetID]*storage.Set{}} }

var _ transfer.Network = copies{}

// copyTimeout is how long a node waits for the answer to a request for a copy.
const copyTimeout = 2 * time.Second

// call runs ask as a process of another node and waits for its answer.
func (t copies) call(ctx context.Context, id rhumb.NodeID, ask func(ctx context.Context, m *transfer.Manager) error) error {
	const op rhumb.Op = "sim.copies"
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	ctx, cancel := n.rt.WithTimeout(ctx, copyTimeout)
	defer cancel()
	answered := make(chan struct{})
	var result error
	life := n.life
	w.net.send(n.at, to.at, func() {
		to.run(to.life, func() {
			if to.transfers == nil {
				return
			}
			m := to.transfers
			to.spawn(func() {
				err := ask(to.ctx, m)
				w.net.send(to.at, n.at, func() {
					n.run(life, func() {
						// The answer may be repeated, and only the first one counts.
						select {
						case <-answered:
						default:
							result = err
							close(answered)
						}
					})
				})
			})
		})
	})
	if n.rt.Await(answered, ctx.Done(), nil) == 1 {
		return rhumb.E(op, rhumb.Unavailable, "no answer")
	}
	return result
}

// Open asks for a set.
func (t copies) Open(ctx context.Context, to rhumb.NodeID, q transfer.Question) (transfer.Offer, error) {
	// A set may hold entries that an older build does not know, and then it is of no use.
	if t.n.older {
		return transfer.Offer{}, rhumb.E("sim.copies", rhumb.Incompatible, "the node runs an older build")
	}
	var encoded []byte
	var made int64
	err := t.call(ctx, to, func(ctx context.Context, m *transfer.Manager) error {
		o, err := m.Open(ctx, t.n.id, q)
		if made = o.Made; o.Set != nil {
			encoded = o.Set.Encode()
		}
		return err
	})
	if err != nil || encoded == nil {
		return transfer.Offer{Made: made}, err
	}
	set, err := storage.DecodeSet(encoded)
	if err == nil && t.n.w.cfg.Bug == CommitCopiedTail {
		set.Commit = set.ID.Last.Seq
		for i := range set.State {
			if f := &set.State[i]; f.Field == byte(keys.StateCommit) {
				binary.BigEndian.PutUint64(f.Value, uint64(set.Commit))
			}
		}
	}
	if err == nil {
		t.sets[set.ID] = set
	}
	return transfer.Offer{Set: set}, err
}

// errEnough ends a read after one chunk.
var errEnough = errors.New("sim: one chunk is enough")

// Read fetches one chunk after the other.
func (t copies) Read(ctx context.Context, to rhumb.NodeID, id storage.SetID, from int, take func(chunk int, b []byte) error) error {
	for chunk := from; ; chunk++ {
		var b []byte
		err := t.call(ctx, to, func(ctx context.Context, m *transfer.Manager) error {
			b = nil
			err := m.Read(ctx, id, chunk, func(_ int, content []byte) error {
				b = slices.Clone(content)
				return errEnough
			})
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		})
		if err != nil || b == nil {
			return err
		}
		if err := take(chunk, t.spoil(id, chunk, b)); err != nil {
			return err
		}
	}
}

// spoil damages some chunks on the way. A correct node compares each chunk with its checksum and reads it again.
func (t copies) spoil(id storage.SetID, chunk int, b []byte) []byte {
	w := t.n.w
	if len(b) > 0 && w.wire.Float64() < w.p.spoiltChunks {
		w.stats.Spoilt++
		b[w.wire.IntN(len(b))] ^= 1 << w.wire.IntN(8)
		if w.cfg.Bug == SkipChecksum {
			t.acceptChunk(id, chunk, b)
		}
	}
	if w.cfg.Bug == ResumeWrongSet {
		b = t.mixChunks(id, chunk, b)
	}
	return b
}

// acceptChunk changes the description of a set such that a chunk fits it. The sets of the simulator have one chunk
// per file.
func (t copies) acceptChunk(id storage.SetID, chunk int, b []byte) {
	set := t.sets[id]
	// The description of an earlier life was read from the disk, out of reach of the bug.
	if set == nil || chunk >= len(set.Files) || len(set.Files[chunk].Chunks) != 1 {
		return
	}
	set.Files[chunk] = storage.SetFile{Bytes: int64(len(b)), Chunks: []uint32{crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))}}
}

// chunkAt is the place of a chunk in the sets of a range.
type chunkAt struct {
	id    rhumb.RangeID
	chunk int
}

// mixChunks replaces the first chunk of a set by that of the set before, as if chunks on disk counted without a look at the
// set that they belong to (ResumeWrongSet).
func (t copies) mixChunks(id storage.SetID, chunk int, b []byte) []byte {
	n := t.n
	at := chunkAt{id.Range, chunk}
	old := n.oldChunks[at]
	if n.oldChunks == nil {
		n.oldChunks = map[chunkAt][]byte{}
	}
	n.oldChunks[at] = slices.Clone(b)
	if set := t.sets[id]; chunk > 0 || old == nil || set == nil || len(set.Files) < 2 {
		return b
	}
	t.acceptChunk(id, chunk, old)
	return old
}

// transferProbe returns the probe that plants the bugs of copies. It leaves out the check of a complete set, which
// would find the changes that the bugs make to its parts.
func (n *node) transferProbe() *transfer.Probe {
	if bug := n.w.cfg.Bug; bug != SkipChecksum && bug != ResumeWrongSet {
		return nil
	}
	return &transfer.Probe{SkipVerify: true, Chunk: func(_ int, b []byte) []byte { return b }}
}

// seeInstall plants InstallForgetsPromise. The copy is then installed with the promise of its donor alone.
func (n *node) seeInstall(_ rhumb.RangeID, promised rhumb.Epoch, least rhumb.Seq) (rhumb.Epoch, rhumb.Seq) {
	if n.w.cfg.Bug == InstallForgetsPromise {
		promised = 0
	}
	return promised, least
}

// electInstalling elects a replica that receives a copy at this moment (InstallElectable).
func (w *world) electInstalling() {
	if w.metadataLeader() == nil {
		return
	}
	for _, n := range w.nodes {
		if n.transfers == nil || n.down {
			continue
		}
		for _, p := range n.transfers.Progress() {
			r, ok := w.state.Range(p.Range)
			// The set is known, so the copy has begun; a member would be elected by the book.
			if ok && p.Of > 0 && r.IsReplica(n.id) && !r.IsInSync(n.id) && w.state.IsLive(n.id) {
				w.enthrone(r, n.id)
				return
			}
		}
	}
}

// Release informs the donor, whose answer nobody awaits.
func (t copies) Release(_ context.Context, to rhumb.NodeID, id storage.SetID) {
	w := t.n.w
	donor := w.nodes[to-1]
	w.net.send(t.n.at, donor.at, func() {
		donor.run(donor.life, func() {
			if donor.transfers != nil {
				donor.transfers.Release(id)
			}
		})
	})
}

// noteInstalled makes the judges read the copy that took the place of a replica.
func (n *node) noteInstalled(id rhumb.RangeID) {
	i := slices.Index(n.w.ranges, id)
	n.checkInstalledPromise(id)
	old := n.disk.copies[i]
	if old == nil {
		old = &rangeCopy{}
		n.disk.copies[i] = old
	}
	delete(n.disk.unmarked, old)
	if err := n.disk.reloadCopy(i); err != nil {
		n.w.judge(err)
		return
	}
	// The judges see each entry that is committed on the node, also those that came with the copy.
	c := n.disk.copies[i]
	for seq := old.commit; seq < c.commit && n.w.err == nil; seq++ {
		n.w.judge(n.w.monitor.Committed(id, n.id, c.entries[seq]))
	}
	n.noteAbsorbed(id)
	n.w.stats.Copied++
	n.w.tracef(n.name(), "has copied %s up to %d", id, len(n.disk.copies[i].entries))
}

// checkInstalledPromise checks that a copy does not promise less than the replica that it replaces
// (docs/replication.md#rule-transfer): the old primary could otherwise get an acknowledgement that was refused to it.
func (n *node) checkInstalledPromise(id rhumb.RangeID) {
	st, ok := n.disk.engine.Store(id).State(id)
	old, running := n.host.Replica(id)
	if ok && running && st.Promised < old.Epoch() {
		n.w.failf("%s: the copy of %s is installed with the promise of epoch %d, but the replica promised %d", n.id, id, st.Promised, old.Epoch())
	}
}
