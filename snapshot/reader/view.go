package reader

import (
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// View is the image at one version. It is a small value: all copies are the same view, and once one
// of them is unlocked, all refuse reads. Unlock a view soon, because it keeps superseded
// generations in memory.
type View struct {
	client  *Client
	slot    *slot
	word    uint64
	held    *holding
	version uint64
	closed  rhumb.Timestamp // 0: not a closed cut
	wall    int64           // CLOCK_REALTIME when it was locked: values that expired by then are not visible
}

// Errors that reads return without allocation. ErrNotFound also matches rhumb.ErrNotFound.
var (
	// ErrNotFound: the key has no value in the view: it never had one, was deleted, or its value's
	// time has passed.
	ErrNotFound = rhumb.E("reader.Table.Get", rhumb.NotFound, "the key has no value in this view")
	// ErrExpired: the view is older than Options.MaxLockAge.
	ErrExpired = rhumb.E("reader.View", rhumb.Expired, "the view is older than MaxLockAge allows; unlock it and lock another")
	// ErrUnlocked: the view was unlocked, or is the zero View.
	ErrUnlocked = rhumb.E("reader.View", rhumb.InvalidArgument, "the view is not locked")
)

// Unlock ends the view. The results of its reads must not be used any more. A second Unlock does
// nothing.
func (v View) Unlock() {
	// Copies of the view may call Unlock too. Only the call that returns the slot unmaps files.
	if v.slot != nil && v.slot.giveBack(v.word) {
		v.client.unmapAfter(v.held)
	}
}

// check returns nil if the view may be read.
func (v *View) check() error {
	if v.isReadable() {
		return nil
	}
	return v.accessError()
}

// isReadable reports whether the view may be read. It is small enough to be inlined into every
// read.
func (v *View) isReadable() bool { return v.slot != nil && v.slot.word.Load() == v.word }

// accessError returns why the view may not be read.
func (v *View) accessError() error {
	if v.slot != nil && v.slot.word.Load() == v.word|slotExpired {
		return ErrExpired
	}
	return ErrUnlocked
}

// Version returns the version that the view shows.
func (v View) Version() uint64 { return v.version }

// Closed returns the closed timestamp of a view of LockClosed, and 0 for others.
func (v View) Closed() rhumb.Timestamp { return v.closed }

// Age returns how long the view has been locked.
func (v View) Age() time.Duration {
	if v.slot == nil || v.slot.word.Load()&^slotExpired != v.word {
		return 0
	}
	return time.Duration(v.client.sinceStart() - v.slot.since.Load())
}

// Commit returns the metadata of the commit that created the version: its closed timestamp, event
// time and wall time. It fails with kind Unavailable if the ring had no entry of the version when
// the view was locked, which happens only to old versions of LockVersion.
func (v View) Commit() (format.Commit, error) {
	const op rhumb.Op = "reader.View.Commit"
	if err := v.check(); err != nil {
		return format.Commit{}, err
	}
	// The entry was copied when the view was locked, and may have been torn at that moment.
	c, ok := decodeRing(&v.slot.ring, v.version)
	if !ok {
		return format.Commit{}, rhumb.Ef(op, rhumb.Unavailable, "the image keeps the last %d commits, and version %d is not among them", format.RingSize, v.version)
	}
	return c, nil
}

// Staleness returns how long ago the version was committed, by the wall clock. While nothing is
// written, a version ages without missing anything; Client.Stats returns when the publisher was
// last alive.
func (v View) Staleness() (time.Duration, error) {
	c, err := v.Commit()
	if err != nil {
		return 0, err
	}
	return time.Duration(v.client.wall.Load() + v.client.sinceStart() - c.Wall), nil
}

// Position returns how far the version follows a range. It fails with ErrNotFound if the image does
// not hold the range.
func (v View) Position(r rhumb.RangeID) (format.Position, error) {
	const op rhumb.Op = "reader.View.Position"
	t, err := v.Table(format.PositionsTable)
	if err != nil {
		return format.Position{}, err
	}
	item, err := t.GetUint64(format.PositionKey(r))
	if err != nil {
		return format.Position{}, err
	}
	p, ok := format.DecodePosition(item.Value)
	if !ok {
		return format.Position{}, rhumb.Ef(op, rhumb.Corrupt, "the position of range %v has %d bytes, want %d", r, len(item.Value), format.PositionSize)
	}
	return p, nil
}

// Table returns a table of the view. It fails with kind NotFound if the image has no table of that
// name.
func (v View) Table(name string) (Table, error) {
	const op rhumb.Op = "reader.View.Table"
	if err := v.check(); err != nil {
		return Table{}, err
	}
	t, ok := v.held.tables[name]
	if !ok {
		return Table{}, rhumb.Ef(op, rhumb.NotFound, "the image %s has no table %q; was it created to be published?", v.client.dir, name)
	}
	return Table{view: v, t: t, plain: v.plainBound(t)}, nil
}

// plainBound returns the version below which the view shows every record of a table at the first
// look. It returns 0 if records need a second look, or if the version is 2^32 commits from a base:
// then an aborted record would compare as older than the view.
func (v *View) plainBound(t *table) uint64 {
	if t.needsSecondLook || v.closed != 0 || v.version-t.least >= math.MaxUint32 {
		return 0
	}
	return v.version + 1
}
