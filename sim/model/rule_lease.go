package model

// endRound ends the lease round of holder i: from now on no node owes i for grants of that round,
// and i believes in none. Ending belief and obligation at one moment is the least distance that
// rule L permits. Time passes whether or not the node runs. A round without grants need not end.
func (g *stepper) endRound(i int) {
	// A round without grants need not end: ending it would only add states.
	if int(g.from.round[i]) >= g.cfg.Rounds || !g.isGranted(i) {
		return
	}
	t := *g.from
	t.round[i]++
	g.endStep(&t, Action{kind: actRound, a: uint8(i), x: t.round[i]})
}

// isGranted reports whether any node granted holder i its present round.
func (g *stepper) isGranted(i int) bool {
	for j := range g.from.rep {
		if r := &g.from.rep[j]; r.given[i] == g.from.round[i] || r.owed[i] == g.from.round[i] {
			return true
		}
	}
	// A late grant counts for the round of its receipt then.
	return g.without(LeaseFromSending)
}

// sendHeartbeats lets a node ask every other node for a grant and confirm the exclusions that it
// has applied. Grants are between nodes: neither asking nor granting depends on who is primary of
// the range.
func (g *stepper) sendHeartbeats(p int) {
	// Followers would ask in vain: they serve no reads.
	if s := &g.from.rep[p]; g.cfg.pastLastEpoch(s) || s.role == follower && !g.cfg.AllHolders {
		return
	}
	for i := range Replicas {
		if i == p {
			continue
		}
		r := &g.from.rep[p]
		m := message{kind: msgHeartbeat, from: uint8(p), to: uint8(i), x: g.from.round[p], y: max(r.floor[i], r.promised), z: r.boot}
		// Receiving at once removes the message from the state; LateHeartbeats covers the other
		// orders.
		if !g.cfg.LateHeartbeats {
			g.receiveHeartbeat(i, &m)
			continue
		}
		t := *g.from
		g.sendMessage(&t, m, Action{kind: actHeartbeat, a: uint8(p), b: uint8(i), x: m.x, y: m.y})
	}
}

// pastLastEpoch reports whether r has promised the last epoch. No node can depose it any more, and
// it acts for no other epoch, so leases that it holds cannot matter.
func (c *Config) pastLastEpoch(r *replica) bool { return int(r.promised) >= c.Epochs }

// receiveHeartbeat answers with a grant (docs/replication.md#exclusions). Until the holder has confirmed the exclusion,
// the grant lists the epoch that this node promised as the least epoch for which the grant counts.
func (g *stepper) receiveHeartbeat(i int, m *message) {
	p := int(m.from)
	// Its confirmation was of exclusions that the present life has not applied.
	if m.z < g.from.rep[i].life[p] && !g.without(OldLifeIgnored) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	// A new life of the holder has forgotten the exclusions that the old one confirmed.
	if m.z > r.life[p] {
		r.life[p] = m.z
		if !g.without(ConfirmedPerLife) {
			r.confirmed[p] = 0
		}
	}
	if m.y >= r.promised {
		// The holder has applied the exclusion, or made the promise itself, so nothing is owed any
		// more.
		r.confirmed[p], r.owed[p] = 1, 0
	}
	// A list that was confirmed may be dropped, because the holder keeps the exclusion.
	floor := r.promised
	if r.confirmed[p] == 1 || r.promised <= 1 || g.without(ExclusionListed) {
		// No epoch precedes epoch 1.
		floor = 0
	}
	// Dropping the list with the grant is wrong: the message may be lost (ListedUntilConfirmed).
	if g.without(ListedUntilConfirmed) {
		r.confirmed[p] = 1
	}
	// Every grant counts as given, with or without an exclusion. promise turns given into owed.
	r.given[p] = max(r.given[p], m.x)
	grant := message{kind: msgGrant, from: uint8(i), to: m.from, x: m.x, y: floor, z: m.z}
	g.sendMessage(&t, grant, Action{kind: actGrant, a: uint8(i), b: m.from, x: m.x, y: floor})
}

// receiveGrant applies a grant and its exclusion in one step. The exclusion outlasts the round,
// since grants renew forever (docs/replication.md#exclusions).
func (g *stepper) receiveGrant(p int, m *message) {
	// A grant for an earlier life may lack an exclusion that only that life had confirmed.
	if m.z != g.from.rep[p].boot && !g.without(GrantOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	round := m.x
	// Counting from the receipt, the belief would outlast the obligation by the delay of the
	// message.
	if g.without(LeaseFromSending) {
		round = t.round[p]
	}
	switch {
	case g.without(ConfirmAfterDropping) && m.y > 0:
		// The holder confirms the exclusion with its next heartbeat and so ends the wait of the
		// grantor.
		// Confirmed, while believesGrant still counts the grant for earlier epochs.
		r.floor[m.from] = max(r.floor[m.from], m.y)
	case g.without(FloorKept) && m.y > 0:
		// The existing belief is dropped, but later grants are not excluded.
		r.floor[m.from], r.belief[m.from] = max(r.floor[m.from], m.y), 0
	case g.without(ExclusionWithGrant) && round > r.belief[m.from]:
		// The exclusion is left for later.
		r.belief[m.from] = round
	default:
		r.floor[m.from] = max(r.floor[m.from], m.y)
		r.belief[m.from] = max(r.belief[m.from], round)
	}
	g.endStep(&t, Action{kind: actHold, a: uint8(p), b: m.from, x: m.x, y: m.y})
}

// believesGrant reports whether holder p believes in a grant of node i for epoch.
func (c *Config) believesGrant(s *state, p, i int, epoch uint8) bool {
	r := &s.rep[p]
	if r.belief[i] != s.round[p] {
		return false
	}
	// Under two mutations the floor does not limit belief.
	return r.floor[i] <= epoch || c.Without == ConfirmAfterDropping || c.Without == FloorKept
}

// holdsLease is rule L: primary p holds enough grants of I, and of P during a change.
func (c *Config) holdsLease(s *state, p int) bool {
	r := &s.rep[p]
	if !c.leasedBy(s, p, r.isr) {
		return false
	}
	// Metadata may have applied the change already, and then elects from P.
	if r.pending == 0 || c.Without == LeaseNeedsPending {
		return true
	}
	return c.leasedBy(s, p, r.pending) && (c.Slack > 0 || c.leasedBy(s, p, r.isr|r.pending))
}

// leasedBy reports whether p holds as many grants of a set as a commit needs copies. p counts
// itself.
func (c *Config) leasedBy(s *state, p int, members set) bool {
	need := c.ackQuorum(members)
	// A majority would not contain every node that may be elected.
	if c.Without == LeaseFromAll {
		need = members.size()/2 + 1
	}
	n := 0
	for m := range Replicas {
		if members.has(m) && (m == p || c.believesGrant(s, p, m, s.rep[p].epoch)) {
			n++
		}
	}
	return n >= need
}

// owesGrant reports whether a node other than spared may still believe in a grant of i that does
// not exclude the epochs below the promised one.
func (g *stepper) owesGrant(t *state, i, spared int) bool {
	r := &t.rep[i]
	// owed holds the last grant without the exclusion; it ends with its round.
	for p := range Replicas {
		if p != i && p != spared && r.owed[p] != 0 && r.owed[p] >= t.round[p] {
			return !g.without(WaitForGrants)
		}
	}
	return false
}
