package client

import (
	"cmp"
	"context"

	"github.com/rhumbdb/rhumb"
)

// GetMany reads records, each as Get does, with one request per range. The result is in the order of names; a record
// that does not exist is there without a version (Got.Exists). Each record is read strongly, but not all at one moment.
//
// A dead region is not asked, and one that dies meanwhile is not waited for. Names that no other region has are then unknown,
// which is an error of kind Unavailable; what was read stands beside it, and the receipts of the unknown names list the region
// under Unasked. A region that does not answer in time has the same effect, with its own error.
func (t *Table) GetMany(ctx context.Context, names [][]byte, o GetOptions) ([]Got, error) {
	const op rhumb.Op = "client.Table.GetMany"
	t.c.m.reads.Add(1)
	out, err := t.getMany(ctx, op, names, o)
	return out, t.c.ended(err)
}

func (t *Table) getMany(ctx context.Context, op rhumb.Op, names [][]byte, o GetOptions) ([]Got, error) {
	if len(names) > rhumb.BatchOpsMax {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "%d names, at most %d are allowed", len(names), rhumb.BatchOpsMax)
	}
	for _, name := range names {
		if err := checkName(op, name); err != nil {
			return nil, err
		}
	}
	home, fixed, err := t.home(o.Home)
	if err != nil {
		return nil, err
	}
	r := manyReads{t: t, op: op, names: names, out: make([]Got, len(names)), silent: make([]error, len(names))}
	open := o.Home == "" && !o.Local
	r.o = readOptions{local: o.Local, alive: open}
	if o.Home == "" {
		home.Region = t.c.here.ID
	}
	first := make([]rhumb.RegionID, len(names)) // the region that each name was read in
	for i, name := range names {
		at := home
		if known, ok := t.c.homes.get(t.info.ID, name); ok && open {
			at.Region = known
		}
		if open && t.c.meta.isDead(at.Region) {
			continue
		}
		id, err := t.rangeOf(at, fixed, name)
		if err != nil {
			return nil, err
		}
		first[i] = at.Region
		r.add(id, i)
	}
	r.run(ctx)
	if open {
		if err := r.addMissing(first); err != nil {
			return nil, err
		}
		r.run(ctx)
	}
	return r.out, r.failed()
}

// manyReads are reads of names, in rounds of one read for each range, all at once.
type manyReads struct {
	t        *Table
	op       rhumb.Op
	names    [][]byte
	o        readOptions
	searched int                     // regions asked beyond the caller's
	unasked  []rhumb.RegionID        // dead ones
	out      []Got                   // of names
	silent   []error                 // why a region that may have the name did not answer
	byRange  map[rhumb.RangeID][]int // the next round: places in names
}

func (r *manyReads) add(id rhumb.RangeID, i int) {
	if r.byRange == nil {
		r.byRange = map[rhumb.RangeID][]int{}
	}
	r.byRange[id] = append(r.byRange[id], i)
}

// addMissing makes the second round: what was not found, in all living regions but the first, which was asked for it. A name
// whose first region is silent is left out: the record there would come before any elsewhere.
func (r *manyReads) addMissing(first []rhumb.RegionID) error {
	c := r.t.c
	var alive []rhumb.RegionID
	for _, region := range c.meta.regionsWith(r.t.info.Class) {
		if region.Dead {
			r.unasked = append(r.unasked, region.ID)
		} else {
			alive = append(alive, region.ID)
		}
		if region.ID != c.here.ID && !region.Dead {
			r.searched++
		}
	}
	for i, name := range r.names {
		if r.out[i].Exists() || r.silent[i] != nil {
			continue
		}
		r.out[i].Receipt.Searched = r.searched
		c.m.searches.Add(1)
		for _, region := range alive {
			if region == first[i] {
				continue
			}
			id, err := c.meta.named(r.t, region, name)
			if err != nil {
				return err
			}
			r.add(id, i)
		}
	}
	return nil
}

// rangeRead is the answer to one read of a round.
type rangeRead struct {
	id      rhumb.RangeID
	places  []int // in names
	items   []rhumb.Item
	receipt rhumb.Receipt
	err     error
}

// run reads every range of the round, until each name is found or all have answered.
func (r *manyReads) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan rangeRead, len(r.byRange))
	waiting := make([]int, len(r.names)) // reads under way for each name
	open := 0                            // names that wait
	for id, places := range r.byRange {
		names := make([][]byte, len(places))
		for j, i := range places {
			names[j] = r.names[i]
			if waiting[i]++; waiting[i] == 1 {
				open++
			}
		}
		r.t.c.spawn(func() {
			items, receipt, err := r.t.readRange(ctx, r.op, id, names, r.o)
			answers <- rangeRead{id, places, items, receipt, err}
		})
	}
	r.byRange = nil
	for open > 0 {
		a := <-answers
		for j, i := range a.places {
			waiting[i]--
			if found := r.out[i].Exists(); !found {
				r.take(i, &a, j)
				if r.out[i].Exists() || waiting[i] == 0 {
					open--
				}
			}
		}
	}
}

// take takes the answer about one name: the one at j in the answer.
func (r *manyReads) take(i int, a *rangeRead, j int) {
	if a.err != nil {
		r.silent[i] = a.err
		r.out[i].Receipt.Unasked = append(r.out[i].Receipt.Unasked, a.id.Region)
		return
	}
	got := Got{a.items[j], a.receipt}
	got.Receipt.Searched = r.searched
	if !got.Exists() {
		got.Receipt.Unasked = r.out[i].Receipt.Unasked
	} else if r.searched > 0 {
		r.t.c.homes.put(r.t.info.ID, r.names[i], a.id.Region)
	}
	r.out[i] = got
}

// failed is the error of the reads: the first of a name that may be in a region that was not asked, or is silent.
func (r *manyReads) failed() (err error) {
	for i := range r.out {
		if r.out[i].Exists() {
			continue
		}
		r.out[i].Receipt.Unasked = append(r.out[i].Receipt.Unasked, r.unasked...)
		err = cmp.Or(err, r.silent[i], r.t.c.unknowable(r.op, r.names[i], r.unasked))
	}
	return err
}
