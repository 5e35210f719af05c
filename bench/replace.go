package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/chart"
	"github.com/rhumbdb/rhumb/client"
)

// ReplaceConfig configures RunReplace.
type ReplaceConfig struct {
	// Cluster has one region of three nodes, and was started with --no-restart. Binary is the program of the new node.
	Cluster *Cluster
	Binary  string
	// Bytes is the size of the table. Each node has a copy of it. HashSlots is the number of its ranges.
	Bytes     int64
	HashSlots int
	// Writers is the number of callers, Pause the time between two writes of a caller.
	Writers int
	Pause   time.Duration
	// Calm is how long writes are measured before the node is killed, Most how long the cluster may
	// take until all copies are there.
	Calm, Most time.Duration
	// Progress receives a line now and then. It may be nil.
	Progress func(text string)
}

// ReplaceReport is the result of RunReplace. Times are from the kill. Quantiles are in microseconds.
type ReplaceReport struct {
	Dead rhumb.NodeID `json:"dead"`
	New  rhumb.NodeID `json:"new"`
	// Fenced is when the metadata had declared the node dead, Joined when the new node was in the
	// cluster, Whole when every range had all its copies in sync without the dead node, and Done when
	// the operation was over and the dead node removed.
	Fenced time.Duration `json:"fenced_ns"`
	Joined time.Duration `json:"joined_ns"`
	Whole  time.Duration `json:"whole_ns"`
	Done   time.Duration `json:"done_ns"`
	// Ranges is the number of ranges. Received are the bytes that the new node received to copy ranges
	// as a whole; short ranges come by their logs. Speed is the size of the table's values by the time
	// from Joined to Whole, in bytes per second.
	Ranges   int     `json:"ranges"`
	Received int64   `json:"received_bytes"`
	Speed    float64 `json:"bytes_per_second"`
	// Calm covers the writes before the kill, Meanwhile those until Whole. Gap is the longest time
	// that a caller was without a successful write after the kill.
	Calm      Quantiles     `json:"calm_us"`
	Meanwhile Quantiles     `json:"meanwhile_us"`
	Gap       time.Duration `json:"gap_ns"`
	Writes    int64         `json:"writes"`
	// Failed counts the writes that were refused, or whose outcome the caller does not know, after the
	// retries of the client.
	Failed int64 `json:"failed"`
	Lost   int   `json:"lost"`

	killed, length time.Duration // from the first write
	calls          []timedCall
}

// replacePoll is the time between two looks at the metadata. replaceNote is the time between two lines
// of progress. replaceDisk is the space on disk for each byte of the table: three nodes hold it, and
// their stores write it once more when they compact it. The dead node needs none, because its data is
// removed before the new node copies.
const (
	replacePoll = 50 * time.Millisecond
	replaceNote = 5 * time.Second
	replaceDisk = 6
)

// RunReplace fills a table, kills a node of three for good, lets a new one join in its place with
// `rhumb node replace`, and measures under load how long it takes until every range has all its copies
// again. At the end it reads back the last acknowledged write of each caller.
func RunReplace(ctx context.Context, cfg ReplaceConfig) (*ReplaceReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if err := hasRoom(cfg.Cluster.Dir, replaceDisk*cfg.Bytes); err != nil {
		return nil, err
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = cfg.HashSlots
	t, err := c.CreateTable(ctx, "replace", client.TableOptions{Settings: settings})
	if err != nil {
		return nil, err
	}
	r := &replaceRun{cfg: cfg, hold: &hold{c: c, t: t}, out: &ReplaceReport{}}
	if err := r.awaitSettled(ctx); err != nil {
		return nil, err
	}
	if err := fillTable(ctx, c, t, cfg.Bytes, transferValue); err != nil {
		return nil, err
	}
	cfg.Progress(fmt.Sprintf("the table has %d MiB", cfg.Bytes>>20))
	var calm, meanwhile histogram
	// The filling is over. From here on every write counts: those before the kill for comparison, and
	// those after it until all copies are there.
	r.keepCalls()
	r.startWriters(ctx, cfg.Writers, cfg.Pause)
	r.timeInto(&calm)
	err = pauseFor(ctx, cfg.Calm)
	r.timeInto(&meanwhile)
	r.takeGaps()
	if err == nil {
		err = r.replace(ctx)
	}
	r.timeInto(nil)
	r.stopWriters()
	if r.node != nil {
		// The demo stops the others afterwards. Their data is not used again, so the order does not matter.
		defer r.node.Stop()
	}
	if err != nil {
		return nil, err
	}
	out := r.out
	out.calls, out.length = r.calls, time.Since(r.began)
	out.Calm, out.Meanwhile = calm.quantiles(), meanwhile.quantiles()
	out.Writes, out.Failed = r.countWrites()
	out.Lost, err = r.countLost(ctx)
	return out, err
}

// replaceRun is a run of RunReplace.
type replaceRun struct {
	*hold
	cfg  ReplaceConfig
	out  *ReplaceReport
	node *Joiner // nil before it has joined
}

// replace kills a node and replaces it.
func (r *replaceRun) replace(ctx context.Context) error {
	dead, zone, err := r.pickVictim(ctx)
	if err != nil {
		return err
	}
	r.out.Dead = dead.ID
	// The process gets no chance to hand over its ranges. The demo runs with --no-restart, so it is dead for good.
	pid, err := pidOf(dead.Addr)
	if err != nil {
		return err
	}
	dirs, err := dirsOf(pid)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	start := time.Now()
	r.out.killed = start.Sub(r.began)
	for !r.isFenced(dead.ID) {
		if time.Since(start) > settleMax {
			return fmt.Errorf("%s was killed, and the cluster has not noticed after %v", dead.ID, settleMax)
		}
		if err := pauseFor(ctx, replacePoll); err != nil {
			return err
		}
	}
	r.out.Fenced = time.Since(start)
	r.cfg.Progress(fmt.Sprintf("%s was killed, and was declared dead after %v", dead.ID, r.out.Fenced.Round(time.Millisecond)))
	// The disks of the node are lost with it. They are cleared only now, so that this work of the
	// disk, which the nodes share, does not lengthen the time in which the death was noticed.
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	// The directory of the new node has the name of its zone, and it is in the zone of the dead one.
	// The nodes of the demo have directories with other names.
	if r.node, err = r.cfg.Cluster.Join(ctx, r.c, r.cfg.Binary, dead.Region, zone); err != nil {
		return err
	}
	// The same request as that of `rhumb node replace`.
	r.out.New, r.out.Joined = r.node.ID, time.Since(start)
	op, err := r.c.StartOperation(ctx, rhumb.Operation{Kind: rhumb.OperationReplace, Node: dead.ID, Target: r.node.ID})
	if err != nil {
		return err
	}
	return r.awaitWhole(ctx, start, op.ID)
}

// pickVictim returns the last node that does not lead the metadata group, and its zone: what is
// measured is the replacement of copies, and `rhumb bench failover` measures the death of the leader.
func (r *replaceRun) pickVictim(ctx context.Context) (ClusterNode, string, error) {
	leader := r.metadataLeader(ctx)
	for _, n := range slices.Backward(r.cfg.Cluster.Nodes) {
		i := slices.IndexFunc(r.c.Nodes(), func(m rhumb.Node) bool { return m.ID == n.ID })
		if n.ID != leader && i >= 0 {
			return n, r.c.Nodes()[i].Zone, nil
		}
	}
	return ClusterNode{}, "", errors.New("the cluster has no node that can be killed")
}

// isFenced reports whether the metadata has declared a node dead.
func (r *replaceRun) isFenced(id rhumb.NodeID) bool {
	return slices.ContainsFunc(r.c.Nodes(), func(n rhumb.Node) bool { return n.ID == id && n.State == rhumb.NodeFenced })
}

// awaitWhole waits until every range has all its copies in sync, and then until the operation is over.
func (r *replaceRun) awaitWhole(ctx context.Context, start time.Time, op rhumb.OperationID) error {
	for next := time.Duration(0); ; {
		now := time.Since(start)
		missing, total := r.countMissing()
		r.out.Ranges = max(r.out.Ranges, total)
		if missing == 0 && r.out.Whole == 0 {
			r.out.Whole, r.out.Gap = now, slices.Max(r.takeGaps())
			r.timeInto(nil)
			if v, err := readMetric(ctx, r.node.AdminAddr, "rhumb_transfer_received_bytes_total"); err == nil {
				r.out.Received = int64(v)
			}
			r.out.Speed = float64(r.cfg.Bytes) / (r.out.Whole - r.out.Joined).Seconds()
		}
		if now > next {
			next = now + replaceNote
			r.cfg.Progress(fmt.Sprintf("%v: %d of %d ranges lack a copy", now.Round(time.Second), missing, total))
		}
		if now > r.cfg.Most {
			return fmt.Errorf("%d of %d ranges lack a copy after %v", missing, total, r.cfg.Most)
		}
		// A node that is too busy to answer is asked again.
		if o, err := r.c.Operation(ctx, op); err == nil && o.State.IsOver() {
			switch {
			case o.State != rhumb.OperationDone:
				return fmt.Errorf("operation %s ended as %s: %s", o.ID, o.State, o.Error)
			case missing == 0:
				r.out.Done = now
				return nil
			}
		}
		if err := pauseFor(ctx, replacePoll); err != nil {
			return err
		}
	}
}

// countMissing returns the number of ranges that have fewer copies in sync on live nodes than their
// tables ask for, and of all ranges.
func (r *replaceRun) countMissing() (missing, total int) {
	// The records list the dead node until it is removed, and it may be in the in-sync set of a range
	// that has the least size. Only copies on nodes that serve count.
	live := map[rhumb.NodeID]bool{}
	for _, n := range r.c.Nodes() {
		live[n.ID] = n.State.Serves()
	}
	wanted := map[rhumb.ClassID]int{}
	for _, t := range r.c.Tables() {
		wanted[t.Class] = t.Settings.Replicas
	}
	for _, x := range r.c.Ranges() {
		total++
		if len(slices.DeleteFunc(slices.Clone(x.InSync), func(id rhumb.NodeID) bool { return !live[id] })) < wanted[x.Class] {
			missing++
		}
	}
	return missing, total
}

// Draw draws the answered and failed writes a second, and their latencies. The first band is the time
// until the dead node was fenced, the second one the time until all copies were there. The end of the
// name of the file, such as .svg or .png, decides the format.
func (r *ReplaceReport) Draw(path string) error {
	band := chart.Band{Name: fmt.Sprintf("%s replaced by %s", r.Dead, r.New), From: r.killed, To: r.killed + r.Fenced, Whole: r.killed + r.Whole}
	return drawCalls(path, fmt.Sprintf("a node replaced in %v", r.Whole.Round(100*time.Millisecond)), r.length, r.calls, []chart.Band{band})
}
