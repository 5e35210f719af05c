package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/roads"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// run is a run in progress.
type run struct {
	cfg Config
	mem memory

	pub   *snapshot.Publisher
	table *snapshot.Table

	c, small, golang *worker // C with huge pages, C with small pages, Go
	workers          []*worker
	next             uint64 // position in the order of keys
	bulk             int    // number of changes in a large commit

	s      *samples
	report Report
	tiles  map[string]string // files of tiles, by name
	boxes  []format.Box
}

// section is a part of a run that can be left out.
type section struct {
	name string
	run  func(*run, context.Context) error
}

// sections are all sections in the order in which they run, after the image is built.
var sections = []section{
	{"get", (*run).measureGet},
	{"chain", (*run).measureChain},
	{"map", (*run).measureMap},
	{"lmdb", (*run).measureLMDB},
	{"redis", (*run).measureRedis},
	{"spatial", (*run).measureSpatial},
	{"attach", (*run).measureAttach},
	{"scale", (*run).measureScale},
	{"refresh", (*run).measureRefresh},
	{"visible", (*run).measureVisible},
	{"pairs", (*run).measurePairs},
	{"versions", (*run).measureVersions},
	{"publish", (*run).measurePublish},
	{"roll", (*run).measureRoll},
}

// Sections returns the names that Config.Only may hold.
func Sections() (names []string) {
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// Run builds an image in memory and measures it. It removes everything that it created.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.checkMemory(); err != nil {
		return nil, err
	}
	for _, name := range cfg.Only {
		// A misspelt section must not pass as one that measured nothing.
		if !slices.Contains(Sections(), name) {
			return nil, fmt.Errorf("unknown section %q; the sections are %v", name, Sections())
		}
	}
	// threadCPU measures this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &run{cfg: cfg, s: newSamples(), tiles: map[string]string{}}
	err := r.measureAll(ctx)
	return &r.report, errors.Join(err, r.close())
}

// measureAll builds the image and runs the sections.
func (r *run) measureAll(ctx context.Context) error {
	start := time.Now()
	usage := load.StartUsage(nil)
	if err := r.buildImage(ctx); err != nil {
		return err
	}
	for _, s := range sections {
		if len(r.cfg.Only) > 0 && !slices.Contains(r.cfg.Only, s.name) {
			continue
		}
		begin := time.Now()
		if err := s.run(r, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		r.cfg.Progress(fmt.Sprintf("%-8s %6.1f s", s.name, time.Since(begin).Seconds()))
	}
	r.report.Others = usage.OtherCores(r.processIDs())
	r.report.Seconds = time.Since(start).Seconds()
	// Goals need the samples of all sections.
	r.computeResults()
	return nil
}

// close stops the workers before it removes the memory that they map.
func (r *run) close() (err error) {
	for _, w := range r.workers {
		w.stop()
	}
	if r.pub != nil {
		err = r.pub.Close()
	}
	if r.mem.dir != "" {
		err = errors.Join(err, r.mem.remove())
	}
	return err
}

// addNote adds a remark to the report.
func (r *run) addNote(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

// processIDs returns the processes of the run.
func (r *run) processIDs() (pids []int) {
	pids = append(pids, os.Getpid())
	for _, w := range r.workers {
		pids = append(pids, w.cmd.Process.Pid)
	}
	return pids
}

// startProcess starts a worker that stops with the run.
func (r *run) startProcess(ctx context.Context, name string, command ...string) (*worker, error) {
	w, err := startWorker(ctx, name, command...)
	if err == nil {
		r.workers = append(r.workers, w)
		// The worker is attached once it answers.
		_, err = w.do("keys", 1, 0)
	}
	return w, err
}

// startC starts a worker in C. pages is "huge" or "small".
func (r *run) startC(ctx context.Context, seed int, pages string) (*worker, error) {
	return r.startProcess(ctx, fmt.Sprintf("C %d %s", seed, pages), r.cfg.Worker, r.mem.path("image"), tableName, fmt.Sprint(r.cfg.Records), fmt.Sprint(seed), pages)
}

// startGo starts a worker in Go.
func (r *run) startGo(ctx context.Context, seed int) (*worker, error) {
	return r.startProcess(ctx, fmt.Sprintf("Go %d", seed), slices.Concat(r.cfg.Self, []string{r.mem.path("image"), tableName, fmt.Sprint(r.cfg.Records), fmt.Sprint(seed)})...)
}

// tableName is the name of the table in the image.
const tableName = "roads"

// appendsEach is the least number of changes that fit into the append areas.
const appendsEach = 4_000_000

// appendRatio returns the append area of a shard as a share of its base. Small images get a larger
// one, so that appendsEach changes fit.
func (r *run) appendRatio() float64 {
	return min(max(appendsEach/float64(r.cfg.Records), snapshot.AppendRatioDefault), 8)
}

// buildImage creates the image and starts the workers.
func (r *run) buildImage(ctx context.Context) (err error) {
	cfg := &r.cfg
	if r.mem, err = makeMemory(cfg.Dir); err != nil {
		return err
	}
	r.report.Records, r.report.Rounds, r.report.Mounted = cfg.Records, cfg.Rounds, r.mem.mounted
	r.report.CPUs, r.report.Processor = runtime.NumCPU(), processorName()
	if r.pub, err = snapshot.Open(snapshot.Config{
		Dir: r.mem.path("image"), Budget: 1 << 40, HugePages: snapshot.HugeTry, Recycle: 1 << 10,
		AppendRatio: r.appendRatio(),
	}); err != nil {
		return err
	}
	cfg.Progress(fmt.Sprintf("building an image of %d records in %s", cfg.Records, r.mem.dir))
	r.boxes = roads.New(cfg.Seed).Boxes(cfg.Records)
	if r.table, err = r.pub.Table(snapshot.TableSpec{ID: 1, Name: tableName, Spatial: true, Shards: cfg.Shards, ExpectedRecords: int64(cfg.Records)}); err != nil {
		return err
	}
	if err := r.loadTable(ctx, "load, new pages"); err != nil {
		return err
	}
	if cfg.Records <= warmMax {
		// The second load finds all files recycled.
		for range 2 {
			if err := r.loadTable(ctx, "load, recycled pages"); err != nil {
				return err
			}
		}
		// The first of the two loads still creates files.
		r.s.values["load, recycled pages"] = r.s.values["load, recycled pages"][1:]
	}
	r.report.Bytes, r.report.Shards = r.pub.Stats().Bytes, int(r.table.ShardCount)
	return r.startWorkers(ctx)
}

// warmMax bounds the records of a table that is loaded again, which needs twice the memory.
const warmMax = 8_000_000

// loadAsks is the number of records between two checks of the context.
const loadAsks = 1 << 16

// loadTable fills the table and adds the processor time per record to the samples.
func (r *run) loadTable(ctx context.Context, name string) error {
	value := newValue()
	begin := threadCPU()
	_, err := r.pub.Load(r.table, func(yield func(snapshot.Record, error) bool) {
		for i, b := range r.boxes {
			// A load takes seconds and must end after an interrupt.
			if i%loadAsks == 0 && ctx.Err() != nil {
				yield(snapshot.Record{}, ctx.Err())
				return
			}
			stampValue(value, uint64(i))
			if !yield(snapshot.Record{Key: format.Key{Number: mixKey(uint64(i))}, Box: b, HasBox: true, Value: value}, nil) {
				return
			}
		}
	}, snapshot.CommitInfo{})
	r.s.add(name, "ns/record", float64(threadCPU()-begin)/float64(r.cfg.Records))
	r.pub.Beat()
	return err
}

// startWorkers starts the two workers that most sections use.
func (r *run) startWorkers(ctx context.Context) (err error) {
	if r.c, err = r.startC(ctx, 1, "huge"); err != nil {
		return err
	}
	if r.golang, err = r.startGo(ctx, 2); err != nil {
		return err
	}
	got, err := r.c.do("huge", 0, 0)
	if got.Ops > 0 {
		r.report.HugeShare = float64(got.Found) / float64(got.Ops)
	}
	// On small pages the figures are those of address translation, not of the image.
	if r.report.HugeShare < 0.9 {
		r.addNote("only %.0f %% of the reader's memory is on huge pages, so the figures are those of small pages; run as root, or set --memory to a directory on a tmpfs mounted with huge=advise", 100*r.report.HugeShare)
	}
	return err
}

// turn is the work of one worker in its turn.
type turn struct {
	name   string // name of the samples
	worker *worker
	what   string
	arg    any
	ops    int
}

// runRounds lets turns alternate. Before each round every worker gets other keys, and the order
// rotates: no case always runs in the caches that another one left.
func (r *run) runRounds(turns []turn) error {
	for round := range r.cfg.Rounds {
		if err := r.freshKeys(turns); err != nil {
			return err
		}
		for i := range turns {
			t := turns[(i+round)%len(turns)]
			got, err := t.worker.do(t.what, t.ops, t.arg)
			if err != nil {
				return err
			}
			// A missing key would make a read cheaper than it is.
			if got.Found != got.Ops {
				return fmt.Errorf("%s found %d of %d", t.name, got.Found, got.Ops)
			}
			r.s.add(t.name, "ns", got.perOp())
		}
	}
	return nil
}

// freshKeys sends each worker the keys for its longest turn.
func (r *run) freshKeys(turns []turn) error {
	most := map[*worker]int{}
	for _, t := range turns {
		if t.worker != nil {
			most[t.worker] = max(most[t.worker], t.ops)
		}
	}
	longest := 0
	for w, n := range most {
		if _, err := w.do("keys", n, r.next); err != nil {
			return err
		}
		longest = max(longest, n)
	}
	// All workers share one position, so no key repeats within a pass over the records.
	r.next += uint64(longest)
	return nil
}

// turnSize returns the number of operations of a turn for an operation that is slower by the given
// factor.
func (r *run) turnSize(slower int) int { return max(min(r.cfg.Ops, r.cfg.Records)/slower, 1) }

// newValue returns a value in the form that the image stores: opaque bytes.
func newValue() []byte {
	v := make([]byte, valueSize)
	for i := range v {
		v[i] = byte(i)
	}
	// 0x11 is the tag of opaque values.
	v[0] = 0x11
	return v
}

// processorName returns the name of the processor.
func processorName() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
