package faults_test

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Every commit writes its own version number under the same keys of two tables, so that whoever locks version n finds n
// under each of them; beside them it changes other keys of any number, for shards that fill and roll.
const (
	group  = 48   // keys that carry the version of the commit
	others = 4000 // keys behind them, written now and then
)

const (
	leftName, rightName, passingName = "left", "right", "passing"
	budget                           = 256 << 20
)

var leftSpec = snapshot.TableSpec{ID: 1, Name: leftName, KeyKind: format.KeyUint64, Shards: 4, Spatial: true, Ordered: true, Summed: true}

var rightSpec = snapshot.TableSpec{ID: 2, Name: rightName, KeyKind: format.KeyName, Shards: 1, Ordered: true}

// passingSpec is of a table that is dropped and made again.
var passingSpec = snapshot.TableSpec{ID: 3, Name: passingName, KeyKind: format.KeyUint64, Shards: 2}

// closedOf returns the closed timestamp that commit n publishes: a write of commit n has timestamp n.
func closedOf(n uint64) rhumb.Timestamp { return rhumb.Timestamp(n - n%3) }

func config(dir string) snapshot.Config {
	return snapshot.Config{Dir: dir, AppendRatio: 0.02, Budget: budget}
}

// writer publishes, one number after the other.
type writer struct {
	pub                  *snapshot.Publisher
	left, right, passing *snapshot.Table
	rng                  *rand.Rand
	// say is told what is about to be done, so that who listens can end the process in the middle of it.
	say func(phase byte, n uint64)
}

func newWriter(dir string) (*writer, error) {
	pub, err := snapshot.Open(config(dir))
	if err != nil {
		return nil, err
	}
	return writeTo(pub)
}

// writeTo makes the tables.
func writeTo(pub *snapshot.Publisher) (w *writer, err error) {
	w = &writer{pub: pub, say: func(byte, uint64) {}, rng: rand.New(rand.NewPCG(pub.Version(), pub.Recovery().Aborted))}
	if w.left, err = pub.Table(leftSpec); err != nil {
		return nil, err
	}
	if w.right, err = pub.Table(rightSpec); err != nil {
		return nil, err
	}
	w.passing, err = pub.Table(passingSpec)
	return w, err
}

func leftRecord(i, n uint64, size int) snapshot.Record {
	place := rhumb.Point{Lat: 1 + float64((i*7+n)%100)/100, Lon: 1.5}
	return snapshot.Record{
		Key: format.Key{Number: i}, HLC: rhumb.Timestamp(n), Value: number(n, size), Box: format.MakePoint(place), HasBox: true,
	}
}

func rightRecord(i, n uint64, size int) snapshot.Record {
	return snapshot.Record{Key: format.Key{Name: rightKey(i)}, HLC: rhumb.Timestamp(n), Value: number(n, size)}
}

func rightKey(i uint64) []byte { return fmt.Appendf(nil, "key-%05d", i) }

func number(n uint64, size int) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 0, 8+size), n)[:8+size]
}

// commit publishes the next number.
func (w *writer) commit() error {
	n := w.pub.Version() + 1
	c := w.pub.Begin()
	defer c.Discard()
	if n%16 == 5 {
		w.say('l', n)
		if err := c.Load(w.right, w.loaded(n)); err != nil {
			return err
		}
	} else if err := w.put(c, w.right, rightRecord, n); err != nil {
		return err
	}
	if err := w.put(c, w.left, leftRecord, n); err != nil {
		return err
	}
	if err := c.Put(w.passing, snapshot.Record{Key: format.Key{Number: n % 9}, HLC: rhumb.Timestamp(n), Value: number(n, 0)}); err != nil {
		return err
	}
	if err := c.Position(rhumb.RangeID{Region: 1, Slot: 1}, format.Position{Epoch: 1, Seq: n, HLC: rhumb.Timestamp(n)}); err != nil {
		return err
	}
	if _, err := c.Publish(snapshot.CommitInfo{Closed: closedOf(n)}); err != nil {
		return err
	}
	w.say('c', n)
	return nil
}

func (w *writer) put(c *snapshot.Commit, t *snapshot.Table, record func(i, n uint64, size int) snapshot.Record, n uint64) error {
	for i := range uint64(group) {
		if err := c.Put(t, record(i, n, w.rng.IntN(100))); err != nil {
			return err
		}
	}
	for range w.rng.IntN(60) {
		rec := record(group+w.rng.Uint64N(others), n, w.rng.IntN(200))
		err := error(nil)
		if w.rng.IntN(4) == 0 {
			err = c.Delete(t, rec.Key, rec.HLC)
		} else {
			err = c.Put(t, rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// loaded returns the whole content of the right table at number n.
func (w *writer) loaded(n uint64) iter.Seq2[snapshot.Record, error] {
	return func(yield func(snapshot.Record, error) bool) {
		for i := range uint64(group + 300) {
			if !yield(rightRecord(i, n, 20), nil) {
				return
			}
		}
	}
}

// step commits, and now and then rolls a shard or drops a table.
func (w *writer) step() error {
	if err := w.commit(); err != nil {
		return err
	}
	n := w.pub.Version()
	if n%20 == 7 {
		w.say('r', n)
		if err := w.pub.Roll(w.left, int(n/20)%4); err != nil {
			return err
		}
	}
	if n%20 == 17 { // the layout of its base can stay
		w.say('r', n)
		if err := w.pub.Roll(w.passing, int(n/20)%2); err != nil {
			return err
		}
	}
	if n%64 == 11 {
		w.say('d', n)
		if err := w.pub.DropTable(w.passing); err != nil {
			return err
		}
		var err error
		if w.passing, err = w.pub.Table(passingSpec); err != nil {
			return err
		}
	}
	if n%8 == 0 {
		w.pub.Beat()
	}
	return nil
}

// write is the child that publishes until it is killed. It prints a line for what it is about to do and for each commit that
// is done, and before all of them one that tells what it found.
func write(dir string) error {
	w, err := newWriter(dir)
	if err != nil {
		return err
	}
	r := w.pub.Recovery()
	if len(r.Quarantined) > 0 || len(r.Dropped) > 0 {
		return fmt.Errorf("recovery %+v", r)
	}
	fresh := 0
	if r.Fresh {
		fresh = 1
	}
	fmt.Printf("o %d %d %d\n", w.pub.Version(), r.Aborted, fresh)
	if err := sizesAgree(dir, w.pub.Stats().Bytes); err != nil {
		return err
	}
	w.say = func(phase byte, n uint64) { fmt.Printf("%c %d\n", phase, n) }
	for {
		if err := w.step(); err != nil {
			return err
		}
	}
}
