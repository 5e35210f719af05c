package sim

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	seedsFlag   = flag.Int("sim.seeds", 20, "number of new seeds that TestSeeds runs")
	firstFlag   = flag.Uint64("sim.first", 1, "first of the new seeds")
	strideFlag  = flag.Uint64("sim.stride", 1, "distance between new seeds, for several processes that share the work")
	seedFlag    = flag.Uint64("sim.seed", 0, "run only this seed and write its trace")
	bugFlag     = flag.String("sim.bug", NoBug.String(), "bug to plant with -sim.seed")
	mixFlag     = flag.String("sim.mix", NoBug.String(), "bug whose faults -sim.seed or -sim.seeds is run with")
	faultsFlag  = flag.String("sim.faults", "", "faults of -sim.seed and of new seeds in place of their own, such as divide,merge,empty,flip")
	knownFlag   = flag.Bool("sim.known", true, "run the seeds of testdata/seeds.txt before the new ones")
	wholeFlag   = flag.Bool("sim.whole", false, "split no ranges")
	regionsFlag = flag.Bool("sim.regions", false, "run only those of the new seeds in which a region is lost for good, or one of many is removed")
	ownLogFlag  = flag.Bool("sim.own-log", false, "give the stores of -sim.seed, of new seeds, and of seeds with planted bugs and mixes logs of their own")
	lengthFlag  = flag.Duration("sim.duration", DurationDefault, "virtual length of one run")
)

// gcPercent trades memory for speed: a run produces much garbage and keeps little.
const gcPercent = 400

func TestMain(m *testing.M) {
	debug.SetGCPercent(gcPercent)
	os.Exit(m.Run())
}

// corpusSeeds reads testdata/seeds.txt: one seed per line, followed by the problem that it exposed. If that begins with "splits",
// the seed draws splits of ranges, if it begins with "merges" also merges, if it begins with "small" also merges that nobody asks for, and if it
// begins with "members" also removals of regions and deaths that last, if it begins with "deferred" also tables that defer syncs, and if it
// begins with "regions" also regions that are lost for good and removals of one of many, as new seeds do. With "regions own-log" the stores have
// logs of their own as well. Lines that begin with # are remarks.
func corpusSeeds(t *testing.T) (runs []Config) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "seeds.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		first, why, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if first == "" || strings.HasPrefix(first, "#") {
			continue
		}
		seed, err := strconv.ParseUint(first, 10, 64)
		if err != nil {
			t.Fatalf("testdata/seeds.txt: %v", err)
		}
		why = strings.TrimSpace(why)
		small := strings.HasPrefix(why, "small")
		regions, own := strings.HasPrefix(why, "regions"), strings.HasPrefix(why, "regions own-log")
		deferred := regions || strings.HasPrefix(why, "deferred")
		members := deferred || strings.HasPrefix(why, "members")
		small = small || members
		merges := small || strings.HasPrefix(why, "merges")
		runs = append(runs, Config{Seed: seed, Whole: !merges && !strings.HasPrefix(why, "splits"), Apart: !merges, Asked: !small, Settled: !members, Synced: !deferred, Kept: !regions, OwnLog: own})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return runs
}

// sum accumulates the results of many runs.
type sum struct {
	runs      int
	simulated time.Duration
	steps     uint64
	results   [5]int
	faults    [faultKinds]int
	epochs    int
	entries   int
	lost      int
	copied    int
	conformed int
	splits    int
	merges    int
	spoilt    int
	removed   int
	unread    int
	tallied   int
	void      int
	regions   int
	left      int
	givenUp   int
	forgone   int
	restarted int
	accepted  int
	standIns  int
	misled    int
	yielded   int
	closed    int
	slowest   time.Duration
	slowSeed  uint64
}

func (s *sum) add(r Result) {
	s.runs++
	s.simulated += r.Stats.Simulated
	s.steps += r.Stats.Steps
	for i, n := range r.Stats.Results {
		s.results[i] += n
	}
	for i, n := range r.Stats.Faults {
		s.faults[i] += n
	}
	s.epochs += r.Stats.Epochs
	s.entries += r.Stats.Entries
	s.lost += r.Stats.Lost
	s.copied += r.Stats.Copied
	s.conformed += r.Stats.Conformed
	s.splits += r.Stats.Splits
	s.merges += r.Stats.Merges
	s.spoilt += r.Stats.Spoilt
	s.unread += r.Stats.Unread
	s.tallied += r.Stats.Tallied
	s.void += r.Stats.Void
	s.removed += r.Stats.Removed
	s.regions += r.Stats.Regions
	s.left += r.Stats.Left
	s.givenUp += r.Stats.GivenUp
	s.forgone += r.Stats.Forgone
	s.restarted += r.Stats.Restarted
	s.accepted += r.Stats.Accepted
	s.standIns += r.Stats.StandIns
	s.misled += r.Stats.Misled
	s.yielded += r.Stats.Yielded
	s.closed += r.Stats.Closed
	if r.Stats.Recovery > s.slowest {
		s.slowest, s.slowSeed = r.Stats.Recovery, r.Seed
	}
}

func (s *sum) log(t *testing.T, wall time.Duration) {
	t.Helper()
	var faults strings.Builder
	for k, n := range s.faults {
		fmt.Fprintf(&faults, " %s %d", FaultKind(k), n)
	}
	t.Logf("%d seeds, %.2f simulated hours in %v: %.0f times real time, %.0f events/s",
		s.runs, s.simulated.Hours(), wall.Round(time.Millisecond), s.simulated.Seconds()/wall.Seconds(), float64(s.steps)/wall.Seconds())
	if spent := processorTime(t); spent > 0 {
		t.Logf("%.0f simulated hours per core-hour (%.2f s of processor time per seed); %d steps of replicas checked against the model",
			s.simulated.Seconds()/spent.Seconds(), spent.Seconds()/float64(s.runs), s.conformed)
	}
	t.Logf("operations: unknown %d, ok %d, unchanged %d, condition failed %d, not applied %d; %d log entries, %d epochs, %d closed timestamps, %d splits, %d merges",
		s.results[0], s.results[1], s.results[2], s.results[3], s.results[4], s.entries, s.epochs, s.closed, s.splits, s.merges)
	t.Logf("faults:%s", faults.String())
	t.Logf("slowest recovery %v (seed %d); replicas whose log was trimmed away: %d copied, %d not; %d chunks damaged on the way", s.slowest, s.slowSeed, s.copied, s.lost, s.spoilt)
	t.Logf("%d nodes removed, %d regions lost, %d regions removed, %d second phases of failover, %d metadata leaders with a wrong clock, %d disks that refused reads, %d messages with entries that an older build could not read",
		s.removed, s.regions, s.left, s.standIns, s.misled, s.yielded, s.unread)
	t.Logf("%d regions given up with %d ranges, of which %d began again empty; %d ranges continued without acknowledged writes", s.givenUp, s.forgone, s.restarted, s.accepted)
	t.Logf("%d acknowledgements by tallies, %d tallies void", s.tallied, s.void)
}

// processorTime returns the processor time that the process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Log(err)
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportFailure reports a failed run and keeps its trace among the artifacts of the test.
func reportFailure(t *testing.T, cfg Config, r Result) {
	t.Helper()
	path := filepath.Join(t.ArtifactDir(), fmt.Sprintf("seed-%d.trace", cfg.Seed))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewWriter(f)
	cfg.Trace = out
	again := Run(cfg)
	if err := out.Flush(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	t.Errorf("%v\nreplay: make sim SEED=%d (without splits: %v, with -sim.own-log: %v)\ntrace: %s", r.Err, cfg.Seed, cfg.Whole, cfg.OwnLog, path)
	if again.Digest != r.Digest {
		t.Errorf("seed %d: the replay differs: digest %x, then %x", cfg.Seed, r.Digest, again.Digest)
	}
}

// runSeed runs one seed and reports its failure.
func runSeed(t *testing.T, cfg Config) Result {
	t.Helper()
	r := Run(cfg)
	if r.Err != nil {
		reportFailure(t, cfg, r)
	}
	return r
}

// chosenFaults returns the faults of -sim.faults.
func chosenFaults(t *testing.T) []FaultKind {
	t.Helper()
	faults, ok := ParseFaults(*faultsFlag)
	if !ok {
		t.Fatalf("unknown fault in %q; the faults are %v", *faultsFlag, faultNames)
	}
	return faults
}

// failuresMax is the number of failed seeds after which TestSeeds stops.
const failuresMax = 5

// TestSeeds runs every seed that ever exposed a problem, then new ones. No check may fail.
func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("-sim.seed selects a single seed")
	}
	mix, ok := ParseBug(*mixFlag)
	if !ok {
		t.Fatalf("unknown bug %q; the bugs are %v", *mixFlag, bugNames)
	}
	faults := chosenFaults(t)
	var total sum
	began := time.Now()
	var runs []Config
	if *knownFlag {
		runs = corpusSeeds(t)
	}
	known := len(runs)
	for seed := *firstFlag; len(runs) < known+*seedsFlag; seed += *strideFlag {
		cfg := Config{Seed: seed, Whole: *wholeFlag, OwnLog: *ownLogFlag, Faults: faults, Mix: mix}
		if p := profileOf(cfg); !*regionsFlag || p.many || p.losesForGood() {
			runs = append(runs, cfg)
		}
	}
	failures := 0
	for _, cfg := range runs {
		cfg.Duration, cfg.Mix = *lengthFlag, mix
		r := runSeed(t, cfg)
		total.add(r)
		if r.Err != nil {
			failures++
		}
		if failures == failuresMax {
			t.Logf("%d seeds failed; skipping the rest", failures)
			break
		}
	}
	t.Logf("%d known seeds, then %d starting at %d", known, *seedsFlag, *firstFlag)
	total.log(t, time.Since(began))
	if total.results[1] == 0 || total.closed == 0 {
		t.Error("no operation succeeded, or nothing was closed, in any run")
	}
}

// TestOneSeed runs -sim.seed and writes its trace.
func TestOneSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("needs -sim.seed")
	}
	bug, ok := ParseBug(*bugFlag)
	mix, okMix := ParseBug(*mixFlag)
	if !ok || !okMix {
		t.Fatalf("unknown bug %q; the bugs are %v", *bugFlag, bugNames)
	}
	path := filepath.Join(t.ArtifactDir(), fmt.Sprintf("seed-%d.trace", *seedFlag))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	r := Run(Config{Seed: *seedFlag, Duration: *lengthFlag, Bug: bug, Mix: mix, Whole: *wholeFlag, OwnLog: *ownLogFlag, Faults: chosenFaults(t), Trace: out})
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("trace: %s", path)
	var total sum
	total.add(r)
	total.log(t, time.Second)
	if r.Err != nil {
		t.Error(r.Err)
	}
}

// TestSameSeedSameRun checks that a seed determines the whole run. Otherwise failures could not be
// replayed. Seeds 4 and 6 had two runs each while the disk learned from the log file whether work synced anything: the
// engine writes that file in the background.
func TestSameSeedSameRun(t *testing.T) {
	seeds := []uint64{307, 1480} // a region is lost for good
	for seed := uint64(1); seed <= 15; seed++ {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		cfg := Config{Seed: seed, Duration: 20 * time.Second}
		cfg.OwnLog = seed%3 == 0
		first, second := Run(cfg), Run(cfg)
		if first.Digest != second.Digest || first.Stats != second.Stats {
			t.Errorf("seed %d: two runs differ: %+v, %+v", seed, first, second)
		}
	}
}

// TestDamagedSplits damages disks while ranges are split and merged, which few seeds draw together. Seed 339 without merges found that a node may show
// a join of an earlier life, decided before the damage, in one step with the registration of the next life; 1261 found
// that an elected node did not learn that the log of another one is trimmed where theirs part (TestSuffixBelowTrim), and 2096 that a join was proposed again
// for a later life (TestJoinIsOfOneLife). In 2033 the first write to a range in five seconds was under way when the judge looked.
func TestDamagedSplits(t *testing.T) {
	for _, names := range []string{"divide,empty,flip,torn,roll-back", "divide,merge,empty,flip,torn,roll-back"} {
		faults, ok := ParseFaults(names)
		if !ok {
			t.Fatalf("%q has an unknown fault", names)
		}
		for _, seed := range []uint64{339, 856, 1028, 1070, 1261, 2033, 2096} {
			runSeed(t, Config{Seed: seed, Asked: seed < 1100, Faults: faults})
		}
	}
}
