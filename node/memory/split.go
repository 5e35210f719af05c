package memory

import "github.com/rhumbdb/rhumb"

// Least is the smallest amount of memory that a node runs in.
const Least = 192 << 20

// Parts holds the bytes that each use of a node's memory may take. The rest of Total is for the
// program itself: code, goroutines, metadata, frames being encoded, and garbage that is not
// collected yet.
type Parts struct {
	// Total is the whole memory.
	Total int64 `json:"total"`
	// Cache is the block cache of all stores, MemTable the size of one memtable of one store. A
	// store has up to MemTablesPerStore of them.
	Cache    int64 `json:"cache"`
	MemTable int64 `json:"memtable"`
	// Stores is the sum of Cache and all memtables of all stores.
	Stores int64 `json:"stores"`
	// Requests holds the requests of clients from decoding to the answer, Uncommitted the resulting
	// log entries until they are committed.
	Requests    int64 `json:"requests"`
	Uncommitted int64 `json:"uncommitted"`
	// Answers holds answers that clients have not received yet.
	Answers int64 `json:"answers"`
	// Streams holds bytes of clients that send faster than the node reads: StreamReserve for each
	// stream.
	Streams int64 `json:"streams"`
	// PeersIn holds entries from other nodes that wait for a pass, PeersOut frames in flight to
	// other nodes.
	PeersIn  int64 `json:"peers_in"`
	PeersOut int64 `json:"peers_out"`
	// Tails holds committed entries kept for peers that lag a little.
	Tails int64 `json:"tails"`
	// Recent holds entries kept until they are committed, for images in shared memory.
	Recent int64 `json:"recent"`
	// Names holds names of records in their order, which scans of few records read, in all stores.
	Names int64 `json:"names"`
	// Rows holds records that are read often, in all stores.
	Rows int64 `json:"rows"`
	// Heap is the limit of the Go runtime (debug.SetMemoryLimit): Total without the memory outside
	// the Go heap.
	Heap int64 `json:"heap"`
}

const (
	// MemTablesPerStore is the largest number of memtables of a store: one that fills, and others
	// that wait to be flushed.
	MemTablesPerStore = 4
	// StreamReserve is the number of bytes that one stream of a client counts for.
	StreamReserve = 128 << 10

	memTableLeast = 1 << 20
	memTableMost  = 64 << 20
	// outsideHeap is the memory of a process besides heap and stores: code, stacks of threads, and
	// memory that the C library retains after stores free it.
	outsideHeap = 64 << 20
)

// shareOf holds the parts in sixty-fourths of the total, and bounds above which more memory is
// useless, because work that waits longer is not answered in time anyway. The remainder is for the
// program.
var shareOf = struct{ cache, memtables, requests, uncommitted, answers, streams, peersIn, peersOut, tails, recent, names, rows share }{
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
	names:       share{1, 1 << 30},
	rows:        share{3, 4 << 30},
}

// share is a part of the total with an upper bound.
type share struct{ of64, most int64 }

func (s share) bytesOf(total int64) int64 { return min(total/64*s.of64, s.most) }

// Split divides the memory of a node with the given number of stores. If cache is above 0, it is
// the size of the block cache.
func Split(total, cache int64, stores int) (Parts, error) {
	const op rhumb.Op = "memory.Split"
	if total < Least {
		return Parts{}, rhumb.Ef(op, rhumb.InvalidArgument, "memory is %d MiB, but a node needs at least %d MiB; raise --memory", total>>20, Least>>20)
	}
	s := &shareOf
	p := Parts{
		Total: total, Requests: s.requests.bytesOf(total), Uncommitted: s.uncommitted.bytesOf(total), Answers: s.answers.bytesOf(total), Streams: s.streams.bytesOf(total),
		PeersIn: s.peersIn.bytesOf(total), PeersOut: s.peersOut.bytesOf(total), Tails: s.tails.bytesOf(total), Recent: s.recent.bytesOf(total),
		Names: s.names.bytesOf(total), Rows: s.rows.bytesOf(total),
	}
	tables := int64(stores) * MemTablesPerStore
	p.MemTable = min(max(s.memtables.bytesOf(total)/tables, memTableLeast), memTableMost)
	p.Cache = s.cache.bytesOf(total)
	if cache > 0 {
		p.Cache = cache
	}
	p.Stores = p.Cache + tables*p.MemTable
	p.Heap = total - outsideHeap - p.Stores
	// Stores take their memory outside the Go heap. A heap below a quarter of the total would make the
	// garbage collector run all the time.
	if least := total / 4; p.Heap < least {
		return Parts{}, rhumb.Ef(op, rhumb.InvalidArgument,
			"memory is %d MiB, and %d directories with %d MiB of block cache leave %d MiB for everything else, but at least %d MiB are needed; raise --memory or lower --cache-size",
			total>>20, stores, p.Cache>>20, p.Heap>>20, least>>20)
	}
	return p, nil
}
