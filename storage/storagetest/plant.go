package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rhumbdb/rhumb/keys"
)

// Plant changes values in the database of a closed store, so that every checksum holds: as a program that
// writes wrong bytes would, or memory that flips a bit before the bytes are written. change gets every record with
// its stored key and value, and returns nil to leave it. Plant returns how many values it changed.
//
// A changed value should have the length of the
// old one, because the size of a range is on record.
func Plant(dir string, change func(key, value []byte) []byte) (n int, err error) {
	db, err := pebble.Open(filepath.Join(dir, "data"), plantOptions())
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := db.Close(); err == nil {
			err = e
		}
	}()
	it, err := db.NewIter(nil)
	if err != nil {
		return 0, err
	}
	b := db.NewBatch()
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		if _, _, _, no := keys.DecodeData(it.Key()); no != nil {
			continue
		}
		if v := change(it.Key(), bytes.Clone(it.Value())); v != nil {
			n++
			err = b.Set(it.Key(), v, nil)
		}
	}
	for _, e := range []error{it.Error(), it.Close()} {
		if err == nil {
			err = e
		}
	}
	if err == nil {
		err = b.Commit(pebble.Sync)
	}
	if err == nil {
		err = db.Flush()
	}
	// The store would find that the files are not those that it sealed. It does without these two, as after
	// an upgrade from a build that did not write them.
	for _, name := range []string{"SEAL", "SYNCED"} {
		if e := os.Remove(filepath.Join(dir, name)); err == nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	return n, err
}

// plantOptions returns the options that open the database of a store.
func plantOptions() *pebble.Options {
	return &pebble.Options{
		// As in package storage: Pebble opens no table that another comparer wrote.
		Comparer: &pebble.Comparer{
			Name: keys.ComparerName, Compare: keys.Compare, Equal: keys.Equal, Split: keys.Split, AbbreviatedKey: keys.Abbreviate,
			ComparePointSuffixes: keys.CompareSuffixes, CompareRangeSuffixes: keys.CompareSuffixes, Separator: keys.Separator,
			Successor: keys.Successor, ImmediateSuccessor: keys.ImmediateSuccessor,
			FormatKey: func(key []byte) fmt.Formatter { return plantedKey(key) },
		},
		FormatMajorVersion: pebble.FormatNewest, ErrorIfNotExists: true, Logger: silent{}, DisableAutomaticCompactions: true,
	}
}

// OpenDatabase opens the database in the directory of a closed store, in the format of a new store.
func OpenDatabase(fs vfs.FS, dir string) (*pebble.DB, error) {
	o := plantOptions()
	o.FS, o.FormatMajorVersion = fs, pebble.FormatTableFormatV6
	return pebble.Open(fs.PathJoin(dir, "data"), o)
}

// plantedKey formats a key in Pebble's messages.
type plantedKey []byte

func (k plantedKey) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, keys.Format(k)) }

// Visit calls f with every key and value in the database of a closed store, as they are before compression. It
// changes nothing.
func Visit(dir string, f func(key, value []byte)) error {
	o := plantOptions()
	o.ReadOnly = true
	db, err := pebble.Open(filepath.Join(dir, "data"), o)
	if err != nil {
		return err
	}
	it, err := db.NewIter(nil)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	for ok := it.First(); ok; ok = it.Next() {
		f(it.Key(), it.Value())
	}
	return errors.Join(it.Error(), it.Close(), db.Close())
}

// silent discards Pebble's notes about its logs.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	panic("storagetest: " + fmt.Sprintf(format, args...))
}
