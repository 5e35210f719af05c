package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb/client"
)

// StormConfig configures RunStorm.
//
// The storm is the worst moment of a cluster with logins: after a power cut everything connects at
// once, and handshakes compete with heartbeats for the processors.
type StormConfig struct {
	Cluster *Cluster
	// Clients is the number of clients, each with connections of its own. The default is 1,000.
	Clients int
	// Opening bounds the clients that are opened at the same time, before the restart. The default
	// is 16.
	Opening int
	// Calm is how long the cluster is observed after every client has written again. The default is
	// 10 s.
	Calm time.Duration
	// Most bounds the wait until all clients have written after the restart. The default is 5 min.
	Most time.Duration
	// Progress receives a line about each step. It may be nil.
	Progress func(text string)
}

// StormReport is the result of RunStorm.
type StormReport struct {
	Clients int `json:"clients"`
	// Open is how long all clients together took to connect before the restart.
	Open time.Duration `json:"open_ns"`
	// P50, P90 and Max are over the clients: the time from the start of the first process to the
	// first write of the client.
	P50 time.Duration `json:"p50_ns"`
	P90 time.Duration `json:"p90_ns"`
	Max time.Duration `json:"max_ns"`
	// Settled is the time from the start of the first process until all nodes were live and all
	// replicas in sync.
	Settled time.Duration `json:"settled_ns"`
	// FalseLives counts lives beyond the one that each restarted process begins. A live node begins
	// one if the others fenced it.
	FalseLives int `json:"false_lives"`
	// FalseFailovers counts changes of primary in the calm time.
	FalseFailovers int `json:"false_failovers"`
	// Failed counts calls that ended with an error although their client retried until the timeout.
	Failed int64 `json:"failed_calls"`
	// Lost counts clients whose last acknowledged write is missing at the end.
	Lost int `json:"lost"`
	// Written counts the clients that have written again. If it is less than Clients, the measurement was given
	// up: P50, P90 and Max are over these clients, and Settled and FalseFailovers were not measured.
	Written int `json:"written"`
}

const (
	// stormTimeout bounds one call of a client during the storm.
	stormTimeout = 10 * time.Second
	// openTimeout bounds the opening of one client.
	openTimeout = time.Minute
	// stormMax is the default of StormConfig.Most.
	stormMax = 5 * time.Minute
)

// RunStorm opens many clients, kills all nodes at once, and measures how the restarted nodes cope
// with all clients that connect, handshake and log in at the same time. A node that is fenced
// meanwhile, although its process lives, is a false failover.
func RunStorm(ctx context.Context, cfg StormConfig) (*StormReport, error) {
	if cfg.Clients == 0 {
		cfg.Clients = 1_000
	}
	if cfg.Opening == 0 {
		cfg.Opening = 16
	}
	if cfg.Calm == 0 {
		cfg.Calm = 10 * time.Second
	}
	if cfg.Most == 0 {
		cfg.Most = stormMax
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	c, err := client.Open(ctx, cfg.Cluster.OperatorConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "storm", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	s := &storm{failover: &failover{cfg: FailoverConfig{Cluster: cfg.Cluster, Progress: cfg.Progress}, hold: &hold{c: c, t: t}}, cfg: cfg, report: &StormReport{Clients: cfg.Clients}}
	if err := s.awaitSettled(ctx); err != nil {
		return nil, err
	}
	defer s.closeClients()
	if err := s.openClients(ctx); err != nil {
		return nil, err
	}
	// The report is returned with an error too: how many clients are back says how bad it is.
	return s.report, s.restart(ctx)
}

// storm is a run of RunStorm.
type storm struct {
	*failover
	cfg     StormConfig
	report  *StormReport
	clients []*stormClient
}

// stormClient is one client with the key that it writes.
type stormClient struct {
	*writer
	c       *client.Client
	t       *client.Table
	written time.Time // time of the first write after the restart
}

// closeClients closes all clients at the same time, since each waits for its connections.
func (s *storm) closeClients() {
	var work sync.WaitGroup
	for _, sc := range s.clients {
		if sc != nil && sc.c != nil {
			work.Go(sc.c.Close)
		}
	}
	work.Wait()
}

// openClients opens all clients. Each writes its key once, so that it has an open stream.
func (s *storm) openClients(ctx context.Context) error {
	start := time.Now()
	s.clients = make([]*stormClient, s.cfg.Clients)
	for i := range s.clients {
		s.writers = append(s.writers, &writer{name: fmt.Appendf(nil, "storm-%d", i), home: s.cfg.Cluster.Nodes[i%len(s.cfg.Cluster.Nodes)].Region})
	}
	errs := make([]error, s.cfg.Opening)
	var next atomic.Int64
	var work sync.WaitGroup
	for o := range s.cfg.Opening {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(s.clients) && errs[o] == nil; i = int(next.Add(1)) - 1 {
				sc := &stormClient{writer: s.writers[i]}
				s.clients[i] = sc
				errs[o] = sc.open(ctx, s.cfg.Cluster, i)
				if (i+1)%100 == 0 {
					s.cfg.Progress(fmt.Sprintf("%d of %d clients have connected", i+1, len(s.clients)))
				}
			}
		})
	}
	work.Wait()
	s.report.Open = time.Since(start)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// open connects the client to the cluster, beginning with node number i modulo the nodes, so that
// the clients spread over the nodes.
func (sc *stormClient) open(ctx context.Context, cluster *Cluster, i int) (err error) {
	// Clients with a certificate, because each client that logs in derives keys from its password.
	// That takes 20 ms of this machine, and here a thousand clients share it.
	cfg := cluster.OperatorConfig(stormTimeout)
	cfg.From = sc.home
	cfg.Addrs = []string{cfg.Addrs[i%len(cfg.Addrs)]}
	// The other clients connect on the same processors, so opening takes longer than usual.
	cfg.ConnectTimeout = openTimeout
	if sc.c, err = client.Open(ctx, cfg); err != nil {
		return err
	}
	if sc.t, err = sc.c.Table(ctx, "storm"); err != nil {
		return err
	}
	return sc.put(ctx)
}

// put writes the next number to the key of the client.
func (sc *stormClient) put(ctx context.Context) error {
	res, err := sc.t.Put(ctx, sc.name, fmt.Append(nil, sc.acked+1), client.PutOptions{Home: sc.home})
	sc.recordResult(sc.acked+1, res.Key.Home, err)
	return err
}

// sumBoots returns the sum of the lives of all nodes.
func (s *storm) sumBoots() (sum int) {
	for _, n := range s.c.Nodes() {
		sum += int(n.Boot)
	}
	return sum
}

// restart kills all nodes, lets all clients write until each has succeeded, and observes the
// cluster.
func (s *storm) restart(ctx context.Context) error {
	s.cfg.Progress("killing all nodes")
	boots := s.sumBoots()
	old, err := s.killAll()
	if err != nil {
		return err
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Most)
	defer cancel()
	var failed, done atomic.Int64
	var writing sync.WaitGroup
	for _, sc := range s.clients {
		writing.Go(func() {
			// Clients retry as programs do. The report measures the first success of each.
			for ctx.Err() == nil {
				if sc.put(ctx) == nil {
					sc.written = time.Now()
					if n := done.Add(1); n%100 == 0 {
						s.cfg.Progress(fmt.Sprintf("%d of %d clients have written again", n, len(s.clients)))
					}
					return
				}
				failed.Add(1)
			}
		})
	}
	start, err := s.awaitStarted(ctx, old)
	writing.Wait()
	s.report.Failed, s.report.Written = failed.Load(), int(done.Load())
	if err != nil {
		return err
	}
	s.summariseStorm(start)
	s.report.FalseLives = s.sumBoots() - boots - len(s.cfg.Cluster.Nodes)
	if s.report.Written < len(s.clients) {
		return fmt.Errorf("only %d of %d clients have written %v after the restart", s.report.Written, len(s.clients), time.Since(start).Round(time.Second))
	}
	ctx = whole
	if err := s.awaitSettled(ctx); err != nil {
		return err
	}
	s.report.Settled = time.Since(start)
	epochs := s.sumEpochs()
	if err := pauseFor(ctx, s.cfg.Calm); err != nil {
		return err
	}
	s.report.FalseFailovers = s.sumEpochs() - epochs
	s.report.FalseLives = s.sumBoots() - boots - len(s.cfg.Cluster.Nodes)
	s.report.Lost, err = s.countLost(ctx)
	return err
}

// summariseStorm fills the report from the times of the clients.
func (s *storm) summariseStorm(start time.Time) {
	var times []time.Duration
	for _, sc := range s.clients {
		if !sc.written.IsZero() {
			times = append(times, sc.written.Sub(start))
		}
	}
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	s.report.P50, s.report.P90, s.report.Max = times[len(times)/2], times[len(times)*9/10], times[len(times)-1]
}
