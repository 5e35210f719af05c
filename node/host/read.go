package host

import (
	"context"

	"github.com/rhumbdb/rhumb"
)

// readRetriesMax bounds how often a read starts again because old versions were collected under it, or because its
// lease lapsed between reading and checking.
const readRetriesMax = 8

// Get reads names of one table in one range, strongly: the result holds everything that was acknowledged before the call.
// A key that does not exist has a zero Version in the result. What holds more than rhumb.ReadSizeMax is TooLarge.
func (h *Host) Get(ctx context.Context, id rhumb.RangeID, table rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Get"
	items := make([]rhumb.Item, len(names))
	receipt, err := h.read(ctx, op, id, func(s *slot, at rhumb.Timestamp) error {
		size := 0
		for i, name := range names {
			key := rhumb.Key{Table: table, Home: id, Name: name}
			found, err := s.store.Lookup(key, at)
			if err != nil {
				return err
			}
			items[i] = rhumb.Item{Key: key}
			if !found.Tombstone {
				items[i].Value, items[i].Version = found.Value, found.Version
			}
			if size += len(found.Value); size > rhumb.ReadSizeMax {
				return rhumb.Ef(op, rhumb.TooLarge, "the first %d of %d records hold more than %d bytes, the most that one read returns; ask for fewer", i+1, len(names), rhumb.ReadSizeMax)
			}
		}
		return nil
	})
	if err != nil {
		return nil, receipt, err
	}
	return items, receipt, nil
}

// Exists reports which keys of one range exist, as strongly as Get reads and without a log entry: a key counts as absent
// only if no write of it was acknowledged before the call. tables holds the table of each name.
func (h *Host) Exists(ctx context.Context, id rhumb.RangeID, tables []rhumb.TableID, names [][]byte) (exist []bool, err error) {
	_, err = h.read(ctx, "host.Host.Exists", id, func(s *slot, at rhumb.Timestamp) (err error) {
		exist, err = s.store.Exists(id, tables, names, at)
		return err
	})
	return exist, err
}

// Leased reports whether a read of the range would be answered from this node alone: it is the primary and holds its
// lease. Without it Get and Scan ask the metadata group, which takes a round trip.
func (h *Host) Leased(id rhumb.RangeID) bool {
	s, ok := h.slot(id)
	if !ok {
		return true // refused at once
	}
	st := s.read.Load()
	return st == nil || h.leases.holds(id, st.epoch, st.grants)
}

// Scan reads records of one range strongly, at one timestamp.
func (h *Host) Scan(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Scan"
	var page rhumb.ScanPage
	receipt, err := h.read(ctx, op, q.Range, func(s *slot, at rhumb.Timestamp) error {
		page = rhumb.ScanPage{}
		size := 0
		for it, err := range s.store.Scan(q.Range, q.Table, q.Prefix, q.After, at, q.Limit+1) {
			if err != nil {
				return err
			}
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
func (h *Host) read(ctx context.Context, op rhumb.Op, id rhumb.RangeID, do func(s *slot, at rhumb.Timestamp) error) (rhumb.Receipt, error) {
	h.reads.Add(1)
	defer h.reads.Add(-1)
	if h.stopped.Load() {
		return rhumb.Receipt{}, errStopping(op)
	}
	s, ok := h.slot(id)
	if !ok {
		return rhumb.Receipt{}, h.notPrimary(op, id)
	}
	for range readRetriesMax {
		st := s.read.Load()
		if st == nil {
			return rhumb.Receipt{}, h.notPrimary(op, id)
		}
		switch err := do(s, st.at); {
		case rhumb.KindOf(err) == rhumb.Unavailable && s.read.Load() != st:
			h.m.readRetries.Inc() // versions that were current at st.at were collected meanwhile
			continue
		case err != nil:
			return rhumb.Receipt{}, rhumb.Wrap(op, err)
		}
		ok, err := h.authorised(ctx, s, st)
		if err != nil {
			return rhumb.Receipt{}, err
		}
		if ok {
			return rhumb.Receipt{Node: h.cfg.Self.Node, Range: id, Epoch: st.epoch, Timestamp: st.at, Hops: 1}, nil
		}
	}
	return rhumb.Receipt{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: "the range changes too fast to be read; retry"}
}

// authorised reports whether nobody but this node could have acknowledged a write of the range before now: by lease
// (rule L), or else by asking the metadata group (rule F).
func (h *Host) authorised(ctx context.Context, s *slot, st *readState) (bool, error) {
	const op rhumb.Op = "host.Host.authorised"
	if now := s.read.Load(); now == nil || now.epoch != st.epoch {
		return false, nil
	}
	if h.leases.holds(s.id, st.epoch, st.grants) {
		return true, nil
	}
	h.m.confirmReads.Inc()
	ok, err := h.cfg.Meta.ConfirmPrimary(ctx, s.id, st.epoch)
	if err != nil {
		return false, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: s.id, Node: h.cfg.Self.Node, Msg: "the lease has lapsed and the metadata group does not confirm it; retry", Err: err}
	}
	if !ok {
		return false, h.notPrimary(op, s.id)
	}
	return true, nil
}

func (h *Host) notPrimary(op rhumb.Op, id rhumb.RangeID) error {
	return &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: id, Node: h.cfg.Self.Node, Msg: "another node orders this range's writes"}
}
