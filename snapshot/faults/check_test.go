package faults_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// errMixed says that a view showed something else than exactly its version.
var errMixed = errors.New("a view shows what is not of its version")

// checker reads an image again and again, each time in another way.
type checker struct {
	client *reader.Client
	turn   int
	last   uint64 // the newest version seen
	// reads counts views that were checked, waits those that could not be had while a publisher was dead or had no closed
	// timestamp to offer.
	reads, waits uint64
	keys         []uint64
	items        []reader.Item
}

func newChecker(dir string, turn int) (*checker, error) {
	c, err := reader.Attach(dir, reader.Options{VerifyChecksums: turn%2 == 0})
	if err != nil {
		return nil, err
	}
	return &checker{client: c, turn: turn, keys: groupKeys(), items: make([]reader.Item, group)}, nil
}

func groupKeys() (keys []uint64) {
	for i := range uint64(group) {
		keys = append(keys, i)
	}
	return keys
}

// check takes one view and reads both tables through it.
func (k *checker) check() error {
	k.turn++
	lock, closed := k.client.Lock, false
	if k.turn%4 == 3 {
		lock, closed = k.client.LockClosed, true
	}
	v, err := lock()
	if rhumb.KindOf(err) == rhumb.Unavailable {
		k.waits++
		return nil
	}
	if err != nil {
		return err
	}
	defer v.Unlock()
	want := v.Version()
	// A view that is taken while a publisher lies dead in the middle of a change may be of the version before.
	if want+1 < k.last {
		return fmt.Errorf("%w: version %d after %d", errMixed, want, k.last)
	}
	k.last = want
	if closed {
		want = uint64(v.Closed())
	}
	if err := k.tables(v, want); err != nil {
		return fmt.Errorf("version %d, closed %d, turn %d: %w", v.Version(), v.Closed(), k.turn, err)
	}
	k.reads++
	return nil
}

func (k *checker) tables(v reader.View, want uint64) error {
	for _, name := range []string{leftName, rightName} {
		t, err := v.Table(name)
		if err != nil {
			return err
		}
		n, err := k.count(&t, want)
		if err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
		if n != group {
			return fmt.Errorf("%w: table %s has %d of the %d keys", errMixed, name, n, group)
		}
	}
	p, err := v.Position(rhumb.RangeID{Region: 1, Slot: 1})
	if err != nil {
		return err
	}
	if uint64(p.Seq) != want {
		return fmt.Errorf("%w: the position is %d, want %d", errMixed, p.Seq, want)
	}
	return nil
}

// count finds the keys of the group by one of the ways to read, and checks that each has the number wanted.
func (k *checker) count(t *reader.Table, want uint64) (n int, err error) {
	byNumber := t.Info().KeyKind == format.KeyUint64
	note := func(it *reader.Item) bool {
		if byNumber && it.Number >= group || !byNumber && string(it.Name) >= string(rightKey(group)) {
			return true
		}
		n++
		if got := binary.LittleEndian.Uint64(it.Value); got != want {
			err = fmt.Errorf("%w: key %d %q has number %d, want %d", errMixed, it.Number, it.Name, got, want)
		}
		return err == nil
	}
	if walk := k.walk(t, byNumber); walk != nil {
		return n, errors.Join(walk(note), err)
	}
	if byNumber {
		_, err = t.MultiGetUint64(k.keys, k.items)
	} else {
		for i := range k.items {
			if k.items[i], err = t.Get(rightKey(uint64(i))); err != nil {
				return n, err
			}
		}
	}
	for i := 0; i < len(k.items) && err == nil; i++ {
		if k.items[i].Found {
			note(&k.items[i])
		}
	}
	return n, err
}

// walk chooses a way that visits more than the group; nil is a look-up of its keys.
func (k *checker) walk(t *reader.Table, byNumber bool) func(func(*reader.Item) bool) error {
	switch k.turn % 7 {
	case 2:
		return t.VisitAll
	case 4:
		return func(fn func(*reader.Item) bool) error { return t.VisitScan(nil, fn) }
	case 6:
		if byNumber {
			return func(fn func(*reader.Item) bool) error {
				return t.VisitBBox(rhumb.Box{Min: rhumb.Point{Lat: 1, Lon: 1}, Max: rhumb.Point{Lat: 2, Lon: 2}}, fn)
			}
		}
	}
	return nil
}

// sizesAgree compares what a publisher believes to hold with what lies in its directory: a file that nobody knows of is a
// leak that only a reboot would end.
func sizesAgree(dir string, bytes int64) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var sum int64
	for _, name := range names {
		base := filepath.Base(name)
		if !strings.HasPrefix(base, "seg.") && !strings.HasPrefix(base, "recycled.") {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		sum += info.Size()
	}
	if sum > bytes {
		return fmt.Errorf("the directory has %d bytes of segments, the publisher knows of %d: %v", sum, bytes, names)
	}
	return nil
}
