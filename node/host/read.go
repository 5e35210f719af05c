package host

import (
	"context"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// readRetriesMax bounds how often a read retries because the versions that it needs were collected,
// or because the range's read state changed while it read.
const readRetriesMax = 8

// Get reads names of one table in one range with a strong read: the result reflects everything
// acknowledged before the call. A key that does not exist has a zero Version. If the records exceed
// rhumb.ReadSizeMax, Get returns TooLarge.
func (h *Host) Get(ctx context.Context, id rhumb.RangeID, table rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Get"
	items := make([]rhumb.Item, len(names))
	receipt, err := h.read(ctx, op, id, func(s *slot, st *readState) error {
		size := 0
		for i, name := range names {
			key, err := h.keyOf(op, s, st.last, table, name)
			if err != nil {
				return err
			}
			found, err := s.store.Lookup(key, st.at)
			if err != nil {
				return err
			}
			items[i] = rhumb.Item{Key: key}
			if !found.Tombstone {
				items[i].Value, items[i].Version = found.Value, found.Version
			}
			// Checked after every record, so the memory of a read is bounded before the answer is
			// built.
			if size += len(found.Value); size > rhumb.ReadSizeMax {
				return rhumb.Ef(op, rhumb.TooLarge, "the first %d of %d records hold more than %d bytes, the limit of one read; request fewer", i+1, len(names), rhumb.ReadSizeMax)
			}
		}
		return nil
	})
	if err != nil {
		return nil, receipt, err
	}
	return items, receipt, nil
}

// Exists reports which keys of one range exist, with a strong read and without a log entry: a key
// is reported absent only if no write of it was acknowledged before the call. tables holds the
// table of each name.
func (h *Host) Exists(ctx context.Context, id rhumb.RangeID, tables []rhumb.TableID, names [][]byte) (exist []bool, err error) {
	const op rhumb.Op = "host.Host.Exists"
	_, err = h.read(ctx, op, id, func(s *slot, st *readState) (err error) {
		wanted := make([]rhumb.Key, len(names))
		for i, name := range names {
			if wanted[i], err = h.keyOf(op, s, st.last, tables[i], name); err != nil {
				return err
			}
		}
		exist, err = s.store.Exists(s.id, wanted, st.at)
		return err
	})
	return exist, err
}

// Leased reports whether this node would answer a read of the range without asking anybody: it is
// the primary and holds its lease. Otherwise Get and Scan ask the metadata group, which takes a
// round trip.
func (h *Host) Leased(id rhumb.RangeID) bool {
	s, ok := h.homeSlot(id)
	if !ok {
		// The read is rejected at once, also without asking.
		return true
	}
	st := s.read.Load()
	return st == nil || h.leases.holdsLease(s.id, st.epoch, st.grants)
}

// Scan reads records of one range with a strong read, at one timestamp. The page says up to which slot
// the range reaches.
func (h *Host) Scan(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Scan"
	var page rhumb.ScanPage
	receipt, err := h.read(ctx, op, q.Range, func(s *slot, st *readState) error {
		// A retry starts over: the page must be of one timestamp.
		page = rhumb.ScanPage{Last: st.last}
		size := 0
		// One record beyond the limit shows whether there are more.
		for it, err := range s.store.Scan(s.id, q.Table, q.Prefix, q.After, st.at, q.Limit+1) {
			if err != nil {
				return err
			}
			// A page has at least one record, however large, so that a scan always makes progress.
			if len(page.Items) == q.Limit || size >= q.BytesMax {
				page.More = true
				return nil
			}
			page.Items = append(page.Items, it)
			size += len(it.Value) + len(it.Key.Name)
		}
		return nil
	})
	return page, receipt, err
}

// read runs do at the range's commit timestamp, under the authority of its lease.
//
// Steps: load the read state, read storage at its timestamp, then check the epoch and the lease. A
// lease that is valid after the read proves that no other node acknowledged a write before the read
// ended (rule L).
func (h *Host) read(ctx context.Context, op rhumb.Op, id rhumb.RangeID, do func(s *slot, st *readState) error) (rhumb.Receipt, error) {
	// Counted before stopped is checked: Close sets stopped and then waits for the count, so it
	// sees this read or the read sees stopped.
	h.reads.Add(1)
	defer h.reads.Add(-1)
	if h.stopped.Load() {
		return rhumb.Receipt{}, errStopping(op)
	}
	s, ok := h.homeSlot(id)
	if !ok {
		return rhumb.Receipt{}, h.notPrimary(op, id)
	}
	for range readRetriesMax {
		st := s.read.Load()
		if st == nil {
			return rhumb.Receipt{}, h.notPrimary(op, id)
		}
		switch err := do(s, st); {
		case rhumb.KindOf(err) == rhumb.Unavailable && s.read.Load() != st:
			// The versions that were current at st.at were collected meanwhile. The read retries at
			// the timestamp of the newer read state.
			h.m.readRetries.Inc()
			continue
		case err != nil:
			return rhumb.Receipt{}, rhumb.Wrap(op, err)
		}
		ok, err := h.authorised(ctx, s, st)
		if err != nil {
			return rhumb.Receipt{}, err
		}
		if ok {
			return rhumb.Receipt{Node: h.cfg.Self.Node, Range: s.id, Epoch: st.epoch, Timestamp: st.at, Hops: 1}, nil
		}
	}
	return rhumb.Receipt{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: fmt.Sprintf("the range changed during %d attempts to read it; retry", readRetriesMax)}
}

// authorised reports whether only this node could have acknowledged a write of the range before
// now: by lease (rule L), or else by asking the metadata group (rule F). It returns false to make
// the read retry.
func (h *Host) authorised(ctx context.Context, s *slot, st *readState) (bool, error) {
	const op rhumb.Op = "host.Host.authorised"
	// The state that was read belongs to st.epoch. If the replica has left that epoch, the read
	// retries in the present one.
	if now := s.read.Load(); now == nil || now.epoch != st.epoch {
		return false, nil
	}
	if h.leases.holdsLease(s.id, st.epoch, st.grants) {
		return true, nil
	}
	// Rule F counts only if the group is asked after the read has arrived.
	h.m.confirmReads.Inc()
	ok, err := h.cfg.Meta.ConfirmPrimary(ctx, s.id, st.epoch)
	if err != nil {
		return false, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: s.id, Node: h.cfg.Self.Node, Msg: "the lease has expired and the metadata group did not confirm this primary; retry", Err: err}
	}
	if !ok {
		return false, h.notPrimary(op, s.id)
	}
	return true, nil
}

// notPrimary returns the error of requests that another node must serve.
func (h *Host) notPrimary(op rhumb.Op, id rhumb.RangeID) error {
	return &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: id, Node: h.cfg.Self.Node, Msg: "this node is not the primary of the range"}
}
