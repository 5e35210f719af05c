package raftmeta

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// applyReady brings the catalog to where a Ready says, publishes it once, and answers the proposals decided by it.
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
	d.publishState(delta)
	for _, dec := range decided {
		dec.proposal.finish(dec.result, nil)
	}
	d.metrics.observeApply(len(rd.CommittedEntries), d.rt.Now()-start, d.log)
	return nil
}

// decision is a proposal of this node with its result.
type decision struct {
	proposal *proposal
	result   catalog.Result
}

// install takes over a state that the leader sent.
func (d *driver) installTransfer(transfer *raftpb.Snapshot) error {
	state, err := catalog.Decode(transfer.GetData())
	if err != nil {
		return rhumb.Wrap("raftmeta.install", err)
	}
	d.state = state
	d.applied = transfer.GetMetadata().GetIndex()
	d.conf = transfer.GetMetadata().GetConfState()
	d.config.logger().Info("metadata state taken over", "index", d.applied, "revision", state.Revision())
	return nil
}

// applyEntry applies one committed entry.
func (d *driver) applyEntry(e *raftpb.Entry) (decision, catalog.Changes, error) {
	d.applied = e.GetIndex()
	if e.GetType() != raftpb.EntryNormal {
		changes, err := d.applyConfChange(e)
		return decision{}, changes, err
	}
	if len(e.GetData()) == 0 { // a new leader's first entry
		return decision{}, catalog.Changes{}, nil
	}
	id, cmd, err := decodeProposal(e.GetData())
	if err != nil {
		return decision{}, catalog.Changes{}, &rhumb.Error{
			Op: "raftmeta.apply", Kind: rhumb.KindOf(err), Err: err,
			Msg: "a committed command cannot be read, and skipping it would make this copy differ; upgrade this node",
		}
	}
	next, result, changes := d.state.Apply(cmd)
	d.state = next
	p := d.pending[id]
	delete(d.pending, id)
	return decision{p, result}, changes, nil
}

// applyConfChange applies a change of membership, and records the voters in the catalog.
func (d *driver) applyConfChange(e *raftpb.Entry) (catalog.Changes, error) {
	cc, err := decodeConfChange(e)
	if err != nil {
		return catalog.Changes{}, err
	}
	d.conf = d.node.ApplyConfChange(cc)
	d.confChanged = true
	if err := d.noteAdmissions(e.GetIndex(), cc); err != nil {
		return catalog.Changes{}, err
	}
	next, _, changes := d.state.Apply(catalog.SetVoters{Voters: nodeIDs(d.conf.GetVoters())})
	d.state = next
	d.config.logger().Info("metadata members", "voters", d.conf.GetVoters(), "learners", d.conf.GetLearners())
	return changes, nil
}

// decodeConfChange decodes a change of membership, of either form.
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

// publish shows the applied state to readers and watchers.
func (d *driver) publishState(delta delta) {
	old := d.view.Load()
	d.view.Store(&view{state: d.state, newer: make(chan struct{})})
	close(old.newer)
	if old.state != d.state || delta.full {
		d.watches.addState(d.state, delta) // after the view is stored: see Group.Watch
	}
}

// cutForMembers cuts the log behind a change of membership, before anything else is sent: a new member accepts a state
// transfer only when it stands in it.
func (d *driver) cutForMembers() error {
	if !d.confChanged {
		return nil
	}
	d.confChanged = false
	term, err := d.log.Term(d.applied)
	if err != nil {
		return rhumb.Wrap("raftmeta.cutForMembers", err)
	}
	cutting := d.cutting // one that is under way brings an older state, and is dropped when it comes
	err = d.cutLog(&raftpb.Snapshot{
		Data:     d.state.Encode(),
		Metadata: &raftpb.SnapshotMetadata{Index: proto.Uint64(d.applied), Term: proto.Uint64(term), ConfState: d.conf},
	})
	d.cutting = cutting
	return err
}

// maybeCut begins to cut the log when it has grown enough: the state is encoded beside the loop, which goes on.
func (d *driver) startCut() {
	grown := d.log.size - d.log.kept
	if d.cutting || d.applied <= d.log.transferred || grown < max(d.config.LogSize, d.log.stateSize) {
		return
	}
	term, err := d.log.Term(d.applied)
	if err != nil {
		return
	}
	d.cutting = true
	state, conf := d.state, d.conf
	metadata := &raftpb.SnapshotMetadata{Index: proto.Uint64(d.applied), Term: proto.Uint64(term), ConfState: conf}
	var data []byte
	d.rt.Disk(true, func() { data = state.Encode() }, func() {
		d.cuts <- &raftpb.Snapshot{Data: data, Metadata: metadata} // has room: one is under way at a time
		d.wakeDriver()
	})
}

// cut replaces the log behind an encoded state.
func (d *driver) cutLog(transfer *raftpb.Snapshot) error {
	d.cutting = false
	if d.log.transferred >= transfer.GetMetadata().GetIndex() {
		return nil // a newer state came from the leader meanwhile
	}
	if err := d.log.compact(transfer, d.config.LogKeep); err != nil {
		return rhumb.Wrap("raftmeta.cut", err)
	}
	d.metrics.observeCut(d.log)
	d.config.logger().Debug("metadata log cut", "index", transfer.GetMetadata().GetIndex(), "bytes", len(transfer.GetData()))
	return nil
}
