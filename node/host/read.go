package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
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
	receipt, err := h.readEach(ctx, op, id, len(names), func(i int) (rhumb.TableID, []byte) { return table, names[i] }, func(s *slot, st *readState, wanted []rhumb.Key, places []int) error {
		// The records of the other parts. A part that is read again counts once.
		size := 0
		for i := range items {
			size += len(items[i].Value)
		}
		for _, i := range places {
			size -= len(items[i].Value)
		}
		done := 0
		// The items keep the order of the request, whatever the order of the reads.
		take := func(n int, found storage.Found) error {
			i := places[n]
			items[i] = rhumb.Item{Key: wanted[n]}
			if !found.Tombstone {
				items[i].Value, items[i].Version = found.Value, found.Version
			}
			done++
			// Checked after every record, so the memory of a read is bounded before the answer is
			// built.
			if size += len(found.Value); size > rhumb.ReadSizeMax {
				return rhumb.Ef(op, rhumb.TooLarge, "%d of %d records hold more than %d bytes, the limit of one read; request fewer", done, len(places), rhumb.ReadSizeMax)
			}
			return nil
		}
		if len(wanted) != 1 {
			return s.store.LookupEach(wanted, keyOrder(wanted), st.at, take)
		}
		// Most reads are of one name.
		found, err := s.store.Lookup(wanted[0], st.at)
		if err != nil {
			return err
		}
		return take(0, found)
	})
	if err != nil {
		return nil, receipt, err
	}
	return items, receipt, nil
}

// keyOrder returns the indexes of keys in the order in which a store has the keys.
func keyOrder(wanted []rhumb.Key) []int {
	order := make([]int, len(wanted))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(wanted[a].Home.Compare(wanted[b].Home), bytes.Compare(wanted[a].Name, wanted[b].Name))
	})
	return order
}

// readEach runs do for the keys of a read that was sent to one range. A range that was split since the sender chose has a part of
// them only; do then runs once more for the range that has the next key. Each part is a strong read. The receipt is that of
// the first part.
//
// A node divides its copies some round trips before the metadata names the new range, so a caller with the newest metadata would
// be refused too.
func (h *Host) readEach(ctx context.Context, op rhumb.Op, id rhumb.RangeID, n int, nameAt func(i int) (rhumb.TableID, []byte), do func(*slot, *readState, []rhumb.Key, []int) error) (receipt rhumb.Receipt, err error) {
	// Most reads are of one name, and of a range that is whole: they must not cost more for the others.
	var one struct {
		wanted [1]rhumb.Key
		place  [1]int
	}
	wanted, left := one.wanted[:0], one.place[:]
	if n != 1 {
		wanted, left = make([]rhumb.Key, 0, n), make([]int, n)
		for i := range left {
			left[i] = i
		}
	}
	for at := id; ; {
		var elsewhere []int
		var next rhumb.RangeID
		part, err := h.read(ctx, op, at, func(s *slot, st *readState) error {
			// A part that is read again begins at its start.
			wanted, elsewhere = wanted[:0], elsewhere[:0]
			places := left
			for n, i := range left {
				table, name := nameAt(i)
				key, err := h.keyOf(op, s, st.last, table, name)
				if err == nil {
					wanted = append(wanted, key)
					if len(elsewhere) > 0 {
						places = append(places, i)
					}
					continue
				}
				// The range of this very home does not have it: it is being divided, and the caller tries again. So every
				// range but the first takes at least one key, and the loop ends.
				home := h.homeOf(s.id, table, name)
				if home == at {
					return err
				}
				if len(elsewhere) == 0 {
					next, places = home, slices.Clone(left[:n])
				}
				elsewhere = append(elsewhere, i)
			}
			return do(s, st, wanted, places)
		})
		if err != nil {
			return part, err
		}
		if at == id {
			receipt = part
		}
		if len(elsewhere) == 0 {
			return receipt, nil
		}
		left, at = elsewhere, next
	}
}

// Exists reports which keys of one range exist, with a strong read and without a log entry: a key
// is reported absent only if no write of it was acknowledged before the call. tables holds the
// table of each name.
func (h *Host) Exists(ctx context.Context, id rhumb.RangeID, tables []rhumb.TableID, names [][]byte) (exist []bool, err error) {
	const op rhumb.Op = "host.Host.Exists"
	exist = make([]bool, len(names))
	_, err = h.readEach(ctx, op, id, len(names), func(i int) (rhumb.TableID, []byte) { return tables[i], names[i] }, func(s *slot, st *readState, wanted []rhumb.Key, places []int) error {
		found, err := s.store.Exists(s.id, wanted, st.at)
		for n, i := range places[:len(found)] {
			exist[i] = found[n]
		}
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
