package nodelog

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// Bounds of a log. All segments have one size, and their number never changes, so a log takes the same space all its life.
const (
	SegmentsDefault     = 8
	SegmentsLeast       = 2
	SegmentsMax         = 64
	SegmentBytesDefault = 32 << 20
	SegmentBytesLeast   = 4 << 10
	SegmentBytesMax     = 1 << 30
)

// zeroStep is the size of the writes that fill a new segment.
const zeroStep = 1 << 20

// Config describes a log.
type Config struct {
	// Dir is the directory of the log. Nothing else is in it.
	Dir string
	// FS is the file system; nil means that of the operating system.
	FS vfs.FS
	// ID identifies the log, for example as that of a store. A log with another ID is refused.
	ID rhumb.UUID
	// Boot grows with each opening. It distinguishes records that an earlier start wrote and recovery discarded.
	Boot rhumb.BootSeq
	// Create allows Open to create the log if the directory does not exist. Without it, a directory that has vanished is damage.
	Create bool
	// Segments and SegmentBytes are the shape of a new log; 0 means the default. An existing log keeps its shape.
	Segments     int
	SegmentBytes int64
	// Synced is a number that was synced as the caller knows from elsewhere, or 0. A log that ends before it is damaged.
	Synced Number
	// Trimmed is a number up to which no record is needed, as the caller knows from elsewhere, or 0. It may be beyond the end of the log, which
	// may have lost records that were never synced.
	Trimmed Number
	// Metrics receives the events of the log; nil discards them.
	Metrics Metrics
}

// Metrics receives the events of a log. The log calls it while it holds its locks.
type Metrics interface {
	// Wrote reports a record by the bytes that were written, with padding.
	Wrote(bytes int)
	// Synced reports a sync that succeeded.
	Synced(took time.Duration)
	// Turned reports that the next segment was begun.
	Turned()
	// Refused reports a record that found the log full.
	Refused()
}

// noMetrics discards everything.
type noMetrics struct{}

func (noMetrics) Wrote(int)            {}
func (noMetrics) Synced(time.Duration) {}
func (noMetrics) Turned()              {}
func (noMetrics) Refused()             {}

// fillDefaults validates the configuration and sets the defaults.
func (c *Config) fillDefaults() error {
	c.Segments = cmp.Or(c.Segments, SegmentsDefault)
	c.SegmentBytes = cmp.Or(c.SegmentBytes, SegmentBytesDefault)
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Dir == "", "no directory is given")
	fault(c.Boot == 0, "boots begin at 1")
	fault(c.Segments < SegmentsLeast || c.Segments > SegmentsMax, "%d segments are not %d to %d", c.Segments, SegmentsLeast, SegmentsMax)
	fault(c.SegmentBytes < SegmentBytesLeast || c.SegmentBytes > SegmentBytesMax || c.SegmentBytes%Sector != 0,
		"segments of %d bytes are not a multiple of %d from %d to %d", c.SegmentBytes, Sector, SegmentBytesLeast, SegmentBytesMax)
	return rhumb.WrapKind("nodelog.Open", rhumb.InvalidArgument, errors.Join(faults...))
}

// WrapIO returns an error of the file system with a kind and a path; nil stays nil. Package storage uses it too.
func WrapIO(op rhumb.Op, path string, err error) error {
	if err == nil {
		return nil
	}
	// The data may be intact: the caller may try again or ask another replica.
	kind := rhumb.Unavailable
	// A quota that is used up is a full disk for the operator.
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		kind = rhumb.DiskFull
	}
	return &rhumb.Error{Op: op, Kind: kind, Msg: path, Err: err}
}
