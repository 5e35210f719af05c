package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Replica is the protocol state of one range on one node.
type Replica struct {
	cfg Config
}

// New gives the replica that storage holds. Whatever it was before, it is a Learner or Follower now (rule S). It panics
// when the configuration is not valid.
func New(cfg Config, d Durable) *Replica { return &Replica{cfg: cfg.withDefaults()} }

// Describe brings news of the range's record from metadata. Old news does no harm: a lower version is not looked at.
func (r *Replica) Describe(d *rhumb.Range) {}

// Activate begins the epoch for which this node was elected (rule E). The driver calls it when AwaitsActivation and
// lease.Pairs.WaitUntil has passed; otherwise it does nothing.
func (r *Replica) Activate(ts rhumb.Timestamp) {}

// AwaitsActivation gives the epoch for which the replica is Activating once its promise is durable.
func (r *Replica) AwaitsActivation() (epoch rhumb.Epoch, ok bool) { return 0, false }

// Propose orders a batch. It is answered by exactly one Answer of a later Ready. ts is the node's clock.
func (r *Replica) Propose(ts rhumb.Timestamp, p Proposal) {}

// Step takes a message from a peer. It returns an error, and changes nothing, when the message is malformed or not for
// this replica.
func (r *Replica) Step(m Message) error { return nil }

// Persisted says that the log up to pos and the promise are durable, as earlier Readys asked. Either may be zero.
func (r *Replica) Persisted(pos entry.Position, promised rhumb.Epoch) {}

// Fetched answers Ready.Fetch. No entries say that the log was trimmed away there.
func (r *Replica) Fetched(f Fetch, entries []*entry.Entry) {}

// Peer brings news of another node: whether a stream to it stands, and whether lease.Pairs suspects it.
func (r *Replica) Peer(now time.Duration, n rhumb.NodeID, connected, suspect bool) {}

// Tick lets time pass. Only a replica with NeedsTick needs it; the driver's period bounds how late a retransmission or
// the last commit position reaches a secondary, 50 ms is fine.
func (r *Replica) Tick(now time.Duration) {}

// NeedsTick reports whether the replica waits for something that only time brings.
func (r *Replica) NeedsTick() bool { return false }

// HasReady reports whether Ready has something to hand over.
func (r *Replica) HasReady() bool { return false }

// Ready hands over everything gathered since the last call. The driver must carry it out in full.
func (r *Replica) Ready() Ready { return Ready{} }

// State gives the role.
func (r *Replica) State() State { return 0 }

// Epoch gives the newest promised epoch; for a Primary it is its own. Rule F asks metadata whether it still stands.
func (r *Replica) Epoch() rhumb.Epoch { return 0 }

// Readable tells up to where a strong read may look: at is the timestamp and commit the position of the last committed
// entry. It is ok only at a primary whose epoch-start entry is committed. The driver must also hold the lease
// (LeaseSet) or confirm the epoch with metadata (rule F) after the read arrived.
func (r *Replica) Readable() (at rhumb.Timestamp, commit rhumb.Seq, ok bool) { return 0, 0, false }

// LeaseSet gives the nodes whose grants a lease read needs (rule L): everyone in-sync or about to be, without self.
// The slice is shared and must not be changed.
func (r *Replica) LeaseSet() []rhumb.NodeID { return nil }

// Status gives a copy of the state for people.
func (r *Replica) Status() Status { return Status{} }
