package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

func (c Init) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Init"
	if !t.cluster.IsZero() {
		first, ok := t.nodes.get(1)
		if ok && t.cluster == c.Cluster && first.Store == c.First.Store && first.Boot == c.First.Boot && first.nonce == c.First.Nonce {
			return Result{Node: first.ID, Region: first.Region, Life: first.Boot}
		}
		return refuse(op, rhumb.AlreadyExists, "the cluster %s is founded already", t.cluster)
	}
	if c.Cluster.IsZero() {
		return refuse(op, rhumb.InvalidArgument, "the cluster id is zero")
	}
	if c.First.Node != rhumb.NoNode {
		return refuse(op, rhumb.InvalidArgument, "the first node has the id %s already; it gets one here", c.First.Node)
	}
	t.cluster = c.Cluster
	res := c.First.applyTo(t)
	if res.Failure != nil {
		t.cluster = rhumb.ClusterID{}
	}
	return res
}

func (c AddRegion) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AddRegion"
	if r, ok := t.RegionByName(c.Name); ok {
		if r.Location == c.Location {
			return Result{Region: r.ID}
		}
		return refuse(op, rhumb.AlreadyExists, "region %q lies at %v already", c.Name, r.Location)
	}
	if err := t.checkNewRegion(c.Name, c.Location); err != nil {
		return refuseErr(op, err)
	}
	return Result{Region: t.addRegion(c.Name, c.Location)}
}

// checkNewRegion refuses regions that cannot be made.
func (t *tx) checkNewRegion(name string, at rhumb.Point) error {
	const op rhumb.Op = "catalog.Region"
	if err := checkLabel("region name", name); err != nil {
		return err
	}
	if t.regions.size >= rhumb.RegionsMax {
		return rhumb.Ef(op, rhumb.TooLarge, "there are %d regions, the most there can be", t.regions.size)
	}
	return at.Validate()
}

func (t *tx) addRegion(name string, at rhumb.Point) rhumb.RegionID {
	t.lastRegion++
	t.putRegion(&region{Region: rhumb.Region{ID: t.lastRegion, Name: name, Location: at}})
	return t.lastRegion
}

// checkLabel refuses names of regions and zones that are empty, long, or hold anything but letters, digits, '_', '-', '.'.
func checkLabel(what, name string) error {
	const op rhumb.Op = "catalog.checkLabel"
	if name == "" || len(name) > RegionNameSizeMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "a %s has 1 to %d characters, %.20q has %d", what, RegionNameSizeMax, name, len(name))
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s %q holds %q; use letters, digits, '_', '-' and '.'", what, name, c)
		}
	}
	return nil
}

func (c RegisterNode) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	if t.cluster.IsZero() {
		return refuse(op, rhumb.Unavailable, "the cluster is not founded yet; run init first")
	}
	if !c.Cluster.IsZero() && c.Cluster != t.cluster {
		return refuse(op, rhumb.WrongCluster, "the node belongs to cluster %s, this is %s", c.Cluster, t.cluster)
	}
	if err := c.validateArgs(); err != nil {
		return refuseErr(op, err)
	}
	if old := t.findRegistered(c); old != nil {
		return c.registerAgain(t, old)
	}
	if c.Node != rhumb.NoNode {
		return refuse(op, rhumb.NotFound, "no node %s was ever registered here", c.Node)
	}
	return c.joinCluster(t)
}

// validate refuses registrations that are wrong whatever the state.
func (c RegisterNode) validateArgs() error {
	const op rhumb.Op = "catalog.RegisterNode"
	if c.Store.IsZero() || c.Boot == 0 {
		return rhumb.E(op, rhumb.InvalidArgument, "the store's identity and the boot sequence must be set")
	}
	if err := checkLabel("zone", c.Zone); err != nil {
		return err
	}
	for _, addr := range []string{c.Addr, c.HeartbeatAddr, c.AdminAddr, c.Binary} {
		if len(addr) > AddrSizeMax {
			return rhumb.Ef(op, rhumb.TooLarge, "address or version %.20q… has %d bytes, want at most %d", addr, len(addr), AddrSizeMax)
		}
	}
	if c.HasLocation {
		return c.Location.Validate()
	}
	return nil
}

// registered gives the record of the node that registers: by its id, or when it has lost that, by its store.
func (t *tx) findRegistered(c RegisterNode) *node {
	if c.Node != rhumb.NoNode {
		n, _ := t.nodes.get(uint64(c.Node))
		return n
	}
	for _, n := range t.nodes.all() {
		if n.Store == c.Store {
			return n
		}
	}
	return nil
}

// join makes a new node, and its region when that is new too.
func (c RegisterNode) joinCluster(t *tx) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	if t.nodes.size >= rhumb.NodesMax {
		return refuse(op, rhumb.TooLarge, "there are %d nodes, the most there can be", t.nodes.size)
	}
	at, found := t.RegionByName(c.Region)
	if !found {
		if !c.HasLocation {
			return refuse(op, rhumb.InvalidArgument, "region %q is new and needs a location", c.Region)
		}
		if err := t.checkNewRegion(c.Region, c.Location); err != nil {
			return refuseErr(op, err)
		}
		at.ID, at.Location = t.addRegion(c.Region, c.Location), c.Location
	}
	t.lastNode++
	n := c.newRecord(t.lastNode, at)
	t.putNode(n)
	t.reviveRegion(n.Region)
	return Result{Node: n.ID, Region: n.Region, Life: n.Boot}
}

// record gives the node's record.
func (c RegisterNode) newRecord(id rhumb.NodeID, at rhumb.Region) *node {
	location := at.Location
	if c.HasLocation {
		location = c.Location
	}
	return &node{nonce: c.Nonce, Node: rhumb.Node{
		ID: id, Region: at.ID, Zone: c.Zone, Addr: c.Addr, HeartbeatAddr: c.HeartbeatAddr, AdminAddr: c.AdminAddr,
		Location: location, Store: c.Store, Boot: c.Boot, State: rhumb.NodeLive, Binary: c.Binary,
	}}
}

// again begins a new life of a known node.
func (c RegisterNode) registerAgain(t *tx, old *node) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	if old.Store != c.Store {
		return refuse(op, rhumb.WrongCluster, "%s is registered with store %s, not %s; a replaced disk joins as a new node", old.ID, old.Store, c.Store)
	}
	// A start that was not confirmed to its node registers under the same nonce again, with a greater boot.
	again := c.Nonce == old.nonce
	if again && c.Boot <= old.Boot {
		return Result{Node: old.ID, Region: old.Region, Life: old.Boot}
	}
	if slices.Contains(old.past, c.Nonce) {
		return refuse(op, rhumb.Conflict, "%s registers with the nonce of an earlier life; it draws another", old.ID)
	}
	at, _ := t.Region(old.Region)
	if at.Name != c.Region {
		return refuse(op, rhumb.InvalidArgument, "%s is registered in region %q; a node does not move, it joins %q as a new one", old.ID, at.Name, c.Region)
	}
	n := c.newRecord(old.ID, at)
	n.Voter = old.Voter
	n.Boot = max(c.Boot, old.Boot+1)
	n.Short, n.past = old.Short || c.Short, old.past
	if !again {
		n.Short = c.Short || c.Previous != old.nonce
		n.past = append(slices.Clone(old.past[max(0, len(old.past)+1-pastMax):]), old.nonce)
	}
	t.putNode(n)
	t.reviveRegion(n.Region)
	t.reelectRanges(n.ID)
	return Result{Node: n.ID, Region: n.Region, Life: n.Boot}
}

// succeed gives every range whose primary was the node, now in a new life, a new epoch: for the nearest other live
// in-sync node, which can serve sooner than one that has to wait out grants it does not remember, or for itself.
func (t *tx) reelectRanges(id rhumb.NodeID) {
	load := t.countPrimaries()
	for r := range t.freezeState().Ranges() {
		if r.Primary != id {
			continue
		}
		heir := t.nearestHeir(r, id, load)
		if heir == rhumb.NoNode {
			heir = id
		}
		load[id]--
		load[heir]++
		t.electPrimary(r, heir, r.InSync)
	}
}

func (c FenceNode) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.FenceNode"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no node %s", c.Node)
	case n.Boot != c.Boot:
		return refuse(op, rhumb.Conflict, "%s was seen with boot %d and is registered with boot %d", c.Node, c.Boot, n.Boot)
	case n.State == rhumb.NodeFenced:
		return Result{Node: c.Node}
	}
	t.setNodeState(n, rhumb.NodeFenced)
	t.relieveNode(c.Node)
	return Result{Node: c.Node}
}

func (c SetNodeState) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetNodeState"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no node %s", c.Node)
	case c.State != rhumb.NodeLive && c.State != rhumb.NodeDraining:
		return refuse(op, rhumb.InvalidArgument, "state %s cannot be set; a node is fenced by FenceNode", c.State)
	case n.Boot != c.Boot:
		return refuse(op, rhumb.Conflict, "%s was seen with boot %d and is registered with boot %d", c.Node, c.Boot, n.Boot)
	case n.State == rhumb.NodeFenced:
		return refuse(op, rhumb.Conflict, "%s is fenced and must register again", c.Node)
	case n.State == c.State:
		return Result{Node: c.Node}
	}
	t.setNodeState(n, c.State)
	if c.State == rhumb.NodeDraining {
		t.relieveNode(c.Node)
	}
	return Result{Node: c.Node}
}

func (t *tx) setNodeState(n *node, state rhumb.NodeState) {
	next := *n
	next.State = state
	t.putNode(&next)
}

// relieve takes the roles of a node that is not live: its primaries go to their heirs, and it leaves every in-sync set
// that stays at its minimum. An in-sync set in metadata that is smaller than the primary's is always safe (section 1.3).
func (t *tx) relieveNode(id rhumb.NodeID) {
	load := t.countPrimaries()
	for r := range t.freezeState().Ranges() {
		if !r.IsInSync(id) {
			continue
		}
		inSync := r.InSync
		if len(inSync) > t.minInSync(r) {
			inSync = slices.DeleteFunc(slices.Clone(inSync), func(n rhumb.NodeID) bool { return n == id })
		}
		if r.Primary != id {
			t.shrinkInSync(r, inSync)
			continue
		}
		if heir := t.nearestHeir(r, id, load); heir != rhumb.NoNode {
			load[id]--
			load[heir]++
			t.electPrimary(r, heir, inSync)
		}
	}
}

// shrink stores r with a smaller in-sync set under the same epoch.
func (t *tx) shrinkInSync(r *rhumb.Range, inSync []rhumb.NodeID) {
	if len(inSync) == len(r.InSync) {
		return
	}
	next := r.Clone()
	next.InSync = inSync
	next.Version++
	t.putRange(next)
}

// primaries counts the ranges of each primary.
func (t *tx) countPrimaries() map[rhumb.NodeID]int {
	load := make(map[rhumb.NodeID]int)
	for r := range t.Ranges() {
		load[r.Primary]++
	}
	return load
}

// heir gives the live in-sync member other than the node that is nearest to it, then has the fewest primaries, then the
// lowest id; NoNode when there is none.
func (t *tx) nearestHeir(r *rhumb.Range, of rhumb.NodeID, load map[rhumb.NodeID]int) rhumb.NodeID {
	best, bestMetres := rhumb.NoNode, int64(0)
	for _, id := range r.InSync {
		if id == of || !t.IsLive(id) || r.IsQuarantined(id) {
			continue
		}
		m := t.distanceMetres(of, id)
		if best == rhumb.NoNode || m < bestMetres || m == bestMetres && load[id] < load[best] {
			best, bestMetres = id, m
		}
	}
	return best
}

func (c SetRegionDead) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetRegionDead"
	r, ok := t.regions.get(uint64(c.Region))
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no region %s", c.Region)
	}
	for n := range t.Nodes() {
		if n.Region == c.Region && n.State != rhumb.NodeFenced {
			return refuse(op, rhumb.Conflict, "%s of region %s is %s", n.ID, r.Name, n.State)
		}
	}
	t.setRegionDead(r, true)
	return Result{Region: c.Region}
}

// revive ends the death of a region that has a live node again.
func (t *tx) reviveRegion(id rhumb.RegionID) {
	if r, ok := t.regions.get(uint64(id)); ok {
		t.setRegionDead(r, false)
	}
}

func (t *tx) setRegionDead(r *region, dead bool) {
	if r.Dead != dead {
		next := *r
		next.Dead = dead
		t.putRegion(&next)
	}
}

func (c SetVoters) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetVoters"
	if len(c.Voters) == 0 {
		return refuse(op, rhumb.InvalidArgument, "the metadata group has at least one voter")
	}
	for _, n := range t.nodes.all() {
		if voter := slices.Contains(c.Voters, n.ID); voter != n.Voter {
			next := *n
			next.Voter = voter
			t.putNode(&next)
		}
	}
	return Result{}
}
