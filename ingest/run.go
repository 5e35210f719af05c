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

// Writer writes the batches of a run. It must be safe for concurrent use.
type Writer interface {
	// Write applies mutations of one range as an atomic batch. The first one determines the home.
	// Write reports applied false if the order fields of its record are not newer than those of the
	// existing record. It retries if that is safe; an error of kind Unknown means that the batch
	// may have been applied.
	Write(ctx context.Context, mutations []rhumb.Mutation) (applied bool, err error)
	// Read returns the stored value of a record, wherever its home is, or NotFound.
	Read(ctx context.Context, table rhumb.TableID, name []byte) (value []byte, err error)
}

// Config configures a Run.
type Config struct {
	// Input is read to its end. Gzip is detected by the first bytes. A gzip Input that is an
	// io.Seeker is read twice if it can seek, and no line of a member with a wrong checksum is
	// accepted. Otherwise such lines may be accepted before the damage is detected.
	Input io.Reader
	// Format is the syntax of the lines. Default: that of the mapping.
	Format Format
	// Mapping defines the rows of a line. Tables are in the order of its rows.
	Mapping *Mapping
	Tables  []rhumb.Table
	// Writer receives the batches.
	Writer Writer
	// Rejected is called for each malformed line, one call at a time. An error ends the run.
	// Optional.
	Rejected func(Rejection) error
	// Strict ends the run at the first malformed line.
	Strict bool
	// Workers is the maximum number of batches in flight. Default 1,024, because creating a record
	// takes a round trip to the most distant region: 256 workers created at most a thousand records
	// per second between regions 250 ms apart.
	Workers int
	// WindowEvents and WindowBytes bound the events that are read and not yet answered. Defaults
	// 16,384 and 32 MiB.
	WindowEvents int
	WindowBytes  int
	// MergeEvents bounds the waiting events of one record that are merged into one batch. With 1,
	// each event is a batch, as always if the table of the record keeps history. Default 64.
	MergeEvents int
	// RetryFor is how long a batch is retried while the cluster cannot accept it. Default 2
	// minutes.
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

	// interruptGrace is the time in which batches in flight may still be answered after an
	// interruption.
	interruptGrace = 5 * time.Second
)

// setDefaults sets fields that have no value.
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

// setDefault sets a field that has no value.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports all faults of the configuration in one error.
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
	fault(c.Mapping != nil && len(c.Tables) != len(c.Mapping.Rows), "there are %d tables for the rows of the mapping", len(c.Tables))
	fault(c.Workers < 0 || c.Workers > workersMax, "workers is %d, want 1 to %d", c.Workers, workersMax)
	fault(c.WindowEvents < 0 || c.WindowBytes < 0, "the window is negative")
	fault(c.MergeEvents < 0 || c.MergeEvents > rhumb.BatchOpsMax/rowsMax, "merge is %d, want 1 to %d", c.MergeEvents, rhumb.BatchOpsMax/rowsMax)
	fault(c.RetryFor < 0, "retry for %v is negative", c.RetryFor)
	// The mapping's format is used if this one is empty; see setDefaults.
	if c.Format == "" {
		fault(c.Mapping == nil || c.Mapping.Format == "", "format is missing: name one of %s", FormatList())
	} else if _, err := ParseFormat(string(c.Format)); err != nil {
		fault(true, "%s", messageOf(err))
	}
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Rejection is a line that cannot be written.
type Rejection struct {
	Line int64
	// Raw is the line as read; only its beginning if it is longer than LineSizeMax.
	Raw []byte
	Err error
}

// Counts are the results of the lines. At the end of a run Lines = Applied + AlreadyThere +
// Rejected + Failed. Empty lines and headers are not counted.
type Counts struct {
	Lines int64 `json:"lines"`
	// Applied lines were written. AlreadyThere lines changed nothing, because their records were as
	// new or newer.
	Applied      int64 `json:"applied"`
	AlreadyThere int64 `json:"already_there"`
	// Rejected lines are malformed. Failed lines could not be written, or the run ended first.
	Rejected int64 `json:"rejected"`
	Failed   int64 `json:"failed"`
	// Batches is the number of atomic batches applied. Retries is the number of repeated attempts.
	Batches int64 `json:"batches"`
	Retries int64 `json:"retries"`
	// PlanHits is the number of lines that were mapped by the plan of an earlier line with the same
	// keys in the same order. PlanMisses is the number of all other lines, including malformed
	// ones.
	PlanHits   int64 `json:"plan_hits"`
	PlanMisses int64 `json:"plan_misses"`
}

// Run reads one input once.
type Run struct {
	cfg    Config
	mapper *Mapper
	counts struct {
		lines, applied, alreadyThere, rejected, failed, batches, retries atomic.Int64
	}

	rejectMu sync.Mutex // guards calls of cfg.Rejected
}

// New returns a run.
func New(cfg Config) (*Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	mapper, err := cfg.Mapping.Bind(cfg.Tables)
	if err != nil {
		return nil, err
	}
	// Every version must be written, because the table keeps it.
	if cfg.Tables[0].History != 0 {
		cfg.MergeEvents = 1
	}
	return &Run{cfg: cfg, mapper: mapper}, nil
}

// Counts returns the counts so far. It may be called during the run.
func (r *Run) Counts() Counts {
	return Counts{
		Lines: r.counts.lines.Load(), Applied: r.counts.applied.Load(), AlreadyThere: r.counts.alreadyThere.Load(),
		Rejected: r.counts.rejected.Load(), Failed: r.counts.failed.Load(),
		Batches: r.counts.batches.Load(), Retries: r.counts.retries.Load(),
		PlanHits: r.mapper.plans.hits.Load(), PlanMisses: r.mapper.plans.misses.Load(),
	}
}

// Run reads the input to its end and returns when every event is answered. A malformed line is an
// error only with Strict. If ctx is cancelled, the run ends early; a later run of the same input
// continues where this one stopped.
func (r *Run) Run(ctx context.Context) (Counts, error) {
	reading, stopReading := context.WithCancelCause(ctx)
	defer stopReading(nil)
	// Writing outlives ctx by interruptGrace: a batch whose answer is not awaited has an unknown
	// outcome.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(interruptGrace, stopWriting) })()

	d := newDispatcher(r, stopReading)
	defer context.AfterFunc(reading, d.wake)()
	var workers sync.WaitGroup
	for range r.cfg.Workers {
		workers.Go(func() { d.runWorker(writing) })
	}
	// A stop discards waiting events; a broken input does not, see readInput.
	broken, err := r.readInput(reading, d)
	if err != nil {
		d.stop(err)
	}
	d.finish()
	workers.Wait()
	if err := d.stopReason(); err != nil {
		return r.Counts(), err
	}
	return r.Counts(), broken
}

// readInput reads lines until the end of the input, an error, or a stop. broken is an error of the
// input itself: the lines before it are valid and are written, so that a run gets as far as the
// input is intact.
func (r *Run) readInput(ctx context.Context, d *dispatcher) (broken, err error) {
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
		// The input is broken, which does not stop the events read before.
		case err != nil && ctx.Err() == nil:
			return err, nil
		case err != nil:
			return nil, err
		}
		var ev Event
		var skip bool
		pairs, ev, skip, err = r.makeEvent(dec, pairs[:0], line, number, tooLong)
		switch {
		// A header that is invalid. All further lines would be misread.
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

// stopCause returns the reason of a stop. An interruption by the caller is of kind Canceled.
func stopCause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return rhumb.E("ingest.Run", rhumb.Canceled, "interrupted; start the same ingest again, and it continues where it stopped")
	}
	return cause
}

// makeEvent decodes and maps one line.
func (r *Run) makeEvent(dec decoder, pairs []pair, line []byte, number int64, tooLong bool) (_ []pair, ev Event, skip bool, err error) {
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

// reject counts and reports a malformed line. It returns an error if the run must end.
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
	// The line is reported before the run ends.
	if r.cfg.Strict {
		return rhumb.Ef(op, rhumb.InvalidArgument, "line %d: %s; --strict ends the run here", rej.Line, messageOf(rej.Err))
	}
	return nil
}
