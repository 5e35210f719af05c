package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
)

// mixes are the faults that planted bugs are sought with, where those that seeds draw would take long.
var mixes = map[Bug][]FaultKind{
	ForgetGrants:      {faultUsurp},
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
}

// mixEvery is the mean time between two faults of a mix.
const mixEvery = 1500 * time.Millisecond

// mix changes what a seed drew into the faults that show a planted bug.
func (p *profile) mix(b Bug) {
	if mix := mixes[b]; mix != nil {
		p.faults, p.faultEvery = mix, mixEvery
		p.settings.Replicas, p.settings.MinInSync = 3, 2
		if slices.Contains([]Bug{AdoptShorter, BelowReport, SkipAsking, NoRefusal, ForgetPromises}, b) {
			p.settings.Replicas = 2 // so that a damaged member stays in sync
		}
		p.replica.LogKeepBytes = 0
	}
	p.strict = p.strict || b == NoClockRefusal
}

// plant changes the bounds that a planted bug leaves out.
func (p *profile) plant(b Bug) {
	switch b {
	case NoProgressTimeout:
		p.replica.ProgressTimeout = time.Hour
	case NoClockRefusal:
		p.trusting = true
	}
}

// present returns in which life the node knows another.
func (n *node) present(id rhumb.NodeID) rhumb.NodeIdentity {
	if d, ok := n.member.group.State().Node(id); ok {
		return d.Identity()
	}
	return rhumb.NodeIdentity{}
}

// misreadAll breaks messages of replicas that the node receives.
func (n *node) misreadAll(from *node, msgs []replica.Message) []replica.Message {
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

// misreadMessage breaks one message, and reports whether it is received at all.
func (n *node) misreadMessage(from *node, m *replica.Message) bool {
	r, ok := n.host.Replica(m.Range)
	if !ok {
		return true
	}
	switch bug := n.w.cfg.Bug; {
	case (bug == AdoptShorter || bug == BelowReport) && m.Kind == replica.Promise:
		if bug == BelowReport {
			m.Commit, m.CommitHash = 0, entry.Hash{}
		}
		if last := r.Status().Last; m.Prev.Epoch > last.Epoch || m.Prev.Epoch == last.Epoch && m.Prev.Seq > last.Seq {
			m.Prev = last
		}
	case bug == AckOfOldLife && m.Kind == replica.Ack:
		m.Life = n.present(from.id).Boot
	case (bug == NoRefusal || bug == BelowReport) && m.Kind == replica.Nack && m.Contradicts:
		if other, ok := from.host.Replica(m.Range); ok {
			other.Damaged("a primary sent another entry than is committed")
		}
		return false
	case bug == FullDiskAcks && m.Kind == replica.Append && len(m.Entries) > 0 && n.disk.full.Load():
		last := m.Entries[len(m.Entries)-1].Seq
		transport{n}.Send(m.From, []replica.Message{{
			Kind: replica.Ack, Range: m.Range, From: n.id, To: m.From, Life: n.identity().Boot, Epoch: m.Epoch, Match: last, Commit: m.Commit,
		}})
		return false
	}
	return true
}

// answerPrepare answers in place of the members that they hold nothing (SkipAsking).
func (n *node) answerPrepare(id rhumb.RangeID, rd *replica.Ready) {
	sent := rd.Messages
	rd.Messages = nil
	for _, m := range sent {
		if m.Kind != replica.Prepare {
			rd.Messages = append(rd.Messages, m)
			continue
		}
		answer := replica.Message{
			Kind: replica.Promise, Range: id, From: m.To, To: n.id, Life: n.present(m.To).Boot, Epoch: m.Epoch,
		}
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
	n.disk.settle()
}
