package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// applyTo assigns the cluster its id and registers the founder as node 1.
func (c Init) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Init"
	if !t.cluster.IsZero() {
		// A founder that crashed before it stored its registration repeats the command. The same
		// cluster, store, life and nonce identify it.
		first, ok := t.nodes.get(1)
		if ok && t.cluster == c.Cluster && first.Store == c.First.Store && first.Boot == c.First.Boot && first.nonce == c.First.Nonce {
			return Result{Node: first.ID, Region: first.Region, Life: first.Boot}
		}
		return refuse(op, rhumb.AlreadyExists, "cluster %s is already initialized; start this node with --join to add it", t.cluster)
	}
	if c.Cluster.IsZero() {
		return refuse(op, rhumb.InvalidArgument, "the cluster id is missing")
	}
	// A node with an id already belongs to a cluster.
	if c.First.Node != rhumb.NoNode {
		return refuse(op, rhumb.InvalidArgument, "the first node already has id %s, but a new cluster assigns one", c.First.Node)
	}
	if c.First.Witness {
		return refuse(op, rhumb.InvalidArgument, "the first node of a cluster cannot be a witness; start it without --witness, and join the witness to it")
	}
	// RegisterNode refuses to register before the cluster has an id, so the id is set first and
	// removed again if the node is refused.
	if len(c.Gossip) > 0 {
		if err := checkGossipKeys(c.Gossip); err != nil {
			return refuseErr(op, err)
		}
	}
	t.cluster = c.Cluster
	res := c.First.applyTo(t)
	if res.Failure != nil {
		t.cluster = rhumb.ClusterID{}
		return res
	}
	if len(c.Gossip) > 0 {
		t.putSecurity(&Security{Gossip: rhumb.GossipKeys{Version: 1, Keys: c.Gossip}})
	}
	// A new cluster has nobody to wait for. A founder of an earlier build names no version.
	t.raiseVersion(rhumb.ParseBuild(c.First.Binary).Max)
	return res
}

// applyTo adds a region, or returns the one of that name and location.
func (c AddRegion) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AddRegion"
	// A region of that name at the same location makes the command a repetition.
	if r, ok := t.RegionByName(c.Name); ok {
		if r.Into != 0 {
			return refuse(op, rhumb.Conflict, "region %q is being removed; wait for the end of that, or cancel it (rhumb operation ls)", c.Name)
		}
		if r.Location == c.Location {
			return Result{Region: r.ID}
		}
		return refuse(op, rhumb.AlreadyExists, "region %q already exists at another location, %v", c.Name, r.Location)
	}
	if err := t.checkNewRegion(c.Name, c.Location); err != nil {
		return refuseErr(op, err)
	}
	return Result{Region: t.addRegion(c.Name, c.Location)}
}

// checkNewRegion returns an error if a region cannot be created.
func (t *tx) checkNewRegion(name string, at rhumb.Point) error {
	const op rhumb.Op = "catalog.Region"
	if err := checkLabel("region name", name); err != nil {
		return err
	}
	if t.regions.size >= rhumb.RegionsMax {
		return rhumb.Ef(op, rhumb.TooLarge, "region %q was not added: the cluster has %d regions, which is the limit", name, t.regions.size)
	}
	return at.Validate()
}

// addRegion creates a region and returns its id.
func (t *tx) addRegion(name string, at rhumb.Point) rhumb.RegionID {
	t.lastRegion++
	t.putRegion(&region{Region: rhumb.Region{ID: t.lastRegion, Name: name, Location: at}})
	return t.lastRegion
}

// checkLabel returns an error if the name of a region or zone is empty, too long, or contains
// anything but letters, digits, '_', '-' and '.'.
func checkLabel(what, name string) error {
	const op rhumb.Op = "catalog.checkLabel"
	if name == "" || len(name) > RegionNameSizeMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s %.20q has %d characters; %ss have 1 to %d", what, name, len(name), what, RegionNameSizeMax)
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s %q contains %q; use letters, digits, '_', '-' and '.'", what, name, c)
		}
	}
	return nil
}

// applyTo registers the start of a node. In order: the cluster must exist and be the node's; the
// arguments must be valid; a known node begins a new life (registerAgain); a node that claims an
// unknown id is refused; any other node joins (joinCluster).
func (c RegisterNode) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	if t.cluster.IsZero() {
		return refuse(op, rhumb.Unavailable, "the cluster does not exist yet; create it with rhumb init")
	}
	// A node that joins for the first time may not know the cluster yet.
	if !c.Cluster.IsZero() && c.Cluster != t.cluster {
		return refuse(op, rhumb.WrongCluster, "the node belongs to cluster %s, but this is cluster %s; check its --join", c.Cluster, t.cluster)
	}
	if err := c.validateArgs(); err != nil {
		return refuseErr(op, err)
	}
	if err := t.checkBuild(c); err != nil {
		return refuseErr(op, err)
	}
	// A known node never becomes a second record: its ranges, epochs and lives depend on its id.
	if old := t.findRegistered(c); old != nil {
		return c.registerAgain(t, old)
	}
	if c.Node != rhumb.NoNode {
		return refuse(op, rhumb.NotFound, "%s was never registered in this cluster; start it with an empty directory to join as a new node", c.Node)
	}
	return c.joinCluster(t)
}

// validateArgs returns an error if the registration is wrong in any state.
func (c RegisterNode) validateArgs() error {
	const op rhumb.Op = "catalog.RegisterNode"
	// Life 0 means "none" in recorded lives, so no node may register it.
	if c.Store.IsZero() || c.Boot == 0 {
		return rhumb.E(op, rhumb.InvalidArgument, "the registration lacks the store id or the boot number")
	}
	if err := checkLabel("zone", c.Zone); err != nil {
		return err
	}
	for _, addr := range []string{c.Addr, c.HeartbeatAddr, c.AdminAddr, c.Binary} {
		if len(addr) > AddrSizeMax {
			return rhumb.Ef(op, rhumb.TooLarge, "address or version %.20q… has %d bytes; the limit is %d", addr, len(addr), AddrSizeMax)
		}
	}
	if c.Name != "" {
		if err := rhumb.ValidateNodeName(c.Name); err != nil {
			return err
		}
	}
	if c.HasLocation {
		return c.Location.Validate()
	}
	return nil
}

// findRegistered returns the record of the node that registers, or nil. It looks the node up by its
// id, or by its store if the node has lost its id: a crash between registration and storing the id
// must not create a second node.
func (t *tx) findRegistered(c RegisterNode) *node {
	// An id decides alone. registerAgain then refuses a store that does not belong to it.
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

// joinCluster creates a node, and its region if the name is new.
func (c RegisterNode) joinCluster(t *tx) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	switch count := t.countMembers(); {
	case count >= rhumb.NodesMax:
		return refuse(op, rhumb.TooLarge, "the node was not added: the cluster has %d nodes, which is the limit; remove nodes that are gone for good (`rhumb node ls`, `rhumb node rm`)", count)
	// Their numbers are in keys and records, so the records of removed nodes stay.
	case t.nodes.size >= rhumb.NodesEverMax:
		return refuse(op, rhumb.TooLarge, "the node was not added: the cluster has had %d nodes, which is the limit; move the data to a new cluster", t.nodes.size)
	}
	old, res, ok := c.replaced(t, rhumb.NoNode)
	if !ok {
		return res
	}
	// A node that is replaced by this one loses its name.
	if res, ok := c.checkNameFree(t, rhumb.NoNode); !ok && len(old) == 0 {
		return res
	}
	at, found := t.RegionByName(c.Region)
	if found && at.Into != 0 {
		return refuse(op, rhumb.Conflict, "region %q is being removed; start the node in another region, or cancel the removal (rhumb operation ls)", c.Region)
	}
	// A region that exists keeps its location, whatever the node reports.
	if !found {
		if !c.HasLocation {
			return refuse(op, rhumb.InvalidArgument, "region %q does not exist yet and has no known location; add --location LAT,LON", c.Region)
		}
		if err := t.checkNewRegion(c.Region, c.Location); err != nil {
			return refuseErr(op, err)
		}
		at.ID, at.Location = t.addRegion(c.Region, c.Location), c.Location
	}
	// Ids are assigned here and never reused, so an id names one node forever.
	t.lastNode++
	n := c.newRecord(t.lastNode, at)
	t.replaceNodes(old, n.ID)
	t.putNode(n)
	// Registering a live node ends the death of its region; the invariant in checkNodes depends on
	// it.
	t.reviveRegion(n.Region)
	return Result{Node: n.ID, Region: n.Region, Life: n.Boot}
}

// countMembers returns the number of nodes that count against rhumb.NodesMax: those that were not removed for good.
func (t *tx) countMembers() int {
	// Earlier builds count all nodes, and all replicas of the catalog must answer alike.
	if t.nodes.size < rhumb.NodesMax || !t.Has(rhumb.FeatureOperations) {
		return t.nodes.size
	}
	count := t.nodes.size
	for _, n := range t.nodes.all() {
		if n.Forgotten {
			count--
		}
	}
	return count
}

// newRecord returns a record of the node in its new life. A node without a location of its own is
// where its region is.
func (c RegisterNode) newRecord(id rhumb.NodeID, at rhumb.Region) *node {
	location := at.Location
	if c.HasLocation {
		location = c.Location
	}
	return &node{nonce: c.Nonce, Node: rhumb.Node{
		ID: id, Region: at.ID, Zone: c.Zone, Addr: c.Addr, HeartbeatAddr: c.HeartbeatAddr, AdminAddr: c.AdminAddr,
		Location: location, Store: c.Store, Boot: c.Boot, State: rhumb.NodeLive, Binary: c.Binary, Name: c.Name,
		Witness: c.Witness,
	}}
}

// registerAgain begins a new life of a known node (docs/replication.md#rule-life). It
// distinguishes, by the nonce:
//
//   - The nonce of the present life: the answer was lost. The result is the same again, unless the
//     boot number is greater. Then the node restarted before it learned the result, and begins
//     another life.
//   - A nonce of an earlier life: a delayed repetition, or a disk that was copied before it
//     registered. Refused.
//   - A new nonce: a new life. It is short if its predecessor, as the node's disk has it, is not
//     the life that the catalog knows: then the disk is an older copy.
func (c RegisterNode) registerAgain(t *tx, old *node) Result {
	const op rhumb.Op = "catalog.RegisterNode"
	if old.Store != c.Store {
		return refuse(op, rhumb.WrongCluster, "%s is registered with store %s, but its directory holds store %s; a replaced disk joins as a new node, without the old node's id", old.ID, old.Store, c.Store)
	}
	if res, ok := c.checkBoundName(t, old); !ok {
		return res
	}
	again := c.Nonce == old.nonce
	// Nothing changes, so the repetition touches no range and begins no epoch.
	if again && c.Boot <= old.Boot {
		return Result{Node: old.ID, Region: old.Region, Life: old.Boot}
	}
	if slices.Contains(old.past, c.Nonce) {
		return refuse(op, rhumb.Conflict, "%s registered with the nonce of an earlier life; it must draw another", old.ID)
	}
	at, _ := t.Region(old.Region)
	if at.Name != c.Region {
		return refuse(op, rhumb.InvalidArgument, "%s is registered in region %q and cannot move to %q; add a new node there instead", old.ID, at.Name, c.Region)
	}
	// A node with data that became a witness would keep copies which nobody places, and the other way round tables would count on a machine
	// that was made for votes.
	if c.Witness != old.Witness {
		return refuse(op, rhumb.InvalidArgument, "%s joined %s --witness and cannot change that; decommission it, and start it with an empty directory", old.ID, map[bool]string{true: "with", false: "without"}[old.Witness])
	}
	// The disk of a replaced node is back. It takes its place again if the other one has stopped.
	if by, replaced := t.nodes.get(uint64(old.ReplacedBy)); replaced {
		if by.State != rhumb.NodeFenced {
			return refuse(op, rhumb.Conflict, "%s runs in the place of %s; stop it first if this disk is to come back, or start this node with an empty directory", by.ID, old.ID)
		}
		if !by.Forgotten {
			t.replaceNodes([]*node{by}, old.ID)
		}
	}
	n := c.newRecord(old.ID, at)
	// The decision of an operator about the node outlives its restarts.
	n.leftBefore = old.leftBefore
	if n.Leaving = old.Leaving; n.Leaving {
		n.State = rhumb.NodeDecommissioning
	}
	// The driver of the metadata group sets Voter when the membership changes, not the node.
	n.Voter = old.Voter
	// A pin outlives restarts, or a rolling upgrade would undo what an operator chose.
	n.VotePinned = old.VotePinned
	// What the node did in earlier lives is what the count is for.
	n.Relapses, n.FailedAt = old.Relapses, old.FailedAt
	// The catalog counts lives. The node's own count may be lower if its disk is an older copy, and
	// higher if some starts never reached the catalog.
	n.Boot = max(c.Boot, old.Boot+1)
	// With a repeated nonce the disk has not changed since, so an earlier Short mark remains.
	n.Short, n.past = old.Short || c.Short, old.past
	if !again {
		n.Short = c.Short || c.Previous != old.nonce
		// The slice is cloned because the old record, which readers share, refers to it.
		n.past = append(slices.Clone(old.past[max(0, len(old.past)+1-pastMax):]), old.nonce)
	}
	t.putNode(n)
	t.reviveRegion(n.Region)
	// Rule S: a restarted node never continues in its old epoch.
	t.reelectRanges(n.ID)
	return Result{Node: n.ID, Region: n.Region, Life: n.Boot}
}

// reelectRanges begins a new epoch of every range whose primary was the node, which is now in a new
// life. It prefers the nearest other live in-sync member, because that one can serve sooner: the
// restarted node must wait out grants that it does not remember (docs/replication.md#rule-s).
// Without another member, the node is elected again.
func (t *tx) reelectRanges(id rhumb.NodeID) {
	load := t.countPrimaries()
	for r := range t.freezeState().Ranges() {
		// The election of a range that is being split elects for its reserved range too.
		r, _ = t.Range(r.ID)
		// The earlier life may have begun the reserved epoch, so this life must not. The old primary sees
		// that the handover has failed.
		if h := r.Prepared; h != nil && h.Target == id {
			t.cancelHandover(r)
		}
		if r.Primary != id {
			continue
		}
		heir := t.NearestHeir(r, id, load)
		if heir == rhumb.NoNode {
			heir = id
		}
		// The load is kept up to date within the loop, so that the ranges spread over heirs that
		// are equally near (TestHeirsShareEqually).
		load[id]--
		load[heir]++
		// The in-sync set stays: a restart alone does not prove that the node lost data.
		t.electPrimary(r, heir, r.InSync)
	}
}

// applyTo marks the node as fenced and takes its roles.
func (c FenceNode) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.FenceNode"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	// Evidence about an earlier life says nothing about this one.
	case n.Boot != c.Boot:
		return refuse(op, rhumb.Conflict, "%s was seen in life %d, but is in life %d now", c.Node, c.Boot, n.Boot)
	// Two leaders in turn may propose the same fencing.
	case n.State == rhumb.NodeFenced:
		return Result{Node: c.Node}
	}
	t.setNodeState(n, rhumb.NodeFenced)
	t.relieveNode(c.Node, false)
	return Result{Node: c.Node}
}

// applyTo stores the state, and takes the roles of a node that drains.
func (c SetNodeState) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetNodeState"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	case c.State != rhumb.NodeLive && c.State != rhumb.NodeDraining:
		return refuse(op, rhumb.InvalidArgument, "state %s cannot be set; set live or draining", c.State)
	case n.Boot != c.Boot:
		return refuse(op, rhumb.Conflict, "%s was seen in life %d, but is in life %d now", c.Node, c.Boot, n.Boot)
	// Only a registration ends a fencing, because it begins a new life.
	case n.State == rhumb.NodeFenced:
		return refuse(op, rhumb.Conflict, "%s is fenced until it registers again", c.Node)
	}
	// The end of a drain does not end a decommissioning.
	if c.State == rhumb.NodeLive && n.Leaving {
		// Once nothing moves its copies away any more, an operator takes the node back like this.
		if !t.isMovedAway(n.ID) {
			t.setLeavingNode(n, false)
			n, _ = t.nodes.get(uint64(c.Node))
		} else {
			c.State = rhumb.NodeDecommissioning
		}
	}
	if n.State == c.State {
		return Result{Node: c.Node}
	}
	t.setNodeState(n, c.State)
	if c.State == rhumb.NodeDraining {
		// The node is alive, so it can hand its ranges over. Earlier builds know elections only.
		t.relieveNode(c.Node, t.Has(rhumb.FeatureHandover))
	}
	return Result{Node: c.Node}
}

// setNodeState stores a copy of n in another state.
func (t *tx) setNodeState(n *node, state rhumb.NodeState) {
	next := *n
	next.State = state
	t.putNode(&next)
}

// relieveNode takes the roles of a node that is not live. Its primaries pass to the nearest heirs,
// and the node leaves every in-sync set that stays at its minimum size. An in-sync set in the
// metadata that is smaller than the primary's is safe: the primary waits for more members than it
// has to (docs/replication.md#record).
//
// If gently is set, the node is alive: handovers of its primaries are prepared, and it serves until it has handed
// over. The metadata leader elects the heirs if that does not happen in time.
func (t *tx) relieveNode(id rhumb.NodeID, gently bool) {
	load := t.countPrimaries()
	for r := range t.freezeState().Ranges() {
		// As in reelectRanges.
		if r, _ = t.Range(r.ID); !r.IsInSync(id) {
			continue
		}
		// The record is shared, so the set is cloned before it shrinks.
		inSync := r.InSync
		// At the minimum the node stays in the set. The range cannot commit, but no acknowledged
		// write is given up.
		if less := slices.DeleteFunc(slices.Clone(inSync), func(n rhumb.NodeID) bool { return n == id }); t.mayShrink(r, less) {
			inSync = less
		}
		// Dropping a secondary needs no new epoch, because the primary stays.
		if r.Primary != id {
			t.shrinkInSync(r, inSync)
			continue
		}
		// Without an heir the record stays unchanged until a member registers. A replica that is
		// not in sync may lack acknowledged writes, so it is never elected.
		heir := t.NearestHeir(r, id, load)
		if heir == rhumb.NoNode {
			continue
		}
		load[id]--
		load[heir]++
		switch {
		// Both parts of a range that is being split must know the epochs of the log that they share, so it is not handed over.
		case !gently || !canTakeOver(r, heir) || t.isReshaping(r):
			t.electPrimary(r, heir, inSync)
		// A handover that is prepared may be under way. It moves the range as well. The node leaves the in-sync
		// set when the new primary adopts the range.
		case r.Prepared == nil:
			t.prepareHandover(r, heir)
		}
	}
}

// shrinkInSync stores r with a smaller in-sync set under the same epoch.
func (t *tx) shrinkInSync(r *rhumb.Range, inSync []rhumb.NodeID) {
	if len(inSync) == len(r.InSync) {
		// A node that stays in the set although it is not live must not take over all the same.
		if h := r.Prepared; h != nil && !t.IsLive(h.Target) {
			t.cancelHandover(r)
		}
		return
	}
	next := r.Clone()
	next.InSync = inSync
	next.Version++
	t.putRange(next)
}

// isLeaving reports whether a replica is to go, or its node.
func (s *State) isLeaving(r *rhumb.Range, id rhumb.NodeID) bool {
	n, ok := s.Node(id)
	return r.IsLeaving(id) || ok && n.Leaving
}

// applyTo marks a region as dead if all of its nodes are fenced.
func (c SetRegionDead) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetRegionDead"
	r, ok := t.regions.get(uint64(c.Region))
	if !ok {
		return refuse(op, rhumb.NotFound, "region %s does not exist", c.Region)
	}
	// Its ranges are in another region, or on the way there: somebody has to be asked for the names that it holds.
	if r.Into != 0 {
		return refuse(op, rhumb.Conflict, "region %s cannot be marked dead: it is being removed, or was", r.Name)
	}
	for n := range t.Nodes() {
		// The proposer may not have seen a registration that was applied since.
		if n.Region == c.Region && n.State != rhumb.NodeFenced {
			return refuse(op, rhumb.Conflict, "region %s cannot be marked dead: %s is %s", r.Name, n.ID, n.State)
		}
	}
	t.setRegionDead(r, true)
	return Result{Region: c.Region}
}

// reviveRegion ends the death of a region in which a node has registered.
func (t *tx) reviveRegion(id rhumb.RegionID) {
	if r, ok := t.regions.get(uint64(id)); ok {
		t.setRegionDead(r, false)
	}
}

// setRegionDead stores whether a region counts as dead.
func (t *tx) setRegionDead(r *region, dead bool) {
	// An unchanged record is not stored, so that the command moves no revision.
	if r.Dead != dead {
		next := *r
		next.Dead = dead
		t.putRegion(&next)
	}
}

// applyTo records who votes in the metadata group.
func (c SetVoters) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetVoters"
	if len(c.Voters) == 0 {
		return refuse(op, rhumb.InvalidArgument, "the list of voters is empty; the metadata group needs at least one")
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
