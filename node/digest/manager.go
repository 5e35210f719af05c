package digest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

const (
	// IntervalDefault is how often each range is compared.
	IntervalDefault = 24 * time.Hour
	// RateDefault is how many bytes per second a node reads for all comparisons. A node with a terabyte has
	// compared it after 18 hours, and a disk does not notice it.
	RateDefault = 16 << 20
	// lookEvery is how often the manager looks for a range that is due.
	lookEvery = time.Second
	// answersMost bounds the digests that a node computes at a time. Others wait.
	answersMost = 4
	// behindMost bounds how long a replica waits until it has committed the position of a question.
	behindMost = 10 * time.Second
	// answerMost bounds one comparison: 64 GiB take about an hour at the default rate.
	answerMost = 4 * time.Hour
)

// Question asks a replica for a digest.
type Question struct {
	Range rhumb.RangeID
	// Seq is the position that the replica must have committed, and At the timestamp there.
	Seq rhumb.Seq
	At  rhumb.Timestamp
}

// Point is a committed position of a range, and the range's record and settings at that moment.
type Point struct {
	Question
	// Record is not newer than the position: replicas that join later are left for the next time.
	Record *rhumb.Range
	// MinInSync is that of the range's class.
	MinInSync int
}

// Host is the access to the replicas of this node. Its methods may be called from any goroutine, and those with a
// context wait for a pass of the host.
type Host interface {
	// Primaries returns the ranges whose primary is here, in ascending order.
	Primaries() []rhumb.RangeID
	// DigestPoint returns the position up to which the primary of a range has committed.
	DigestPoint(ctx context.Context, id rhumb.RangeID) (Point, error)
	// AwaitCommitted waits until an intact replica has committed a position.
	AwaitCommitted(ctx context.Context, id rhumb.RangeID, seq rhumb.Seq) error
	// Distrust quarantines the replica of this node because others differ from it.
	Distrust(ctx context.Context, id rhumb.RangeID, from rhumb.NodeID, why string) error
}

// Network reaches the managers of other nodes. A call ends with its context, and when the connection breaks; a node
// that is alive and slow is waited for.
type Network interface {
	// AskDigest asks a node for the digest of its replica.
	AskDigest(ctx context.Context, to rhumb.NodeID, q Question) (*storage.Digest, error)
	// Distrust makes a node quarantine its replica.
	Distrust(ctx context.Context, to rhumb.NodeID, id rhumb.RangeID, why string) error
}

// Config configures a Manager.
type Config struct {
	Self rhumb.NodeID
	// Engine is read only.
	Engine *storage.Engine
	Host   Host
	Net    Network
	// Logger gets every difference as an error: it is worth a look, also if the range mends itself.
	Logger *slog.Logger
	// Interval is how often each range is compared; at most 0 means only when asked.
	Interval time.Duration
	// Rate bounds the bytes per second that this node reads for digests; 0 means no bound.
	Rate int64
	// Enabled reports whether every node of the cluster knows digests.
	Enabled func() bool
	// Dropped returns, from the newest metadata of the cluster, which tables do not exist any more.
	Dropped func(ctx context.Context) (func(rhumb.TableID) bool, error)
}

// Report is the result of the comparison of one range.
type Report struct {
	Verdict
	Question
	// Answers has one element for each replica in the record, in that order.
	Answers []Answer
	// Distrusted are the replicas that were quarantined.
	Distrusted []rhumb.NodeID
	// Took includes the second comparison, if there was one.
	Took time.Duration
}

// Manager compares ranges in one life of a node.
type Manager struct {
	cfg    Config
	m      metrics
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	// answering has room for answersMost calls. Each of them holds an iterator, which keeps obsolete tables
	// on the disk.
	answering chan struct{}

	mu sync.Mutex // guards all below
	// differing are the ranges whose last comparison found a difference.
	differing map[rhumb.RangeID]Difference
	// verifying are the ranges that are being compared.
	verifying map[rhumb.RangeID]bool
	// free is when everything that was read so far has passed at the rate.
	free   time.Time
	closed bool
}

// New starts a manager.
func New(cfg Config) *Manager {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{
		cfg: cfg, m: newMetrics(), ctx: ctx, cancel: cancel, answering: make(chan struct{}, answersMost),
		differing: map[rhumb.RangeID]Difference{}, verifying: map[rhumb.RangeID]bool{},
	}
	if cfg.Interval > 0 {
		m.work.Go(m.compareAll)
	}
	return m
}

// Close ends all comparisons and waits until none uses the engine.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.work.Wait()
}

// compareAll, Answer and Verify all read the engine, which is closed soon after Close returns. Every one of them is
// counted in work, so that none reads a closed database.

// enter counts a call that uses the engine, and returns a context that ends with the manager.
func (m *Manager) enter(op rhumb.Op, ctx context.Context) (context.Context, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, rhumb.E(op, rhumb.Unavailable, "the node is stopping")
	}
	if !m.cfg.Enabled() {
		return nil, nil, rhumb.E(op, rhumb.Incompatible, "digests of ranges need a newer cluster version; see `rhumb upgrade status`")
	}
	m.work.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.ctx, cancel)
	return ctx, func() { stop(); cancel(); m.work.Done() }, nil
}

// compareAll compares one range after the other, each once per interval.
func (m *Manager) compareAll() {
	p := newPlan(m.cfg.Interval)
	began := time.Now()
	tick := time.NewTicker(min(lookEvery, m.cfg.Interval))
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		if !m.cfg.Enabled() {
			continue
		}
		id, ok := p.next(time.Since(began), m.cfg.Host.Primaries())
		if !ok {
			continue
		}
		// One range at a time: the others of this node are answered meanwhile, and share the rate.
		r, err := m.Verify(m.ctx, id, rhumb.NoNode)
		settled := err == nil && (r.Result == Equal || len(r.Distrusted) > 0)
		p.done(time.Since(began), id, settled)
		if err != nil && m.ctx.Err() == nil {
			m.cfg.Logger.Info("a range was not compared; it is tried again", "range", id.String(), "err", err)
		}
	}
}

// Answer computes the digest of this node's replica. It may take as long as reading the range at the rate; the
// caller's context ends it earlier. The replica may be in the in-sync set or not: a learner that has the
// position has the same records.
func (m *Manager) Answer(ctx context.Context, q Question) (*storage.Digest, error) {
	const op rhumb.Op = "digest.Manager.Answer"
	ctx, leave, err := m.enter(op, ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	select {
	case m.answering <- struct{}{}:
	case <-ctx.Done():
		return nil, rhumb.WrapKind(op, rhumb.Unavailable, ctx.Err())
	}
	defer func() { <-m.answering }()
	// A replica that lags for longer is not compared this time. Its primary reports lagging replicas anyway.
	waiting, cancel := context.WithTimeout(ctx, behindMost)
	err = m.cfg.Host.AwaitCommitted(waiting, q.Range, q.Seq)
	cancel()
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	d, err := m.cfg.Engine.Store(q.Range).Digest(ctx, q.Range, q.At, m.pace)
	if err != nil {
		m.m.failed.Inc()
		return nil, rhumb.Wrap(op, err)
	}
	return d, nil
}

// pace waits until bytes may be read. All digests that this node computes share the rate, for comparisons of its own
// and for those of other primaries, so the load of a disk does not grow with the number of nodes that ask.
func (m *Manager) pace(ctx context.Context, bytes int) error {
	m.m.read.Add(float64(bytes))
	if m.cfg.Rate <= 0 {
		return nil
	}
	m.mu.Lock()
	now := time.Now()
	if m.free.Before(now) {
		m.free = now
	}
	// Callers that wait at the same time wait one after the other, so the sum of all keeps to the rate.
	m.free = m.free.Add(time.Duration(float64(bytes) / float64(m.cfg.Rate) * float64(time.Second)))
	wait := m.free.Sub(now)
	m.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return rhumb.WrapKind("digest.pace", rhumb.Unavailable, ctx.Err())
	}
}

// Verify compares the replicas of a range whose primary is this node. If replicas differ, it compares again,
// and quarantines those that differ both times. trust names the replica whose copy is right if no copy has a
// majority; rhumb.NoNode means that nobody has decided that.
func (m *Manager) Verify(ctx context.Context, id rhumb.RangeID, trust rhumb.NodeID) (Report, error) {
	const op rhumb.Op = "digest.Manager.Verify"
	ctx, leave, err := m.enter(op, ctx)
	if err != nil {
		return Report{}, err
	}
	defer leave()
	m.mu.Lock()
	busy := m.verifying[id]
	m.verifying[id] = true
	m.mu.Unlock()
	if busy {
		return Report{}, rhumb.Ef(op, rhumb.Unavailable, "range %s is being compared at the moment; retry", id)
	}
	defer func() {
		m.mu.Lock()
		delete(m.verifying, id)
		m.mu.Unlock()
	}()
	// Two comparisons of a range at a time would confirm each other, although both may have met the same
	// passing state of a replica: hence verifying, above.
	began := time.Now()
	r, err := m.compare(ctx, id, trust)
	if err == nil && r.Result == Differ && r.May {
		first := r.Verdict
		// The primary may have changed, a replica may have been replaced from another set, or a collection may
		// have outrun a restart: a difference that is not there again was one of the comparison.
		if r, err = m.compare(ctx, id, trust); err == nil && Confirmed(&first, &r.Verdict) {
			m.distrust(ctx, &r)
		}
	}
	r.Took = time.Since(began)
	if err != nil {
		m.m.failed.Inc()
		return r, rhumb.Wrap(op, err)
	}
	m.note(&r)
	return r, nil
}

// compare asks all replicas of the record once, also those that are not in sync or quarantined: whether an answer
// counts is for Judge. The error is about the comparison as a whole; a replica that does not answer causes none.
func (m *Manager) compare(ctx context.Context, id rhumb.RangeID, trust rhumb.NodeID) (r Report, err error) {
	p, err := m.cfg.Host.DigestPoint(ctx, id)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerMost)
	defer cancel()
	// All at once: the longer a replica waits, the more likely it has collected versions as of the timestamp.
	r.Question = p.Question
	r.Answers = make([]Answer, len(p.Record.Replicas))
	var asked sync.WaitGroup
	for i, n := range p.Record.Replicas {
		asked.Go(func() {
			a := Answer{Node: n}
			if n == m.cfg.Self {
				a.Digest, a.Err = m.Answer(ctx, p.Question)
			} else {
				a.Digest, a.Err = m.cfg.Net.AskDigest(ctx, n, p.Question)
			}
			r.Answers[i] = a
		})
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return r, rhumb.WrapKind("digest.compare", rhumb.Unavailable, err)
	}
	// A range that was split or merged meanwhile has other keys at some replicas.
	for i := range r.Answers {
		if a := &r.Answers[i]; a.Digest != nil && a.Digest.Last != p.Record.LastSlot() {
			a.Digest, a.Err = nil, rhumb.Ef("digest.compare", rhumb.Unavailable, "%s has another span of range %s; retry", a.Node, id)
		}
	}
	ignored := func(rhumb.TableID) bool { return false }
	if r.Verdict = Judge(p.Record, p.MinInSync, r.Answers, trust, ignored); r.Result == Equal || r.Result == Alone {
		return r, nil
	}
	// A dropped table does not count as a difference: replicas delete its records at different times. The newest metadata
	// decides, because a replica may know a drop that this node does not know yet.
	if ignored, err = m.cfg.Dropped(ctx); err != nil {
		return r, err
	}
	r.Verdict = Judge(p.Record, p.MinInSync, r.Answers, trust, ignored)
	return r, nil
}

// distrust quarantines the replicas that differ. Each replica quarantines itself, because metadata accepts a
// quarantine from the node concerned only (docs/replication.md#rule-speaker), and because the reason belongs on the
// disk with the wrong copy.
func (m *Manager) distrust(ctx context.Context, r *Report) {
	why := fmt.Sprintf("its records of table %d differ from those of %v as of %s (position %d)", r.Table, r.Trusted, r.At, r.Seq)
	// This node is the last, because without its role the others do not believe it.
	order := slices.Clone(r.Differ)
	if i := slices.Index(order, m.cfg.Self); i >= 0 {
		order = append(slices.Delete(order, i, i+1), m.cfg.Self)
	}
	for _, n := range order {
		var err error
		if n == m.cfg.Self {
			err = m.cfg.Host.Distrust(ctx, r.Range, n, why)
		} else {
			err = m.cfg.Net.Distrust(ctx, n, r.Range, why)
		}
		// A refusal leaves the copy as before. Nothing about the verdict is stored, so the next comparison finds
		// the difference again, and the gauge shows it until then.
		if err != nil {
			m.cfg.Logger.Error("a replica that differs was not quarantined; the next comparison tries again", "range", r.Range.String(), "node", n, "err", err)
			continue
		}
		r.Distrusted = append(r.Distrusted, n)
	}
}

// note counts and logs a comparison.
func (m *Manager) note(r *Report) {
	m.m.compared.Inc()
	bad := r.Result == Differ || r.Result == Undecided
	m.mu.Lock()
	// A comparison in which nobody but this node answered neither confirms nor ends an earlier difference.
	if bad && len(r.Distrusted) == 0 {
		m.differing[r.Range] = Difference{Range: r.Range, Nodes: slices.Clone(r.Differ), Table: r.Table, Why: r.Why}
	} else if r.Result != Alone {
		delete(m.differing, r.Range)
	}
	m.mu.Unlock()
	if bad {
		m.m.differences.Inc()
		m.cfg.Logger.Error("replicas of a range differ", "range", r.Range.String(), "result", r.Result.String(), "table", uint32(r.Table),
			"trusted", r.Trusted, "differ", r.Differ, "quarantined", r.Distrusted, "why", r.Why)
	}
}

// Difference is a difference between the replicas of a range.
type Difference struct {
	Range rhumb.RangeID
	// Nodes have the replicas that differ: all that answered, if no copy has a majority.
	Nodes []rhumb.NodeID
	// Table is the first table in which they differ.
	Table rhumb.TableID
	// Why says why no replica was quarantined; "" if a quarantine was refused.
	Why string
}

// Differing returns the ranges whose last comparison found a difference that nobody has mended, in the order of ranges.
// A range whose primary is another node now is left out and forgotten: that node compares it, and would not inform this one
// that the difference is gone.
func (m *Manager) Differing() (out []Difference) {
	m.mu.Lock()
	known := len(m.differing)
	m.mu.Unlock()
	// Most nodes never see a difference, and the metric asks every few seconds.
	if known == 0 {
		return nil
	}
	// The host is asked without the lock: it has locks of its own, and a comparison that ends meanwhile must not wait for them. Such a
	// difference is listed the next time.
	primaries := m.cfg.Host.Primaries()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, d := range m.differing {
		if _, ours := slices.BinarySearchFunc(primaries, id, rhumb.RangeID.Compare); !ours {
			delete(m.differing, id)
			continue
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Difference) int { return a.Range.Compare(b.Range) })
	return out
}

// metrics are the counters of a manager.
type metrics struct{ compared, differences, failed, read prometheus.Counter }

func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "digest", Name: name, Help: help})
	}
	return metrics{
		compared:    counter("compared_total", "Comparisons of the replicas of a range whose primary is this node."),
		differences: counter("differences_total", "Comparisons that found different replicas."),
		failed:      counter("failed_total", "Comparisons and digests that could not be made; they are repeated."),
		read:        counter("read_bytes_total", "Bytes of records that were read for digests."),
	}
}

// Collectors returns the metrics for registration.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.m.compared, m.m.differences, m.m.failed, m.m.read,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rhumb", Subsystem: "digest", Name: "differing_ranges",
			Help: "Ranges whose replicas differ and that nobody has mended.",
		}, func() float64 { return float64(len(m.Differing())) }),
	}
}
