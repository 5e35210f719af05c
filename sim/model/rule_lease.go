package model

// time ends the lease round of holder i: from now on nobody owes it for grants of that round, and it believes in none.
// Time passes whether or not the node runs. A round in which nobody granted anything need not end.
func (g *stepper) time(i int) {
	if int(g.from.round[i]) >= g.cfg.Rounds || !g.granted(i) {
		return
	}
	t := *g.from
	t.round[i]++
	g.done(&t, Action{kind: actRound, a: uint8(i), x: t.round[i]})
}

// granted reports whether anybody granted holder i its present round.
func (g *stepper) granted(i int) bool {
	for j := range g.from.rep {
		if r := &g.from.rep[j]; r.given[i] == g.from.round[i] || r.owed[i] == g.from.round[i] {
			return true
		}
	}
	return g.without(LeaseFromSending) // the round in which a late grant comes in matters too
}

// heartbeat lets a node ask every other for a grant from now on, and confirm the exclusions that it has applied. Grants
// are between nodes: neither asking nor granting depends on who is primary of the range.
func (g *stepper) heartbeat(p int) {
	if s := &g.from.rep[p]; g.cfg.beyond(s) || s.role == follower && !g.cfg.AllHolders {
		return
	}
	for i := range Replicas {
		if i == p {
			continue
		}
		r := &g.from.rep[p]
		m := message{kind: msgHeartbeat, from: uint8(p), to: uint8(i), x: g.from.round[p], y: max(r.floor[i], r.promised), z: r.boot}
		if !g.cfg.LateHeartbeats {
			g.receiveHeartbeat(i, &m)
			continue
		}
		t := *g.from
		g.send(&t, m, Action{kind: actHeartbeat, a: uint8(p), b: uint8(i), x: m.x, y: m.y})
	}
}

// beyond reports whether r has promised the last epoch there is. Nobody can depose it after that and it acts for no
// other epoch, so leases that it holds cannot matter.
func (c *Config) beyond(r *replica) bool { return int(r.promised) >= c.Epochs }

// receiveHeartbeat answers with a grant (ruling 1). The grant lists the epoch that this node promised, as the least for
// which it counts, until the holder has confirmed it.
func (g *stepper) receiveHeartbeat(i int, m *message) {
	p := int(m.from)
	if m.z < g.from.rep[i].life[p] && !g.without(OldLifeIgnored) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	if m.z > r.life[p] {
		r.life[p] = m.z
		if !g.without(ConfirmedPerLife) {
			r.confirmed[p] = 0
		}
	}
	if m.y >= r.promised {
		// The holder has applied the exclusion or made the promise itself, so nothing is owed any more.
		r.confirmed[p], r.owed[p] = 1, 0
	}
	floor := r.promised
	if r.confirmed[p] == 1 || r.promised <= 1 || g.without(ExclusionListed) {
		floor = 0 // nothing comes before epoch 1
	}
	if g.without(ListedUntilConfirmed) {
		r.confirmed[p] = 1
	}
	r.given[p] = max(r.given[p], m.x)
	grant := message{kind: msgGrant, from: uint8(i), to: m.from, x: m.x, y: floor, z: m.z}
	g.send(&t, grant, Action{kind: actGrant, a: uint8(i), b: m.from, x: m.x, y: floor})
}

// receiveGrant takes a grant and its exclusion in one step. The exclusion stays after the round has ended.
func (g *stepper) receiveGrant(p int, m *message) {
	if m.z != g.from.rep[p].boot && !g.without(GrantOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	round := m.x
	if g.without(LeaseFromSending) {
		round = t.round[p]
	}
	switch {
	case g.without(ConfirmAfterDropping) && m.y > 0:
		r.floor[m.from] = max(r.floor[m.from], m.y) // confirmed, while the belief of earlier epochs goes on; see holds
	case g.without(FloorKept) && m.y > 0:
		r.floor[m.from], r.belief[m.from] = max(r.floor[m.from], m.y), 0 // what is believed is dropped, what comes is not
	case g.without(ExclusionWithGrant) && round > r.belief[m.from]:
		r.belief[m.from] = round // the list is left for later
	default:
		r.floor[m.from] = max(r.floor[m.from], m.y)
		r.belief[m.from] = max(r.belief[m.from], round)
	}
	g.done(&t, Action{kind: actHold, a: uint8(p), b: m.from, x: m.x, y: m.y})
}

// holds reports whether holder p believes in a grant of node i for epoch.
func (c *Config) holds(s *state, p, i int, epoch uint8) bool {
	r := &s.rep[p]
	if r.belief[i] != s.round[p] {
		return false
	}
	return r.floor[i] <= epoch || c.Without == ConfirmAfterDropping || c.Without == FloorKept
}

// leased is rule L: primary p holds enough grants in I, and in P while a change is under way.
func (c *Config) leased(s *state, p int) bool {
	r := &s.rep[p]
	if !c.leasedBy(s, p, r.isr) {
		return false
	}
	if r.pending == 0 || c.Without == LeaseNeedsPending {
		return true
	}
	return c.leasedBy(s, p, r.pending) && (c.Slack > 0 || c.leasedBy(s, p, r.isr|r.pending))
}

func (c *Config) leasedBy(s *state, p int, members set) bool {
	need := c.ackQuorum(members)
	if c.Without == LeaseFromAll {
		need = members.size()/2 + 1
	}
	n := 0
	for m := range Replicas {
		if members.has(m) && (m == p || c.holds(s, p, m, s.rep[p].epoch)) {
			n++
		}
	}
	return n >= need
}

// owes reports whether a node other than spared may still believe in a grant of i that does not exclude the epochs
// before the promised one.
func (g *stepper) owes(t *state, i, spared int) bool {
	r := &t.rep[i]
	for p := range Replicas {
		if p != i && p != spared && r.owed[p] != 0 && r.owed[p] >= t.round[p] {
			return !g.without(WaitForGrants)
		}
	}
	return false
}
