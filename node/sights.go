package node

import (
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

const (
	// livesWindow is the period over which the lives of a node are counted.
	livesWindow = time.Minute
	// birthsMax bounds the births remembered per node.
	birthsMax = 256
	// loopLives is the number of lives within livesWindow that counts as a loop.
	loopLives = 4
)

// sights records when this node saw changes of other nodes. The catalog holds no times, because all
// its replicas must be equal.
type sights struct {
	mu    sync.Mutex // guards nodes
	nodes map[rhumb.NodeID]*sight
}

// sight holds the observed changes of one node.
type sight struct {
	life   rhumb.BootSeq
	births []time.Time // start of each observed life, oldest first
	fenced time.Time   // when the node was first seen fenced; zero if it is not fenced
}

// newRecovered returns the counter of ranges whose data loss an operator accepted through this
// node.
func newRecovered() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "cluster", Name: "recovered_ranges_total", Help: "Ranges whose loss an operator accepted through this node.",
	})
}

func newUnsigned() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "node", Name: "unsigned_registrations_total",
		Help: "Registrations of other nodes that this node refused because their node did not sign them, or not recently.",
	})
}

// observeNodes records the nodes of a catalog. The life in which a node is seen first is not
// counted, because it may have begun long ago.
func (s *sights) observeNodes(now time.Time, nodes iter.Seq[*rhumb.Node]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes == nil {
		s.nodes = map[rhumb.NodeID]*sight{}
	}
	for d := range nodes {
		v := s.nodes[d.ID]
		if v == nil {
			v = &sight{life: d.Boot}
			s.nodes[d.ID] = v
		}
		// One update may skip lives, and each of them counts. A node whose number jumped far ahead,
		// because an old disk presented it, must not make this loop long: only the last birthsMax
		// are recorded.
		for ; v.life < d.Boot; v.life++ {
			if v.births = append(v.births, now); len(v.births) > birthsMax {
				v.births = v.births[1:]
			}
			if d.Boot-v.life > birthsMax {
				v.life = d.Boot - birthsMax
			}
		}
		switch {
		case d.State != rhumb.NodeFenced:
			v.fenced = time.Time{}
		case v.fenced.IsZero():
			v.fenced = now
		}
	}
}

// listSights returns the nodes that were fenced, or began lives, within livesWindow.
func (s *sights) listSights(now time.Time) (out []server.Sight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, v := range s.nodes {
		// Births are removed when the list is read; birthsMax bounds them in between.
		v.births = slices.DeleteFunc(v.births, func(at time.Time) bool { return now.Sub(at) > livesWindow })
		t := server.Sight{Node: id, Lives: len(v.births)}
		if !v.fenced.IsZero() {
			// At least 1 ns: zero means that the node is not fenced.
			t.Fenced = max(now.Sub(v.fenced), 1)
		}
		if t.Lives > 0 || t.Fenced > 0 {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b server.Sight) int { return int(a.Node) - int(b.Node) })
	return out
}

// clusterCollector implements prometheus.Collector. It counts problems in the node's copy of the
// metadata at each scrape, so the metrics need no updates.
type clusterCollector struct {
	state  func() *catalog.State
	sights *sights
	self   rhumb.NodeID
}

// clusterDesc describes a metric of the cluster.
func clusterDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rhumb_cluster_"+name, help, nil, nil)
}

var (
	fencedDesc      = clusterDesc("fenced_nodes", "Nodes that were fenced because they failed.")
	deadRegionsDesc = clusterDesc("dead_regions", "Regions with nodes, all of which are fenced.")
	shortDesc       = clusterDesc("short_nodes", "Nodes whose disk had lost acknowledged data when their current life began.")
	quarantinedDesc = clusterDesc("quarantined_replicas", "Replicas that are quarantined.")
	displacedDesc   = clusterDesc("displaced_ranges", "Ranges whose primary is not the preferred one.")
	noIntactDesc    = clusterDesc("lost_ranges", "Ranges without an intact in-sync replica. They are not served until an operator accepts the loss.")
	// The version that the nodes have agreed to use, and how many of them could use a newer one: docs/operations/upgrade.md.
	versionDesc = clusterDesc("version", "Active cluster version.")
	aheadDesc   = clusterDesc("ahead_nodes", "Nodes whose program supports a newer cluster version than the active one: an upgrade is not finished.")
	loopsDesc   = clusterDesc("rebirth_loops", "1 if this node was fenced while alive, and began a new life, too often within a minute.")
)

func (c clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{fencedDesc, deadRegionsDesc, shortDesc, quarantinedDesc, displacedDesc, noIntactDesc, loopsDesc, versionDesc, aheadDesc} {
		ch <- d
	}
}

// Collect counts nodes, regions and ranges in the present copy of the metadata. It implements prometheus.Collector.
func (c clusterCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.state()
	count := map[*prometheus.Desc]int{}
	nodes, live := map[rhumb.RegionID]int{}, map[rhumb.RegionID]int{}
	count[versionDesc] = int(st.Version())
	for d := range st.Nodes() {
		nodes[d.Region]++
		if !d.Forgotten && d.Build().Max > st.Version() {
			count[aheadDesc]++
		}
		if d.State == rhumb.NodeFenced {
			count[fencedDesc]++
		} else {
			live[d.Region]++
		}
		if d.Short {
			count[shortDesc]++
		}
	}
	for id := range nodes {
		if live[id] == 0 {
			count[deadRegionsDesc]++
		}
	}
	for r := range st.Ranges() {
		count[quarantinedDesc] += len(r.Quarantined)
		if r.Primary != r.Preferred {
			count[displacedDesc]++
		}
		// No intact in-sync replica is left: an election is impossible (rule E).
		if !slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool { return !r.IsQuarantined(n) }) {
			count[noIntactDesc]++
		}
	}
	// Of the lives of this node, only those after a fencing are observed, since starts of its
	// process reset sights. The lives of other nodes may be restarts, which are no loop.
	for _, s := range c.sights.listSights(time.Now()) {
		if s.Node == c.self && s.Lives >= loopLives {
			count[loopsDesc]++
		}
	}
	for _, d := range []*prometheus.Desc{fencedDesc, deadRegionsDesc, shortDesc, quarantinedDesc, displacedDesc, noIntactDesc, loopsDesc, versionDesc, aheadDesc} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(count[d]))
	}
}
