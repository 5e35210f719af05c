package sidebyside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// Names of the logs in a report. The node log is compared with each of the others.
const (
	nodeLog       = "node log"
	databaseLog   = "log of the database"
	bareOverwrite = "bare file, overwritten"
	bareAppend    = "bare file, appended"
)

const (
	// bareBytes is the size of the bare file that is overwritten.
	bareBytes = 64 << 20
	// logSpace is where the store of the database's log keeps the values: a group of the metadata that no node has.
	logSpace = storage.SpaceRaft + 4096
)

// LogsConfig configures MeasureLogs.
type LogsConfig struct {
	// Dir is the directory for all files, which decides about the disk. MeasureLogs removes its own files.
	Dir string
	// Callers are the numbers of callers. Each waits until its value is durable.
	Callers    []int
	Rounds     int
	Measure    time.Duration
	ValueBytes int
	Progress   func(text string)
}

// LogsReport compares the node log with other ways to make values durable.
type LogsReport struct {
	Started time.Time      `json:"started"`
	Machine string         `json:"machine"`
	Rows    []rounds.Row   `json:"rows"`
	Ratios  []rounds.Ratio `json:"ratios"`
	// Disturbed is the number of measurements during which other processes kept more than DisturbedCores busy.
	Disturbed int          `json:"disturbed"`
	Log       LogUse       `json:"node_log"`
	Runs      []rounds.Run `json:"runs"`
}

// LogUse counts the work of the node log during a measurement.
type LogUse struct {
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
	Syncs   int64 `json:"syncs"`
	// SyncNanos is the time of all syncs.
	SyncNanos time.Duration `json:"sync_ns"`
	// Turns is how often a segment was begun, and Full how often all were needed and had to be trimmed first.
	Turns int64 `json:"turns"`
	Full  int64 `json:"full"`
	// Replayed is the number of records that were read back at the end.
	Replayed int64 `json:"replayed"`
}

// Verdict says in one sentence whether the ratios can be relied on.
func (r *LogsReport) Verdict() string { return verdictOf(r.Disturbed, len(r.Runs)) }

// RatioTo returns the ratio of the node log to the log in a row, or nil.
func (r *LogsReport) RatioTo(row rounds.Row) *rounds.Ratio { return ratioTo(r.Ratios, row) }

// MeasureLogs appends and syncs values of several callers with the node log, with the log of a store's database, and with bare files, in turn.
// A group of values that came during a sync is made durable by the next one, except in the database, which forms its own groups. At the end
// the node log is opened again and read: the measurement fails if a value that was acknowledged is missing.
func MeasureLogs(ctx context.Context, cfg LogsConfig) (r *LogsReport, err error) {
	const op rhumb.Op = "sidebyside.MeasureLogs"
	dir, err := os.MkdirTemp(cfg.Dir, "log-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r = &LogsReport{Started: time.Now().UTC().Truncate(time.Second), Machine: describeMachine()}
	cfg.Progress("fill the files")
	own, err := openNodeLog(filepath.Join(dir, "nodelog"))
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	defer own.Stop()
	store, err := storage.Open(storage.Config{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	targets := []rounds.Target{own.target, &logTarget{name: databaseLog, write: storeWriter(store)}}
	for _, name := range []string{bareOverwrite, bareAppend} {
		b, err := openBare(dir, name)
		if err != nil {
			return nil, err
		}
		defer b.close()
		targets = append(targets, &logTarget{name: name, write: (&groups{commit: b.commit}).write})
	}
	var cases []load.Case
	for _, n := range cfg.Callers {
		cases = append(cases, load.Case{Op: load.Put, Callers: n, ValueBytes: cfg.ValueBytes, Keys: 1, Warm: cfg.Measure / 4, Measure: cfg.Measure})
	}
	if r.Runs, err = (rounds.Plan{Cases: cases, Targets: targets, Rounds: cfg.Rounds, Progress: cfg.Progress}).Play(ctx); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	r.Rows = rounds.Rows(r.Runs)
	r.Ratios = rounds.Ratios(r.Runs, [][2]string{{nodeLog, databaseLog}, {nodeLog, bareOverwrite}, {nodeLog, bareAppend}})
	r.Disturbed = countDisturbed(r.Runs)
	cfg.Progress("read the node log back")
	r.Log, err = own.readBack()
	return r, rhumb.Wrap(op, err)
}

// logTarget is a log under load.
type logTarget struct {
	name  string
	write func(caller int, value []byte) error
}

// Name implements rounds.Target.
func (t *logTarget) Name() string { return t.name }

// Offers implements rounds.Target.
func (t *logTarget) Offers(load.Case) bool { return true }

// Stop implements rounds.Target. MeasureLogs closes the files.
func (t *logTarget) Stop() {}

// Run implements rounds.Target.
func (t *logTarget) Run(ctx context.Context, c load.Case) (load.Result, error) {
	r := load.Run(ctx, c, nil, func(_ context.Context, s load.Step) error { return t.write(s.Caller, s.Value) })
	// A log that fails once does not continue, so its figures would be those of errors.
	if r.Errors > 0 {
		return r, fmt.Errorf("%s: %s", t.name, r.FirstError)
	}
	return r, nil
}

// groups makes the values of concurrent callers durable together: values that arrive during a commit are in the next one. The first caller of
// a group commits it, so a lone caller hands nothing over.
type groups struct {
	commit func(values [][]byte) error

	disk    sync.Mutex // held during a commit
	mu      sync.Mutex // guards forming
	forming *group
}

// group is the values of one commit.
type group struct {
	values [][]byte
	done   chan struct{}
	err    error
}

// write returns once a value is durable.
func (g *groups) write(_ int, value []byte) error {
	g.mu.Lock()
	b, first := g.forming, g.forming == nil
	if first {
		b = &group{done: make(chan struct{})}
		g.forming = b
	}
	b.values = append(b.values, value)
	g.mu.Unlock()
	if !first {
		<-b.done
		return b.err
	}
	// The group grows until the commit before it has ended.
	g.disk.Lock()
	g.mu.Lock()
	g.forming = nil
	g.mu.Unlock()
	b.err = g.commit(b.values)
	g.disk.Unlock()
	close(b.done)
	return b.err
}

// storeWriter returns a function that writes values to a store: a synced commit of the database, which has the log and a memtable.
func storeWriter(s *storage.Store) func(caller int, value []byte) error {
	local := s.Local(logSpace)
	return func(caller int, value []byte) error { return local.Set([]byte{byte(caller >> 8), byte(caller)}, value) }
}

// measuredLog is the node log with counters of its work.
type measuredLog struct {
	cfg    nodelog.Config
	log    *nodelog.Log
	target *logTarget
	// LogUse is written during commits, which follow one another.
	LogUse
}

// openNodeLog creates a node log.
func openNodeLog(dir string) (*measuredLog, error) {
	m := &measuredLog{cfg: nodelog.Config{Dir: dir, Boot: 1, Create: true}}
	m.cfg.Metrics = m
	m.target = &logTarget{name: nodeLog, write: (&groups{commit: m.commit}).write}
	var err error
	m.log, err = nodelog.Open(m.cfg)
	return m, err
}

// commit appends one record with all values, and syncs it. A full log is trimmed, as a store does after a flush.
func (m *measuredLog) commit(values [][]byte) error {
	_, err := m.log.Append(values...)
	if rhumb.KindOf(err) == rhumb.Overloaded {
		m.log.Trim(m.log.Synced())
		_, err = m.log.Append(values...)
	}
	if err != nil {
		return err
	}
	m.Records++
	return m.log.Sync()
}

// readBack opens the log again and reads it. The log refuses to open without a record that was synced.
func (m *measuredLog) readBack() (LogUse, error) {
	acknowledged := m.log.Synced()
	if err := m.log.Close(); err != nil {
		return m.LogUse, err
	}
	use := m.LogUse
	m.cfg.Boot, m.cfg.Synced, m.cfg.Create = 2, acknowledged, false
	var err error
	if m.log, err = nodelog.Open(m.cfg); err != nil {
		return use, err
	}
	for _, err := range m.log.Replay() {
		if err != nil {
			return use, err
		}
		use.Replayed++
	}
	return use, nil
}

// Stop closes the log.
func (m *measuredLog) Stop() {
	if m.log != nil {
		_ = m.log.Close()
	}
}

// Wrote implements nodelog.Metrics.
func (m *measuredLog) Wrote(bytes int) { m.Bytes += int64(bytes) }

// Synced implements nodelog.Metrics.
func (m *measuredLog) Synced(took time.Duration) { m.Syncs++; m.SyncNanos += took }

// Turned implements nodelog.Metrics.
func (m *measuredLog) Turned() { m.Turns++ }

// Refused implements nodelog.Metrics.
func (m *measuredLog) Refused() { m.Full++ }

// bareFile is a file that values are written to, with nothing that could find them again.
type bareFile struct {
	f    *os.File
	at   int64 // where the next group goes; negative: to the end
	size int64
	buf  []byte
}

// openBare creates a file: written over in turn once it was filled, or appended to.
func openBare(dir, name string) (*bareFile, error) {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	b := &bareFile{f: f, at: -1}
	if name == bareAppend {
		return b, nil
	}
	b.at, b.size = 0, bareBytes
	zeros := make([]byte, 1<<20)
	for range bareBytes / len(zeros) {
		if _, err := f.Write(zeros); err != nil {
			return b, errors.Join(err, f.Close())
		}
	}
	return b, f.Sync()
}

// commit writes values and syncs them.
func (b *bareFile) commit(values [][]byte) error {
	b.buf = b.buf[:0]
	for _, v := range values {
		b.buf = append(b.buf, v...)
	}
	if b.at >= 0 && b.at+int64(len(b.buf)) > b.size {
		b.at = 0
	}
	err := writeSynced(b.f, b.buf, b.at)
	if b.at >= 0 {
		b.at += int64(len(b.buf))
	}
	return err
}

// close closes the file.
func (b *bareFile) close() { _ = b.f.Close() }
