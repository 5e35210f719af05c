package catalog

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// This file holds the rules about regions: where replicas may be (residency), how an in-sync set is spread
// (survival goal region), and how far regions are from each other.

const codeSetDistances commandCode = 73

// DistancesMax bounds the pairs of one SetDistances.
const DistancesMax = 1_024

// DistanceMicrosMax is the longest round trip between two regions that is recorded, in microseconds.
const DistanceMicrosMax = 60_000_000

// SetDistances records round trips between regions, as nodes have measured them. Replicas and successors
// are chosen by them. Times are whole microseconds, so that all replicas of the catalog rank alike.
type SetDistances struct{ Distances []rhumb.RegionDistance }

func (SetDistances) wireCode() commandCode { return codeSetDistances }
func (SetDistances) needs() rhumb.Feature  { return rhumb.FeatureSurviveRegion }

// wireDistance is the round trip between two regions, the lower number first.
type wireDistance struct {
	_      struct{} `cbor:",toarray"`
	A, B   rhumb.RegionID
	Micros uint32
}

func (c SetDistances) fillWire(w *wireCommand) {
	for _, d := range c.Distances {
		w.Distances = append(w.Distances, wireDistance{A: d.A, B: d.B, Micros: d.Micros})
	}
}

// spreadDecoders is the part of commandDecoders for the commands of this file.
var spreadDecoders = map[commandCode]func(w *wireCommand) Command{
	codeSetDistances: func(w *wireCommand) Command {
		var c SetDistances
		for _, d := range w.Distances {
			c.Distances = append(c.Distances, rhumb.RegionDistance{A: d.A, B: d.B, Micros: d.Micros})
		}
		return c
	},
}

// applyTo records the distances. Each names the lower region first, so that a pair has one record.
func (c SetDistances) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetDistances"
	if len(c.Distances) > DistancesMax {
		return refuse(op, rhumb.TooLarge, "%d distances were given; the limit is %d", len(c.Distances), DistancesMax)
	}
	for _, d := range c.Distances {
		_, knowsA := t.regions.get(uint64(d.A))
		_, knowsB := t.regions.get(uint64(d.B))
		if d.A >= d.B || !knowsA || !knowsB || d.Micros == 0 || d.Micros > DistanceMicrosMax {
			return refuse(op, rhumb.InvalidArgument, "the distance of %d µs between regions %s and %s is not one of two known regions in order", d.Micros, d.A, d.B)
		}
	}
	// Checked as a whole before the first change, as every command is.
	for _, d := range c.Distances {
		key := pairKey(d.A, d.B)
		// An unchanged distance is not stored, so that a repeated command moves no revision.
		if old, ok := t.distances.get(key); !ok || old != d.Micros {
			t.distances.set(t.owner, key, d.Micros)
			// A distance counts as a change of the region that is named first.
			t.changes.Regions = append(t.changes.Regions, d.A)
		}
	}
	return Result{}
}

// Distances yields the measured round trips between regions.
func (s *State) Distances() iter.Seq[rhumb.RegionDistance] {
	return func(yield func(rhumb.RegionDistance) bool) {
		for key, micros := range s.distances.all() {
			if !yield(rhumb.RegionDistance{A: rhumb.RegionID(key >> 32), B: rhumb.RegionID(key), Micros: micros}) {
				return
			}
		}
	}
}

// metresPerMicro converts a distance on the globe to a round trip: light in fibre covers 200 m in a
// microsecond, and has to come back.
const metresPerMicro = 100

// RegionMicros returns the round trip between two regions in microseconds: the measured one, or without a
// measurement what light in a straight fibre would need.
func (s *State) RegionMicros(a, b rhumb.RegionID) int64 {
	if a == b {
		return 0
	}
	if micros, ok := s.distances.get(pairKey(min(a, b), max(a, b))); ok {
		return int64(micros)
	}
	ra, okA := s.regions.get(uint64(a))
	rb, okB := s.regions.get(uint64(b))
	if !okA || !okB {
		return DistanceMicrosMax
	}
	return geo.Metres(ra.Location, rb.Location) / metresPerMicro
}

// span describes how far two nodes are apart: by the round trip between their regions, then by metres.
// Within a region only metres count.
type span struct{ micros, metres int64 }

// less orders spans.
func (d span) less(o span) bool {
	return d.micros < o.micros || d.micros == o.micros && d.metres < o.metres
}

// spanBetween returns how far two nodes are apart. At the base version it knows metres only, as the builds
// of that version do: all replicas must choose the same successor.
func (s *State) spanBetween(a, b rhumb.NodeID) span {
	d := span{metres: s.distanceMetres(a, b)}
	if s.Has(rhumb.FeatureSurviveRegion) {
		na, _ := s.nodes.get(uint64(a))
		nb, _ := s.nodes.get(uint64(b))
		d.micros = s.RegionMicros(na.Region, nb.Region)
	}
	return d
}

// MayHold reports whether a node may hold a copy of a range, by the residency of the range's class.
func (s *State) MayHold(r *rhumb.Range, id rhumb.NodeID) bool {
	// Most classes are not confined, and this is asked for every request that is passed on.
	c, ok := s.Class(r.Class)
	if !ok || c.Settings.Regions == "" {
		return true
	}
	n, known := s.Node(id)
	return known && s.allows(c.Settings, n)
}

// allows reports whether the residency of a class allows copies on a node.
func (s *State) allows(settings rhumb.ClassSettings, n *rhumb.Node) bool {
	region, ok := s.Region(n.Region)
	return ok && settings.Regions.Has(region.Name)
}

// Spans reports whether an in-sync set satisfies the survival goal of its class: with goal region,
// its members are in two regions at least, so that whatever they all acknowledged survives each of them.
func (s *State) Spans(class rhumb.ClassID, set []rhumb.NodeID) bool {
	c, ok := s.Class(class)
	if !ok || c.Settings.Survival != rhumb.SurviveRegion {
		return true
	}
	// Two members of different regions are enough.
	var first rhumb.RegionID
	for _, id := range set {
		n, ok := s.Node(id)
		switch {
		case !ok:
		case first == 0:
			first = n.Region
		case n.Region != first:
			return true
		}
	}
	return false
}

// mayShrink reports whether an in-sync set may become a smaller one. A set that is already in one region,
// because an operator accepted a loss, does not have to get worse. And a set may be in one region while every other one with a replica is
// lost: half of the replicas are in each of two regions then (rhumb.ClassSettings.RegionReplicasMax), and what was acknowledged
// before is in both. Fencing needs the majority of the voters, so the lost region cannot do the same.
func (s *State) mayShrink(r *rhumb.Range, set []rhumb.NodeID) bool {
	return s.mayShrinkWithout(r, set, func(rhumb.NodeID) bool { return false })
}

// MayStand reports whether metadata accepts a set as the in-sync set of a range, as far as regions count: it is in two of them, or in one
// while every other copy is lost. Primaries ask it before they propose a set. The fencing of a region alone does not shrink all sets: if the node
// that is fenced last was not in sync, the member that was fenced before it stays, because the last node still lived then.
func (s *State) MayStand(r *rhumb.Range, set []rhumb.NodeID) bool {
	return s.Spans(r.Class, set) || len(set) > 0 && s.isAlone(r, set, func(rhumb.NodeID) bool { return false })
}

// mayShrinkWithout is mayShrink as it will be when the nodes that lost names are fenced too.
func (s *State) mayShrinkWithout(r *rhumb.Range, set []rhumb.NodeID, lost func(rhumb.NodeID) bool) bool {
	return len(set) >= s.minInSync(r) && (s.Spans(r.Class, set) || !s.Spans(r.Class, r.InSync) || s.isAlone(r, set, lost))
}

// isAlone reports whether all replicas of a range outside of the region of a set are on fenced nodes, or on nodes that lost
// names. The state of a node counts and not whether its replica is in sync: a replica that lives may join the set again, and until
// then writes wait for it or for the fencing of its node. Otherwise a primary could leave out the other region after a hiccup of a link, and the promise
// of the table would be void without anybody having noticed. A node that registers again is not fenced any more, and from
// then on the set may not shrink further in this way.
func (s *State) isAlone(r *rhumb.Range, set []rhumb.NodeID, lost func(rhumb.NodeID) bool) bool {
	home, ok := s.Node(set[0])
	return ok && !slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool {
		n, ok := s.Node(id)
		return ok && n.Region != home.Region && n.State != rhumb.NodeFenced && !lost(id)
	})
}

// checkSpread returns an error if new replicas of a range contradict the residency or the survival goal of
// its class. extra is how many replicas more than the goal allows one region may hold, while a range moves.
func (t *tx) checkSpread(settings rhumb.ClassSettings, replicas []rhumb.NodeID, extra int) error {
	const op rhumb.Op = "catalog.Placement"
	count := make(map[rhumb.RegionID]int)
	for _, id := range replicas {
		// Callers have refused unknown nodes with errors of their own.
		n, ok := t.Node(id)
		if !ok {
			continue
		}
		if !t.allows(settings, n) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is not in %s, to which the tables of the class are confined", id, settings.Regions)
		}
		count[n.Region]++
		if most := settings.RegionReplicasMax() + extra; settings.Survival == rhumb.SurviveRegion && count[n.Region] > most {
			return rhumb.Ef(op, rhumb.InvalidArgument, "replicas on %s are more than %d in region %s; the range would not survive its loss", rhumb.NodeList(replicas), most, n.Region)
		}
	}
	return nil
}

// BareRegion returns the name of a region that SetReplicas would refuse to leave without a copy of a range, if its replicas became a set, or "".
func (s *State) BareRegion(r *rhumb.Range, set []rhumb.NodeID) string {
	// Earlier builds accept the command, and all replicas of the catalog must answer alike.
	bare := s.bareRegion(r, set)
	if bare == 0 || !s.Has(rhumb.FeatureKeepRegions) {
		return ""
	}
	region, _ := s.Region(bare)
	return region.Name
}

// bareRegion returns a region in which a range would have no live copy any more if its replicas became a set, although its class survives
// the loss of a region and needs copies in more regions than are left; or 0. A region whose copies are all on fenced nodes has
// nothing to lose, and a range that has copies in more regions than it needs, because it moves, may leave one.
func (s *State) bareRegion(r *rhumb.Range, set []rhumb.NodeID) rhumb.RegionID {
	class, _ := s.Class(r.Class)
	if class.Settings.Survival != rhumb.SurviveRegion {
		return 0
	}
	before, after := make(map[rhumb.RegionID]bool), make(map[rhumb.RegionID]bool)
	for _, id := range slices.Concat(r.Replicas, set) {
		n, ok := s.Node(id)
		switch {
		case !ok || n.State == rhumb.NodeFenced:
		case slices.Contains(set, id):
			after[n.Region] = true
		default:
			before[n.Region] = true
		}
	}
	if len(after) >= class.Settings.RegionsMin() {
		return 0
	}
	// The least number, because all replicas of the catalog must answer alike.
	bare := rhumb.RegionID(0)
	for region := range before {
		if !after[region] && (bare == 0 || region < bare) {
			bare = region
		}
	}
	return bare
}

// ExplainSpread returns why no region can be home to ranges of a class with survival goal region or with
// residency.
func (s *State) ExplainSpread(settings rhumb.ClassSettings) string {
	// A name that is misspelt would otherwise show as a region without nodes.
	var unknown, parts []string
	for _, name := range settings.Regions.Names() {
		if _, ok := s.RegionByName(name); !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return fmt.Sprintf("regions %s do not exist; list regions with `rhumb region ls`, or add them first", strings.Join(unknown, ", "))
	}
	live := make(map[rhumb.RegionID]int)
	for n := range s.Nodes() {
		if n.State == rhumb.NodeLive && !n.Witness {
			live[n.Region]++
		}
	}
	for r := range s.Regions() {
		if settings.Regions.Has(r.Name) {
			parts = append(parts, fmt.Sprintf("%s has %d", r.Name, live[r.ID]))
		}
	}
	if settings.Survival == rhumb.SurviveRegion {
		return fmt.Sprintf("survival goal region with %d replicas needs live nodes in %d regions, at most %d replicas in each, but of the regions allowed %s; add regions or nodes, or use --survive zone",
			settings.Replicas, settings.RegionsMin(), settings.RegionReplicasMax(), strings.Join(parts, ", "))
	}
	return fmt.Sprintf("%d replicas need %d live nodes in one of the regions allowed, but %s; use fewer --replicas, or add nodes", settings.Replicas, settings.Replicas, strings.Join(parts, ", "))
}

// needsOfSettings returns the feature that settings belong to: earlier builds can neither decode a residency or a durability
// nor place replicas in several regions.
func needsOfSettings(c rhumb.ClassSettings) rhumb.Feature {
	// The latest first: a version that has it has the others too.
	if c.Durability.Deferred() {
		return rhumb.FeatureDeferred
	}
	if c.Survival == rhumb.SurviveRegion || c.Regions != "" {
		return rhumb.FeatureSurviveRegion
	}
	return rhumb.NoFeature
}
