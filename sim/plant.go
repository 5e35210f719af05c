package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// mixes are the faults with which planted bugs are searched, for bugs that the faults of a seed
// would expose too rarely.
var mixes = map[Bug][]FaultKind{
	ForgetGrants:      {faultUsurp},
	IgnoreExclusions:  {faultUsurp},
	CloseUnfenced:     {faultUsurp, faultData},
	AdoptShorter:      {faultTorn, faultFlip, faultEmpty, faultUsurp, faultCrash},
	BelowReport:       {faultTorn, faultFlip, faultEmpty, faultUsurp, faultCrash},
	SkipAsking:        {faultTorn, faultFlip, faultEmpty, faultUsurp, faultCrash},
	ForgetPromises:    {faultRollBack, faultUsurp, faultCrash, faultIsolate},
	AckOfOldLife:      {faultFlip, faultTorn, faultEmpty, faultData, faultHalfOpen},
	GrantOfOldLife:    {faultUsurp, faultCrash, faultSlowLink, faultLoss},
	NonceIgnored:      {faultRollBack, faultCrash},
	NoRefusal:         {faultTorn, faultFlip, faultEmpty, faultUsurp, faultCrash},
	ForgetQuarantine:  {faultSpoil, faultCrash, faultCrashAll},
	NoProgressTimeout: {faultData, faultHalfOpen},
	NoClockRefusal:    {faultClock, faultJump},
	VoteAtOnce:        {faultFlip, faultTorn, faultRollBack, faultCrash, faultIsolate},
	FullDiskAcks:      {faultFull, faultCrash},
	DropBeforeRemoved: {faultMove, faultCrash},
	CommitCopiedTail:  {faultUsurp, faultCrash, faultIsolate, faultData},
	AcceptOtherLife:   {faultHandover},
	// Bugs of copies need replicas whose logs fall short, and most of them elections meanwhile.
	InstallElectable:      {faultUsurp, faultCrash, faultIsolate, faultData},
	InstallForgetsPromise: {faultUsurp, faultIsolate, faultMeta, faultData},
	SkipChecksum:          {faultCrash, faultIsolate, faultData},
	ResumeWrongSet:        {faultCrash, faultIsolate, faultData},
	RemoveUnrecorded:      {faultMove, faultData, faultCrash, faultStall},
	ShrinkBelowMinimum:    {faultMove, faultCrash, faultIsolate},
	BelieveRemoved:        {faultMove},
	SecondariesTogether:   {faultCrash},
	AckAfterHandover:      {faultHandover, faultData},
	ServeBeforeLast:       {faultHandover},
	AckUnread:             {faultCrash},
	HandOverToFew:         {faultHandover, faultData},
	// Bugs of splits. Each range is split a few times at most, so most of the other faults come at random.
	SplitForgetsResults: {faultDivide, faultLoss, faultIsolate},
	BirthAtAnyEpoch:     {faultDivide, faultUsurp, faultMeta},
	DivideTwice:         {faultDivide},
	MissTheSplit:        {faultDivide, faultCrash},
	SplitLostOnRestart:  {faultDivide, faultCrash},
	BirthBeforeCommit:   {faultDivide, faultData},
	// Bugs of merges need ranges that were split.
	MergeForgetsResults: {faultDivide, faultMerge, faultLoss, faultIsolate, faultDrain},
	MissTheUnion:        {faultDivide, faultMerge, faultCrash},
	MergeBeforeUnion:    {faultDivide, faultMerge, faultData, faultMove, faultHandover},
	TakeBeforeCommit:    {faultDivide, faultMerge, faultData, faultUsurp},
	TakeWithoutEnd:      {faultDivide, faultMerge, faultData, faultStall},
	WitnessWithData:     {faultMove},
	LeaveAtOnce:         {faultRemove, faultCrash},
	// Few other faults, so that the node which dies in the end has primaries.
	NeverStandIn:   {faultCrash},
	StandInUnready: {faultCrash},
	// So that a leader exists whose clock may become wrong.
	LeadWithWrongClock: {faultCrash},
	StayUnreadable:     {faultCrash, faultUnreadable},
	// Bugs of tallies need replicas that lack acknowledged entries.
	TallyOfOldLife:   {faultFlip, faultTorn, faultEmpty, faultData, faultHalfOpen},
	TallyForRefused:  {faultData, faultIsolate, faultUsurp, faultCrash},
	TallyBeforeSync:  {faultCrash, faultCrashAll, faultUsurp},
	LongWindow:       {faultPower},
	DeferSynced:      {faultPower},
	DropWithHome:     {faultForGood, faultCrash},
	StopBeforeCopied: {faultRemove, faultCrash},
	ElectRemoved:     {faultForGood, faultCrash},
	TablesBeforeLog:  {faultCrash, faultCrashAll},
}

// copyBugs are the bugs of copies of ranges, for which replicas must need copies often.
var copyBugs = []Bug{CommitCopiedTail, InstallElectable, InstallForgetsPromise, SkipChecksum, ResumeWrongSet}

// mixEvery is the mean time between two faults of a mix.
const mixEvery = 1500 * time.Millisecond

// applyMix replaces the faults of a profile by those that expose a planted bug.
func (p *profile) applyMix(b Bug) {
	if mix := mixes[b]; mix != nil {
		p.faults, p.faultEvery = mix, mixEvery
		// Mixes have no witness, except for the one.
		p.nodes, p.witness = p.dataNodes(), b == WitnessWithData
		if p.witness {
			p.nodes++
		}
		p.settings.Replicas, p.settings.MinInSync = 3, 2
		// The mix decides alone whether the table survives a region.
		p.survive, p.settings.Survival = false, rhumb.SurviveZone
		if slices.Contains([]Bug{AdoptShorter, BelowReport, SkipAsking, NoRefusal, ForgetPromises}, b) {
			// With two replicas a damaged member stays in sync.
			p.settings.Replicas = 2
		}
		// A trimmed log can forbid the damage (mayDamage).
		p.replica.LogKeepBytes = 0
		if slices.Contains(copyBugs, b) {
			p.replica.LogKeepBytes = 2000 // replicas need copies often
		}
		p.standIn = b == NeverStandIn || b == StandInUnready
		if b == SecondariesTogether {
			p.nodes = 6
			p.surviveRegion()
		}
		p.many = b == StopBeforeCopied
		p.spoiltChunks, p.older = 0, b == AckUnread
		if b == SkipChecksum {
			p.spoiltChunks = 0.3
		}
	}
	p.misled, p.unread = p.misled || b == LeadWithWrongClock, p.unread || b == StayUnreadable
	p.strict = p.strict || b == NoClockRefusal || b == LeadWithWrongClock
}

// applyBug changes the bounds that a planted bug disables.
func (p *profile) applyBug(b Bug) {
	switch b {
	case NoProgressTimeout:
		p.replica.ProgressTimeout = time.Hour
	case NoClockRefusal:
		p.trusting = true
	}
}

// presentLife returns the life in which this node knows another.
func (n *node) presentLife(id rhumb.NodeID) rhumb.NodeIdentity {
	if d, ok := n.member.group.State().Node(id); ok {
		return d.Identity()
	}
	return rhumb.NodeIdentity{}
}

// misreadAll changes replication messages that the node receives.
func (n *node) misreadAll(from *node, msgs []replica.Message) []replica.Message {
	// Other bugs change no message, and most runs have none.
	if mixes[n.w.cfg.Bug] == nil {
		return msgs
	}
	kept := msgs[:0]
	for _, m := range msgs {
		if n.misreadMessage(from, &m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// misreadMessage changes one message, and reports whether it is received at all.
func (n *node) misreadMessage(from *node, m *replica.Message) bool {
	r, ok := n.host.Replica(m.Range)
	if !ok {
		return true
	}
	switch bug := n.w.cfg.Bug; {
	case (bug == AdoptShorter || bug == BelowReport) && m.Kind == replica.Promise:
		// The reported commit position would make the node wait for the missing entries.
		if bug == BelowReport {
			m.Commit, m.CommitHash = 0, entry.Hash{}
		}
		// The answer claims no more than the own log, so nothing is fetched.
		if last := r.Status().Last; m.Prev.Epoch > last.Epoch || m.Prev.Epoch == last.Epoch && m.Prev.Seq > last.Seq {
			m.Prev = last
		}
	case bug == AckOfOldLife && m.Kind == replica.Ack:
		// An acknowledgement that claims the present life passes the check of lives.
		m.Life = n.presentLife(from.id).Boot
	case (bug == NoRefusal || bug == BelowReport) && m.Kind == replica.Nack && m.Contradicts:
		// The member stops in place of the primary.
		if other, ok := from.host.Replica(m.Range); ok {
			other.Damaged("a primary contradicted a committed entry")
		}
		return false
	case bug == AcceptOtherLife && m.Kind == replica.Handover:
		m.TargetLife = n.identity().Boot
	case bug == BelieveRemoved && m.Kind == replica.Ack:
		n.believeRemoved(m, r.Status().Last.Seq)
	case bug == ServeBeforeLast && m.Kind == replica.Handover:
		// The target learns the commit position by the first message of the new epoch, too late for reads that are served at once.
		m.Commit = 0
		n.seen.handed[n.w.rangeIndex(m.Range)] = m.Epoch
	case bug == HandOverToFew && m.Kind == replica.Handover && len(m.InSync) > 2:
		// Receiver and sender stay: without them the message would be taken for damaged.
		m.InSync = []rhumb.NodeID{min(m.From, m.To), max(m.From, m.To)}
	case bug == FullDiskAcks && m.Kind == replica.Append && len(m.Entries) > 0 && n.disk.full.Load():
		// The append is acknowledged and dropped. Were it handled, the host would refuse it.
		last := m.Entries[len(m.Entries)-1].Seq
		transport{n}.Send(m.From, []replica.Message{{
			Kind: replica.Ack, Range: m.Range, From: n.id, To: m.From, Life: n.identity().Boot, Epoch: m.Epoch, Match: last, Commit: m.Commit,
		}})
		return false
	}
	return true
}

// answerPrepare answers for the other members that they hold nothing (SkipAsking).
func (n *node) answerPrepare(id rhumb.RangeID, rd *replica.Ready) {
	sent := rd.Messages
	rd.Messages = nil
	for _, m := range sent {
		if m.Kind != replica.Prepare {
			rd.Messages = append(rd.Messages, m)
			continue
		}
		answer := replica.Message{
			Kind: replica.Promise, Range: id, From: m.To, To: n.id, Life: n.presentLife(m.To).Boot, Epoch: m.Epoch,
		}
		// The answer arrives in an event of its own, since the host is in the middle of a pass.
		n.later(0, func() {
			if n.host != nil {
				n.host.Receive(answer.From, []replica.Message{answer})
			}
		})
	}
}

// forgetQuarantine removes the reasons of quarantines from the disk (ForgetQuarantine).
func (n *node) forgetQuarantine() {
	states, err := n.disk.engine.Ranges()
	n.w.judge(err)
	for _, st := range states {
		if st.Quarantine == "" {
			continue
		}
		b := n.disk.engine.Store(st.Range).NewBatch()
		b.SetQuarantine(st.Range, "")
		n.w.judge(b.Apply())
		n.w.judge(b.Sync())
	}
	n.disk.settleAll()
}

// withoutSelf takes a node out of the replicas of the ranges whose primary it is not (LeaveAtOnce).
func withoutSelf(ranges []*rhumb.Range, self rhumb.NodeID) (out []*rhumb.Range) {
	for _, r := range ranges {
		if r.Primary != self {
			r = r.Clone()
			r.Replicas = slices.DeleteFunc(r.Replicas, func(id rhumb.NodeID) bool { return id == self })
		}
		out = append(out, r)
	}
	return out
}

// withoutHome drops ranges with their home in a region that was given up (DropWithHome), or names a node of the region as their
// primary (ElectRemoved).
func (w *world) withoutHome(st *catalog.State, ranges []*rhumb.Range, self rhumb.NodeID) (out []*rhumb.Range) {
	for _, r := range ranges {
		if region, ok := st.Region(r.ID.Region); ok && region.Removed && w.forGood != nil && r.ID.Region == w.forGood.region {
			r = r.Clone()
			if w.cfg.Bug == ElectRemoved {
				i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.lost })
				r.Primary = w.nodes[i].id
			} else if r.Primary != self {
				r.Replicas = slices.DeleteFunc(r.Replicas, func(id rhumb.NodeID) bool { return id == self })
			}
		}
		out = append(out, r)
	}
	return out
}

// withoutLeaving takes a node out of the replicas of the ranges whose copy on it is leaving (DropBeforeRemoved).
func withoutLeaving(ranges []*rhumb.Range, self rhumb.NodeID) (out []*rhumb.Range) {
	for _, r := range ranges {
		if r.IsLeaving(self) && r.Primary != self {
			r = r.Clone()
			r.Replicas = slices.DeleteFunc(r.Replicas, func(id rhumb.NodeID) bool { return id == self })
		}
		out = append(out, r)
	}
	return out
}
