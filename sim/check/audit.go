package check

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Log is the committed log of one range, from its first entry.
type Log struct {
	Range   rhumb.RangeID
	Entries []*entry.Entry
	// Root is the range that operations name, if this one was split off from it; else it is zero or Range.
	Root rhumb.RangeID
	// Merged are the ranges that this one took over, in the order of the entries.
	Merged []Merged
}

// Merged is the log of a range up to its end, and the position of the entry of another range that took it over.
type Merged struct {
	At  rhumb.Seq
	Log Log
}

// indexLogs returns the index of all logs of each root. A log that was split off begins with the entries up to the split, so a request may be in
// several logs, at one position. At two positions it was applied twice.
func indexLogs(logs []Log) (map[rhumb.RangeID]*index, error) {
	out := map[rhumb.RangeID]*index{}
	// Each log is checked as a whole first: its hashes chain across the split.
	for _, l := range logs {
		x, err := newIndex(l)
		if err != nil {
			return nil, err
		}
		rt := l.Root
		if rt.IsZero() {
			rt = l.Range
		}
		whole := out[rt]
		if whole == nil {
			out[rt] = x
			continue
		}
		for id, at := range x.byID {
			if first, twice := whole.byID[id]; twice && first.entry.Hash != at.entry.Hash {
				return nil, fmt.Errorf("log of range %s: request %s was applied in %v, and in %v before the range was split", l.Range, id, at.entry.Position(), first.entry.Position())
			}
			whole.byID[id] = at
		}
		whole.taken = append(whole.taken, x.taken...)
	}
	return out, nil
}

// Audit compares the answers of clients with the committed logs. Every acknowledged write must be
// in the log at the position and version of its answer, no refused write may be there, and no
// request may be there twice.
func Audit(history []*Op, logs []Log) error {
	byRange, err := indexLogs(logs)
	if err != nil {
		return err
	}
	for _, op := range history {
		// Reads are in no log.
		x := byRange[op.Range]
		if !op.IsWrite() || x == nil {
			continue
		}
		if err := x.auditWrite(op); err != nil {
			return err
		}
	}
	return nil
}

// place is the position of a request in a log.
type place struct {
	entry   *entry.Entry
	request *entry.Request
}

// index maps request IDs to their places in a log.
type index struct {
	log  Log
	byID map[rhumb.RequestID]place
	// taken are the positions of entries that took over other ranges. A repeated request of those has such a position in its answer.
	taken []rhumb.Seq
}

// newIndex indexes a log and checks the log itself: the chain of hashes, the timestamps (I7), and
// that no request ID and no generated name occurs twice.
func newIndex(l Log) (*index, error) {
	x := &index{log: l, byID: map[rhumb.RequestID]place{}}
	names := map[string]entry.Position{}
	var prev entry.Hash
	var last rhumb.Timestamp
	for i, e := range l.Entries {
		// The log is complete, so sequence numbers are positions.
		if e.Seq != rhumb.Seq(i+1) || e.Prev != prev || !e.Verify() {
			return nil, fmt.Errorf("log of range %s: entry %v at place %d does not follow %x or fails its hash", l.Range, e.Position(), i+1, prev)
		}
		prev = e.Hash
		if !e.Take().IsZero() {
			x.taken = append(x.taken, e.Seq)
		}
		// An epoch-start entry holds no requests; its own timestamp must grow like theirs.
		if len(e.Requests) == 0 && e.LastHLC() <= last {
			return nil, fmt.Errorf("I7: log of range %s: epoch start %v has timestamp %d, not above %d", l.Range, e.Position(), e.LastHLC(), last)
		}
		// The start of an entry is a lower bound for its requests.
		last = max(last, e.Start)
		for j := range e.Requests {
			r := &e.Requests[j]
			if r.HLC <= last {
				return nil, fmt.Errorf("I7: log of range %s: request %s in %v has timestamp %d, not above %d", l.Range, r.ID, e.Position(), r.HLC, last)
			}
			// The requests of one entry have increasing timestamps too.
			last = r.HLC
			for _, name := range r.Names {
				if first, twice := names[string(name)]; twice {
					return nil, fmt.Errorf("log of range %s: name %s was generated twice, in %v and %v", l.Range, rhumb.NameString(name), first, e.Position())
				}
				names[string(name)] = e.Position()
			}
			// A request without an ID looks like any other.
			if r.ID.IsZero() {
				continue
			}
			if first, twice := x.byID[r.ID]; twice {
				return nil, fmt.Errorf("log of range %s: request %s was applied twice, in %v and %v", l.Range, r.ID, first.entry.Position(), e.Position())
			}
			x.byID[r.ID] = place{e, r}
		}
	}
	return x, nil
}

// auditWrite compares the answer to one write with the log.
func (x *index) auditWrite(op *Op) error {
	at, found := x.byID[op.Request]
	switch op.Result {
	case Unknown:
		// Both outcomes are possible; Resolve takes the actual one from the log.
		return nil
	case ConditionFailed, NotApplied:
		// A refusal promises that the write will never be applied.
		if found {
			return fmt.Errorf("log of range %s holds, in %v, a write that was refused:\n  %v", op.Range, at.entry.Position(), op)
		}
		return nil
	case Unchanged:
		// The entry of a no-op stores the result of the request, but no writes.
		if found && len(at.request.Writes) > 0 {
			return fmt.Errorf("log of range %s: a write that was reported as a no-op changed data, in %v:\n  %v", op.Range, at.entry.Position(), op)
		}
		return nil
	}
	// The worst violation: the client was promised that the write is durable.
	if !found {
		return fmt.Errorf("LOST: an acknowledged write is missing from the log of range %s:\n  %v", op.Range, op)
	}
	// A client uses the version in conditions, so it must be the stored one.
	if v := at.entry.Version(at.request); at.entry.Seq != op.Outcome.Seq && !slices.Contains(x.taken, op.Outcome.Seq) || v != op.Outcome.Version {
		return fmt.Errorf("log of range %s has the write at %v with version %v, which differs from its answer:\n  %v", op.Range, at.entry.Position(), v, op)
	}
	// A delete of an absent key writes nothing.
	for _, m := range op.Mutations {
		if !slices.ContainsFunc(at.request.Writes, func(w entry.Write) bool { return w.Table == m.Table && string(w.Name) == string(m.Name) }) &&
			m.Kind != rhumb.Delete {
			return fmt.Errorf("log of range %s: %v lacks key %s of\n  %v", op.Range, at.entry.Position(), rhumb.NameString(m.Name), op)
		}
	}
	return nil
}

// Resolve replaces the unknown outcomes of writes by their actual outcomes from the committed logs.
// A write in the log took effect at some time after its call, any other write never did. The check
// becomes cheaper and stricter: with an unknown outcome, an effect that was seen and then lost
// could pass for a late write.
func Resolve(history []*Op, logs []Log) ([]*Op, error) {
	byRange, err := indexLogs(logs)
	if err != nil {
		return nil, err
	}
	// The history of the caller is not changed; it still prints what clients saw.
	out := slices.Clone(history)
	for i, op := range out {
		if x := byRange[op.Range]; x != nil && op.IsWrite() && op.Result == Unknown {
			out[i] = x.resolveWrite(op)
		}
	}
	return out, nil
}

// resolveWrite returns a copy of a write with its outcome from the log. Return stays Forever: the
// log proves the effect but not its time.
func (x *index) resolveWrite(op *Op) *Op {
	known := *op
	at, found := x.byID[op.Request]
	// A no-op changed nothing, which is all that the checks need to know.
	if !found || at.request.Noop {
		known.Result = NotApplied
		return &known
	}
	known.Result = OK
	known.Outcome = rhumb.Outcome{
		Applied: true, Version: at.entry.Version(at.request), Seq: at.entry.Seq, Existed: at.request.Existed, Names: at.request.Names,
	}
	// The client never learned the generated name. With it, later reads of the record are checked
	// too.
	if op.Mutations[0].Kind == rhumb.Insert {
		known.Mutations = slices.Clone(op.Mutations)
		NameInserts(known.Mutations, at.request.Names)
	}
	return &known
}

// NameInserts turns inserts into puts of the names that the server generated. No other write uses
// those keys first.
func NameInserts(ms []rhumb.Mutation, names [][]byte) {
	for i := range ms {
		if ms[i].Kind == rhumb.Insert && len(names) > 0 {
			ms[i].Kind, ms[i].Name, names = rhumb.Put, names[0], names[1:]
		}
	}
}

// State maps each key of a range to its newest version, tombstones included.
type State map[StateKey]Item

// StateKey identifies a key within a range.
type StateKey struct {
	Table rhumb.TableID
	Name  string
}

// Replay returns the state that a log produces.
func Replay(l Log) State {
	s := State{}
	// Later entries overwrite earlier ones, so only the newest version of each key remains.
	merged := l.Merged
	for _, e := range l.Entries {
		for i := range e.Requests {
			r := &e.Requests[i]
			for _, w := range r.Writes {
				s[StateKey{w.Table, string(w.Name)}] = Item{e.Version(r), w.Value}
			}
		}
		// What this log wrote to the keys of the other range is from before that one was split off: its own log has it too.
		for len(merged) > 0 && merged[0].At == e.Seq {
			for k, it := range Replay(merged[0].Log) {
				if old, ok := s[k]; !ok || old.Version.Compare(it.Version) < 0 {
					s[k] = it
				}
			}
			merged = merged[1:]
		}
	}
	return s
}

// Digest returns a fingerprint of the newest versions of a replica, for comparing replicas. It is a
// sum, so the iteration order of the map does not matter.
func (s State) Digest() (d uint64) {
	for k, it := range s {
		d += hashItem(k, it)
	}
	return d
}

// hashItem returns the FNV-1a hash of a key and its newest version.
func hashItem(k StateKey, it Item) uint64 {
	h := uint64(14695981039346656037)
	mix := func(b byte) { h = (h ^ uint64(b)) * 1099511628211 }
	// All versions and tables take part: two replicas with equal values may still differ in
	// versions.
	for shift := 0; shift < 64; shift += 8 {
		mix(byte(uint64(k.Table) >> shift))
		mix(byte(uint64(it.Version.HLC) >> shift))
		mix(byte(uint64(it.Version.Node) >> shift))
	}
	for i := range len(k.Name) {
		mix(k.Name[i])
	}
	// The separator keeps a byte from moving between name and value.
	mix(0)
	for _, b := range it.Value {
		mix(b)
	}
	return h
}

// Equal returns an error for the first difference from the state that the committed log produces.
func (s State) Equal(want State) error {
	for k, it := range want {
		got, ok := s[k]
		if !ok || got.Version != it.Version || string(got.Value) != string(it.Value) {
			return fmt.Errorf("key %s of table %s is %v %x, the log has %v %x", rhumb.NameString([]byte(k.Name)), k.Table, got.Version, got.Value, it.Version, it.Value)
		}
	}
	// All wanted keys are equal, so a difference in number means a surplus key.
	if len(s) != len(want) {
		return fmt.Errorf("%d keys, the log produces %d", len(s), len(want))
	}
	return nil
}
