package client

import (
	"sync/atomic"

	"github.com/rhumbdb/rhumb/client/stream"
)

// Metrics are counts since the client was opened.
type Metrics struct {
	// Reads and Writes count calls that ended, whatever their outcome. A scan counts each page as a
	// read.
	Reads  uint64 `json:"reads"`
	Writes uint64 `json:"writes"`
	// Local counts the requests that were answered in the caller's region, Remote those answered
	// elsewhere.
	Local  uint64 `json:"local"`
	Remote uint64 `json:"remote"`
	// Hops counts the nodes that answered requests passed through. Without forwarding it is Local +
	// Remote.
	Hops uint64 `json:"hops"`
	// Retries counts attempts after the first, Redirects those of them that followed a newer
	// descriptor.
	Retries   uint64 `json:"retries"`
	Redirects uint64 `json:"redirects"`
	// Refused counts calls that failed because the retry budget was exhausted.
	Refused uint64 `json:"refused"`
	// Searches counts calls that asked all regions for a record, HomesKnown those that a cached
	// home saved from it.
	Searches   uint64 `json:"searches"`
	HomesKnown uint64 `json:"homes_known"`
	// Located counts the names in batched requests that ask a region which names exist there,
	// Undecided those of them that the node left to a read.
	Located   uint64 `json:"located"`
	Undecided uint64 `json:"undecided"`
	// Duplicates counts names that a search found in two regions.
	Duplicates uint64 `json:"duplicates"`
	// Errors counts calls that failed with any kind but NotFound and ConditionFailed, Unknown those
	// with that kind.
	Errors  uint64 `json:"errors"`
	Unknown uint64 `json:"unknown"`
	// Frames counts the frames sent to nodes, Sent the requests in them. Their ratio is the batching.
	// Requests also counts the attempts that were not sent: under overload they wait for their turn in
	// this process.
	Frames   uint64 `json:"frames"`
	Sent     uint64 `json:"sent"`
	Requests uint64 `json:"requests"`
	// Links counts links that were opened, NoLinks attempts that failed, after which gRPC carries the requests.
	Links   uint64 `json:"links"`
	NoLinks uint64 `json:"no_links"`
	// Broken counts streams and links that ended, Silent connections that were given up because no answer
	// arrived, Watches the metadata watches that began.
	Broken  uint64 `json:"broken"`
	Silent  uint64 `json:"silent"`
	Watches uint64 `json:"watches"`
}

// counters are the live form of Metrics.
type counters struct {
	reads, writes, local, remote, hops, retries, redirects, refused       atomic.Uint64
	searches, homesKnown, duplicates, located, undecided, errors, unknown atomic.Uint64
	requests, watches                                                     atomic.Uint64
	conns                                                                 stream.Counters
}

// Metrics returns the counts of this client.
func (c *Client) Metrics() Metrics {
	m := &c.m
	return Metrics{
		Reads: m.reads.Load(), Writes: m.writes.Load(), Local: m.local.Load(), Remote: m.remote.Load(), Hops: m.hops.Load(),
		Retries: m.retries.Load(), Redirects: m.redirects.Load(), Refused: m.refused.Load(),
		Searches: m.searches.Load(), Duplicates: m.duplicates.Load(), HomesKnown: m.homesKnown.Load(),
		Located: m.located.Load(), Undecided: m.undecided.Load(), Errors: m.errors.Load(), Unknown: m.unknown.Load(),
		Frames: m.conns.Frames.Load(), Sent: m.conns.Sent.Load(), Requests: m.requests.Load(), Links: m.conns.Links.Load(), NoLinks: m.conns.NoLinks.Load(), Broken: m.conns.Broken.Load(), Silent: m.conns.Silent.Load(), Watches: m.watches.Load(),
	}
}
