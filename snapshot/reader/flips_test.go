package reader_test

import (
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// flipStride is prime, so that each place in a record, bucket, node or entry comes up.
const flipStride = 211

// answers are what an image shows, each way of asking by itself, and the error that ended it.
type answers map[string]map[string]string

// recordText tells a version of a key from all others; it ends in a newline.
func recordText(number uint64, name []byte, hlc rhumb.Timestamp, box format.Box, value []byte) string {
	return fmt.Sprintln(number, string(name), hlc, box, string(value))
}

// knows reports whether all that was read was once written.
func (d *damaged) knows(a answers) bool {
	for _, records := range a {
		for _, texts := range records {
			for text := range strings.Lines(texts) {
				if !d.known[text] {
					return false
				}
			}
		}
	}
	return true
}

// ask reads a table in every way. The text of a record is all that is known of it.
func ask(c *reader.Client) (answers, error) {
	out := answers{}
	locks := map[string]func() (reader.View, error){"newest": c.Lock, "closed": c.LockClosed}
	for name, lock := range locks {
		v, err := lock()
		if err != nil {
			return nil, err
		}
		for _, info := range c.Tables() {
			t, err := v.Table(info.Name)
			if err == nil && info.Name != format.PositionsTable {
				err = askTable(&t, name+" "+info.Name+" ", out)
			}
			if err != nil {
				v.Unlock()
				return nil, err
			}
		}
		v.Unlock()
	}
	return out, nil
}

func askTable(t *reader.Table, prefix string, out answers) error {
	named := t.Info().KeyKind == format.KeyName
	take := func(how string, it *reader.Item) {
		key := fmt.Sprint(it.Number, string(it.Name))
		if out[prefix+how] == nil {
			out[prefix+how] = map[string]string{}
		}
		out[prefix+how][key] += recordText(it.Number, it.Name, it.HLC, it.Box, it.Value)
	}
	var numbers []uint64
	var names [][]byte
	for k := range uint64(100) {
		numbers, names = append(numbers, k), append(names, fmt.Appendf(nil, "key/%d", k))
		it, err := reader.Item{}, error(nil)
		if named {
			it, err = t.Get(names[k])
		} else {
			it, err = t.GetUint64(k)
		}
		if err == nil {
			take("get", &it)
		} else if rhumb.KindOf(err) != rhumb.NotFound {
			return err
		}
	}
	items := make([]reader.Item, len(names))
	var err error
	if named {
		_, err = t.MultiGet(names, items)
	} else {
		_, err = t.MultiGetUint64(numbers, items)
	}
	if err != nil {
		return err
	}
	for i := range items {
		if items[i].Found {
			take("multiget", &items[i])
		}
	}
	for how, all := range map[string]iter.Seq2[reader.Item, error]{
		"all":  t.All(),
		"scan": t.Scan(nil),
		"bbox": t.BBox(rhumb.Box{Min: rhumb.Point{Lat: -90, Lon: -180}, Max: rhumb.Point{Lat: 90, Lon: 180}}),
	} {
		for it, err := range all {
			if err != nil {
				return err
			}
			take(how, &it)
		}
	}
	return nil
}

// part tells which part of a segment's file an offset lies in.
func part(head format.Segment, at int64) format.SectionType {
	for _, s := range head.Sections {
		if uint64(at) >= s.Offset && uint64(at) < s.Offset+s.Size {
			return s.Type
		}
	}
	return 0
}

// TestFlippedBits flips bits of an image whose tables are summed, before and after a client that verifies checksums has
// attached. What it reads is right, or it says what is damaged. Only where the format has no checksum, in what the publisher
// changes in place, may a record be missed or an earlier version be shown, but never one that there was not.
func TestFlippedBits(t *testing.T) {
	d := newDamaged(t)
	attach := func() (*reader.Client, error) {
		return reader.Attach(d.dir, reader.Options{VerifyChecksums: true})
	}
	c, err := attach()
	check(t, err)
	want, err := ask(c)
	check(t, err)
	check(t, c.Close())
	for file := range d.files {
		if file == d.root() {
			continue
		}
		content := make([]byte, d.sizes[file])
		_, err := d.files[file].ReadAt(content, 0)
		check(t, err)
		head, err := format.DecodeSegment(content, uint64(len(content)))
		check(t, err)
		outcomes := map[string]int{}
		for bit := int64(0); bit < 8*d.sizes[file]; bit += flipStride {
			at, late := bit/8, bit%2 == 0
			if content[at] == 0 && bit%7 != 0 {
				continue
			}
			var restore func()
			if !late {
				restore = d.flip(t, file, at, 1<<(bit%8))
			}
			c, err := attach()
			if late {
				restore = d.flip(t, file, at, 1<<(bit%8))
			}
			var got answers
			if err == nil {
				got, err = ask(c)
				check(t, c.Close())
			}
			restore()
			where := fmt.Sprintf("%s, byte %d, bit %d, section %d, late %t", filepath.Base(d.files[file].Name()), at, bit%8, part(head, at), late)
			switch {
			case err != nil:
				if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible && k != rhumb.Unavailable {
					t.Errorf("%s: %v", where, err)
				}
				outcomes["told"]++
			case same(got, want):
				outcomes["right"]++
			default:
				outcomes[fmt.Sprint("other ", part(head, at))]++
				if part(head, at) == format.SectionHeap || part(head, at) == 0 || !d.knows(got) {
					t.Errorf("%s: other records: %s", where, difference(got, want))
				}
			}
		}
		t.Logf("%s: %v", filepath.Base(d.files[file].Name()), outcomes)
	}
}

func same(a, b answers) bool {
	return maps.EqualFunc(a, b, func(x, y map[string]string) bool { return maps.Equal(x, y) })
}

func difference(got, want answers) string {
	for _, how := range slices.Sorted(maps.Keys(want)) {
		for key, text := range want[how] {
			if got[how][key] != text {
				return fmt.Sprintf("%s %s: %q, want %q", how, key, got[how][key], text)
			}
		}
	}
	return "more records"
}
