package place

import (
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// SurveyEvery is the interval at which nodes send surveys. SurveyKeep is how long the leader uses one.
const (
	SurveyEvery = 5 * time.Second
	SurveyKeep  = 4 * SurveyEvery
)

// SurveyRangesMax bounds the ranges in one survey. A node with more leaves out small ones.
const SurveyRangesMax = 20_000

// Survey holds the measurements of a node: round trips to other regions, and the sizes and the writes of the
// ranges that it leads.
type Survey struct {
	From    rhumb.NodeID
	Regions []RegionRTT
	Ranges  []RangeSize
	// Copies are those that the node is receiving. Builds that do not know them leave them out.
	Copies []CopyShare `cbor:",omitempty"`
	// Stores is the number of the node's stores if it has more than one. Apart then lists copies that are in another store than the copy
	// of the range before them. KnowsApart reports that the list is complete: earlier builds have none, and a long one is left out.
	Stores     uint32      `cbor:",omitempty"`
	Apart      []ApartCopy `cbor:",omitempty"`
	KnowsApart bool        `cbor:",omitempty"`
}

// SurveyApartMax bounds Survey.Apart.
const SurveyApartMax = 1024

// ApartCopy names a range, whose copy on a node cannot be united with that of the range before it, and the version of its record then.
type ApartCopy struct {
	Range   rhumb.RangeID
	Version uint64
}

// SurveyCopiesMax bounds the copies in one survey. A node receives few at a time.
const SurveyCopiesMax = 256

// CopyShare is how much a node has received of a copy of a range, in bytes. Of is 0 until the donor has made the copy.
type CopyShare struct {
	Range    rhumb.RangeID
	Done, Of int64
}

// RegionRTT is the shortest round trip from a node to a node of another region, in microseconds.
type RegionRTT struct {
	Region rhumb.RegionID
	Micros uint32
}

// RangeSize is the size of a range at its primary, with the speed at which it is written: entries and bytes of its
// log per second, smoothed by the node. Builds that do not know the speed leave it out.
type RangeSize struct {
	Range       rhumb.RangeID
	Bytes       int64
	Writes      uint32 `cbor:",omitempty"`
	WrittenRate uint64 `cbor:",omitempty"`
}

// heft returns the size and the speed as one number of bytes: the bytes of the range, and those that will be written to it
// in loadAhead. A copy costs a disk its bytes, and disks, links and processors its writes. One
// number for both keeps the plan simple, and so it converges: each move lowers the difference of two nodes.
func (r RangeSize) heft() (bytes, load int64) {
	perSecond := min(r.WrittenRate, rateMax) + uint64(r.Writes)*writeCost
	return min(max(r.Bytes, 0), bytesMax), int64(perSecond) * int64(loadAhead/time.Second)
}

// loadAhead is how far ahead writes count. writeCost is the cost of an entry of the log besides its bytes. The others
// bound the claims of a node, so that sums do not overflow.
const (
	loadAhead = 10 * time.Minute
	writeCost = 1 << 10
	rateMax   = 1 << 36
	bytesMax  = 1 << 48
)

// Surveys holds the newest survey of each node, at the metadata leader. The zero value is empty.
type Surveys struct {
	nodes map[rhumb.NodeID]surveyed
	// Unfit are the nodes whose disks are full, or whose clocks are wrong, by their own reports (Evidence.ListUnfit). Balance avoids them.
	Unfit []rhumb.NodeID
}

// surveyed is a survey with the time of its arrival, and its ranges by id.
type surveyed struct {
	Survey
	at     time.Duration
	ranges map[rhumb.RangeID]RangeSize
}

// Add records a survey that arrived at time now. There is at most one per node.
func (v *Surveys) Add(now time.Duration, s Survey) {
	if v.nodes == nil {
		v.nodes = make(map[rhumb.NodeID]surveyed)
	}
	// Surveys are not authenticated against the catalog here, so their number is bounded.
	if _, known := v.nodes[s.From]; !known && len(v.nodes) >= rhumb.NodesMax {
		return
	}
	// Looked up by range for every plan, so the list is indexed once.
	x := surveyed{Survey: s, at: now, ranges: make(map[rhumb.RangeID]RangeSize, len(s.Ranges))}
	for _, r := range s.Ranges {
		x.ranges[r.Range] = r
	}
	v.nodes[s.From] = x
}

// Copy returns a copy that later surveys do not change.
func (v *Surveys) Copy() *Surveys { return &Surveys{nodes: maps.Clone(v.nodes), Unfit: v.Unfit} }

// Size returns the size of a range and its writes according to its primary. known is false without a recent survey.
func (v *Surveys) Size(now time.Duration, r *rhumb.Range) (size RangeSize, known bool) {
	// Only the primary reports a range. After a change of primary the size is unknown until the next survey.
	x, ok := v.nodes[r.Primary]
	if !ok || now-x.at > SurveyKeep {
		return RangeSize{}, false
	}
	size, known = x.ranges[r.ID]
	return size, known
}

// Apart reports whether a node holds a range in another store than the range before it, as it has reported. sure is false if the report is
// older than the record, so that the copy may have been made again since, and if the node reports nothing of the kind.
func (v *Surveys) Apart(id rhumb.NodeID, right *rhumb.Range) (apart, sure bool) {
	x := v.nodes[id]
	switch i := slices.IndexFunc(x.Apart, func(c ApartCopy) bool { return c.Range == right.ID }); {
	case x.Stores <= 1:
		return false, true
	case !x.KnowsApart:
		return true, false
	case i >= 0:
		return true, x.Apart[i].Version == right.Version
	}
	return false, true
}

// hidesStores reports whether a node has several stores and does not report which copies are in which.
func (v *Surveys) hidesStores(id rhumb.NodeID) bool {
	return v.nodes[id].Stores > 1 && !v.nodes[id].KnowsApart
}

// Copied returns how much of the copies of a range that are in progress has arrived, between 0 and 1: that of the copy which
// is the farthest behind. ok is false if no node has reported one.
func (v *Surveys) Copied(now time.Duration, id rhumb.RangeID) (share float64, ok bool) {
	share = 1
	// Few nodes receive copies at a time, and each lists few, so the lists are searched and not indexed.
	for node := range v.nodes {
		if at, arrives := v.Arrived(now, node, id); arrives {
			share, ok = min(share, at), true
		}
	}
	if !ok {
		return 0, false
	}
	return share, true
}

// Arrived is Copied for the copy that one node receives.
func (v *Surveys) Arrived(now time.Duration, node rhumb.NodeID, id rhumb.RangeID) (share float64, ok bool) {
	x := v.nodes[node]
	// The copy of a node that stopped reporting may have been dropped.
	if now-x.at > SurveyKeep {
		return 0, false
	}
	for _, c := range x.Copies {
		switch {
		case c.Range != id:
		// The donor makes the copy.
		case c.Of <= 0:
			return 0, true
		// A node that claims too much must not finish an operation.
		default:
			return float64(min(max(c.Done, 0), c.Of)) / float64(c.Of), true
		}
	}
	return 0, false
}

// covers reports whether every live node has sent a recent survey.
func (v *Surveys) covers(now time.Duration, s *catalog.State) bool {
	for n := range s.Nodes() {
		if x, ok := v.nodes[n.ID]; n.State == rhumb.NodeLive && (!ok || now-x.at > SurveyKeep) {
			return false
		}
	}
	return true
}

// A distance is recorded again if it has changed by more than a fifth, and by more than distanceStep
// microseconds: measurements of short distances vary by more than a fifth all the time.
const (
	distanceShare = 5
	distanceStep  = 2_000
)

// Distances returns a command that records the distances between regions that have changed, or false if none has.
// The distance is the shortest round trip that a node of either region has measured: queues only make it longer.
func (v *Surveys) Distances(now time.Duration, s *catalog.State) (cmd catalog.Command, ok bool) {
	if !s.Has(rhumb.FeatureSurviveRegion) {
		return nil, false
	}
	// The lower region first, as the catalog records pairs.
	type pair struct{ a, b rhumb.RegionID }
	least := make(map[pair]uint32)
	for id, x := range v.nodes {
		n, known := s.Node(id)
		if !known || now-x.at > SurveyKeep {
			continue
		}
		for _, d := range x.Regions {
			p := pair{min(n.Region, d.Region), max(n.Region, d.Region)}
			if _, exists := s.Region(d.Region); !exists || p.a == p.b || d.Micros == 0 || d.Micros > catalog.DistanceMicrosMax {
				continue
			}
			if old, has := least[p]; !has || d.Micros < old {
				least[p] = d.Micros
			}
		}
	}
	// The recorded value decides whether a measurement is news.
	recorded := make(map[pair]uint32)
	for d := range s.Distances() {
		recorded[pair{d.A, d.B}] = d.Micros
	}
	var out catalog.SetDistances
	// In the order of regions, so that equal surveys lead to equal commands.
	for a := range s.Regions() {
		for b := range s.Regions() {
			p := pair{a.ID, b.ID}
			micros, has := least[p]
			if !has || len(out.Distances) == catalog.DistancesMax {
				continue
			}
			old, was := recorded[p]
			// Small changes are noise: every record moves the revision of the catalog on all nodes.
			if change := max(micros, old) - min(micros, old); was && (change <= old/distanceShare || change <= distanceStep) {
				continue
			}
			out.Distances = append(out.Distances, rhumb.RegionDistance{A: p.a, B: p.b, Micros: micros})
		}
	}
	return out, len(out.Distances) > 0
}
