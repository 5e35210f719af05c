package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/disk"
)

// Plan describes a run.
type Plan struct {
	// Faults holds the names of the faults to draw from; empty means all that the
	// cluster can bear.
	Faults []string
	// Workloads holds the names of the workloads; empty means all.
	Workloads []string
	// Duration is how long faults are drawn, and Hold how long each lasts.
	Duration, Hold time.Duration
	// Seed decides which faults follow each other and whom they hit, and the operations
	// of the callers.
	Seed uint64
	// PerSecond bounds the steps of all workloads. Some steps make several calls.
	PerSecond int
	// AnyGap makes a run valid whatever time without service its keys had, and whatever
	// calls had no answer while the cluster was whole. On a machine that does other work as
	// well, the processes of the cluster wait for their turn.
	AnyGap bool
	// Meanwhile makes an operator change something during each fault: hand over, split,
	// drain, or rotate keys.
	Meanwhile bool
	// Soak draws only faults that end no process in the second half of the run, so that the
	// resources of processes that live long are judged, and mostly others in the first half.
	Soak bool
	// Profiles is the folder for heap profiles and metrics of the nodes, every ten minutes, or "".
	Profiles string
}

// lostWait bounds the last reads of all keys if the cluster did not come back from a fault.
const lostWait = time.Minute

// calm is the time between two faults, after the cluster is whole.
const calm = time.Second

// Result holds everything that a run observed.
type Result struct {
	// Program is the revision of the program, and Began when the load began.
	Program string
	Began   time.Time
	// Plan, Regions and Nodes are those of the run.
	Plan    Plan
	Regions []string
	Nodes   int
	// Previous is set if nodes ran the previous release.
	Previous bool
	// Verdicts has an element for each workload, and Windows one for each fault that
	// was tried.
	Verdicts []Verdict
	Windows  []Window
	// Calls are all calls of all workloads.
	Calls []Call
	// Samples are the resources of the nodes over time.
	Samples []Sample
	// sampleErr is why the last sample that failed did.
	sampleErr error
	// Examples holds the text of the first error of each kind.
	Examples map[rhumb.Kind]string
	// Length is how long the run took, including the final checks.
	Length time.Duration
	// Broken holds one line for each broken promise. A run is valid if it is empty.
	Broken []string
}

// ErrBroken is the error of a run whose history or gaps are not valid. The report has the details.
var ErrBroken = errors.New("the run is not valid")

// Err returns ErrBroken if a promise was broken.
func (r *Result) Err() error {
	if len(r.Broken) > 0 {
		return ErrBroken
	}
	return nil
}

// Exit codes of a run that is not valid, and on a machine that cannot run hosts.
const (
	ExitBroken      = 1
	ExitUnsupported = 3
)

// ExitCode returns the exit code for the error of a run: 1 if a promise was broken or the run could
// not be done, and 3 if this machine cannot run hosts. A broken promise stays one, whatever else
// failed afterwards.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, ErrBroken):
		return ExitUnsupported
	}
	return ExitBroken
}

// NeedsDisks reports whether the plan has faults for which each node needs a disk of
// its own, and this machine can make disks.
func (p *Plan) NeedsDisks() bool {
	return disk.Missing() == "" && slices.ContainsFunc(Faults(), func(f Fault) bool { return f.ownDisks() && selected(p.Faults, f.Name) })
}

// chosen returns the faults to draw from, in the order of Faults.
func (p *Plan) chosen(c *Cluster) (out []Fault, err error) {
	for _, f := range Faults() {
		if !selected(p.Faults, f.Name) {
			continue
		}
		// The loss of the only region is the loss of everything, which is another
		// fault.
		if f.Name == "region" && len(c.cfg.Regions) == 1 && len(p.Faults) == 0 {
			continue
		}
		if why := f.missing(&c.cfg); why != "" {
			if len(p.Faults) > 0 {
				return nil, fmt.Errorf("the fault %s is not possible here: %s", f.Name, why)
			}
			c.Logf("without the fault %s: %s", f.Name, why)
			continue
		}
		out = append(out, f)
	}
	return out, nil
}

// Check returns an error for values with which a run could not be done, or would prove nothing. trials
// is that of Measure, or 0. It is called before the cluster starts, which takes long.
func (p *Plan) Check(cfg *Config, trials int) error {
	positive := func(what string, ok bool) error {
		if ok {
			return nil
		}
		return fmt.Errorf("%s: want more than 0", what)
	}
	err := errors.Join(
		positive(fmt.Sprintf("a duration of %v", p.Duration), p.Duration > 0),
		positive(fmt.Sprintf("faults of %v", p.Hold), p.Hold > 0),
		positive(fmt.Sprintf("a rate of %d", p.PerSecond), p.PerSecond > 0),
		positive(fmt.Sprintf("%d nodes in each region", cfg.Nodes), cfg.Nodes > 0),
		positive(fmt.Sprintf("%d regions", len(cfg.Regions)), len(cfg.Regions) > 0),
	)
	if trials < 0 {
		err = errors.Join(err, fmt.Errorf("%d trials: want 0 or more", trials))
	}
	for i, name := range cfg.Regions {
		if name == "" || slices.Contains(cfg.Regions[:i], name) {
			err = errors.Join(err, fmt.Errorf("region %q is empty or named twice", name))
		}
	}
	faults := Faults()
	for _, name := range p.Faults {
		if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Name == name }) {
			err = errors.Join(err, fmt.Errorf("unknown fault %q; --list names all", name))
		}
	}
	for _, name := range p.Workloads {
		if !slices.ContainsFunc(workloads(), func(w workload) bool { return w.name == name }) {
			err = errors.Join(err, fmt.Errorf("unknown workload %q; --list names all", name))
		}
	}
	return err
}

// Run holds a load against the cluster, draws faults from the seed, heals each, and
// checks what clients saw. If enough is closed, no further fault is drawn, and the run is
// checked as far as it went. An error means that the run could not be done; broken
// promises are in Result.Broken.
func Run(ctx context.Context, c *Cluster, p Plan, enough <-chan struct{}) (*Result, error) {
	faults, err := p.chosen(c)
	if err != nil {
		return nil, err
	}
	faultDraws, err := newDraws(faults, p.Soak)
	if err != nil {
		return nil, err
	}
	// All workloads and faults write to the same record, so that their times compare.
	record := newRecord()
	l, err := startLoad(ctx, c, record, p.Seed, p.PerSecond, p.Workloads)
	if err != nil {
		return nil, err
	}
	var resources sampler
	sampling, stopSampling := context.WithCancel(ctx)
	defer stopSampling()
	go resources.follow(sampling, c, p.Profiles, record.now)
	r := &Result{Plan: p, Program: revision(c.cfg.Binary), Began: record.begin, Regions: c.cfg.Regions, Nodes: c.cfg.Nodes, Previous: c.cfg.Previous != ""}
	random := rand.New(rand.NewPCG(p.Seed, 0))
	lost := false // the cluster is not whole any more
	for record.now() < p.Duration {
		if err := wait(ctx, calm); err != nil {
			return nil, err
		}
		if isClosed(enough) {
			c.Logf("no further fault: what was seen until now is judged")
			break
		}
		f := faultDraws.next(random, record.now() > p.Duration/2)
		// A long run has enough splits, which is no reason to call it not valid.
		if err := maySplit(len(c.operator.Ranges())); f.Name == "split" && err != nil {
			c.Logf("without the fault split: %v", err)
			continue
		}
		if err := r.once(ctx, c, record, f, random); err != nil {
			// Nothing that follows would be comparable.
			lost = true
			break
		}
	}
	if len(r.Broken) == 0 && c.cfg.Previous != "" {
		// The error is in Broken.
		_ = r.once(ctx, c, record, finalize, random)
	}
	c.Logf("checking what clients saw")
	// The callers end before the histories are checked: a call in progress could change
	// a key that was checked already.
	final, cancel := ctx, context.CancelFunc(func() {})
	if lost {
		// Each of many keys would be waited for in turn.
		final, cancel = context.WithTimeout(ctx, lostWait)
	}
	r.Verdicts = l.finish(final)
	cancel()
	// The reads of an interrupted run fail, which says nothing about the cluster.
	if err := ctx.Err(); err != nil {
		err = fmt.Errorf("the run was interrupted, and what clients saw was not judged: %w", err)
		for _, broken := range r.Broken {
			err = errors.Join(err, errors.New(broken))
		}
		return nil, err
	}
	record.close()
	stopSampling()
	resources.mu.Lock()
	r.Samples, r.sampleErr = resources.samples, resources.err
	resources.mu.Unlock()
	r.Windows, r.Calls, r.Examples, r.Length = record.windows, record.calls, record.examples, record.now()
	r.judge()
	return r, nil
}

// isClosed reports whether a channel to which nobody sends is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// draws decides which fault is next.
type draws struct {
	// rough faults end processes, and gentle ones do not.
	rough, gentle []Fault
	soak          bool
	// times counts how often each fault was drawn, by name.
	times map[string]int
}

// newDraws returns an error if a soak of these faults could judge nothing.
func newDraws(faults []Fault, soak bool) (*draws, error) {
	d := &draws{soak: soak, times: map[string]int{}}
	for _, f := range faults {
		if f.endsProcesses() {
			d.rough = append(d.rough, f)
		} else {
			d.gentle = append(d.gentle, f)
		}
	}
	if soak && len(d.gentle) == 0 {
		return nil, errors.New("all faults end processes, so no resource can be judged; add others, such as cut or drain")
	}
	return d, nil
}

// next draws one of the faults that came least often, so that a short run tries as many as it can and a long one tries each about as
// often. The second half of a soak has only gentle faults; of those in the first half, about one in five is gentle.
func (d *draws) next(random *rand.Rand, secondHalf bool) Fault {
	var from []Fault
	switch {
	case !d.soak:
		from = slices.Concat(d.rough, d.gentle)
	case secondHalf || len(d.rough) == 0 || random.IntN(5) == 0:
		from = d.gentle
	default:
		from = d.rough
	}
	least := math.MaxInt
	for _, f := range from {
		least = min(least, d.times[f.Name])
	}
	from = slices.DeleteFunc(slices.Clone(from), func(f Fault) bool { return d.times[f.Name] > least })
	f := from[random.IntN(len(from))]
	d.times[f.Name]++
	return f
}

// once strikes a fault once and records the result. It returns an error if the cluster may still suffer from the fault.
func (r *Result) once(ctx context.Context, c *Cluster, record *Record, f Fault, random *rand.Rand) error {
	w, err := inflict(ctx, c, record, f, &r.Plan, random)
	w.Failed = err != nil
	c.Logf("%s", w)
	record.windows = append(record.windows, w)
	if err == nil {
		return nil
	}
	c.Logf("  %v", err)
	r.Broken = append(r.Broken, fmt.Sprintf("%s at %.1f s: %v", w.What, w.From.Seconds(), err))
	if canGoOn(err) {
		return nil
	}
	return err
}

// inflict strikes, waits, heals, and waits until the cluster is whole.
func inflict(ctx context.Context, c *Cluster, record *Record, f Fault, p *Plan, random *rand.Rand) (w Window, err error) {
	// Gap and Key are filled in by the deferred function, even if the strike failed.
	w = Window{Fault: f, What: f.Name, From: record.now()}
	defer func() {
		record.mu.Lock()
		defer record.mu.Unlock()
		w.Whole = record.now()
		w.measure(record.acks)
	}()
	// A strike that fails leaves nothing to heal.
	s, err := f.strike(ctx, c, random)
	if err != nil {
		w.To = record.now()
		return w, err
	}
	if p.Meanwhile {
		s = s.with(ctx, c, random)
	}
	w.What = s.What
	// The fault is healed even if the run was interrupted, so that the hosts can be
	// removed.
	if err := wait(ctx, p.Hold); err != nil {
		err = errors.Join(err, s.end(context.WithoutCancel(ctx), &w))
		w.To = record.now()
		return w, err
	}
	err = s.end(ctx, &w)
	w.To = record.now()
	return w, errors.Join(err, c.AwaitWhole(ctx, healWait))
}

// end heals a strike and keeps the evidence.
func (s *Strike) end(ctx context.Context, w *Window) (err error) {
	w.Evidence, err = s.heal(ctx)
	return err
}

// judge adds the verdicts of the workloads and the gaps in service to Broken.
func (r *Result) judge() {
	for _, v := range r.Verdicts {
		if err := v.problem(); err != nil {
			r.Broken = append(r.Broken, fmt.Sprintf("workload %s: %v", v.Workload, err))
		}
	}
	for _, w := range r.Windows {
		// A bound of 0 means that the fault has none.
		if !r.Plan.AnyGap && w.Fault.Gap > 0 && w.Gap > w.Fault.Gap {
			r.Broken = append(r.Broken, fmt.Sprintf("%s at %.1f s: %s had no service for %v, the bound is %v", w.What, w.From.Seconds(), w.Key, w.Gap.Round(time.Millisecond), w.Fault.Gap))
		}
	}
	r.Broken = append(r.Broken, judgeCalls(r.Calls, r.Windows, r.Examples, r.Previous, r.Plan.AnyGap)...)
	r.Broken = append(r.Broken, flat(r.growths())...)
	// A process that ends on its own, again and again, never lives long enough to be seen growing.
	if judged, nodes := judgedNodes(r.Samples, r.Length), max(1, r.Nodes*len(r.Regions)); r.Plan.Soak && judged < nodes {
		r.Broken = append(r.Broken, fmt.Sprintf("the processes of %d of %d nodes lived to the end and long enough for their resources to be judged: %d samples, the last that failed: %v",
			judged, nodes, len(r.Samples), r.sampleErr))
	}
	if len(r.Windows) == 0 {
		r.Broken = append(r.Broken, "no fault was tried")
	}
}

// growths returns how the resources of the nodes grew.
func (r *Result) growths() []growth {
	return growths(r.Samples, float64(len(r.Calls))/max(r.Length.Seconds(), 1))
}

// Operations returns how many operations were checked.
func (r *Result) Operations() (sum int) {
	for _, v := range r.Verdicts {
		sum += v.Operations
	}
	return sum
}
