package sim

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sim/check"
)

// disk is the store of one node. Writes are visible at once and durable in their order: the journal holds those that
// are not durable yet, and a crash takes back any number of its newest.
type disk struct {
	store   rhumb.UUID
	boot    rhumb.BootSeq
	ceiling rhumb.Timestamp
	// ranges are by the world's number of the range; nil where the node holds no copy.
	ranges  []*rangeDisk
	journal []write
}

// rangeDisk is one replica's part of a disk.
type rangeDisk struct {
	// log holds every entry from the first on; those up to trim are kept for the judges and never served.
	log       []*entry.Entry
	promised  rhumb.Epoch
	commit    rhumb.Seq
	commitHLC rhumb.Timestamp
	trim      rhumb.Seq
	// durableEnd is the position up to which the log is durable, whatever part of the journal a crash takes back.
	durableEnd rhumb.Seq
	data       map[check.StateKey][]check.Item // versions ascending
	dedup      map[rhumb.RequestID]replica.Dedup
	// keepResults is the planted bug KeepResults.
	keepResults bool
}

// write is one Ready's writes, with what is needed to take them back.
type write struct {
	rng      int
	undone   []*entry.Entry
	appended int
	// floor is the end of the log below what the write touched.
	floor     rhumb.Seq
	promised  rhumb.Epoch
	commit    rhumb.Seq
	commitHLC rhumb.Timestamp
	trim      rhumb.Seq
	// done is called when the write is durable; nil when nobody waits.
	done func()
}

func newRangeDisk(bug Bug) *rangeDisk {
	return &rangeDisk{keepResults: bug == KeepResults, data: map[check.StateKey][]check.Item{}, dedup: map[rhumb.RequestID]replica.Dedup{}}
}

// apply makes one Ready's writes visible and returns the journal record.
func (d *disk) apply(rng int, rd *replica.Ready) (write, error) {
	r := d.ranges[rng]
	end := rhumb.Seq(len(r.log))
	w := write{rng: rng, floor: end, promised: r.promised, commit: r.commit, commitHLC: r.commitHLC, trim: r.trim}
	if rd.Promised != 0 {
		r.promised = max(r.promised, rd.Promised)
	}
	if rd.UndoAbove != nil && *rd.UndoAbove < end {
		w.floor = *rd.UndoAbove
		if w.floor < r.commit {
			return w, fmt.Errorf("disk: undo above %d reaches below the commit position %d", w.floor, r.commit)
		}
		w.undone = slices.Clone(r.log[w.floor:])
		for i := len(w.undone) - 1; i >= 0; i-- {
			r.pop()
		}
	}
	for _, e := range rd.Append {
		if err := r.push(e); err != nil {
			return w, err
		}
		w.appended++
	}
	if rd.Commit > rhumb.Seq(len(r.log)) {
		return w, fmt.Errorf("disk: commit position %d lies behind the end of the log %d", rd.Commit, len(r.log))
	}
	if rd.Commit > r.commit {
		r.commit, r.commitHLC = rd.Commit, rd.CommitHLC
	}
	if rd.Trim >= r.commit && rd.Trim > 0 {
		return w, fmt.Errorf("disk: trim position %d is not below the commit position %d", rd.Trim, r.commit)
	}
	r.trim = max(r.trim, rd.Trim)
	r.durableEnd = min(r.durableEnd, w.floor)
	return w, nil
}

// push appends an entry as a store does: it must follow the last, and no version is ever written twice.
func (r *rangeDisk) push(e *entry.Entry) error {
	var prev entry.Hash
	if n := len(r.log); n > 0 {
		prev = r.log[n-1].Hash
	}
	if e.Seq != rhumb.Seq(len(r.log)+1) || e.Prev != prev {
		return fmt.Errorf("disk: entry %v does not follow the log, which ends at %d", e.Position(), len(r.log))
	}
	r.log = append(r.log, e)
	for i := range e.Requests {
		q := &e.Requests[i]
		v := e.Version(q)
		for _, w := range q.Writes {
			k := check.StateKey{Table: w.Table, Name: string(w.Name)}
			have := r.data[k]
			if n := len(have); n > 0 && have[n-1].Version.Compare(v) >= 0 {
				return fmt.Errorf("disk: entry %v writes version %v of %s over %v", e.Position(), v, k.Name, have[n-1].Version)
			}
			r.data[k] = append(have, check.Item{Version: v, Value: w.Value})
		}
		if !q.ID.IsZero() {
			if _, twice := r.dedup[q.ID]; twice && !r.keepResults {
				return fmt.Errorf("disk: entry %v holds request %s, which was applied before", e.Position(), q.ID)
			}
			r.dedup[q.ID] = replica.Dedup{Seq: e.Seq, Version: v, Applied: !q.Noop, Existed: q.Existed, Names: q.Names}
		}
	}
	return nil
}

// pop removes the last entry with everything it wrote; older versions reappear by themselves.
func (r *rangeDisk) pop() {
	e := r.log[len(r.log)-1]
	r.log = r.log[:len(r.log)-1]
	for i := range e.Requests {
		q := &e.Requests[i]
		for _, w := range q.Writes {
			k := check.StateKey{Table: w.Table, Name: string(w.Name)}
			r.data[k] = r.data[k][:len(r.data[k])-1]
		}
		if !r.keepResults {
			delete(r.dedup, q.ID)
		}
	}
}

// settle marks the first n writes of the journal as durable and returns them.
func (d *disk) settle(n int) []write {
	done := slices.Clone(d.journal[:n])
	d.journal = append(d.journal[:0], d.journal[n:]...)
	for _, w := range done {
		r := d.ranges[w.rng]
		r.durableEnd = rhumb.Seq(len(r.log))
	}
	for _, w := range d.journal {
		r := d.ranges[w.rng]
		r.durableEnd = min(r.durableEnd, w.floor)
	}
	return done
}

// crash takes back all but the first keep writes of the journal; those are durable now.
func (d *disk) crash(keep int) {
	for i := len(d.journal) - 1; i >= keep; i-- {
		w := &d.journal[i]
		r := d.ranges[w.rng]
		for range w.appended {
			r.pop()
		}
		for _, e := range w.undone {
			if err := r.push(e); err != nil {
				panic(err) // it stood there before
			}
		}
		r.promised, r.commit, r.commitHLC, r.trim = w.promised, w.commit, w.commitHLC, w.trim
	}
	d.journal = nil
	for _, r := range d.ranges {
		if r != nil {
			r.durableEnd = rhumb.Seq(len(r.log))
		}
	}
}

// get reads the newest version of a key at or below a timestamp; the zero Item when there is none or a tombstone.
func (r *rangeDisk) get(k check.StateKey, at rhumb.Timestamp) check.Item {
	have := r.data[k]
	for i := len(have) - 1; i >= 0; i-- {
		if have[i].Version.HLC <= at {
			if rhumb.IsTombstone(have[i].Value) {
				return check.Item{}
			}
			return have[i]
		}
	}
	return check.Item{}
}

// entries reads log entries from..until as a store does: nothing when from is trimmed away.
func (r *rangeDisk) entries(from, until rhumb.Seq, bytesMax int) []*entry.Entry {
	if from <= r.trim || from == 0 {
		return nil
	}
	var out []*entry.Entry
	size := 0
	for seq := from; seq <= until && seq <= rhumb.Seq(len(r.log)); seq++ {
		e := r.log[seq-1]
		size += entrySize(e)
		if len(out) > 0 && size > bytesMax {
			break
		}
		out = append(out, e)
	}
	return out
}

// entrySize is about what an entry weighs in a message.
func entrySize(e *entry.Entry) int {
	size := 64
	for i := range e.Requests {
		size += 40
		for _, w := range e.Requests[i].Writes {
			size += 16 + len(w.Name) + len(w.Value)
		}
	}
	return size
}

// lineageMax bounds the epochs that a disk remembers of a log. A store remembers more; runs are short.
const lineageMax = 8

// durable gives what a replica starts from.
func (r *rangeDisk) durable() replica.Durable {
	d := replica.Durable{Promised: r.promised, Commit: r.commit, CommitHLC: r.commitHLC, Trim: r.trim}
	if n := len(r.log); n > 0 {
		d.Last, d.LastHLC = r.log[n-1].Position(), r.log[n-1].LastHLC()
	}
	for seq := max(r.commit, 1); seq <= rhumb.Seq(len(r.log)); seq++ {
		e := r.log[seq-1]
		d.Tail = append(d.Tail, replica.Mark{Position: e.Position(), HLC: e.LastHLC()})
	}
	for i, e := range r.log {
		if e.Seq > r.trim {
			d.LogBytes += int64(entrySize(e))
		}
		if i == 0 || r.log[i-1].Epoch != e.Epoch {
			d.Lineage = append(d.Lineage, replica.EpochStart{Epoch: e.Epoch, First: e.Seq})
		}
	}
	d.Lineage = d.Lineage[max(0, len(d.Lineage)-lineageMax):]
	return d
}

// Durable tells the judges what is certainly on the disk.
func (r *rangeDisk) Durable(seq rhumb.Seq) (entry.Position, bool) {
	if seq == 0 || seq > r.durableEnd || seq > rhumb.Seq(len(r.log)) {
		return entry.Position{}, false
	}
	return r.log[seq-1].Position(), true
}

// state gives the newest committed version of every key.
func (r *rangeDisk) state(at rhumb.Timestamp) check.State {
	s := check.State{}
	for k, have := range r.data {
		for i := len(have) - 1; i >= 0; i-- {
			if have[i].Version.HLC <= at {
				s[k] = have[i]
				break
			}
		}
	}
	return s
}
