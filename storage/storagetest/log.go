package storagetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
)

// Log is the model of one range: every entry that was written and not undone, with its values. The
// model determines every answer of a store about the range, up to the lower bounds that a store may
// report.
type Log struct {
	ID       rhumb.RangeID
	Entries  []*entry.Entry // Entries[i] has Seq i+1
	Promised rhumb.Epoch
	Commit   rhumb.Seq
	Trim     rhumb.Seq
	// Expired is the timestamp up to which request results may have been collected.
	Expired rhumb.Timestamp
	// HLC is the greatest timestamp ever used, including those of undone entries. A timestamp is
	// never used twice.
	HLC rhumb.Timestamp
}

// Clone returns a copy of the model. Entries are immutable, so the copy shares them.
func (l *Log) Clone() *Log {
	c := *l
	c.Entries = slices.Clone(l.Entries)
	return &c
}

// Last returns the position and the greatest timestamp of the last entry.
func (l *Log) Last() (entry.Position, rhumb.Timestamp) {
	if n := len(l.Entries); n > 0 {
		return l.Entries[n-1].Position(), l.Entries[n-1].LastHLC()
	}
	return entry.Position{}, 0
}

// At returns the greatest timestamp up to a position.
func (l *Log) At(seq rhumb.Seq) rhumb.Timestamp {
	if seq == 0 {
		return 0
	}
	return l.Entries[seq-1].LastHLC()
}

// CommitPos returns the commit position in the form that a store takes.
func (l *Log) CommitPos() storage.Commit { return storage.Commit{Seq: l.Commit, HLC: l.At(l.Commit)} }

// Add appends an entry with the given requests to the model and returns it. Each request gets the
// next timestamp. Without requests the entry starts an epoch.
func (l *Log) Add(epoch rhumb.Epoch, node rhumb.NodeID, reqs ...entry.Request) *entry.Entry {
	last, _ := l.Last()
	e := &entry.Entry{Epoch: epoch, Node: node, Seq: last.Seq + 1, Prev: last.Hash, Requests: reqs}
	for i := range e.Requests {
		l.HLC++
		e.Requests[i].HLC = l.HLC
	}
	if len(reqs) == 0 {
		l.HLC++
		e.Start = l.HLC
	}
	// The hash covers the timestamps, so it is computed last.
	e.Seal(nil)
	l.Entries = append(l.Entries, e)
	return e
}

// Undo removes the entries above a position from the model.
func (l *Log) Undo(above rhumb.Seq) { l.Entries = slices.Clone(l.Entries[:above]) }

// Put returns a request with one write.
func Put(name, value string) entry.Request {
	return entry.Request{Writes: []entry.Write{Write(name, value)}}
}

// Write returns a write of opaque bytes to table 1.
func Write(name, value string) entry.Write {
	return entry.Write{Table: 1, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(value))}
}

// Del returns a request that deletes one key of table 1.
func Del(name string) entry.Request {
	return entry.Request{Writes: []entry.Write{{Table: 1, Name: []byte(name), Value: rhumb.Tombstone}}}
}

// tableName is a key within a range.
type tableName struct {
	table rhumb.TableID
	name  string
}

// stateAt returns the newest version of every key at a timestamp, including tombstones.
func (l *Log) stateAt(at rhumb.Timestamp) map[tableName]storage.Found {
	out := map[tableName]storage.Found{}
	for _, e := range l.Entries {
		for i := range e.Requests {
			r := &e.Requests[i]
			// Timestamps grow along the log, so no later request counts.
			if r.HLC > at {
				return out
			}
			for _, w := range r.Writes {
				// Later writes replace earlier ones, so the map ends with the newest versions.
				f := storage.Found{Version: e.Version(r), Tombstone: rhumb.IsTombstone(w.Value)}
				if !f.Tombstone {
					f.Value = w.Value
				}
				out[tableName{w.Table, string(w.Name)}] = f
			}
		}
	}
	return out
}

// Check compares every answer of a store about a range with the model and returns the first
// difference.
func (l *Log) Check(s *storage.Store) error {
	if err := l.checkState(s); err != nil {
		return err
	}
	if err := l.checkEntries(s); err != nil {
		return err
	}
	if err := l.checkResults(s); err != nil {
		return err
	}
	_, last := l.Last()
	// Reads at the commit position see the versions that collection must keep. Reads at the end
	// also see uncommitted ones.
	for _, at := range []rhumb.Timestamp{l.At(l.Commit), last, storage.Newest} {
		if err := l.checkData(s, at); err != nil {
			return fmt.Errorf("at %d: %w", uint64(at), err)
		}
	}
	return nil
}

// checkState compares the state of the replica.
func (l *Log) checkState(s *storage.Store) error {
	got, ok := s.State(l.ID)
	if !ok {
		return fmt.Errorf("range %s is not in the store", l.ID)
	}
	want := storage.RangeState{Range: l.ID, Promised: l.Promised, Commit: l.Commit, CommitHLC: l.At(l.Commit), Trim: l.Trim}
	want.Last, want.LastHLC = l.Last()
	for _, e := range l.Entries {
		if n := len(want.Lineage); n == 0 || want.Lineage[n-1].Epoch != e.Epoch {
			want.Lineage = append(want.Lineage, storage.EpochStart{Epoch: e.Epoch, First: e.Seq})
		}
	}
	// Commit positions are lower bounds on disk, so after a crash the store may report an older
	// one. It must not be below the trim position.
	if got.Commit < want.Commit && got.Commit >= want.Trim {
		want.Commit, want.CommitHLC = got.Commit, l.At(got.Commit)
	}
	if !slices.Equal(got.Lineage, want.Lineage) {
		return fmt.Errorf("range %s: the lineage is %v, want %v", l.ID, got.Lineage, want.Lineage)
	}
	got.Lineage, want.Lineage = nil, nil
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("range %s: the state is\n%+v, want\n%+v", l.ID, got, want)
	}
	return nil
}

// checkEntries compares the entries after the trim position, their positions and their marks.
func (l *Log) checkEntries(s *storage.Store) error {
	end := rhumb.Seq(len(l.Entries))
	got, err := s.Entries(l.ID, l.Trim+1, end, 1<<30)
	if err != nil {
		return err
	}
	want := l.Entries[l.Trim:]
	if len(got) != len(want) {
		return fmt.Errorf("range %s: %d entries after %d, want %d", l.ID, len(got), l.Trim, len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i].AppendWire(nil), want[i].AppendWire(nil)) {
			return fmt.Errorf("range %s: entry %d differs", l.ID, want[i].Seq)
		}
	}
	// Entries before the trim position must not be returned, whether collection has removed them or
	// not: their versions may be gone.
	if l.Trim > 1 {
		if old, err := s.Entries(l.ID, l.Trim-1, end, 0); err != nil || len(old) != 0 {
			return fmt.Errorf("range %s: %d entries from before the trim position %d, %v", l.ID, len(old), l.Trim, err)
		}
	}
	// The record at the trim position must still exist.
	for seq := max(l.Trim, 1); seq <= end; seq++ {
		p, ok, err := s.Position(l.ID, seq)
		if err != nil || !ok || p != l.Entries[seq-1].Position() {
			return fmt.Errorf("range %s: position %d is %v %v %v, want %v", l.ID, seq, p, ok, err, l.Entries[seq-1].Position())
		}
	}
	marks, err := s.Marks(l.ID, l.Trim+1, end)
	if err != nil || len(marks) != len(want) {
		return fmt.Errorf("range %s: %d marks, want %d: %v", l.ID, len(marks), len(want), err)
	}
	for i, m := range marks {
		if m.Position != want[i].Position() || m.HLC != want[i].LastHLC() {
			return fmt.Errorf("range %s: mark of %d is %v", l.ID, want[i].Seq, m)
		}
	}
	return nil
}

// checkResults looks up the result of every request. The result must exist while its entry may be
// sent again. It may be missing once it has expired, and then the client's floor must cover it. If
// it exists, it must be right.
func (l *Log) checkResults(s *storage.Store) error {
	last := map[rhumb.UUID]uint64{}
	for _, e := range l.Entries {
		for i := range e.Requests {
			r := &e.Requests[i]
			if r.ID.IsZero() {
				continue
			}
			seen, found, err := s.Dedup(l.ID, r.ID)
			if err != nil {
				return err
			}
			last[r.ID.Client] = max(last[r.ID.Client], r.ID.Seq)
			if !found {
				if e.Seq > l.Trim || r.HLC > l.Expired {
					return fmt.Errorf("range %s: the result of request %s of entry %d is gone", l.ID, r.ID, e.Seq)
				}
				if floor, err := s.RequestFloor(l.ID, r.ID.Client); err != nil || floor < r.ID.Seq {
					return fmt.Errorf("range %s: the result of request %s is collected, and its client's floor is %d: %v", l.ID, r.ID, floor, err)
				}
				continue
			}
			want := rhumb.Outcome{Existed: r.Existed, Names: r.Names}
			if !r.Noop {
				want.Applied, want.Version, want.Seq = true, e.Version(r), e.Seq
			}
			if seen.Seq != e.Seq || fmt.Sprint(seen.Outcome) != fmt.Sprint(want) {
				return fmt.Errorf("range %s: result of request %s is %+v, want %+v", l.ID, r.ID, seen, want)
			}
		}
	}
	for client, want := range last {
		// The floor keeps the last number even when every result is collected.
		if got, err := s.RequestWindow(l.ID, client); err != nil || got.Last != want {
			return fmt.Errorf("range %s: the last request of client %s is %d, want %d: %v", l.ID, client, got.Last, want, err)
		}
	}
	return nil
}

// checkData compares all keys at a timestamp, by lookups, existence and scans.
func (l *Log) checkData(s *storage.Store, at rhumb.Timestamp) error {
	state := l.stateAt(at)
	tables := map[rhumb.TableID][]rhumb.Item{}
	for _, k := range slices.SortedFunc(maps.Keys(state), compareNames) {
		want := state[k]
		// Table 99 does not exist, so the second key does not either.
		if exist, err := s.Exists(l.ID, []rhumb.Key{{Table: k.table, Home: l.ID, Name: []byte(k.name)}, {Table: 99, Home: l.ID, Name: []byte(k.name)}}, at); err != nil || exist[0] == want.Tombstone || exist[1] {
			return fmt.Errorf("range %s: key %v exists: %v, %v, want %t", l.ID, k, exist, err, !want.Tombstone)
		}
		key := rhumb.Key{Table: k.table, Home: l.ID, Name: []byte(k.name)}
		got, err := s.Lookup(key, at)
		if err != nil {
			return err
		}
		// A collected tombstone is equivalent to a key that never existed.
		gone := want.Tombstone && got.Version.IsZero()
		if !gone && (got.Version != want.Version || got.Tombstone != want.Tombstone || !bytes.Equal(got.Value, want.Value)) {
			return fmt.Errorf("%s: found %+v, want %+v", key, got, want)
		}
		if !want.Tombstone {
			tables[k.table] = append(tables[k.table], rhumb.Item{Key: key, Version: want.Version, Value: want.Value})
		}
	}
	for table := rhumb.TableID(1); table <= 3; table++ {
		if err := checkScan(s, l.ID, table, at, tables[table]); err != nil {
			return err
		}
	}
	return nil
}

// compareNames orders keys by table and name.
func compareNames(a, b tableName) int {
	if a.table != b.table {
		return int(a.table) - int(b.table)
	}
	return bytes.Compare([]byte(a.name), []byte(b.name))
}

// checkScanSlots compares a scan in the order of slots with one in the order of names.
func checkScanSlots(s *storage.Store, id rhumb.RangeID, table rhumb.TableID, at rhumb.Timestamp, want []rhumb.Item) (err error) {
	r, err := s.NewReader()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Covers(id, at); err != nil {
		return err
	}
	var got []rhumb.Item
	for item, err := range r.ScanSlots(id, table, at) {
		if err != nil {
			return err
		}
		got = append(got, item)
	}
	bySlot := func(a, b rhumb.Item) int {
		return cmp.Or(a.Key.Home.Compare(b.Key.Home), bytes.Compare(a.Key.Name, b.Key.Name))
	}
	if !slices.IsSortedFunc(got, bySlot) || !equalItems(got, slices.SortedFunc(slices.Values(want), bySlot)) {
		return fmt.Errorf("scan of the slots of table %s returns\n%v, want\n%v", table, got, want)
	}
	return nil
}

// checkScan scans a table whole, in pages of two, and by the first byte of every name.
func checkScan(s *storage.Store, id rhumb.RangeID, table rhumb.TableID, at rhumb.Timestamp, want []rhumb.Item) error {
	all, err := scanTable(s, id, table, nil, nil, at, 0)
	if err != nil {
		return err
	}
	if !equalItems(all, want) {
		return fmt.Errorf("scan of table %s returns\n%v, want\n%v", table, all, want)
	}
	var paged []rhumb.Item
	// Pages of two names make the scan resume within every table of more than one name.
	for after := []byte(nil); ; {
		page, err := scanTable(s, id, table, nil, after, at, 2)
		if err != nil {
			return err
		}
		paged = append(paged, page...)
		if len(page) < 2 {
			break
		}
		after = page[1].Key.Name
	}
	if !equalItems(paged, want) {
		return fmt.Errorf("paged scan of table %s returns\n%v, want\n%v", table, paged, want)
	}
	if err := checkScanSlots(s, id, table, at, want); err != nil {
		return err
	}
	if st, ok := s.State(id); ok && at <= st.CommitHLC {
		if err := CheckNames(s, id, table, at); err != nil {
			return err
		}
	}
	for _, item := range want {
		prefix := item.Key.Name[:min(1, len(item.Key.Name))]
		got, err := scanTable(s, id, table, prefix, nil, at, 0)
		if err != nil {
			return err
		}
		with := slices.DeleteFunc(slices.Clone(want), func(it rhumb.Item) bool { return !bytes.HasPrefix(it.Key.Name, prefix) })
		if !equalItems(got, with) {
			return fmt.Errorf("scan of table %s with prefix %q returns\n%v, want\n%v", table, prefix, got, with)
		}
	}
	return nil
}

// CheckNames compares the records that names in memory lead to with a scan of the range: from the beginning, and from each
// record on. at must not be above the commit position.
func CheckNames(s *storage.Store, id rhumb.RangeID, table rhumb.TableID, at rhumb.Timestamp) error {
	want, err := scanTable(s, id, table, nil, nil, at, 0)
	if err != nil {
		return err
	}
	// Slots of one range may have the same name in these tests, and a scan has no order between them.
	slices.SortFunc(want, func(a, b rhumb.Item) int {
		return cmp.Or(bytes.Compare(a.Key.Name, b.Key.Name), a.Key.Home.Compare(b.Key.Home))
	})
	for i := -1; i < len(want); i++ {
		if i > 0 && bytes.Equal(want[i].Key.Name, want[i-1].Key.Name) {
			continue
		}
		from, prefix, left := []byte(nil), []byte(nil), want
		if i >= 0 {
			from, left = want[i].Key.Name, want[i:]
			prefix = from[:min(1, len(from))]
			end := slices.IndexFunc(left, func(it rhumb.Item) bool { return !bytes.HasPrefix(it.Key.Name, prefix) })
			if end >= 0 {
				left = left[:end]
			}
		}
		got, err := scanNames(s, id, table, prefix, from, at)
		if err != nil {
			return err
		}
		if !equalItems(got, left) {
			return fmt.Errorf("the names of table %s from %q on find\n%v, want\n%v", table, from, got, left)
		}
	}
	return nil
}

// scanNames returns the records with the names of a cursor.
func scanNames(s *storage.Store, id rhumb.RangeID, table rhumb.TableID, prefix, from []byte, at rhumb.Timestamp) (items []rhumb.Item, err error) {
	st, ok := s.State(id)
	if !ok {
		return nil, nil
	}
	r, err := s.NewReader()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	c := s.Names(storage.NameQuery{Range: id, Last: max(id.Slot, st.LastSlot), Table: table, Prefix: prefix, From: from, At: at})
	for {
		key, ok, err := c.Next()
		if err != nil || !ok {
			return items, err
		}
		found, err := r.Lookup(key, at)
		switch {
		case err != nil:
			return items, err
		case found.Version.IsZero() || found.Tombstone:
			c.Absent(key)
		default:
			items = append(items, rhumb.Item{Key: key, Version: found.Version, Value: found.Value})
		}
	}
}

// scanTable returns the items of a scan.
func scanTable(s *storage.Store, id rhumb.RangeID, table rhumb.TableID, prefix, after []byte, at rhumb.Timestamp, limit int) (items []rhumb.Item, err error) {
	for item, err := range s.Scan(id, table, prefix, after, at, limit) {
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// equalItems reports whether two lists have equal items. It ignores unset fields of keys.
func equalItems(a, b []rhumb.Item) bool {
	return slices.EqualFunc(a, b, func(a, b rhumb.Item) bool {
		return a.Key.Table == b.Key.Table && a.Key.Home == b.Key.Home && bytes.Equal(a.Key.Name, b.Key.Name) && a.Version == b.Version && bytes.Equal(a.Value, b.Value)
	})
}
