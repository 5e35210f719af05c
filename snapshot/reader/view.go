package reader

import (
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// View is the image at one version. It is a small value: copies are the same view, and once one is unlocked all refuse
// reads. Unlock it soon: it keeps superseded generations in memory.
type View struct {
	client  *Client
	slot    *slot
	word    uint64
	held    *holding
	version uint64
	closed  rhumb.Timestamp // 0: not a closed cut
	wall    int64           // CLOCK_REALTIME when it was locked: what expires by then is not visible
}

// Errors that reads return without allocation. ErrNotFound also matches rhumb.ErrNotFound.
var (
	// ErrNotFound: the key has no value in the view: it never had one, was deleted, or its value's time has passed.
	ErrNotFound = rhumb.E("reader.Table.Get", rhumb.NotFound, "the key has no value in this view")
	// ErrExpired: the view is older than Options.MaxLockAge.
	ErrExpired = rhumb.E("reader.View", rhumb.Expired, "the view is older than MaxLockAge allows; unlock it and lock another")
	// ErrUnlocked: the view was unlocked, or is the zero View.
	ErrUnlocked = rhumb.E("reader.View", rhumb.InvalidArgument, "the view is not locked")
)

// Unlock ends the view. What its reads returned must not be used any more. A second Unlock does nothing.
func (v View) Unlock() {
	if v.slot != nil && v.slot.release(v.word) {
		v.client.released(v.held)
	}
}

// check gives nil as long as the view may be read.
func (v *View) check() error {
	if v.readable() {
		return nil
	}
	return v.fault()
}

func (v *View) readable() bool { return v.slot != nil && v.slot.word.Load() == v.word }

// fault says why the view may not be read.
func (v *View) fault() error {
	if v.slot != nil && v.slot.word.Load() == v.word|slotExpired {
		return ErrExpired
	}
	return ErrUnlocked
}

// Version gives the version that is read.
func (v View) Version() uint64 { return v.version }

// Closed gives the closed timestamp of a view of LockClosed, 0 for others.
func (v View) Closed() rhumb.Timestamp { return v.closed }

// Age gives how long the view has been locked.
func (v View) Age() time.Duration {
	if v.slot == nil || v.slot.word.Load()&^slotExpired != v.word {
		return 0
	}
	return time.Duration(v.client.now() - v.slot.since.Load())
}

// Commit gives what is known of the commit that made the version: its closed timestamp, event time and wall time. It
// fails with kind Unavailable when the publisher no longer told when the view was locked, which happens only to old
// versions of LockVersion.
func (v View) Commit() (format.Commit, error) {
	const op rhumb.Op = "reader.View.Commit"
	if err := v.check(); err != nil {
		return format.Commit{}, err
	}
	c, ok := decodeRing(&v.slot.ring, v.version)
	if !ok {
		return format.Commit{}, rhumb.Ef(op, rhumb.Unavailable, "the image keeps the last %d commits, and version %d is not among them", format.RingSize, v.version)
	}
	return c, nil
}

// Staleness gives how long ago the version was committed, by the wall clock. While nothing is written a version grows
// stale without missing anything: see Client.Stats for when the publisher was last alive.
func (v View) Staleness() (time.Duration, error) {
	c, err := v.Commit()
	if err != nil {
		return 0, err
	}
	return time.Duration(v.client.wall.Load() + v.client.now() - c.Wall), nil
}

// Position gives how far the version follows a range; ErrNotFound when the image does not hold the range.
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

// Table gives a table of the view; kind NotFound when the image has no table of that name.
func (v View) Table(name string) (Table, error) {
	const op rhumb.Op = "reader.View.Table"
	if err := v.check(); err != nil {
		return Table{}, err
	}
	t, ok := v.held.tables[name]
	if !ok {
		return Table{}, rhumb.Ef(op, rhumb.NotFound, "the image %s has no table %q; was it created to be published?", v.client.dir, name)
	}
	return Table{view: v, t: t, plain: v.plain(t)}, nil
}

// plain gives the version below which a record of a table is shown at the first look: 0 where more is to be looked at, or
// where the version is so far from a base that an aborted record seems to lie before it.
func (v *View) plain(t *table) uint64 {
	if t.careful || v.closed != 0 || v.version-t.least >= math.MaxUint32 {
		return 0
	}
	return v.version + 1
}
