package inspect

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// The ways in which a key differs between two images.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Difference is a key that differs, with its records in the first and the second image, if present.
// The records alias the images and are valid until the visitor returns: copy what must live longer.
type Difference struct {
	Table  format.Table
	How    string
	Was    reader.Item
	Is     reader.Item
	HasWas bool
	HasIs  bool
}

// TableDiff counts the differences of one table.
type TableDiff struct {
	Table                         string
	Added, Removed, Changed, Same int64
}

// viewAge is how long the views of a tool may be read. A tool is short-lived and somebody waits for
// it, so the leash of servers would only cut off long comparisons.
const viewAge = 24 * time.Hour

// Attach attaches to an image on behalf of a tool, with views that may be held for a long time.
func Attach(dir string) (*reader.Client, error) {
	return reader.Attach(dir, reader.Options{MaxLockAge: viewAge})
}

// side is one of the two images that are compared. Its view keeps the compared version readable
// while the node continues.
type side struct {
	client *reader.Client
	view   reader.View
}

// openSide attaches to an image and locks its newest version.
func openSide(dir string) (s side, err error) {
	if s.client, err = Attach(dir); err != nil {
		return s, err
	}
	if s.view, err = s.client.Lock(); err != nil {
		_ = s.client.Close() // no view is locked
	}
	return s, err
}

// closeSide unlocks the view and detaches.
func (s *side) closeSide() {
	s.view.Unlock()
	_ = s.client.Close() // no view is locked
}

// tableNames returns the names of the tables that are compared.
func (s *side) tableNames(only string) (out []string) {
	for _, t := range s.client.Tables() {
		if t.Name == only || only == "" && t.Name != format.PositionsTable {
			out = append(out, t.Name)
		}
	}
	return out
}

// Diff compares two images table by table, or one table if a name is given. A key differs if its
// value, its box or its expiry does. The positions are compared only if they are named. Diff calls
// found with each difference. It fails with Canceled if ctx ends.
func Diff(ctx context.Context, a, b, only string, found func(*Difference)) ([]TableDiff, error) {
	const op rhumb.Op = "inspect.Diff"
	was, err := openSide(a)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	defer was.closeSide()
	is, err := openSide(b)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	defer is.closeSide()
	names := slices.Concat(was.tableNames(only), is.tableNames(only))
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 && only != "" {
		return nil, rhumb.Ef(op, rhumb.NotFound, "neither image has a table %q", only)
	}
	var out []TableDiff
	for _, name := range names {
		d := TableDiff{Table: name}
		if err := d.compareTables(ctx, &was, &is, found); err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// compareTables walks both tables. A table that an image lacks counts as empty, and so does a table
// with keys of another kind.
func (d *TableDiff) compareTables(ctx context.Context, was, is *side, found func(*Difference)) error {
	before, err1 := was.view.Table(d.Table)
	after, err2 := is.view.Table(d.Table)
	for _, err := range []error{err1, err2} {
		if err != nil && rhumb.KindOf(err) != rhumb.NotFound {
			return err
		}
	}
	comparable := err1 == nil && err2 == nil && before.Info().KeyKind == after.Info().KeyKind
	if err1 == nil {
		if err := d.walkTable(ctx, &before, &after, comparable, func(old, now *reader.Item) {
			switch diff := (Difference{Table: before.Info(), Was: *old, HasWas: true}); {
			case now == nil:
				d.Removed++
				diff.How = Removed
				found(&diff)
			case itemsDiffer(old, now):
				d.Changed++
				diff.How, diff.Is, diff.HasIs = Changed, *now, true
				found(&diff)
			default:
				d.Same++
			}
		}); err != nil {
			return err
		}
	}
	// The walk above has counted all keys of the first image. Only keys that exist in the second
	// image alone are left.
	if err2 != nil {
		return nil
	}
	return d.walkTable(ctx, &after, &before, comparable, func(now, old *reader.Item) {
		if old == nil {
			d.Added++
			found(&Difference{Table: after.Info(), How: Added, Is: *now, HasIs: true})
		}
	})
}

// walkTable visits the records of a table, each with the record of the same key in the other table,
// or nil.
func (d *TableDiff) walkTable(ctx context.Context, t, other *reader.Table, comparable bool, fn func(it, same *reader.Item)) error {
	for it, err := range t.All() {
		if err == nil {
			err = checkCanceled(ctx, "inspect.Diff")
		}
		if err != nil {
			return err
		}
		// Keys of different kinds are never equal: every old key counts as removed and every new
		// key as added.
		if !comparable {
			fn(&it, nil)
			continue
		}
		// Tables need not be ordered, so each key is looked up in the other image instead of
		// merging two sorted lists.
		same, err := lookUp(other, &it)
		if rhumb.KindOf(err) == rhumb.NotFound {
			fn(&it, nil)
			continue
		}
		if err != nil {
			return err
		}
		fn(&it, &same)
	}
	return nil
}

// lookUp finds the key of a record in another image's table.
func lookUp(t *reader.Table, it *reader.Item) (reader.Item, error) {
	switch {
	case t.Info().KeyKind == format.KeyUint64:
		return t.GetUint64(it.Number)
	case it.ShardKey:
		return t.GetShardKey(shardKeyOf(it.Name))
	}
	return t.Get(it.Name)
}

// shardKeyOf decodes the bytes of a shard key.
func shardKeyOf(b []byte) rhumb.ShardKey {
	return rhumb.ShardKey{
		Home:     rhumb.RangeID{Region: rhumb.RegionID(binary.BigEndian.Uint32(b)), Slot: rhumb.Slot(binary.BigEndian.Uint32(b[4:]))},
		Sequence: binary.BigEndian.Uint64(b[8:]),
	}
}

// itemsDiffer reports whether two records of a key differ in what readers see. Timestamps and
// versions do not count: they differ between a node and its copy.
func itemsDiffer(a, b *reader.Item) bool {
	return !bytes.Equal(a.Value, b.Value) || a.HasBox != b.HasBox || a.Box != b.Box || a.Expiry != b.Expiry
}
