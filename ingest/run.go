package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Writer writes the batches of a run. It is called by many goroutines.
type Writer interface {
	// Write applies mutations of one range as one atomic batch, the first of which is the record whose home counts. It
	// reports applied false when the order fields of that record are not newer than what is there. It retries what is
	// safe to retry; an error of kind Unknown means that the batch may have been applied.
	Write(ctx context.Context, mutations []rhumb.Mutation) (applied bool, err error)
	// Read gives the stored value of a record, wherever its home is, or NotFound.
	Read(ctx context.Context, table rhumb.TableID, name []byte) (value []byte, err error)
}

// Config configures a Run.
type Config struct {
	// Input is read to its end. Gzip is told by its first bytes. An Input that is gzip and an io.Seeker that can seek is read
	// twice, and no line of a gzip member whose checksum does not hold is taken; else such lines are taken before that is known.
	Input io.Reader
	// Format is how lines hold their pairs. Default: the mapping's.
	Format Format
	// Mapping and Tables say what becomes of a line; Tables are in the order of the mapping's rows.
	Mapping *Mapping
	Tables  []rhumb.Table
	// Writer takes the batches.
	Writer Writer
	// Rejected is told of each line that is malformed, one at a time. An error from it ends the run. Optional.
	Rejected func(Rejection) error
	// Strict ends the run at the first malformed line.
	Strict bool
	// Workers is the number of batches in flight at most. Default 1,024: a creation takes a round trip to the farthest region.
	Workers int
	// WindowEvents and WindowBytes bound what is read and not yet answered. Default 16,384 and 32 MiB.
	WindowEvents int
	WindowBytes  int
	// MergeEvents bounds the waiting events of one record that are written as one batch; 1 writes each by itself, as is
	// done in any case when the record's table keeps history. Default 64.
	MergeEvents int
	// RetryFor is how long a batch is tried again while the cluster cannot take it. Default 2 minutes.
	RetryFor time.Duration
}

const (
	workersDefault      = 1_024
	workersMax          = 4_096
	windowEventsDefault = 16_384
	windowBytesDefault  = 32 << 20
	mergeEventsDefault  = 64
	mergeBytesMax       = 1 << 20
	retryForDefault     = 2 * time.Minute

	// interruptGrace is how long batches in flight may still be answered when the run is interrupted.
	interruptGrace = 5 * time.Second
)

func (c *Config) setDefaults() {
	setDefault(&c.Workers, workersDefault)
	setDefault(&c.WindowEvents, windowEventsDefault)
	setDefault(&c.WindowBytes, windowBytesDefault)
	setDefault(&c.MergeEvents, mergeEventsDefault)
	setDefault(&c.RetryFor, retryForDefault)
	if c.Mapping != nil && c.Format == "" {
		c.Format = c.Mapping.Format
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate lists everything that is wrong with the configuration.
func (c *Config) Validate() error {
	const op rhumb.Op = "ingest.Config"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(c.Input == nil, "input is missing")
	fault(c.Writer == nil, "writer is missing")
	fault(c.Mapping == nil, "mapping is missing")
	fault(c.Mapping != nil && len(c.Tables) != len(c.Mapping.Rows), "%d tables are given for the mapping's rows", len(c.Tables))
	fault(c.Workers < 0 || c.Workers > workersMax, "workers is %d, want 1 to %d", c.Workers, workersMax)
	fault(c.WindowEvents < 0 || c.WindowBytes < 0, "the window is negative")
	fault(c.MergeEvents < 0 || c.MergeEvents > rhumb.BatchOpsMax/rowsMax, "merge is %d, want 1 to %d", c.MergeEvents, rhumb.BatchOpsMax/rowsMax)
	fault(c.RetryFor < 0, "retry for %v is negative", c.RetryFor)
	if c.Format == "" {
		fault(c.Mapping == nil || c.Mapping.Format == "", "format is missing: name one of %v", Formats())
	} else if _, err := ParseFormat(string(c.Format)); err != nil {
		fault(true, "%s", messageOf(err))
	}
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Rejection is a line that cannot be written as it stands.
type Rejection struct {
	Line int64
	// Raw is the line as it was read; its beginning when it is longer than LineSizeMax.
	Raw []byte
	Err error
}

// Counts say what became of the lines. At the end of a run Lines = Applied + AlreadyThere + Rejected + Failed. Empty
// lines and headers are not counted.
type Counts struct {
	Lines int64 `json:"lines"`
	// Applied were written. AlreadyThere changed nothing: their records were as new, or newer.
	Applied      int64 `json:"applied"`
	AlreadyThere int64 `json:"already_there"`
	// Rejected are malformed. Failed could not be written, or were not tried any more when the run ended.
	Rejected int64 `json:"rejected"`
	Failed   int64 `json:"failed"`
	// Batches is the number of atomic batches that were applied; Retries counts batches that were sent again.
	Batches int64 `json:"batches"`
	Retries int64 `json:"retries"`
	// PlanHits are the lines that were mapped by the plan of an earlier line with the same keys in the same order;
	// PlanMisses are those whose keys were looked up in the mapping one by one, malformed ones among them.
	PlanHits   int64 `json:"plan_hits"`
	PlanMisses int64 `json:"plan_misses"`
}

// Run is one reading of one input.
type Run struct {
	cfg    Config
	mapper *Mapper
	counts struct {
		lines, applied, alreadyThere, rejected, failed, batches, retries atomic.Int64
	}

	rejectMu sync.Mutex // guards calls of cfg.Rejected
}

// New prepares a run.
func New(cfg Config) (*Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	mapper, err := cfg.Mapping.Bind(cfg.Tables)
	if err != nil {
		return nil, err
	}
	if cfg.Tables[0].History != 0 {
		cfg.MergeEvents = 1
	}
	return &Run{cfg: cfg, mapper: mapper}, nil
}

// Counts says what has become of the lines so far. It may be called while the run goes on.
func (r *Run) Counts() Counts {
	return Counts{
		Lines: r.counts.lines.Load(), Applied: r.counts.applied.Load(), AlreadyThere: r.counts.alreadyThere.Load(),
		Rejected: r.counts.rejected.Load(), Failed: r.counts.failed.Load(),
		Batches: r.counts.batches.Load(), Retries: r.counts.retries.Load(),
		PlanHits: r.mapper.plans.hits.Load(), PlanMisses: r.mapper.plans.misses.Load(),
	}
}

// Run reads the input to its end and returns when every event is answered. Malformed lines are no error unless Strict.
// A cancelled ctx ends the run early; a later run of the same input goes on where this one stopped.
func (r *Run) Run(ctx context.Context) (Counts, error) {
	reading, stopReading := context.WithCancelCause(ctx)
	defer stopReading(nil)
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(interruptGrace, stopWriting) })()

	d := newDispatcher(r, stopReading)
	defer context.AfterFunc(reading, d.wake)()
	var workers sync.WaitGroup
	for range r.cfg.Workers {
		workers.Go(func() { d.work(writing) })
	}
	broken, err := r.read(reading, d)
	if err != nil {
		d.stop(err)
	}
	d.finish()
	workers.Wait()
	if err := d.cause(); err != nil {
		return r.Counts(), err
	}
	return r.Counts(), broken
}

// read takes the input line by line until its end, an error, or a stop. broken says that the input ended before its end:
// what was read before is good, and is written, so that an input that stays broken gets as far as it goes.
func (r *Run) read(ctx context.Context, d *dispatcher) (broken, err error) {
	lines, err := openLines(ctx, r.cfg.Input)
	if err != nil {
		return nil, err
	}
	dec := newDecoder(r.cfg.Format, r.cfg.Mapping)
	var pairs []pair
	for ctx.Err() == nil {
		line, number, tooLong, err := lines.next()
		switch {
		case err == io.EOF:
			return nil, nil
		case err != nil && ctx.Err() == nil:
			return err, nil
		case err != nil:
			return nil, err
		}
		var ev Event
		var skip bool
		pairs, ev, skip, err = r.event(dec, pairs[:0], line, number, tooLong)
		switch {
		case err != nil && rhumb.KindOf(err) == rhumb.Incompatible:
			return nil, err
		case skip:
			continue
		}
		r.counts.lines.Add(1)
		if err == nil {
			d.add(ctx, ev)
		} else if err = r.reject(Rejection{number, line, err}); err != nil {
			return nil, err
		}
	}
	return nil, stopCause(ctx)
}

// stopCause gives the reason of a stop; an interruption by the caller is of kind Canceled.
func stopCause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return rhumb.E("ingest.Run", rhumb.Canceled, "interrupted; start the same ingest again and it goes on where it stopped")
	}
	return cause
}

func (r *Run) event(dec decoder, pairs []pair, line []byte, number int64, tooLong bool) (_ []pair, ev Event, skip bool, err error) {
	const op rhumb.Op = "ingest.read"
	if tooLong {
		return pairs, ev, false, rhumb.Ef(op, rhumb.TooLarge, "the line is longer than %d bytes", LineSizeMax)
	}
	pairs, skip, err = dec.decode(line, pairs)
	if err != nil || skip {
		return pairs, ev, skip, err
	}
	ev, err = r.mapper.Map(number, line, pairs)
	return pairs, ev, false, err
}

// reject counts and reports a line. It returns an error when the run must end.
func (r *Run) reject(rej Rejection) error {
	const op rhumb.Op = "ingest.reject"
	r.counts.rejected.Add(1)
	r.rejectMu.Lock()
	defer r.rejectMu.Unlock()
	if r.cfg.Rejected != nil {
		if err := r.cfg.Rejected(rej); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	if r.cfg.Strict {
		return rhumb.Ef(op, rhumb.InvalidArgument, "line %d: %s; --strict ends the run here", rej.Line, messageOf(rej.Err))
	}
	return nil
}
