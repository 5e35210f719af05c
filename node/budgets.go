package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/memory"
)

const (
	// streamsUsual is the number of client streams that may have a full window at the same time
	// within the streams part of the memory. More streams are counted by server.LimitStreams.
	streamsUsual = 16
	// frameLeast and frameMost bound the bytes of a frame of replication messages. framesUnderWay
	// is the number of frames, copies included, that fit into the memory for outgoing frames at the
	// same time.
	frameLeast     = 256 << 10
	frameMost      = 4 << 20
	framesUnderWay = 12
)

// budgets holds the memory budgets of the node. They outlive a life of the node: requests of an
// earlier life that are still under way count against the same memory.
type budgets struct {
	parts                                                                   memory.Parts
	requests, answers, streams, peersIn, queued, uncommitted, tails, recent *memory.Budget
}

// newBudgets returns the budgets for parts. Each budget counts its use over the whole node, because
// budgets per range, peer or stream have no bound on their sum (docs/decisions/0019).
func newBudgets(p memory.Parts) budgets {
	return budgets{
		parts:    p,
		requests: memory.NewBudget("requests", p.Requests),
		answers:  memory.NewBudget("answers", p.Answers),
		streams:  memory.NewBudget("streams", p.Streams),
		peersIn:  memory.NewBudget("peers_in", p.PeersIn),
		// A message in a queue is also held by its replica, as an uncommitted or a kept entry. So
		// this budget is their sum, and counts no additional memory.
		queued:      memory.NewBudget("peers_queued", p.Uncommitted+p.Tails),
		uncommitted: memory.NewBudget("uncommitted", p.Uncommitted),
		tails:       memory.NewBudget("tails", p.Tails),
		recent:      memory.NewBudget("recent", p.Recent),
	}
}

// newCollector returns the metrics of all budgets.
func (b *budgets) newCollector() prometheus.Collector {
	return memory.Collector(b.requests, b.answers, b.streams, b.peersIn, b.queued, b.uncommitted, b.tails, b.recent)
}

// hostBudgets returns the budgets that package host enforces.
func (b *budgets) hostBudgets() host.Budgets {
	return host.Budgets{PeersIn: b.peersIn, Uncommitted: b.uncommitted, Tails: b.tails, Recent: b.recent, Requests: b.parts.Requests}
}

// queueBytes bounds the messages that wait for one peer. Replicas never have more to send than
// this, so a queue is full only if the peer does not keep up.
func (b *budgets) queueBytes() int { return int(b.parts.Uncommitted + b.parts.Tails) }

// frameBytes returns the maximum size of a frame of replication messages.
func (b *budgets) frameBytes() int {
	return int(min(max(b.parts.PeersOut/framesUnderWay, frameLeast), frameMost))
}
