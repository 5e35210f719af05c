package client

import (
	"cmp"
	"context"

	"github.com/rhumbdb/rhumb"
)

// GetMany reads records, each as Get does, with one request per range. The result is in the order
// of names. A record that does not exist is in the result without a version (Got.Exists). Each
// record is read strongly, but not all at the same moment.
//
// Dead regions are not asked, and a region that dies during the call is not awaited. Names that no
// other region has are then unknown, which is an error of kind Unavailable. The records that were
// read are returned together with the error, and the receipts of the unknown names list the region
// in Unasked. A region that does not answer in time has the same effect, with its own error.
func (t *Table) GetMany(ctx context.Context, names [][]byte, o GetOptions) ([]Got, error) {
	const op rhumb.Op = "client.Table.GetMany"
	t.c.m.reads.Add(1)
	out, err := t.getMany(ctx, op, names, o)
	return out, t.c.countOutcome(err)
}

// getMany is GetMany without the metrics. If the home is not given, it reads in two rounds: every
// name in its cached home or else the caller's region, and then the missing names in all other
// regions.
func (t *Table) getMany(ctx context.Context, op rhumb.Op, names [][]byte, o GetOptions) ([]Got, error) {
	if len(names) > rhumb.BatchOpsMax {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "%d names were given; the limit is %d", len(names), rhumb.BatchOpsMax)
	}
	// All names are checked before any is read, so that a wrong name costs nothing.
	for _, name := range names {
		if err := checkName(op, name); err != nil {
			return nil, err
		}
	}
	home, fixed, err := t.parseHome(o.Home)
	if err != nil {
		return nil, err
	}
	r := manyReads{t: t, op: op, names: names, out: make([]Got, len(names)), silent: make([]error, len(names))}
	// open: the caller did not say where the records are, so they are searched for.
	open := o.Home == "" && !o.Local
	r.o = readOptions{local: o.Local, alive: open}
	switch {
	case o.Home != "":
	case o.Local:
		home.Region = t.c.here.ID
	default:
		home.Region = t.c.regionFor(t)
	}
	// First round: each name where it is expected.
	first := make([]rhumb.RegionID, len(names)) // the region in which each name is read first; 0 for none
	for i, name := range names {
		at := home
		if cached, ok := t.c.homes.get(t.info.ID, name); ok && open {
			at.Region = cached
		}
		if open && t.c.meta.isDead(at.Region, t.info.Class) {
			continue // the second round asks the other regions
		}
		id, err := t.homeOf(at, fixed, name)
		if err != nil {
			return nil, err
		}
		first[i] = at.Region
		r.addRead(id, i)
	}
	r.runRound(ctx)
	// Second round, as for a single read: the names that were not found, everywhere else.
	if open {
		if err := r.addMissing(first); err != nil {
			return nil, err
		}
		r.runRound(ctx)
	}
	return r.out, r.firstError()
}

// manyReads reads names in rounds of one read per range, with all reads of a round at once.
type manyReads struct {
	t        *Table
	op       rhumb.Op
	names    [][]byte
	o        readOptions
	searched int                     // regions asked beyond the caller's
	unasked  []rhumb.RegionID        // dead ones
	out      []Got                   // by name
	silent   []error                 // by name: why a region that may have it did not answer
	byRange  map[rhumb.RangeID][]int // the next round: indexes in names
}

// addRead adds the read of a name with a home to the next round.
func (r *manyReads) addRead(id rhumb.RangeID, i int) {
	if r.byRange == nil {
		r.byRange = map[rhumb.RangeID][]int{}
	}
	id = r.t.c.meta.rangeID(id)
	r.byRange[id] = append(r.byRange[id], i)
}

// addMissing adds the second round: every name that was not found, in all living regions but the
// one that was asked first. It leaves out a name whose first region is silent: a record there would
// take precedence over any other.
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
		// Found, or undecidable.
		if r.out[i].Exists() || r.silent[i] != nil {
			continue
		}
		// Set here, because a name may get no further answer.
		r.out[i].Receipt.Searched = r.searched
		c.m.searches.Add(1)
		for _, region := range alive {
			// That region has answered in the first round that it does not have the name.
			if region == first[i] {
				continue
			}
			id, err := c.meta.homeOfName(r.t, region, name)
			if err != nil {
				return err
			}
			r.addRead(id, i)
		}
	}
	return nil
}

// rangeRead is the result of one read of a round.
type rangeRead struct {
	id      rhumb.RangeID
	places  []int // indexes in names
	items   []rhumb.Item
	receipt rhumb.Receipt
	err     error
}

// runRound reads all ranges of the round, until each name is found or all its ranges have answered.
// It then cancels the reads that are left, so that a slow region delays only the names that need
// it.
func (r *manyReads) runRound(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan rangeRead, len(r.byRange)) // so that no read blocks after runRound has returned
	waiting := make([]int, len(r.names))            // reads under way for each name
	open := 0                                       // names without a result
	// One request per range, however many names it has.
	for id, places := range r.byRange {
		names := make([][]byte, len(places))
		for j, i := range places {
			names[j] = r.names[i]
			// A name is open until it is found or none of its reads is left.
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
	// Every read sends an answer, also after ctx has ended, so this ends without looking at ctx.
	for open > 0 {
		a := <-answers
		for j, i := range a.places {
			waiting[i]--
			// The first region that has the name wins. Later answers about it are ignored.
			if found := r.out[i].Exists(); !found {
				r.takeAnswer(i, &a, j)
				if r.out[i].Exists() || waiting[i] == 0 {
					open--
				}
			}
		}
	}
}

// takeAnswer records the answer about name i, which is item j of the answer.
func (r *manyReads) takeAnswer(i int, a *rangeRead, j int) {
	// A silent region leaves the name open for the others; only without a hit is the silence an
	// error.
	if a.err != nil {
		// firstError ignores this if another region has the name.
		r.silent[i] = a.err
		r.out[i].Receipt.Unasked = append(r.out[i].Receipt.Unasked, a.id.Region)
		return
	}
	got := Got{a.items[j], a.receipt}
	got.Receipt.Searched = r.searched
	if !got.Exists() {
		// Keep the silent regions of earlier answers: the miss of this region does not make them
		// irrelevant.
		got.Receipt.Unasked = r.out[i].Receipt.Unasked
	} else if r.searched > 0 { // found by the search, not where it was expected
		r.t.c.homes.put(r.t.info.ID, r.names[i], a.id.Region)
	}
	r.out[i] = got
}

// firstError returns the error for the first name that may exist in a region that is silent or was
// not asked.
func (r *manyReads) firstError() (err error) {
	for i := range r.out {
		if r.out[i].Exists() {
			continue
		}
		r.out[i].Receipt.Unasked = append(r.out[i].Receipt.Unasked, r.unasked...)
		err = cmp.Or(err, r.silent[i], r.t.c.unknownIfUnasked(r.op, r.names[i], r.unasked))
	}
	return err
}
