package raftmeta

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// applyReady applies the state transfer and the committed entries of a Ready, publishes the
// resulting state once, and then completes the proposals that these entries decided.
func (d *driver) applyReady(rd raft.Ready) error {
	if raft.IsEmptySnap(rd.Snapshot) && len(rd.CommittedEntries) == 0 {
		return nil
	}
	start := d.rt.Now()
	var delta delta
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := d.installTransfer(rd.Snapshot); err != nil {
			return err
		}
		delta.full = true
	}
	// Proposals are completed only after the state is published: when Propose returns, State on
	// this node must include the change.
	var decided []decision
	for _, e := range rd.CommittedEntries {
		dec, changes, err := d.applyEntry(e)
		if err != nil {
			return err
		}
		delta.changes = append(delta.changes, changes)
		if dec.proposal != nil {
			decided = append(decided, dec)
		}
	}
	// One publication per Ready bounds the work of watchers: a burst of entries wakes each of them
	// once. The policy is compiled once as well.
	d.state = d.state.WithPolicy()
	d.publishState(delta)
	for _, dec := range decided {
		dec.proposal.finish(dec.result, nil)
	}
	d.metrics.observeApply(len(rd.CommittedEntries), d.rt.Now()-start, d.log)
	return nil
}

// decision is a proposal of this node with its result. proposal is nil if another node, or an
// earlier start of this one, proposed the command.
type decision struct {
	proposal *proposal
	result   catalog.Result
}

// installTransfer replaces the state by one that the leader sent.
func (d *driver) installTransfer(transfer *raftpb.Snapshot) error {
	state, err := catalog.Decode(transfer.GetData())
	if err != nil {
		return rhumb.Wrap("raftmeta.install", err)
	}
	d.state = state
	d.applied = transfer.GetMetadata().GetIndex()
	d.conf = transfer.GetMetadata().GetConfState()
	d.config.logger().Info("metadata state replaced by the leader's", "index", d.applied, "revision", state.Revision())
	return nil
}

// applyEntry applies one committed entry and returns the decision and the touched records.
func (d *driver) applyEntry(e *raftpb.Entry) (decision, catalog.Changes, error) {
	// Empty entries and changes of membership count as applied too: linearizable reads wait for an
	// index, not for a command.
	d.applied = e.GetIndex()
	if e.GetType() != raftpb.EntryNormal {
		changes, err := d.applyConfChange(e)
		return decision{}, changes, err
	}
	if len(e.GetData()) == 0 { // the first entry of a new leader
		return decision{}, catalog.Changes{}, nil
	}
	// Entries that were appended by an earlier leader carry its id and match nothing in pending.
	id, cmd, err := decodeProposal(e.GetData())
	if err != nil {
		return decision{}, catalog.Changes{}, &rhumb.Error{
			Op: "raftmeta.apply", Kind: rhumb.KindOf(err), Err: err,
			Msg: "a committed metadata command cannot be decoded, and skipping it would make this node's copy differ from the others; upgrade this node",
		}
	}
	// The result is computed even if nobody here waits for it: applying must not depend on who
	// proposed.
	next, result, changes := d.state.ApplyDeferred(cmd)
	d.state = next
	p := d.pending[id]
	delete(d.pending, id)
	return decision{p, result}, changes, nil
}

// applyConfChange applies a change of membership and records the voters in the catalog, where every
// node can read them. All replicas apply the same entry, so recording needs no proposal.
func (d *driver) applyConfChange(e *raftpb.Entry) (catalog.Changes, error) {
	cc, err := decodeConfChange(e)
	if err != nil {
		return catalog.Changes{}, err
	}
	d.conf = d.node.ApplyConfChange(cc)
	d.confChanged = true
	// Admissions are stored as well: a member that asks must learn of its admission even after this
	// node has restarted.
	if err := d.noteAdmissions(e.GetIndex(), cc); err != nil {
		return catalog.Changes{}, err
	}
	next, _, changes := d.state.ApplyDeferred(catalog.SetVoters{Voters: nodeIDs(d.conf.GetVoters())})
	d.state = next
	d.config.logger().Info("metadata members", "voters", d.conf.GetVoters(), "learners", d.conf.GetLearners())
	return changes, nil
}

// decodeConfChange decodes a change of membership in either of Raft's two formats.
func decodeConfChange(e *raftpb.Entry) (*raftpb.ConfChangeV2, error) {
	cc := new(raftpb.ConfChangeV2)
	var err error
	if e.GetType() == raftpb.EntryConfChange {
		var v1 raftpb.ConfChange
		err = proto.Unmarshal(e.GetData(), &v1)
		cc.Changes = v1.AsV2().GetChanges()
	} else {
		err = proto.Unmarshal(e.GetData(), cc)
	}
	return cc, rhumb.WrapKind("raftmeta.decodeConfChange", rhumb.Corrupt, err)
}

// publishState makes the applied state visible to readers and watchers.
func (d *driver) publishState(delta delta) {
	old := d.view.Load()
	d.view.Store(&view{state: d.state, newer: make(chan struct{})})
	// The channel closes after the new view is stored, so that whoever wakes finds a newer state.
	close(old.newer)
	if old.state != d.state || delta.full {
		d.watches.addState(d.state, delta) // after the view is stored; see Group.Watch
	}
}

// cutForMembers compacts the log up to a change of membership before anything else is sent. Raft
// discards a state transfer whose configuration does not include the recipient, so a new member
// could never take over an older one.
func (d *driver) cutForMembers() error {
	if !d.confChanged {
		return nil
	}
	d.confChanged = false
	// The cut is at the applied index, which includes the change itself.
	term, err := d.log.Term(d.applied)
	if err != nil {
		return rhumb.Wrap("raftmeta.cutForMembers", err)
	}
	// A cut that is in progress has encoded an older state. cutLog will drop it when it arrives,
	// and only then may the next cut start, so the flag is preserved.
	cutting := d.cutting
	err = d.cutLog(&raftpb.Snapshot{
		Data:     d.state.Encode(),
		Metadata: &raftpb.SnapshotMetadata{Index: proto.Uint64(d.applied), Term: proto.Uint64(term), ConfState: d.conf},
	})
	d.cutting = cutting
	return err
}

// startCut starts to compact the log once it has grown enough. Encoding the state takes long, so a
// worker does it while the driver continues; a State is immutable, so the worker needs no lock.
func (d *driver) startCut() {
	// A log shorter than the last encoded state is kept: writing states must not cost more than
	// writing the log.
	grown := d.log.size - d.log.kept
	if d.cutting || d.applied <= d.log.transferred || grown < max(d.config.LogSize, d.log.stateSize) {
		return
	}
	// The term can be missing only if the entry was just compacted. The next round tries again.
	term, err := d.log.Term(d.applied)
	if err != nil {
		return
	}
	d.cutting = true
	state, conf := d.state, d.conf
	metadata := &raftpb.SnapshotMetadata{Index: proto.Uint64(d.applied), Term: proto.Uint64(term), ConfState: conf}
	var data []byte
	d.rt.Disk(true, func() { data = state.Encode() }, func() {
		// The send cannot block, because cuts has room for one and d.cutting allows one at a time.
		d.cuts <- &raftpb.Snapshot{Data: data, Metadata: metadata}
		d.wakeDriver()
	})
}

// cutLog replaces the log up to the index of an encoded state by that state.
func (d *driver) cutLog(transfer *raftpb.Snapshot) error {
	d.cutting = false
	// Compacting to an older state would move the log back.
	if d.log.transferred >= transfer.GetMetadata().GetIndex() {
		return nil // the leader has sent a newer state in the meantime
	}
	if err := d.log.compact(transfer, d.config.LogKeep); err != nil {
		return rhumb.Wrap("raftmeta.cut", err)
	}
	d.metrics.observeCut(d.log)
	d.config.logger().Debug("metadata log compacted", "index", transfer.GetMetadata().GetIndex(), "bytes", len(transfer.GetData()))
	return nil
}
