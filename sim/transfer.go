package sim

import (
	"context"
	"encoding/binary"
	"errors"
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
type copies struct{ n *node }

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
func (t copies) Open(ctx context.Context, to rhumb.NodeID, q transfer.Question) (set *storage.Set, err error) {
	var encoded []byte
	err = t.call(ctx, to, func(ctx context.Context, m *transfer.Manager) error {
		s, err := m.Open(ctx, t.n.id, q)
		if err == nil {
			encoded = s.Encode()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if set, err = storage.DecodeSet(encoded); err == nil && t.n.w.cfg.Bug == CommitCopiedTail {
		set.Commit = set.ID.Last.Seq
		for i := range set.State {
			if f := &set.State[i]; f.Field == byte(keys.StateCommit) {
				binary.BigEndian.PutUint64(f.Value, uint64(set.Commit))
			}
		}
	}
	return set, err
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
		if err := take(chunk, b); err != nil {
			return err
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
	n.w.stats.Copied++
	n.w.tracef(n.name(), "has copied %s up to %d", id, len(n.disk.copies[i].entries))
}
