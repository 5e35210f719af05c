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
	// livesWindow is the time over which the lives of a node are counted.
	livesWindow = time.Minute
	// birthsMax bounds the births that are remembered of one node.
	birthsMax = 256
	// loopLives is how many lives of a node within livesWindow are a loop.
	loopLives = 4
)

// sights remember what the catalog, which knows no times, has said of nodes since this node started.
type sights struct {
	mu    sync.Mutex // guards nodes
	nodes map[rhumb.NodeID]*sight
}

type sight struct {
	life   rhumb.BootSeq
	births []time.Time // of the lives that were seen to begin, oldest first
	fenced time.Time   // when the node was first seen fenced; zero while it is not
}

// newRecovered makes the counter of losses that operators accepted through this node.
func newRecovered() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "cluster", Name: "recovered_ranges_total", Help: "Ranges whose loss an operator accepted through this node.",
	})
}

// observe takes note of the nodes of a catalog. The life that a node has when it is first seen is not counted: it may have
// begun long ago.
func (s *sights) observe(now time.Time, nodes iter.Seq[*rhumb.Node]) {
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

// list returns what is worth telling, by node.
func (s *sights) list(now time.Time) (out []server.Sight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, v := range s.nodes {
		v.births = slices.DeleteFunc(v.births, func(at time.Time) bool { return now.Sub(at) > livesWindow })
		t := server.Sight{Node: id, Lives: len(v.births)}
		if !v.fenced.IsZero() {
			t.Fenced = max(now.Sub(v.fenced), 1)
		}
		if t.Lives > 0 || t.Fenced > 0 {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b server.Sight) int { return int(a.Node) - int(b.Node) })
	return out
}

// clusterCollector counts, when it is scraped, what is not as it should be in the node's copy of the metadata.
type clusterCollector struct {
	state  func() *catalog.State
	sights *sights
	self   rhumb.NodeID
}

func clusterDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rhumb_cluster_"+name, help, nil, nil)
}

var (
	fencedDesc      = clusterDesc("fenced_nodes", "Nodes that were found dead.")
	deadRegionsDesc = clusterDesc("dead_regions", "Regions with nodes, of which none lives.")
	shortDesc       = clusterDesc("short_nodes", "Nodes whose disk had lost what it acknowledged when their present life began.")
	quarantinedDesc = clusterDesc("quarantined_replicas", "Copies of ranges that are quarantined.")
	displacedDesc   = clusterDesc("displaced_ranges", "Ranges whose primary is not the preferred one.")
	noIntactDesc    = clusterDesc("lost_ranges", "Ranges with no intact copy in sync: they are not served until an operator accepts the loss.")
	loopsDesc       = clusterDesc("rebirth_loops", "1 when this node, alive, was fenced and began a new life too often within a minute.")
)

func (c clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{fencedDesc, deadRegionsDesc, shortDesc, quarantinedDesc, displacedDesc, noIntactDesc, loopsDesc} {
		ch <- d
	}
}

func (c clusterCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.state()
	count := map[*prometheus.Desc]int{}
	nodes, live := map[rhumb.RegionID]int{}, map[rhumb.RegionID]int{}
	for d := range st.Nodes() {
		nodes[d.Region]++
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
		if !slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool { return !r.IsQuarantined(n) }) {
			count[noIntactDesc]++
		}
	}
	// Of itself a node counts the lives that followed a fencing; those of another may be starts of its process.
	for _, s := range c.sights.list(time.Now()) {
		if s.Node == c.self && s.Lives >= loopLives {
			count[loopsDesc]++
		}
	}
	for _, d := range []*prometheus.Desc{fencedDesc, deadRegionsDesc, shortDesc, quarantinedDesc, displacedDesc, noIntactDesc, loopsDesc} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(count[d]))
	}
}
