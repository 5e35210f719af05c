package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/keys"
)

// A world is a cluster in memory behind real gRPC servers. Every node serves the same records, but
// answers only for the ranges whose primary it is, as a real node does. A world has no replication
// protocol; it has faults that a test asks for.
type world struct {
	t testing.TB

	mu      sync.Mutex // guards all below
	meta    api.Metadata
	news    chan struct{} // closed, and replaced, with every change of meta
	records map[rhumb.RangeID]map[recordKey]stored
	answers map[string]*rhumbpb.Response // by range and request id
	applied map[string]int               // how often a request took effect
	clock   uint64
	older   bool                   // nodes read one range for a scan of several, as the release before did
	refused map[rhumb.RangeID]bool // ranges that nodes leave out of scans of several
	nodes   []*worldNode
}

type recordKey struct {
	table rhumb.TableID
	name  string
}

type stored struct {
	value   []byte
	version rhumb.Version
}

// worldNode is one node: a gRPC server on loopback.
type worldNode struct {
	rhumbpb.UnimplementedKVServer
	rhumbpb.UnimplementedClusterServer
	w      *world
	id     rhumb.NodeID
	addr   string
	server *grpc.Server

	mu     sync.Mutex // guards all below
	fault  func(q *rhumbpb.Request) fault
	frames []int // requests of each frame
	asked  int
	mute   bool
	poses  func() (rhumb.NodeID, rhumb.ClusterID) // who it says it is, when not itself
	status *rhumbpb.StatusResponse                // if not nil, the status it reports
	frozen *api.Metadata                          // if not nil, the metadata of a node that is cut off
	unsure int                                    // pings that it answers like a login that it cannot decide

	admin []proto.Message // requests of operators that the node got
}

// fault is what a node does to a request.
type fault struct {
	// lose carries the request out and does not answer; drop does not even carry it out.
	lose, drop bool
	// cut ends the stream afterwards.
	cut bool
	// refuse answers with an error instead, and newer as its hint.
	refuse rhumb.Kind
	of     rhumb.RangeID
	newer  *rhumb.Range
	after  time.Duration // RetryAfter of refuse
}

const (
	hashSlots   = 4
	classOf     = rhumb.ClassID(1)
	hashFirst   = rhumb.Slot(rhumb.BlockSlots)
	insertFirst = rhumb.Slot(2 * rhumb.BlockSlots)
)

var places = []rhumb.Region{
	{ID: 1, Name: "singapore", Location: rhumb.Point{Lat: 1.3, Lon: 103.8}},
	{ID: 2, Name: "frankfurt", Location: rhumb.Point{Lat: 50.1, Lon: 8.7}},
	{ID: 3, Name: "virginia", Location: rhumb.Point{Lat: 38.9, Lon: -77.4}},
}

// newWorld starts a cluster of so many regions with so many nodes each, and the tables "plain" and
// "split", where the second has '/' as its colocate byte.
func newWorld(t testing.TB, regions, nodesPerRegion int) *world {
	w := &world{
		t: t, news: make(chan struct{}), records: map[rhumb.RangeID]map[recordKey]stored{},
		answers: map[string]*rhumbpb.Response{}, applied: map[string]int{}, clock: 1000,
	}
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = hashSlots
	w.meta = api.Metadata{
		Revision: 1, Cluster: rhumb.UUID{7}, Regions: places[:regions],
		Classes: []rhumb.Class{{ID: classOf, Settings: settings}},
		Tables: []rhumb.Table{
			{ID: 1, Name: "plain", Class: classOf, TableOptions: rhumb.TableOptions{LocationField: "location"}},
			{ID: 2, Name: "split", Class: classOf, TableOptions: rhumb.TableOptions{LocationField: "location", Colocate: '/'}},
		},
	}
	for _, r := range places[:regions] {
		for range nodesPerRegion {
			w.addNode(r.ID)
		}
		w.meta.Blocks = append(w.meta.Blocks, rhumb.Block{Region: r.ID, Class: classOf, First: hashFirst})
		mine := w.nodesIn(r.ID)
		for i := range hashSlots {
			w.meta.Ranges = append(w.meta.Ranges, newRange(r.ID, hashFirst+rhumb.Slot(i), mine[i%len(mine)]))
		}
		for i, n := range mine {
			first := insertFirst + rhumb.Slot(i*rhumb.BlockSlots)
			w.meta.Blocks = append(w.meta.Blocks, rhumb.Block{Region: r.ID, Class: classOf, Node: n, First: first})
			w.meta.Ranges = append(w.meta.Ranges, newRange(r.ID, first, n))
		}
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.server.Stop()
		}
	})
	return w
}

func newRange(region rhumb.RegionID, slot rhumb.Slot, primary rhumb.NodeID) *rhumb.Range {
	return &rhumb.Range{
		ID: rhumb.RangeID{Region: region, Slot: slot}, Class: classOf, Epoch: 1, Allocated: 1, Version: 1,
		Primary: primary, Preferred: primary, InSync: []rhumb.NodeID{primary}, Replicas: []rhumb.NodeID{primary},
	}
}

func (w *world) addNode(region rhumb.RegionID) *worldNode {
	n := &worldNode{w: w, id: rhumb.NodeID(len(w.nodes) + 1)}
	// Some tests stop the node and start it again at its address.
	addrs, err := freeport.Take(1)
	if err != nil {
		w.t.Fatal(err)
	}
	n.listen(addrs[0])
	w.nodes = append(w.nodes, n)
	w.meta.Nodes = append(w.meta.Nodes, rhumb.Node{
		ID: n.id, Region: region, Addr: n.addr, State: rhumb.NodeLive, Boot: 1, Store: rhumb.UUID{byte(n.id)},
	})
	return n
}

func (n *worldNode) listen(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		n.w.t.Fatal(err)
	}
	n.addr = addr
	n.server = grpc.NewServer(api.ServerOptions(0, api.PlainText())...)
	rhumbpb.RegisterKVServer(n.server, n)
	rhumbpb.RegisterClusterServer(n.server, n)
	go func() { _ = n.server.Serve(l) }()
}

func (w *world) nodesIn(region rhumb.RegionID) []rhumb.NodeID {
	var out []rhumb.NodeID
	for _, n := range w.meta.Nodes {
		if n.Region == region {
			out = append(out, n.ID)
		}
	}
	return out
}

func (w *world) node(id rhumb.NodeID) *worldNode { return w.nodes[id-1] }

// change changes the metadata and sends the full state to the watchers.
func (w *world) change(f func(m *api.Metadata)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.meta)
	w.meta.Revision++
	close(w.news)
	w.news = make(chan struct{})
}

// move makes another node the primary of a range.
func (w *world) move(id rhumb.RangeID, to rhumb.NodeID) {
	w.change(func(m *api.Metadata) { moveIn(m, id, to) })
}

func moveIn(m *api.Metadata, id rhumb.RangeID, to rhumb.NodeID) {
	for i, r := range m.Ranges {
		if r.ID == id {
			c := r.Clone()
			c.Primary, c.Epoch, c.Version = to, c.Epoch+1, c.Version+1
			m.Ranges = slices.Clone(m.Ranges)
			m.Ranges[i] = c
		}
	}
}

// isolate cuts a node off from all others, but not from clients. An heir takes over its ranges.
func (w *world) isolate(id, heir rhumb.NodeID) {
	n := w.node(id)
	n.freeze()
	n.set(func(*rhumbpb.Request) fault { return fault{refuse: rhumb.Unavailable} })
	// A watch that has begun delivers the same once more, and nothing afterwards.
	w.fence(id, heir)
}

// freeze keeps the metadata of a node as they are.
func (n *worldNode) freeze() {
	n.w.mu.Lock()
	old := n.w.meta
	n.w.mu.Unlock()
	n.mu.Lock()
	n.frozen = &old
	n.mu.Unlock()
}

// stall makes a node answer nothing and learn nothing, as one whose disk has stopped. An heir takes over its ranges.
func (w *world) stall(id, heir rhumb.NodeID) {
	w.node(id).freeze()
	w.node(id).set(func(*rhumbpb.Request) fault { return fault{drop: true} })
	w.change(func(m *api.Metadata) {
		for _, r := range m.Ranges {
			if r.Primary == id {
				moveIn(m, r.ID, heir)
			}
		}
	})
}

// fence marks a node as fenced and makes another node the primary of its ranges.
func (w *world) fence(id, heir rhumb.NodeID) {
	w.change(func(m *api.Metadata) {
		m.Nodes = slices.Clone(m.Nodes)
		for i := range m.Nodes {
			if m.Nodes[i].ID == id {
				m.Nodes[i].State = rhumb.NodeFenced
			}
		}
		for _, r := range m.Ranges {
			if r.Primary == id {
				moveIn(m, r.ID, heir)
			}
		}
	})
}

func (w *world) rangeOf(id rhumb.RangeID) *rhumb.Range {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.meta.Ranges {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// homeOf returns the range of a name of table "plain" in a region.
func homeOf(region rhumb.RegionID, name string) rhumb.RangeID {
	return rhumb.RangeID{Region: region, Slot: hashFirst + keys.HashSlot([]byte(name), 0, hashSlots)}
}

// times returns how often requests took effect, in total and for the request with the most effects.
func (w *world) times() (total, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.applied {
		total += n
		most = max(most, n)
	}
	return total, most
}

// regionsOf lists the regions that have a record of table "plain".
func (w *world) regionsOf(name string) []rhumb.RegionID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []rhumb.RegionID
	for id, rs := range w.records {
		if _, ok := rs[recordKey{1, name}]; ok {
			out = append(out, id.Region)
		}
	}
	slices.Sort(out)
	return out
}

// set makes a node do f to requests; nil makes it honest again.
func (n *worldNode) set(f func(q *rhumbpb.Request) fault) {
	n.mu.Lock()
	n.fault = f
	n.mu.Unlock()
}

// first does a fault to the first n requests that match.
func first(n int, match func(*rhumbpb.Request) bool, f fault) func(*rhumbpb.Request) fault {
	return func(q *rhumbpb.Request) fault {
		if n == 0 || !match(q) {
			return fault{}
		}
		n--
		return f
	}
}

func isWrite(q *rhumbpb.Request) bool { return q.Write != nil }
func isRead(q *rhumbpb.Request) bool  { return q.Read != nil }

func isLocate(q *rhumbpb.Request) bool { return q.Locate != nil }

func (n *worldNode) Stream(s grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	for greeted := false; ; {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		if h := f.Hello; !greeted && (h == nil || h.Protocol != api.Protocol || len(h.Cluster) > 0 && h.Cluster[0] != n.w.meta.Cluster[0]) {
			return api.Status(rhumb.E("world.Stream", rhumb.WrongCluster, "no hello, or of another cluster"), api.Hint{})
		}
		greeted = true
		n.mu.Lock()
		n.frames = append(n.frames, len(f.Requests))
		n.mu.Unlock()
		out := &rhumbpb.ServerFrame{}
		cut := false
		for _, q := range f.Requests {
			resp, end := n.serve(q)
			if resp != nil {
				resp.Id = q.Id
				out.Responses = append(out.Responses, resp)
			}
			cut = cut || end
		}
		if len(out.Responses) > 0 {
			if err := s.Send(out); err != nil {
				return err
			}
		}
		if cut {
			return status.Error(codes.Unavailable, "cut by the test")
		}
	}
}

// faultOf returns what the node does to a request.
func (n *worldNode) faultOf(q *rhumbpb.Request) fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault == nil {
		return fault{}
	}
	return n.fault(q)
}

// serve answers a request; a nil response is none at all.
func (n *worldNode) serve(q *rhumbpb.Request) (resp *rhumbpb.Response, cut bool) {
	n.mu.Lock()
	n.asked++
	n.mu.Unlock()
	f := n.faultOf(q)
	switch {
	case f.drop:
		return nil, f.cut
	case f.refuse != rhumb.Other:
		return failed(&rhumb.Error{Op: "world", Kind: f.refuse, Range: f.of, RetryAfter: f.after, Msg: "asked for by the test"}, f.newer), f.cut
	}
	resp = n.w.answer(n.id, q)
	if f.lose {
		return nil, f.cut
	}
	return resp, f.cut
}

func failed(err error, newer *rhumb.Range) *rhumbpb.Response {
	return &rhumbpb.Response{Error: api.EncodeError(err, api.Hint{Newer: newer})}
}

// locate answers for the ranges whose primary a node is, as a real node does.
func (w *world) locate(self rhumb.NodeID, m *rhumbpb.Locate) *rhumbpb.Response {
	l, err := api.DecodeLocate(m)
	if err != nil {
		return failed(err, nil)
	}
	located := make([]api.Existence, len(l.Names))
	for i, name := range l.Names {
		for _, r := range w.meta.Ranges {
			t := w.meta.Tables[l.Tables[i]-1]
			if r.ID != (rhumb.RangeID{Region: l.Region, Slot: hashFirst + keys.HashSlot(name, t.Colocate, hashSlots)}) || r.Primary != self {
				continue
			}
			located[i] = api.Absent
			if _, ok := w.records[r.ID][recordKey{l.Tables[i], string(name)}]; ok {
				located[i] = api.Present
			}
		}
	}
	receipt := rhumb.Receipt{Region: w.meta.Nodes[self-1].Region, Node: self, Hops: 1}
	return &rhumbpb.Response{Located: located, Receipt: api.EncodeReceipt(&receipt)}
}

func (w *world) answer(self rhumb.NodeID, q *rhumbpb.Request) *rhumbpb.Response {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.Locate != nil {
		return w.locate(self, q.Locate)
	}
	var id rhumb.RangeID
	switch {
	case q.Write != nil:
		id = rhumb.RangeID{Region: rhumb.RegionID(q.Write.Region), Slot: rhumb.Slot(q.Write.Slot)}
		if q.Write.Resolve { // only inserts come this way in these tests
			for _, b := range w.meta.Blocks {
				if b.Node == self {
					id = rhumb.RangeID{Region: b.Region, Slot: b.First}
				}
			}
		}
	case q.Read != nil:
		id = rhumb.RangeID{Region: rhumb.RegionID(q.Read.Region), Slot: rhumb.Slot(q.Read.Slot)}
	case q.Scan != nil:
		if len(q.Scan.Slots) > 0 && !w.older {
			return w.scanRanges(self, q.Scan)
		}
		id = rhumb.RangeID{Region: rhumb.RegionID(q.Scan.Region), Slot: rhumb.Slot(q.Scan.Slot)}
	}
	i := slices.IndexFunc(w.meta.Ranges, func(r *rhumb.Range) bool { return r.ID == id })
	if i < 0 {
		return failed(rhumb.E("world", rhumb.NotFound, "no such range "+id.String()), nil)
	}
	r := w.meta.Ranges[i]
	hops := 1
	if r.Primary != self {
		if q.Hops == 0 {
			return failed(rhumb.E("world", rhumb.NotPrimary, "another node"), r)
		}
		hops = 2
		// A forwarded request meets the same primary.
		if f := w.nodes[r.Primary-1].faultOf(q); f.refuse != rhumb.Other {
			return failed(&rhumb.Error{Op: "world", Kind: f.refuse, Range: f.of, RetryAfter: f.after, Msg: "asked for by the test"}, f.newer)
		}
	}
	resp := w.carryOut(r, q)
	resp.Receipt = api.EncodeReceipt(&rhumb.Receipt{
		Region: w.meta.Nodes[r.Primary-1].Region, Node: r.Primary, Range: id, Epoch: r.Epoch, Hops: hops, Timestamp: rhumb.Timestamp(w.clock),
	})
	return resp
}

func (w *world) carryOut(r *rhumb.Range, q *rhumbpb.Request) *rhumbpb.Response {
	if w.records[r.ID] == nil {
		w.records[r.ID] = map[recordKey]stored{}
	}
	here := w.records[r.ID]
	switch {
	case q.Write != nil:
		b, _, err := api.DecodeWrite(q.Write)
		if err != nil {
			return failed(err, nil)
		}
		return w.write(r, here, &b)
	case q.Read != nil:
		rd, err := api.DecodeRead(q.Read)
		if err != nil {
			return failed(err, nil)
		}
		items := make([]rhumb.Item, len(rd.Names))
		for i, name := range rd.Names {
			s := here[recordKey{rd.Table, string(name)}]
			items[i] = rhumb.Item{Version: s.version, Value: s.value}
		}
		return &rhumbpb.Response{Items: api.EncodeItems(items, false, false)}
	}
	s, err := api.DecodeScan(q.Scan)
	if err != nil {
		return failed(err, nil)
	}
	return scanIn(here, s)
}

// scanRanges answers a scan of several ranges as one node does.
func (w *world) scanRanges(self rhumb.NodeID, m *rhumbpb.ScanRequest) *rhumbpb.Response {
	s, err := api.DecodeScan(m)
	if err != nil {
		return failed(err, nil)
	}
	resp := &rhumbpb.Response{Ends: make([]uint32, len(s.Ranges)), Receipt: api.EncodeReceipt(&rhumb.Receipt{Node: self, Hops: 1})}
	var items []rhumb.Item
	for i, id := range s.Ranges {
		if n := slices.IndexFunc(w.meta.Ranges, func(r *rhumb.Range) bool { return r.ID == id }); n < 0 || w.meta.Ranges[n].Primary != self || w.refused[id] {
			continue
		}
		resp.Ends[i] = uint32(id.Slot + 1)
		for k, v := range w.records[id] {
			home := rhumb.Key{Table: k.table, Home: id, Name: []byte(k.name)}
			after := s.After == nil || k.name > string(s.After) || k.name == string(s.After) && id.Compare(s.AfterHome) > 0
			if k.table == s.Table && after && strings.HasPrefix(k.name, string(s.Prefix)) {
				items = append(items, rhumb.Item{Key: home, Version: v.version, Value: v.value})
			}
		}
	}
	slices.SortFunc(items, func(a, b rhumb.Item) int {
		return cmp.Or(bytes.Compare(a.Key.Name, b.Key.Name), a.Key.Home.Compare(b.Key.Home))
	})
	// Bytes count too, so that pages end in odd places.
	n, size := 0, 0
	for n < len(items) && n < s.Limit && size < s.BytesMax {
		size += len(items[n].Value) + len(items[n].Key.Name)
		n++
	}
	resp.Items, resp.More = api.EncodeItems(items[:n], true, true), n < len(items)
	return resp
}

func scanIn(here map[recordKey]stored, s api.Scan) *rhumbpb.Response {
	var items []rhumb.Item
	size, more := 0, false
	for _, k := range slices.SortedFunc(maps.Keys(here), func(a, b recordKey) int { return bytes.Compare([]byte(a.name), []byte(b.name)) }) {
		switch {
		case k.table != s.Table || !bytes.HasPrefix([]byte(k.name), s.Prefix) || s.After != nil && k.name <= string(s.After):
			continue
		case s.Limit > 0 && len(items) == s.Limit || size >= s.BytesMax:
			more = true
			continue
		}
		items = append(items, rhumb.Item{Key: rhumb.Key{Name: []byte(k.name)}, Version: here[k].version, Value: here[k].value})
		size += len(k.name) + len(here[k].value)
	}
	return &rhumbpb.Response{Items: api.EncodeItems(items, true, false), More: more}
}

func (w *world) write(r *rhumb.Range, here map[recordKey]stored, b *rhumb.Batch) *rhumbpb.Response {
	id := r.ID.String() + " " + b.ID.String()
	if !b.ID.IsZero() {
		if a := w.answers[id]; a != nil {
			return &rhumbpb.Response{Outcome: a.Outcome}
		}
	}
	w.clock++
	o := rhumb.Outcome{Applied: true, Version: rhumb.Version{HLC: rhumb.Timestamp(w.clock), Node: r.Primary}, Seq: rhumb.Seq(w.clock), Existed: make([]bool, len(b.Mutations))}
	writes := map[recordKey][]byte{}
	for i := range b.Mutations {
		m := &b.Mutations[i]
		if m.Kind == rhumb.Insert {
			m.Name = rhumb.SequenceName(w.clock*1000 + uint64(i))
			o.Names = append(o.Names, m.Name)
		}
		k := recordKey{m.Table, string(m.Name)}
		old, exists := here[k]
		o.Existed[i] = exists && m.NeedsBase()
		if ok, err := holds(m, old, exists); err != nil {
			return failed(err, nil)
		} else if !ok {
			o = rhumb.Outcome{Existed: make([]bool, len(b.Mutations))}
			writes = nil
			break
		}
		value := m.Value
		if m.Kind == rhumb.Patch {
			merged, err := rhumb.MergeRecord(nil, old.value, m.Value)
			if err != nil {
				return failed(err, nil)
			}
			value = merged
		}
		writes[k] = value
	}
	for k, v := range writes {
		if v == nil {
			delete(here, k)
			continue
		}
		here[k] = stored{v, o.Version}
	}
	w.applied[id]++
	resp := &rhumbpb.Response{Outcome: api.EncodeOutcome(&o)}
	w.answers[id] = resp
	return &rhumbpb.Response{Outcome: resp.Outcome}
}

func holds(m *rhumb.Mutation, old stored, exists bool) (bool, error) {
	ok := true
	switch m.Cond.Kind {
	case rhumb.IfAbsent:
		ok = !exists
	case rhumb.IfPresent:
		ok = exists
	case rhumb.IfVersion:
		ok = exists && old.version == m.Cond.Version
	case rhumb.IfNewer:
		if !exists {
			return true, nil
		}
		for _, f := range m.Cond.Fields {
			a, _, _ := rhumb.RecordField(old.value, f)
			b, _, _ := rhumb.RecordField(m.Value, f)
			if c := a.Compare(b); c != 0 {
				return c < 0, nil
			}
		}
		return false, nil
	}
	if !ok {
		err := rhumb.Ef("world", rhumb.ConditionFailed, "condition %s", m.Cond.Kind)
		err.Current = old.version
		return false, err
	}
	return true, nil
}

func (n *worldNode) Ping(context.Context, *rhumbpb.PingRequest) (*rhumbpb.PingResponse, error) {
	n.mu.Lock()
	n.unsure--
	unsure := n.unsure >= 0
	n.mu.Unlock()
	if unsure {
		return nil, api.Status(&rhumb.Error{Op: "world", Kind: rhumb.Unavailable, RetryAfter: time.Millisecond, Msg: "try again"}, api.Hint{})
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	node := n.w.meta.Nodes[n.id-1]
	return &rhumbpb.PingResponse{
		Cluster: n.w.meta.Cluster[:], Node: uint32(n.id), Region: uint32(node.Region), RegionName: places[node.Region-1].Name,
		Revision: n.w.meta.Revision, Protocol: api.Protocol, Ready: true,
	}, nil
}

func (n *worldNode) WatchMetadata(_ *rhumbpb.WatchMetadataRequest, s grpc.ServerStreamingServer[rhumbpb.Metadata]) error {
	for {
		n.w.mu.Lock()
		m := n.w.meta
		news := n.w.news
		n.w.mu.Unlock()
		n.mu.Lock()
		if n.frozen != nil {
			m, news = *n.frozen, nil
		}
		n.mu.Unlock()
		m.Full = true
		for _, part := range api.EncodeMetadata(&m) {
			if err := s.Send(part); err != nil {
				return err
			}
		}
		select {
		case <-news:
		case <-s.Context().Done():
			return nil
		}
	}
}

func (n *worldNode) CreateTable(_ context.Context, q *rhumbpb.CreateTableRequest) (*rhumbpb.CreateTableResponse, error) {
	var t rhumb.Table
	taken := false
	n.w.change(func(m *api.Metadata) {
		for _, x := range m.Tables {
			taken = taken || x.Name == q.Name
		}
		t = rhumb.Table{ID: rhumb.TableID(len(m.Tables) + 1), Name: q.Name, Class: classOf}
		t.TableOptions, _ = api.DecodeTableOptions(q)
		t.TableOptions.SetDefaults()
		if !taken {
			m.Tables = append(slices.Clone(m.Tables), t)
		}
	})
	n.mu.Lock()
	mute := n.mute
	n.mute = false
	n.mu.Unlock()
	switch {
	case taken:
		return nil, api.Status(rhumb.E("world", rhumb.AlreadyExists, "the name is taken"), api.Hint{})
	case mute:
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return &rhumbpb.CreateTableResponse{Table: api.EncodeTable(t), Revision: n.w.meta.Revision}, nil
}

func (n *worldNode) DescribeTable(_ context.Context, q *rhumbpb.DescribeTableRequest) (*rhumbpb.DescribeTableResponse, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	for _, t := range n.w.meta.Tables {
		if t.Name == q.Name {
			return &rhumbpb.DescribeTableResponse{Table: api.EncodeTable(t), Revision: n.w.meta.Revision}, nil
		}
	}
	return nil, api.Status(rhumb.E("world", rhumb.NotFound, "no table "+q.Name), api.Hint{})
}

func (n *worldNode) Status(context.Context, *rhumbpb.StatusRequest) (*rhumbpb.StatusResponse, error) {
	if n.status != nil {
		return n.status, nil
	}
	id, cluster := n.id, n.w.meta.Cluster
	if n.poses != nil {
		id, cluster = n.poses()
	}
	return &rhumbpb.StatusResponse{Cluster: api.EncodeUUID(cluster), Node: &rhumbpb.Node{Id: uint32(id)}, Ready: true, Ranges: 3, Stores: []*rhumbpb.StoreStatus{{Dir: "memory", FreeBytes: 5}}}, nil
}

func (n *worldNode) DescribeRange(_ context.Context, q *rhumbpb.DescribeRangeRequest) (*rhumbpb.DescribeRangeResponse, error) {
	r := n.w.rangeOf(api.DecodeRangeID(q.Range))
	if r == nil {
		return nil, api.Status(rhumb.E("world", rhumb.NotFound, "no such range"), api.Hint{})
	}
	return &rhumbpb.DescribeRangeResponse{Range: api.EncodeRange(r), Replicas: []*rhumbpb.ReplicaStatus{{Node: uint32(r.Primary), State: "primary", InSync: true, End: 9}}}, nil
}

func (n *worldNode) Drain(_ context.Context, q *rhumbpb.DrainRequest) (*rhumbpb.DrainResponse, error) {
	return &rhumbpb.DrainResponse{Primaries: q.Node}, nil
}

func (n *worldNode) DiscardReplica(_ context.Context, q *rhumbpb.DiscardReplicaRequest) (*rhumbpb.DiscardReplicaResponse, error) {
	n.admin = append(n.admin, q)
	return &rhumbpb.DiscardReplicaResponse{}, nil
}

func (n *worldNode) RecoverRange(_ context.Context, q *rhumbpb.RecoverRangeRequest) (*rhumbpb.RecoverRangeResponse, error) {
	n.admin = append(n.admin, q)
	if q.Version != 1 {
		return nil, api.Status(rhumb.E("world", rhumb.Conflict, "the record has changed"), api.Hint{})
	}
	return &rhumbpb.RecoverRangeResponse{Range: api.EncodeRange(n.w.rangeOf(api.DecodeRangeID(q.Range)))}, nil
}

func (n *worldNode) Init(context.Context, *rhumbpb.InitRequest) (*rhumbpb.InitResponse, error) {
	return nil, api.Status(rhumb.E("world", rhumb.AlreadyExists, "the node belongs to a cluster"), api.Hint{})
}

// open opens a client in a region, with every node's address.
func (w *world) open(from string, change ...func(*Config)) *Client {
	w.t.Helper()
	cfg := Config{From: from, Insecure: true, Timeout: 10 * time.Second}
	for _, n := range w.nodes {
		cfg.Addrs = append(cfg.Addrs, n.addr)
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := Open(context.Background(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

func (w *world) table(c *Client, name string) *Table {
	w.t.Helper()
	t, err := c.Table(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// await waits until cond holds.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("waited in vain until ", what)
		}
	}
}

func wantKind(t testing.TB, err error, kind rhumb.Kind) {
	t.Helper()
	if err == nil || rhumb.KindOf(err) != kind {
		t.Fatalf("got error %v of kind %s, want kind %s", err, rhumb.KindOf(err), kind)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func record(t testing.TB, pairs ...any) rhumb.Record {
	t.Helper()
	var fs []rhumb.Field
	for i := 0; i < len(pairs); i += 2 {
		f := rhumb.Field{Name: pairs[i].(string)}
		switch v := pairs[i+1].(type) {
		case int:
			f.Value = rhumb.Int64Field(int64(v))
		case string:
			f.Value = rhumb.StringField(v)
		case rhumb.Point:
			f.Value = rhumb.PointField(v)
		default:
			panic(fmt.Sprintf("%T", v))
		}
		fs = append(fs, f)
	}
	r, err := rhumb.NewRecord(fs...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
