package catalog

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// identifier matches names of Go that no user has typed.
var identifier = regexp.MustCompile(`\b[A-Za-z]*[a-z][A-Z]\w*|\b\w+\.[A-Z]\w+`)

// expectRefusal checks that a command is refused with a kind and a text that holds the words, and
// that it leaves the state alone.
func expectRefusal(t *testing.T, name string, s *State, cmd Command, kind rhumb.Kind, words ...string) {
	t.Helper()
	next, res, changes := s.Apply(cmd)
	if next != s || changes.Len() != 0 || rhumb.KindOf(res.Err()) != kind || res.Failure == nil {
		t.Errorf("%s: %v with %d changes, want kind %s and none", name, res.Err(), changes.Len(), kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(res.Failure.Msg, word) {
			t.Errorf("%s: %q lacks %q", name, res.Failure.Msg, word)
		}
	}
	if found := identifier.FindString(res.Failure.Msg); found != "" {
		t.Errorf("%s: %q names %s, which no user has typed", name, res.Failure.Msg, found)
	}
}

// TestBounds fills a catalog up to each of its limits. The next record is refused with the limit.
func TestBounds(t *testing.T) {
	s, _ := threeNodes(t)
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = 2
	placements := []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2, 3}, {2, 3, 1}}}}
	location := strings.Repeat("l", rhumb.FieldNameSizeMax+1)
	long := registration(9, 1)
	long.AdminAddr = strings.Repeat("a", AddrSizeMax+1)
	for name, c := range map[string]struct {
		fill func(s *State)
		cmd  Command
		want string
	}{
		"regions":    {func(s *State) { s.regions.size = rhumb.RegionsMax }, AddRegion{Name: "new"}, "256"},
		"nodes":      {func(s *State) { s.nodes.size = rhumb.NodesMax }, registration(9, 1), "1024"},
		"tables":     {func(s *State) { s.tables.size = rhumb.TablesMax }, CreateTable{Name: "new", Settings: settings, Placements: placements}, "10000"},
		"classes":    {func(s *State) { s.classes.size = rhumb.TablesMax }, CreateClass{settings, placements}, "10000"},
		"ranges":     {func(s *State) { s.ranges.size = rhumb.RangesMax - 1 }, CreateClass{settings, placements}, "1048576"},
		"slots":      {func(s *State) { s.ranges.size = rhumb.RangesMax }, OpenSlot{Node: 1, Class: 1, Replicas: []rhumb.NodeID{1, 2, 3}}, "1048576"},
		"batch":      {nil, Batch{make([]Command, BatchMax+1)}, "10000"},
		"replicas":   {nil, SetReplicas{Range: rhumb.RangeID{Region: 1}, Version: 1, Replicas: []rhumb.NodeID{1, 2, 3, 4, 5, 6, 7, 8}}, "7"},
		"address":    {nil, long, "256"},
		"field name": {nil, CreateTable{Name: "new", Settings: settings, TableOptions: rhumb.TableOptions{LocationField: location}}, "255"},
	} {
		full := *s
		if c.fill != nil {
			c.fill(&full)
		}
		expectRefusal(t, name, &full, c.cmd, rhumb.TooLarge, c.want)
	}
}

// TestRefusalsSayWhatToDo is a table of commands that a person may have asked for, and of the words
// that the answer must hold: the value that is wrong, and the way out.
func TestRefusalsSayWhatToDo(t *testing.T) {
	s, id := threeNodes(t)
	settings := rhumb.DefaultClassSettings()
	elsewhere, far, foreign := registration(9, 1), registration(9, 1), registration(9, 1)
	elsewhere.Region, elsewhere.HasLocation = "mars", false
	far.Region, far.Location = "mars", rhumb.Point{Lat: 91}
	foreign.Cluster = rhumb.UUID{1}
	moved, swapped, stranger, noStore := registration(1, 2), registration(1, 2), registration(9, 1), registration(9, 1)
	moved.Node, moved.Region = 1, "mars"
	swapped.Node, swapped.Store = 1, rhumb.UUID{77}
	stranger.Node, noStore.Store = 9, rhumb.UUID{}
	for name, c := range map[string]struct {
		cmd   Command
		kind  rhumb.Kind
		words []string
	}{
		"a second cluster":       {Init{Cluster: rhumb.UUID{8}, First: registration(1, 1)}, rhumb.AlreadyExists, []string{"--join"}},
		"a region elsewhere":     {AddRegion{Name: "r", Location: rhumb.Point{Lat: 5}}, rhumb.AlreadyExists, []string{`"r"`}},
		"a region without name":  {AddRegion{}, rhumb.InvalidArgument, []string{"0 characters", "1 to 64"}},
		"a region off the map":   {far, rhumb.InvalidArgument, []string{"91"}},
		"a node in a new region": {elsewhere, rhumb.InvalidArgument, []string{`"mars"`, "--location"}},
		"a node of another":      {foreign, rhumb.WrongCluster, []string{"01000000", "--join"}},
		"a node that moved":      {moved, rhumb.InvalidArgument, []string{"n1", `"r"`, `"mars"`}},
		"a replaced disk":        {swapped, rhumb.WrongCluster, []string{"n1", "new node"}},
		"an unknown node":        {stranger, rhumb.NotFound, []string{"n9", "empty directory"}},
		"a node without a store": {noStore, rhumb.InvalidArgument, []string{"store"}},
		"a fenced state":         {SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeFenced}, rhumb.InvalidArgument, []string{"live or draining"}},
		"another life":           {SetNodeState{Node: 1, Boot: 7, State: rhumb.NodeDraining}, rhumb.Conflict, []string{"life 7", "life 1"}},
		"no voters":              {SetVoters{}, rhumb.InvalidArgument, []string{"at least one"}},
		"no placement":           {CreateClass{Settings: fiveReplicas(settings)}, rhumb.InvalidArgument, []string{"r has 3", "--replicas 3"}},
		"a range that changed":   {Elect{Range: id, Version: 9, Node: 2}, rhumb.Conflict, []string{"expected version 9", "found version 1"}},
		"a range that is well":   {RecoverRange{Range: id, Version: 1, Node: 1}, rhumb.Conflict, []string{"n1", "no data"}},
		"nobody takes over":      {Elect{Range: id, Version: 1}, rhumb.Conflict, []string{"n1"}},
		"a batch in a batch":     {Batch{[]Command{Batch{}}}, rhumb.InvalidArgument, []string{"command 0"}},
		"a live region":          {SetRegionDead{1}, rhumb.Conflict, []string{"r cannot be marked dead", "n1 is live"}},
		"no such region":         {SetRegionDead{9}, rhumb.NotFound, []string{"9"}},
		"history before now":     {CreateTable{Name: "new", Settings: settings, TableOptions: rhumb.TableOptions{History: -1}}, rhumb.InvalidArgument, []string{"-1ns"}},
		"a set with one twice": {Elect{Range: id, Version: 1, Node: 2, InSync: []rhumb.NodeID{2, 2}}, rhumb.InvalidArgument, []string{
			"(n2, n2)", "(n1, n2, n3)",
		}},
		"copies in two places": {CreateTable{Name: "new", Settings: oneSlot(settings), Placements: []Placement{
			{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2, 2}}},
		}}, rhumb.InvalidArgument, []string{"on n1, n2, n2 in", "3 different nodes"}},
	} {
		expectRefusal(t, name, s, c.cmd, c.kind, c.words...)
	}
	expectRefusal(t, "before the cluster", New(), registration(1, 1), rhumb.Unavailable, "rhumb init")
	expectRefusal(t, "a cluster without an id", New(), Init{First: registration(1, 1)}, rhumb.InvalidArgument, "id")
	expectRefusal(t, "a founder with an id", New(), Init{Cluster: rhumb.UUID{1}, First: stranger}, rhumb.InvalidArgument, "n9")
	expectRefusal(t, "a founder without a store", New(), Init{Cluster: rhumb.UUID{1}, First: noStore}, rhumb.InvalidArgument, "store")
}

// fiveReplicas and oneSlot change settings: to more replicas than there are nodes, and to a class that is new.
func fiveReplicas(c rhumb.ClassSettings) rhumb.ClassSettings { c.Replicas = 5; return c }

func oneSlot(c rhumb.ClassSettings) rhumb.ClassSettings {
	c.HashSlots = 1
	c.ShardSize *= 2
	return c
}

// TestDeadRegion follows a region from its death to the registration that ends it. In between the
// region is not asked for names, and that survives a restart.
func TestDeadRegion(t *testing.T) {
	s, _ := threeNodes(t)
	do := func(cmd Command) Changes {
		t.Helper()
		next, res, changes := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		if s = next; s.Check() != nil {
			t.Fatal(s.Check())
		}
		return changes
	}
	for id := rhumb.NodeID(1); id <= 3; id++ {
		do(FenceNode{Node: id, Boot: 1})
	}
	if !s.RegionServes(1) || s.RegionServes(9) {
		t.Errorf("before: region 1 serves %v, region 9 %v", s.RegionServes(1), s.RegionServes(9))
	}
	if c := do(SetRegionDead{1}); !slices.Equal(c.Regions, []rhumb.RegionID{1}) || s.RegionServes(1) {
		t.Errorf("dead: %+v, serves %v", c, s.RegionServes(1))
	}
	if c := do(SetRegionDead{1}); c.Len() != 0 {
		t.Errorf("a repetition touches %+v", c)
	}
	if decoded, err := Decode(s.Encode()); err != nil || decoded.RegionServes(1) {
		t.Errorf("a decoded copy serves the region: %v", err)
	}
	again := registration(2, 2)
	again.Node = 2
	if do(again); !s.RegionServes(1) {
		t.Error("a live node does not end the death of its region")
	}
}

// TestLookups checks that a life is found by its nonce, and the counts of a state.
func TestLookups(t *testing.T) {
	s, id := threeNodes(t)
	first := registration(2, 1)
	again := registration(2, 2)
	again.Node, again.Previous = 2, first.Nonce
	s, _, _ = s.Apply(again)
	if life, ok := s.Life(2, again.Nonce); !ok || life != 2 {
		t.Errorf("the present life is %d, %v", life, ok)
	}
	if _, ok := s.Life(2, first.Nonce); ok {
		t.Error("the nonce of an earlier life is that of the present one")
	}
	if r, _ := s.Range(id); s.RangeCount() != 1 || s.NodeCount() != 3 || r.LifeOf(2) != 1 {
		t.Errorf("%d ranges, %d nodes, recorded life %d of node 2", s.RangeCount(), s.NodeCount(), r.LifeOf(2))
	}
}

// TestElectionShrinksTheSet: an election may drop members in the same step, down to the minimum.
func TestElectionShrinksTheSet(t *testing.T) {
	s, id := threeNodes(t)
	next, res, _ := s.Apply(Elect{Range: id, Version: 1, Node: 3, InSync: []rhumb.NodeID{3, 2}})
	if res.Err() != nil || next.Check() != nil || res.Range.Primary != 3 || !slices.Equal(res.Range.InSync, []rhumb.NodeID{2, 3}) || res.Range.LifeOf(1) != 0 {
		t.Errorf("%+v, %v, %v", res.Range, res.Err(), next.Check())
	}
	expectRefusal(t, "below the minimum", s, Elect{Range: id, Version: 1, Node: 3, InSync: []rhumb.NodeID{3}}, rhumb.InvalidArgument, "set of 1", "minimum of 2")
	expectRefusal(t, "without the primary", s, Elect{Range: id, Version: 1, Node: 1, InSync: []rhumb.NodeID{2, 3}}, rhumb.InvalidArgument, "n1")
}
