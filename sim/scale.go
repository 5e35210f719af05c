// Two questions are asked of sizes. How many messages does a cluster need to do nothing, and how does its
// failover grow? Both are properties of the code of the leases, the hosts and the metadata group, so
// they are measured with that code in virtual time, and hold on every machine. How long a node computes
// is a property of the machine, and is measured for the metadata only.

package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// ScaleConfig describes a cluster without load, in which one node dies.
type ScaleConfig struct {
	Seed uint64
	// Nodes are at most ScaleNodesMax, in one region. Ranges are at most rhumb.BlockSlots, of three
	// copies each.
	Nodes, Ranges int
	// Calm is the virtual time over which the messages of the whole cluster are counted.
	Calm time.Duration
}

// Bounds of a simulated cluster.
const (
	ScaleNodesMax = 81
	// scaleStepsMax bounds the events of a run: pairs of nodes exchange heartbeats all the time.
	scaleStepsMax = 100_000_000
	// scaleSettle is how long a cluster has to become calm, and scaleMost how long the ranges of a dead
	// node may be without service.
	scaleSettle = 2 * time.Minute
	scaleMost   = 2 * time.Minute
	// scaleLook is how often the ranges of a dead node are looked at.
	scaleLook = 5 * time.Millisecond
)

// ScaleResult holds figures of a simulated cluster of one size. They depend on the seed and not on the
// machine.
type ScaleResult struct {
	Nodes  int `json:"nodes"`
	Ranges int `json:"ranges"`
	// Heartbeats, Messages and MetaMessages are those of the whole cluster, per second without load:
	// of the leases, of replication, and of the metadata group.
	Heartbeats   float64 `json:"heartbeats_per_second"`
	Messages     float64 `json:"replication_messages_per_second"`
	MetaMessages float64 `json:"metadata_messages_per_second"`
	// MetaBytes is the size of the messages of the metadata group.
	MetaBytes float64 `json:"metadata_bytes_per_second"`
	// StateBytes is the size of the encoded metadata, which each node has.
	StateBytes int `json:"state_bytes"`
	// Lost is the number of ranges whose primary died. First and Last are when the
	// first and the last of them was served again, after the death.
	Lost  int           `json:"lost_primaries"`
	First time.Duration `json:"first_ns"`
	Last  time.Duration `json:"last_ns"`
	// During are the messages of all kinds between the death and Last, MetaDuring the bytes of those
	// of the metadata group.
	During     int   `json:"messages_during"`
	MetaDuring int64 `json:"metadata_bytes_during"`
	// Steps is the number of events of the whole run.
	Steps uint64 `json:"steps"`
}

// traffic counts the messages that nodes send.
type traffic struct {
	heartbeats, messages, meta int
	metaBytes                  int64
}

// since returns the difference to an earlier count.
func (t traffic) since(o traffic) traffic {
	return traffic{t.heartbeats - o.heartbeats, t.messages - o.messages, t.meta - o.meta, t.metaBytes - o.metaBytes}
}

// A run has no clients: with load, the messages of replication are as many as the writes, and their bytes
// are those of the records. All others grow with the size of a cluster, and RunScale counts them.

// RunScale founds a cluster, counts its messages while nothing happens, stops the process of a
// node, and measures in virtual time until each of the node's ranges is served by another.
func RunScale(cfg ScaleConfig) (r ScaleResult, err error) {
	if cfg.Nodes < 3 || cfg.Nodes > ScaleNodesMax {
		return r, fmt.Errorf("%d nodes; want 3 to %d", cfg.Nodes, ScaleNodesMax)
	}
	if cfg.Ranges < 1 || cfg.Ranges > rhumb.BlockSlots {
		return r, fmt.Errorf("%d ranges; want 1 to %d, which is what one table has in a region", cfg.Ranges, rhumb.BlockSlots)
	}
	w := buildWorld(Config{Seed: cfg.Seed, Duration: DurationDefault, Whole: true}, scaleProfile(cfg))
	w.stepsMost, w.metaMessagesMost = scaleStepsMax, scaleStepsMax
	w.recoverPanics(func() { r = w.playScale(cfg) })
	w.recoverPanics(w.shutDown)
	r.Nodes, r.Ranges, r.Steps = cfg.Nodes, cfg.Ranges, w.steps
	return r, w.err
}

// scaleProfile returns a cluster of one region in good order: delays of a data centre and correct
// clocks.
func scaleProfile(cfg ScaleConfig) profile {
	p := profile{
		nodes: cfg.Nodes, regions: 1, ranges: cfg.Ranges, settings: rhumb.DefaultClassSettings(),
		regionDelay: 300 * time.Microsecond, wanDelay: 40 * time.Millisecond, jitter: 0.05,
		syncDelay: time.Millisecond, pass: 200 * time.Microsecond, metaDelay: 2 * time.Millisecond,
		strict: true, wrong: cfg.Nodes - 1,
	}
	p.settings.HashSlots = cfg.Ranges
	return p
}

// playScale is the course of a run of RunScale.
func (w *world) playScale(cfg ScaleConfig) (r ScaleResult) {
	for _, n := range w.nodes {
		n.start()
	}
	w.judge(w.foundCluster())
	why := "nothing was looked at"
	for end := w.now + scaleSettle; w.err == nil && why != ""; why = w.whyNotLive() {
		if w.now > end {
			w.failf("the cluster is not whole after %v: %s", scaleSettle, why)
		}
		w.until(w.now + time.Second)
	}
	if w.err != nil {
		return r
	}
	// From here on nothing happens but heartbeats of the leases and of the metadata group.
	before := w.traffic
	w.until(w.now + cfg.Calm)
	calm, seconds := w.traffic.since(before), cfg.Calm.Seconds()
	r.Heartbeats, r.Messages = float64(calm.heartbeats)/seconds, float64(calm.messages)/seconds
	r.MetaMessages, r.MetaBytes = float64(calm.meta)/seconds, float64(calm.metaBytes)/seconds
	r.StateBytes = len(w.state.Encode())
	w.measureDeath(&r)
	return r
}

// pickDying returns the node with the most primaries that does not lead the metadata group, whose
// election would be part of the measured time.
func (w *world) pickDying() *node {
	leader, dying := w.metadataLeader(), w.nodes[len(w.nodes)-1]
	for _, n := range w.nodes {
		if n != leader && len(w.primariesOf(n)) > len(w.primariesOf(dying)) {
			dying = n
		}
	}
	return dying
}

// measureDeath stops a node and waits until its ranges are served.
func (w *world) measureDeath(r *ScaleResult) {
	dead := w.pickDying()
	waiting := w.primariesOf(dead)
	r.Lost = len(waiting)
	before, died := w.traffic, w.now
	// The process ends, and no message of it arrives any more. Its peers notice their broken streams.
	dead.stop()
	w.net.breakStreamsOf(dead)
	for len(waiting) > 0 && w.err == nil {
		w.until(w.now + scaleLook)
		if w.now > died+scaleMost {
			w.failf("%d ranges of a dead node are not served after %v", len(waiting), scaleMost)
			return
		}
		// A range that was served once counts, also if it changes its primary later.
		waiting = slices.DeleteFunc(waiting, w.takesWrites)
		if len(waiting) < r.Lost && r.First == 0 {
			r.First = w.now - died
		}
	}
	r.Last = w.now - died
	during := w.traffic.since(before)
	r.During, r.MetaDuring = during.heartbeats+during.messages+during.meta, during.metaBytes
}

// primariesOf returns the ranges whose primary a node is.
func (w *world) primariesOf(n *node) (out []rhumb.RangeID) {
	for _, id := range w.ranges {
		if r, ok := w.state.Range(id); ok && r.Primary == n.id {
			out = append(out, id)
		}
	}
	return out
}

// takesWrites reports whether the primary of a range commits and has its grants.
func (w *world) takesWrites(id rhumb.RangeID) bool {
	r, ok := w.state.Range(id)
	if !ok {
		return false
	}
	p := w.nodes[r.Primary-1]
	return !p.down && p.host != nil && p.host.Serves(id) && p.host.Leased(id)
}

// CatalogResult holds the sizes of metadata with a number of nodes and ranges, and the processor time
// of working with it on this machine.
type CatalogResult struct {
	Nodes  int `json:"nodes"`
	Ranges int `json:"ranges"`
	// StateBytes is the size of the encoded metadata, Encode and Decode how long the codec takes.
	StateBytes int           `json:"state_bytes"`
	Encode     time.Duration `json:"encode_ns"`
	Decode     time.Duration `json:"decode_ns"`
	// CommandBytes is the size of the command that fences a node, Fence how long it takes to apply,
	// and Moved the number of ranges that it changes.
	CommandBytes int           `json:"command_bytes"`
	Fence        time.Duration `json:"fence_ns"`
	Moved        int           `json:"moved"`
	// Excluded is the number of ranges that the nodes of a dead one have to exclude from its grants,
	// if a single node took over all of them.
	Excluded int `json:"excluded"`
}

// ScaleRangesMax bounds the ranges of MeasureCatalog.
const ScaleRangesMax = 1_000_000

// MeasureCatalog builds metadata of a size, encodes and decodes it, and fences a node in it. Nothing
// is simulated: this is the code that each node runs for each command.
func MeasureCatalog(nodes, ranges int) (r CatalogResult, err error) {
	if nodes < 3 || nodes > ScaleNodesMax || ranges < 1 || ranges > ScaleRangesMax {
		return r, fmt.Errorf("%d nodes and %d ranges; want 3 to %d and 1 to %d", nodes, ranges, ScaleNodesMax, ScaleRangesMax)
	}
	s, err := makeCatalog(nodes, ranges)
	if err != nil {
		return r, err
	}
	r.Nodes, r.Ranges = nodes, s.RangeCount()
	begin := time.Now()
	encoded := s.Encode()
	r.StateBytes, r.Encode = len(encoded), time.Since(begin)
	begin = time.Now()
	if _, err := catalog.Decode(encoded); err != nil {
		return r, err
	}
	r.Decode = time.Since(begin)
	fence := catalog.FenceNode{Node: 2, Boot: 1}
	r.CommandBytes = len(catalog.EncodeCommand(fence))
	begin = time.Now()
	// The state itself never changes, so the result is thrown away.
	_, res, changes := s.Apply(fence)
	r.Fence, r.Moved = time.Since(begin), len(changes.Ranges)
	for d := range s.Ranges() {
		if d.Primary == fence.Node {
			r.Excluded++
		}
	}
	return r, res.Err()
}

// makeCatalog returns metadata with nodes of one region and about as many ranges of three copies, with
// random places. A class has at most rhumb.BlockSlots ranges.
func makeCatalog(nodes, ranges int) (*catalog.State, error) {
	register := func(i int) catalog.RegisterNode {
		return catalog.RegisterNode{
			Binary: rhumb.ThisBuild("sim").String(), Store: rhumb.UUID{byte(i + 1)}, Boot: 1, Region: "region", Zone: "zone", HasLocation: true,
		}
	}
	// The first refusal ends the building, and is the error.
	s, res, _ := catalog.New().Apply(catalog.Init{Cluster: rhumb.ClusterID{1}, First: register(0)})
	for i := 1; i < nodes && res.Err() == nil; i++ {
		s, res, _ = s.Apply(register(i))
	}
	random := rand.New(rand.NewPCG(1, 2))
	settings := rhumb.DefaultClassSettings()
	for left := ranges; left > 0 && res.Err() == nil; left -= settings.HashSlots {
		settings.HashSlots = min(left, rhumb.BlockSlots)
		settings.ShardSize++ // a class of its own
		p := catalog.Placement{Region: 1}
		for range settings.HashSlots {
			// After years of moves the places of a cluster are random, without a pattern of neighbours.
			order := random.Perm(nodes)
			p.Replicas = append(p.Replicas, []rhumb.NodeID{rhumb.NodeID(order[0] + 1), rhumb.NodeID(order[1] + 1), rhumb.NodeID(order[2] + 1)})
		}
		s, res, _ = s.Apply(catalog.CreateClass{Settings: settings, Placements: []catalog.Placement{p}})
	}
	return s, res.Err()
}
