package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/memory"
)

const (
	// streamsUsual is how many client streams with a full window at one time a node has memory for.
	streamsUsual = 16
	// frameLeast and frameMost bound a frame of replication messages. framesUnderWay is how many frames, copies included, a
	// node has memory for at one time.
	frameLeast     = 256 << 10
	frameMost      = 4 << 20
	framesUnderWay = 12
)

// budgets are the parts of the node's memory, for all its lives.
type budgets struct {
	parts                                                                   memory.Parts
	requests, answers, streams, peersIn, queued, uncommitted, tails, recent *memory.Budget
}

func newBudgets(p memory.Parts) budgets {
	return budgets{
		parts:       p,
		requests:    memory.NewBudget("requests", p.Requests),
		answers:     memory.NewBudget("answers", p.Answers),
		streams:     memory.NewBudget("streams", p.Streams),
		peersIn:     memory.NewBudget("peers_in", p.PeersIn),
		queued:      memory.NewBudget("peers_queued", p.Uncommitted+p.Tails),
		uncommitted: memory.NewBudget("uncommitted", p.Uncommitted),
		tails:       memory.NewBudget("tails", p.Tails),
		recent:      memory.NewBudget("recent", p.Recent),
	}
}

func (b *budgets) collector() prometheus.Collector {
	return memory.Collector(b.requests, b.answers, b.streams, b.peersIn, b.queued, b.uncommitted, b.tails, b.recent)
}

func (b *budgets) host() host.Budgets {
	return host.Budgets{PeersIn: b.peersIn, Uncommitted: b.uncommitted, Tails: b.tails, Recent: b.recent, Requests: b.parts.Requests}
}

// queueBytes bounds what waits for one peer: all that replicas may have to send, so that a queue is full only for a peer that
// does not keep up.
func (b *budgets) queueBytes() int { return int(b.parts.Uncommitted + b.parts.Tails) }

func (b *budgets) frameBytes() int {
	return int(min(max(b.parts.PeersOut/framesUnderWay, frameLeast), frameMost))
}
