package memory

import "github.com/rhumbdb/rhumb"

// Least is the least memory that a node runs in.
const Least = 192 << 20

// Parts are the bytes that each use of a node's memory may take. What they leave of Total is for the program itself: its
// code, goroutines, the metadata, frames that are being encoded, and garbage that is not collected yet.
type Parts struct {
	// Total is the whole.
	Total int64 `json:"total"`
	// Cache is the block cache of all stores, MemTable the size of one memtable of one store. A store has up to
	// MemTablesPerStore of them.
	Cache    int64 `json:"cache"`
	MemTable int64 `json:"memtable"`
	// Stores is Cache and all memtables of all stores together.
	Stores int64 `json:"stores"`
	// Requests are the requests of clients from the moment they are decoded until they are answered. Uncommitted are the
	// entries that are made of them, until they are committed.
	Requests    int64 `json:"requests"`
	Uncommitted int64 `json:"uncommitted"`
	// Answers are what clients have not taken yet.
	Answers int64 `json:"answers"`
	// Streams is what the network may hold of clients that send faster than the node reads: StreamReserve for each stream.
	Streams int64 `json:"streams"`
	// PeersIn are entries that other nodes sent and that wait for a pass, PeersOut frames on their way to other nodes.
	PeersIn  int64 `json:"peers_in"`
	PeersOut int64 `json:"peers_out"`
	// Tails are committed entries that are kept for peers that lag a little.
	Tails int64 `json:"tails"`
	// Recent are entries that are kept until they are committed, for images in shared memory.
	Recent int64 `json:"recent"`
	// Heap is the Go runtime's limit (debug.SetMemoryLimit): Total without what lies outside its heap.
	Heap int64 `json:"heap"`
}

const (
	// MemTablesPerStore is how many memtables a store has at most: one that fills, and those that wait for their flush.
	MemTablesPerStore = 4
	// StreamReserve is what one stream of a client counts for.
	StreamReserve = 128 << 10

	memTableLeast = 1 << 20
	memTableMost  = 64 << 20
	// outsideHeap is what a process takes beside its heap and its stores: code, stacks of threads, and memory that the C library
	// keeps when stores free it.
	outsideHeap = 64 << 20
)

// shareOf are the parts in sixty-fourths of the whole, with the bounds beyond which more memory is of no use: what waits longer is
// not answered in time anyway. The rest of the whole is for the program.
var shareOf = struct{ cache, memtables, requests, uncommitted, answers, streams, peersIn, peersOut, tails, recent share }{
	cache:       share{8, 1 << 40},
	memtables:   share{8, 1 << 40},
	requests:    share{5, 64 << 20},
	uncommitted: share{4, 64 << 20},
	answers:     share{3, 128 << 20},
	streams:     share{3, 256 << 20},
	peersIn:     share{5, 128 << 20},
	peersOut:    share{4, 128 << 20},
	tails:       share{3, 256 << 20},
	recent:      share{1, 128 << 20},
}

type share struct{ of64, most int64 }

func (s share) of(total int64) int64 { return min(total/64*s.of64, s.most) }

// Split divides the memory of a node with so many stores. With cache above 0 the block cache has that size, whatever its share.
func Split(total, cache int64, stores int) (Parts, error) {
	const op rhumb.Op = "memory.Split"
	if total < Least {
		return Parts{}, rhumb.Ef(op, rhumb.InvalidArgument, "%d MiB of memory for a node; it needs at least %d MiB: --memory", total>>20, Least>>20)
	}
	s := &shareOf
	p := Parts{
		Total: total, Requests: s.requests.of(total), Uncommitted: s.uncommitted.of(total), Answers: s.answers.of(total), Streams: s.streams.of(total),
		PeersIn: s.peersIn.of(total), PeersOut: s.peersOut.of(total), Tails: s.tails.of(total), Recent: s.recent.of(total),
	}
	tables := int64(stores) * MemTablesPerStore
	p.MemTable = min(max(s.memtables.of(total)/tables, memTableLeast), memTableMost)
	p.Cache = s.cache.of(total)
	if cache > 0 {
		p.Cache = cache
	}
	p.Stores = p.Cache + tables*p.MemTable
	p.Heap = total - outsideHeap - p.Stores
	if least := total / 4; p.Heap < least {
		return Parts{}, rhumb.Ef(op, rhumb.InvalidArgument,
			"%d MiB of memory for a node with %d directories and %d MiB of block cache leave %d MiB for all else, at least %d MiB are needed; raise --memory or lower --cache-size",
			total>>20, stores, p.Cache>>20, p.Heap>>20, least>>20)
	}
	return p, nil
}
