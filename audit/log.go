package audit

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
)

// Bounds of a log.
const (
	// segmentBytesDefault and segmentsDefault are the defaults of Config.SegmentBytes and
	// Config.Segments: together 256 MiB, about a million entries.
	segmentBytesDefault = 16 << 20
	segmentsDefault     = 16
	// waitingMax bounds the entries that wait for the next write. Notes beyond it are counted as
	// lost; callers of Append wait for room. That is the largest batch too. An event has at most a
	// few kilobytes, so a full queue takes a few megabytes.
	waitingMax = 1_024
)

// File is the open end of a segment.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// Config configures a Log.
type Config struct {
	// Dir is the directory of the segments. It is created if necessary.
	Dir string
	// Node names the node in each entry. It may return "" before the node has a name.
	Node func() string
	// SegmentBytes is the size at which a new segment begins, Segments the number of segments that
	// are kept. Defaults: 16 MiB and 16.
	SegmentBytes int64
	Segments     int
	// Now reads the clock; default time.Now.
	Now func() time.Time
	// OpenFile opens a file to append to; default os.OpenFile. Tests let writes fail.
	OpenFile func(name string) (File, error)
	Logger   *slog.Logger
}

// Log appends entries. Its methods may be called concurrently.
//
// One goroutine writes, and callers hand it events through a channel. The chain needs an order, and
// the disk needs few syncs; both follow from the queue. With a lock around each write instead, a
// hundred concurrent logins would cost a hundred syncs in a row.
type Log struct {
	cfg Config
	m   logMetrics

	// waiting holds the entries that the writer takes next.
	waiting chan *pending
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	// The writer alone uses the fields below, except head, which mu guards.
	file File
	segs []segment
	size int64 // of the last segment

	mu   sync.Mutex
	head Head
	lost uint64 // events that were not recorded since the last entry Lost
}

// pending is an event that waits to be written. done is nil if nobody waits.
type pending struct {
	event Event
	done  chan error
}

type logMetrics struct {
	entries, lost, failures, dropped prometheus.Counter
	seconds                          prometheus.Histogram
	head                             prometheus.GaugeFunc
}

// Open opens the log of a directory and repairs its end. The caller must call Close.
func Open(cfg Config) (*Log, error) {
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = segmentBytesDefault
	}
	if cfg.Segments == 0 {
		cfg.Segments = segmentsDefault
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OpenFile == nil {
		cfg.OpenFile = func(name string) (File, error) {
			return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Node == nil {
		cfg.Node = func() string { return "" }
	}
	l := &Log{cfg: cfg, waiting: make(chan *pending, waitingMax)}
	l.m = l.newMetrics()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, rhumb.WrapKind("audit.Open", rhumb.Unavailable, err)
	}
	// A full disk must not keep a node from starting: the first append tries again.
	if err := l.openEnd(); err != nil && rhumb.KindOf(err) != rhumb.DiskFull {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.work.Go(l.writeLoop)
	return l, nil
}

func (l *Log) newMetrics() logMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "audit", Name: name, Help: help})
	}
	return logMetrics{
		entries:  counter("entries_total", "Entries written to the audit log."),
		lost:     counter("lost_total", "Events that were not written to the audit log, because too many waited or the disk failed. Administration is refused meanwhile."),
		failures: counter("failures_total", "Failed writes of the audit log."),
		dropped:  counter("dropped_total", "Segments of the audit log that were removed because there were too many."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rhumb", Subsystem: "audit", Name: "write_seconds", Help: "Time to write and sync entries of the audit log.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 2, 16),
		}),
		head: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "audit", Name: "head", Help: "Number of the newest entry of the audit log.",
		}, func() float64 { return float64(l.Head().Seq) }),
	}
}

// Collectors returns the metrics of the log.
func (l *Log) Collectors() []prometheus.Collector {
	return []prometheus.Collector{l.m.entries, l.m.lost, l.m.failures, l.m.dropped, l.m.seconds, l.m.head}
}

// Head returns the newest entry on disk.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Append records an event and returns once it is on disk. If it returns an error, the event may not
// be recorded, and the caller must not do what the event describes.
func (l *Log) Append(ctx context.Context, e Event) error {
	const op rhumb.Op = "audit.Append"
	// Buffered: the writer must not wait for a caller that has given up.
	p := &pending{e, make(chan error, 1)}
	select {
	// Waits while the queue is full. That is the pace of the disk.
	case l.waiting <- p:
	case <-ctx.Done():
		return rhumb.WrapKind(op, rhumb.Canceled, ctx.Err())
	case <-l.ctx.Done():
		return errClosed
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return rhumb.WrapKind(op, rhumb.Canceled, ctx.Err())
	case <-l.ctx.Done():
		return errClosed
	}
}

var errClosed = rhumb.E("audit.Append", rhumb.Unavailable, "the node is stopping, and its audit log is closed; retry on another node")

// Note records an event soon, without waiting. If too many events wait, the event is counted as
// lost, and an entry Lost says how many were.
func (l *Log) Note(e Event) {
	select {
	case l.waiting <- &pending{event: e}:
	default:
		l.countLost(1)
	}
}

func (l *Log) countLost(n uint64) {
	l.m.lost.Add(float64(n))
	l.mu.Lock()
	l.lost += n
	l.mu.Unlock()
}

// takeLost returns the number of events lost since the last call.
func (l *Log) takeLost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.lost
	l.lost = 0
	return n
}

// Close writes the waiting events and closes the log.
func (l *Log) Close() error {
	l.cancel()
	l.work.Wait()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// writeLoop writes the waiting entries until the log is closed.
func (l *Log) writeLoop() {
	for {
		select {
		case p := <-l.waiting:
			l.writeWaiting(p)
		case <-l.ctx.Done():
			// Notes made before Close must not be lost: they include that the node stops.
			select {
			case p := <-l.waiting:
				l.writeWaiting(p)
			default:
			}
			return
		}
	}
}

// writeWaiting writes an entry together with all others that wait, under one sync.
func (l *Log) writeWaiting(p *pending) {
	// Everything that arrived during the last sync shares the next one.
	batch := []*pending{p}
	for len(batch) < waitingMax {
		select {
		case p := <-l.waiting:
			batch = append(batch, p)
			continue
		default:
		}
		break
	}
	events := make([]Event, 0, len(batch)+1)
	// First, so that the entry is where the events are missing.
	lost := l.takeLost()
	if lost > 0 {
		events = append(events, Event{Kind: Lost, Count: lost, Detail: "too many events waited, or the disk refused them"})
	}
	for _, p := range batch {
		events = append(events, p.event)
	}
	start := time.Now()
	err := l.write(events)
	l.m.seconds.Observe(time.Since(start).Seconds())
	if err != nil {
		l.m.failures.Inc()
		l.cfg.Logger.Error("cannot write the audit log; administration is refused until it works again", "dir", l.cfg.Dir, "err", err)
		l.mu.Lock()
		l.lost += lost
		l.mu.Unlock()
	}
	for _, p := range batch {
		switch {
		case p.done != nil:
			p.done <- err
		case err != nil:
			l.countLost(1)
		}
	}
}

// write appends events and syncs them. After an error the end of the log is opened again by the
// next write: nobody knows how much of a failed write is in the file.
func (l *Log) write(events []Event) (err error) {
	const op rhumb.Op = "audit.write"
	// A former write failed, or the disk was full when the log was opened.
	if l.file == nil {
		if err := l.openEnd(); err != nil {
			return err
		}
	}
	// Checked before the write, so a batch is never split between two segments; segments exceed the
	// bound by one batch at most.
	if l.size >= l.cfg.SegmentBytes {
		if err := l.beginSegment(); err != nil {
			return err
		}
	}
	return l.writeHere(op, events)
}

// writeHere appends events to the current segment, whatever its size.
func (l *Log) writeHere(op rhumb.Op, events []Event) error {
	head := l.Head()
	var lines []byte
	for _, e := range events {
		entry := Entry{Seq: head.Seq + 1, Time: l.cfg.Now().UTC(), Node: l.cfg.Node(), Event: e}
		var err error
		if lines, head.Hash, err = appendEntry(lines, head.Hash, &entry); err != nil {
			return err
		}
		head.Seq++
	}
	// One write for all lines: a crash leaves a prefix of them in nearly all cases.
	if err := l.writeBytes(lines); err != nil {
		return diskError(op, l.segs[len(l.segs)-1].path, err)
	}
	// After the sync. A head that is shown to an operator must never be one that a crash can take
	// back.
	l.setHead(head)
	l.m.entries.Add(float64(len(events)))
	return nil
}

// writeBytes appends bytes to the current segment and syncs them.
func (l *Log) writeBytes(b []byte) error {
	// After a failed sync the kernel may have dropped the pages and report success the next time, so the file is
	// read again from the disk (openEnd).
	n, err := l.file.Write(b)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		_ = l.file.Close() // its content is checked again when it is opened
		l.file = nil
		return err
	}
	l.size += int64(n)
	return nil
}

func (l *Log) setHead(h Head) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head = h
}

// openEnd opens the newest segment and repairs its end, or begins the first segment.
func (l *Log) openEnd() error {
	const op rhumb.Op = "audit.Open"
	segs, err := listSegments(l.cfg.Dir)
	if err != nil {
		return err
	}
	l.segs = segs
	if len(segs) == 0 {
		return l.beginSegment()
	}
	// Earlier segments were synced before the last one began. Verify reads them, a start does not.
	last := segs[len(segs)-1]
	before, head, end, bad, err := scanSegment(last, nil)
	if err != nil {
		return err
	}
	// A crash may interrupt the creation of a segment. Its name then says which entry is next, and
	// the segment before it has the hash.
	if bad != nil && end == 0 {
		return l.replaceSegment(last, bad)
	}
	if bad == nil {
		l.setHead(head)
		return l.openSegment(last, end)
	}
	if !bad.torn {
		return l.continueAfter(last, head, bad)
	}
	if err := os.Truncate(last.path, end); err != nil {
		return diskError(op, last.path, err)
	}
	l.cfg.Logger.Warn("removed an unfinished entry from the end of the audit log", "file", last.path, "offset", end, "begins_after", before)
	l.setHead(head)
	// Recorded: whoever cuts the log so that it looks torn leaves a trace at least.
	if err := l.openSegment(last, end); err != nil {
		return err
	}
	return l.writeHere(op, []Event{{Kind: Repair, Object: last.name(), Detail: "the file ended within an entry that was not acknowledged; it was cut at offset " + itoa(end)}})
}

// replaceSegment replaces a segment without a valid header. The header is synced before the segment
// has entries, so after a crash there is nothing to lose. A header that is damaged in another way
// makes the file unreadable; it is set aside as evidence.
func (l *Log) replaceSegment(s segment, bad *flaw) error {
	const op rhumb.Op = "audit.Open"
	if bad.torn {
		if err := os.Remove(s.path); err != nil {
			return diskError(op, s.path, err)
		}
		return l.openEnd()
	}
	head := Head{Seq: s.first - 1}
	if n := len(l.segs) - 1; n > 0 {
		_, before, _, _, err := scanSegment(l.segs[n-1], nil)
		if err != nil {
			return err
		}
		head = before
	}
	// Not the last entry here: the next one takes the number that the file begins with, so
	// beginSegment sets the file aside.
	head.Seq = s.first - 1
	l.segs = l.segs[:len(l.segs)-1]
	return l.continueAfter(s, head, bad)
}

// continueAfter leaves a damaged segment as evidence and continues in a new one after its last valid
// entry. The number of the new segment leaves out the remainder of the damaged one.
func (l *Log) continueAfter(s segment, head Head, bad *flaw) error {
	l.cfg.Logger.Error("the audit log is damaged; it continues in a new file", "file", s.path, "offset", bad.offset, "err", bad.err)
	l.setHead(head)
	if err := l.beginSegment(); err != nil {
		return err
	}
	return l.writeHere("audit.Open", []Event{{Kind: Break, Object: s.name(), Detail: "damage at offset " + itoa(bad.offset) + ": " + rhumb.Message(bad.err)}})
}

// openSegment opens a segment to append to it.
func (l *Log) openSegment(s segment, size int64) error {
	f, err := l.cfg.OpenFile(s.path)
	if err != nil {
		return diskError("audit.Open", s.path, err)
	}
	l.file, l.size = f, size
	return nil
}

// beginSegment begins a new segment after the head and removes the oldest ones beyond the bound.
func (l *Log) beginSegment() error {
	const op rhumb.Op = "audit.beginSegment"
	if l.file != nil {
		_ = l.file.Close() // it is synced
		l.file = nil
	}
	head := l.Head()
	s := newSegment(l.cfg.Dir, head.Seq+1)
	// A damaged segment may begin with the same entry, if its first one is damaged.
	if _, err := os.Lstat(s.path); err == nil {
		if err := os.Rename(s.path, s.path+".damaged"); err != nil {
			return diskError(op, s.path, err)
		}
	}
	if err := l.openSegment(s, 0); err != nil {
		return err
	}
	// The header is synced alone. A segment with entries therefore has a whole header.
	l.segs = append(l.segs, s)
	if err := l.writeBytes(headerOf(head)); err != nil {
		return diskError(op, s.path, err)
	}
	if err := syncDir(l.cfg.Dir); err != nil {
		return diskError(op, l.cfg.Dir, err)
	}
	// The head in the log of the process is a copy that whoever cuts this log cannot reach, if those
	// logs are shipped.
	l.cfg.Logger.Info("the audit log begins a new file", "file", s.path, "head", head.String())
	return l.dropOldest()
}

// dropOldest removes the oldest segments beyond the bound. Each is named in an entry before it is
// removed.
func (l *Log) dropOldest() error {
	const op rhumb.Op = "audit.dropOldest"
	// A loop, because the bound may be lower than in the former life.
	for len(l.segs) > l.cfg.Segments {
		// Drop and remove, in this order: a crash in between leaves a segment that the log says is
		// gone, which Verify accepts; the reverse would look like a theft.
		oldest := l.segs[0]
		next, err := readHeader(l.segs[1])
		if err != nil {
			return err
		}
		// The hash is the one that the next segment continues, so the entry proves that both belong
		// together.
		e := Event{Kind: Drop, Object: oldest.name(), Detail: "removed because " + itoa(int64(l.cfg.Segments)) + " files are kept; its last entry was " + next.String()}
		if err := l.writeHere(op, []Event{e}); err != nil {
			return err
		}
		if err := os.Remove(oldest.path); err != nil {
			return diskError(op, oldest.path, err)
		}
		l.m.dropped.Inc()
		l.segs = l.segs[1:]
	}
	return nil
}

// readHeader returns the head before a segment.
func readHeader(s segment) (Head, error) {
	before, _, _, bad, err := scanSegment(s, func(Entry, Head, int64) error { return errStop })
	if errors.Is(err, errStop) || err == nil && (bad == nil || bad.offset > 0) {
		return before, nil
	}
	if err == nil {
		err = rhumb.Ef("audit.readHeader", rhumb.Corrupt, "%s: %v", s.path, bad.err)
	}
	return Head{}, err
}

var errStop = errors.New("stop")

// syncDir syncs the names of new files.
func syncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// diskError returns an error of a file of the log. Only a full disk has a kind of its own: an
// operator can do something about it.
func diskError(op rhumb.Op, path string, err error) error {
	// A quota is a full disk for the operator.
	kind := rhumb.Unavailable
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		kind = rhumb.DiskFull
	}
	return &rhumb.Error{Op: op, Kind: kind, Msg: "cannot write the audit log " + path + ", and administration must be recorded; free space or repair the disk", Err: err}
}
