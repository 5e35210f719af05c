package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// viewEvery is the time between two looks at an image.
const viewEvery = 100 * time.Millisecond

// sharedLine is what a reader on the host of a node prints, as a line of JSON: a
// view, or in the last line why it ended.
type sharedLine struct {
	View *sharedView `json:",omitempty"`
	End  *sharedEnd  `json:",omitempty"`
}

// sharedEnd is the error with which a reader ended.
type sharedEnd struct {
	Kind rhumb.Kind
	Text string
}

// sharedView is a view of an image as a reader on the host of a node saw it.
type sharedView struct {
	// Image names the image: a rebuilt one has another name, and within one views
	// never go back.
	Image string
	// Version is that of the image. Closed is the timestamp of a consistent cut
	// across all ranges, and 0 for the newest view.
	Version uint64
	Closed  rhumb.Timestamp
	// Positions holds, for each range that the node follows, the timestamp of the
	// last entry of the log that the version has. A closed cut shows less.
	Positions []sharedPosition
	Records   []sharedRecord
}

// sharedPosition is how far a view follows the log of a range.
type sharedPosition struct {
	Range rhumb.RangeID
	Until rhumb.Timestamp
}

// sharedRecord is a record in a view, with the timestamp of the write.
type sharedRecord struct {
	Name, Text string
	Written    rhumb.Timestamp
}

// FollowViews reads the newest and the newest closed view of a table in the image
// below a folder, again and again, and prints those that have changed. It runs on
// the host of a node and ends with the first error, which it prints too.
func FollowViews(ctx context.Context, dir, table string, out io.Writer) error {
	// A view is a line.
	encoder := json.NewEncoder(out)
	err := followViews(ctx, dir, table, encoder)
	// The caller judges the kind, which an exit code does not have. A reader that is
	// stopped has nothing to report.
	if ctx.Err() == nil {
		err = errors.Join(err, encoder.Encode(sharedLine{End: &sharedEnd{rhumb.KindOf(err), err.Error()}}))
	}
	return err
}

// followViews prints views until the first error.
func followViews(ctx context.Context, dir, table string, encoder *json.Encoder) error {
	// Below the folder are clusters, and below these nodes.
	images, err := filepath.Glob(filepath.Join(dir, "*", "*", "root"))
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return rhumb.Ef("local.FollowViews", rhumb.NotFound, "no image below %s", dir)
	}
	// A node that was given another number has left an older image there.
	c, err := reader.Attach(filepath.Dir(images[len(images)-1]), reader.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	var last, lastClosed sharedView
	for {
		before := c.Stats()
		for _, look := range []struct {
			lock func() (reader.View, error)
			last *sharedView
		}{{c.Lock, &last}, {c.LockClosed, &lastClosed}} {
			v, err := look.lock()
			// LockClosed fails until every range is closed.
			if rhumb.KindOf(err) == rhumb.Unavailable {
				continue
			}
			if err != nil {
				return err
			}
			shared, err := readView(v, table)
			v.Unlock()
			if rhumb.KindOf(err) == rhumb.NotFound {
				continue // the table is not in the image yet
			}
			if err != nil {
				return err
			}
			// The view may be of either image if the client has followed a rebuilt
			// one meanwhile.
			if c.Stats().Reopens != before.Reopens {
				break
			}
			shared.Image = before.Image.String()
			if shared.Image == look.last.Image && shared.Version == look.last.Version && shared.Closed == look.last.Closed {
				continue
			}
			*look.last = shared
			if err := encoder.Encode(sharedLine{View: &shared}); err != nil {
				return err
			}
		}
		if err := wait(ctx, viewEvery); err != nil {
			return err
		}
	}
}

// readView copies the records of a table in a view, and the positions of the view.
func readView(v reader.View, table string) (out sharedView, err error) {
	out.Version, out.Closed = v.Version(), v.Closed()
	t, err := v.Table(table)
	if err != nil {
		return out, err
	}
	err = t.VisitAll(func(it *reader.Item) bool {
		out.Records = append(out.Records, sharedRecord{string(it.Name), opaque(it.Value), it.HLC})
		return true
	})
	if err != nil {
		return out, err
	}
	// Every image has this table.
	positions, err := v.Table(format.PositionsTable)
	if err != nil {
		return out, err
	}
	var wrong error
	err = positions.VisitAll(func(it *reader.Item) bool {
		p, ok := format.DecodePosition(it.Value)
		if !ok {
			wrong = rhumb.Ef("local.readView", rhumb.Corrupt, "the position of range %d has %d bytes", it.Number, len(it.Value))
			return false
		}
		id := rhumb.RangeID{Region: rhumb.RegionID(it.Number >> 32), Slot: rhumb.Slot(it.Number)}
		out.Positions = append(out.Positions, sharedPosition{id, p.HLC})
		return true
	})
	return out, errors.Join(err, wrong)
}
