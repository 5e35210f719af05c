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

	"github.com/rhumbdb/rhumb/bench/roads"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// run is a run under way.
type run struct {
	cfg Config
	mem memory

	pub   *snapshot.Publisher
	table *snapshot.Table

	c, small, golang *worker // C with huge pages, C without, Go
	workers          []*worker
	next             uint64 // the position in the order of keys
	bulk             int    // the changes of a large commit

	s      *samples
	report Report
	tiles  map[string]string // files of tiles by name
	boxes  []format.Box
}

// section is a part of a run that can be left out.
type section struct {
	name string
	run  func(*run, context.Context) error
}

// sections in the order in which they run; build always does.
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

// Sections lists the names that Config.Only may hold.
func Sections() (names []string) {
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// Run builds an image in memory and measures it. It removes everything it made.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg = cfg.filled()
	if err := cfg.checkMemory(); err != nil {
		return nil, err
	}
	for _, name := range cfg.Only {
		if !slices.Contains(Sections(), name) {
			return nil, fmt.Errorf("there is no section %q; there are %v", name, Sections())
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &run{cfg: cfg, s: newSamples(), tiles: map[string]string{}}
	err := r.all(ctx)
	return &r.report, errors.Join(err, r.close())
}

func (r *run) all(ctx context.Context) error {
	start := time.Now()
	usage := newUsage()
	if err := r.build(ctx); err != nil {
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
	r.report.Others = usage.others(r.pids())
	r.report.Seconds = time.Since(start).Seconds()
	r.finish()
	return nil
}

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

func (r *run) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

func (r *run) pids() (pids []int) {
	pids = append(pids, os.Getpid())
	for _, w := range r.workers {
		pids = append(pids, w.cmd.Process.Pid)
	}
	return pids
}

// start starts a worker that is stopped with the run.
func (r *run) start(ctx context.Context, name string, seed int, command ...string) (*worker, error) {
	w, err := startWorker(ctx, name, command...)
	if err == nil {
		r.workers = append(r.workers, w)
		_, err = w.do("keys", 1, 0) // it is attached once it answers
	}
	return w, err
}

func (r *run) startC(ctx context.Context, seed int, pages string) (*worker, error) {
	return r.start(ctx, fmt.Sprintf("C %d %s", seed, pages), seed, r.cfg.Worker, r.mem.path("image"), tableName, fmt.Sprint(r.cfg.Records), fmt.Sprint(seed), pages)
}

func (r *run) startGo(ctx context.Context, seed int) (*worker, error) {
	return r.start(ctx, fmt.Sprintf("Go %d", seed), seed, slices.Concat(r.cfg.Self, []string{r.mem.path("image"), tableName, fmt.Sprint(r.cfg.Records), fmt.Sprint(seed)})...)
}

// tableName is the table of the image.
const tableName = "roads"

// appendsEach is how many changes the append areas take at least.
const appendsEach = 4_000_000

// appendRatio is the append area of a shard as a part of its base.
func (r *run) appendRatio() float64 {
	return min(max(appendsEach/float64(r.cfg.Records), snapshot.AppendRatioDefault), 8)
}

func (r *run) build(ctx context.Context) (err error) {
	cfg := &r.cfg
	if r.mem, err = makeMemory(cfg.Dir); err != nil {
		return err
	}
	r.report.Records, r.report.Rounds, r.report.Mounted = cfg.Records, cfg.Rounds, r.mem.mounted
	r.report.CPUs, r.report.Processor = runtime.NumCPU(), processor()
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
	if err := r.load(ctx, "load, new pages"); err != nil {
		return err
	}
	if cfg.Records <= warmMax {
		for range 2 { // the second has all files recycled
			if err := r.load(ctx, "load, recycled pages"); err != nil {
				return err
			}
		}
		r.s.values["load, recycled pages"] = r.s.values["load, recycled pages"][1:]
	}
	r.report.Bytes, r.report.Shards = r.pub.Stats().Bytes, int(r.table.ShardCount)
	return r.startWorkers(ctx)
}

// warmMax bounds the records of a table that is loaded again, since that needs twice the memory.
const warmMax = 8_000_000

// loadAsks is after how many records a load asks whether it is wanted still.
const loadAsks = 1 << 16

// load fills the table, and takes the processor time of a record.
func (r *run) load(ctx context.Context, name string) error {
	value := newValue()
	begin := threadCPU()
	_, err := r.pub.Load(r.table, func(yield func(snapshot.Record, error) bool) {
		for i, b := range r.boxes {
			if i%loadAsks == 0 && ctx.Err() != nil {
				yield(snapshot.Record{}, ctx.Err())
				return
			}
			stampValue(value, uint64(i))
			if !yield(snapshot.Record{Key: format.Key{Number: mix(uint64(i))}, Box: b, HasBox: true, Value: value}, nil) {
				return
			}
		}
	}, snapshot.CommitInfo{})
	r.s.add(name, "ns/record", float64(threadCPU()-begin)/float64(r.cfg.Records))
	r.pub.Beat()
	return err
}

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
	if r.report.HugeShare < 0.9 {
		r.note("only %.0f %% of the reader's memory is on huge pages: mount a tmpfs with huge=advise (as root this is done), else figures are those of small pages", 100*r.report.HugeShare)
	}
	return err
}

// turn is what one worker does when it is its turn.
type turn struct {
	name   string // of the samples
	worker *worker
	what   string
	arg    any
	ops    int
}

// rounds lets turns alternate. Before each round every worker gets other keys; the order rotates.
func (r *run) rounds(turns []turn) error {
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
			if got.Found != got.Ops {
				return fmt.Errorf("%s found %d of %d", t.name, got.Found, got.Ops)
			}
			r.s.add(t.name, "ns", got.perOp())
		}
	}
	return nil
}

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
	r.next += uint64(longest)
	return nil
}

// ops gives the size of a turn for an operation that is so many times as slow as a read.
func (r *run) ops(slower int) int { return max(min(r.cfg.Ops, r.cfg.Records)/slower, 1) }

// newValue makes a value as the image stores it: opaque bytes.
func newValue() []byte {
	v := make([]byte, valueSize)
	for i := range v {
		v[i] = byte(i)
	}
	v[0] = 0x11
	return v
}

// processor gives the name of the machine's processor.
func processor() string {
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
