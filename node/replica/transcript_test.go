package replica

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
)

// TestTranscripts replays the transcripts of testdata. Nodes are written as numbers. Commands:
//
//	add-replicas nodes=(1,2,3) in-sync=(1,2,3) primary=1 [min=2] [CONFIG=N ...]
//	    creates nodes with empty disks and streams between all; none of them has the record yet
//	describe [nodes=(1,2)] [version=V]   passes a record to nodes, or to all of them
//	propose N put|delete|patch|insert KEY [VALUE] [if=absent|present|version:HLC@N|newer:FIELD] [id=SEQ]
//	    a patch value is FIELD:INT,FIELD:INT
//	    to=SEQ repeats it with all ids up to SEQ; forgotten: storage may have had the result of the id
//	ready N                        takes one Ready and shows its contents
//	persist N [all]                makes N's oldest batch durable, or every one
//	deliver [from=N] [to=N] [kind=K] [count=C]   delivers messages; drop and repeat have the same arguments
//	activate N / tick N MS / crash N [keep=BATCHES] / start N
//	peer N of=M [connected=false] [suspect]
//	elect N in-sync=(…)            lets metadata elect N; replicas nodes=(…) sets the copies
//	prepare N                      lets metadata prepare a handover to N; cancel cancels it
//	meta decide|lose               decides or loses the oldest proposal to metadata
//	stabilize [nodes=(1,2)] [quiet]   repeats ready, persist and deliver among nodes until nothing is left;
//	    metadata waits
//	corrupt N seq=SEQ              restarts N from a disk whose last entry, SEQ, has another content
//	status N / log N / net / record
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c *cluster
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd == "add-replicas" {
				c = addReplicas(t, td)
				return "ok"
			}
			c.log.Reset()
			run(t, c, td)
			if c.log.Len() == 0 {
				return "ok"
			}
			return c.log.String()
		})
	})
}

func addReplicas(t *testing.T, td *datadriven.TestData) *cluster {
	cfg := Config{}
	ints := map[string]*int{
		"min": &cfg.MinInSync, "append-bytes": &cfg.AppendBytesMax, "entry-bytes": &cfg.EntryBytesMax,
		"inflight-bytes": &cfg.InflightBytesMax, "uncommitted-bytes": &cfg.UncommittedBytesMax, "tail-bytes": &cfg.TailBytesMax,
		"proposals": &cfg.ProposalsMax, "join-within": &cfg.JoinWithinBytes,
	}
	for _, arg := range td.CmdArgs {
		if v := ints[arg.Key]; v != nil {
			arg.Scan(t, 0, v)
		}
		if arg.Key == "log-keep" {
			arg.Scan(t, 0, &cfg.LogKeepBytes)
		}
	}
	var primary int
	td.ScanArgs(t, "primary", &primary)
	return newCluster(cfg, nodesArg(td, "nodes"), nodesArg(td, "in-sync"), rhumb.NodeID(primary))
}

// nodesArg parses key=(1,2,3).
func nodesArg(td *datadriven.TestData, key string) []rhumb.NodeID {
	var out []rhumb.NodeID
	for _, arg := range td.CmdArgs {
		if arg.Key == key {
			for _, v := range arg.Vals {
				out = append(out, nodeOf(v))
			}
		}
	}
	return out
}

func nodeOf(s string) rhumb.NodeID {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err.Error())
	}
	return rhumb.NodeID(n)
}

// first returns the node that the first argument names, or those of nodes=(1,2), or all that are
// up.
func (c *cluster) first(td *datadriven.TestData) []*testNode {
	if len(td.CmdArgs) > 0 && len(td.CmdArgs[0].Vals) == 0 {
		if n, err := strconv.Atoi(td.CmdArgs[0].Key); err == nil {
			return []*testNode{c.node(rhumb.NodeID(n))}
		}
	}
	named := nodesArg(td, "nodes")
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool {
		return n.r == nil || named != nil && !slices.Contains(named, n.id)
	})
}

func intArg(td *datadriven.TestData, key string, def int) int {
	for _, arg := range td.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 1 {
			n, err := strconv.Atoi(arg.Vals[0])
			if err != nil {
				panic(err.Error())
			}
			return n
		}
	}
	return def
}

func stringArg(td *datadriven.TestData, key string) string {
	for _, arg := range td.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 1 {
			return arg.Vals[0]
		}
	}
	return ""
}

func run(t *testing.T, c *cluster, td *datadriven.TestData) {
	switch td.Cmd {
	case "describe":
		d := c.record
		if v := intArg(td, "version", 0); v != 0 {
			d = c.history[v-1]
		}
		for _, n := range c.first(td) {
			n.r.Describe(d)
			c.logf("%s is %s", n.id, n.r.State())
		}
	case "propose":
		runPropose(t, c, td)
	case "ready":
		n := c.first(td)[0]
		if !n.r.HasReady() {
			c.logf("%s has nothing", n.id)
			return
		}
		n.ready()
	case "persist":
		n := c.first(td)[0]
		for len(n.pending) > 0 {
			n.persist()
			if !td.HasArg("all") {
				break
			}
		}
	case "deliver", "drop", "repeat":
		runNet(c, td)
	case "activate":
		for _, n := range c.first(td) {
			c.clock++
			n.r.Activate(c.clock)
			c.logf("%s is %s", n.id, n.r.State())
		}
	case "tick":
		ms, err := strconv.Atoi(td.CmdArgs[1].Key)
		if err != nil {
			t.Fatal(err)
		}
		n := c.first(td)[0]
		needs, untold := n.r.NeedsTick(), n.r.Untold()
		c.now += time.Duration(ms) * time.Millisecond
		n.r.Tick(c.now)
		c.logf("needs tick: %v, untold: %v", needs, untold)
	case "crash":
		c.first(td)[0].crash(intArg(td, "keep", 0))
	case "start":
		n := c.first(td)[0]
		n.start()
		c.logf("%s is %s", n.id, n.r.State())
	case "peer":
		c.first(td)[0].r.Peer(c.now, rhumb.NodeID(intArg(td, "of", 0)), stringArg(td, "connected") != "false", td.HasArg("suspect"))
	case "elect":
		c.elect(c.first(td)[0].id, nodesArg(td, "in-sync"))
		runRecord(c)
	case "prepare":
		c.prepare(c.first(td)[0].id)
		runRecord(c)
	case "cancel":
		c.change(func(d *rhumb.Range) { d.Prepared = nil })
		runRecord(c)
	case "replicas":
		c.change(func(d *rhumb.Range) { d.Replicas = nodesArg(td, "nodes") })
		runRecord(c)
	case "meta":
		if len(c.meta) == 0 {
			c.logf("no proposal")
			return
		}
		if td.HasArg("lose") {
			c.meta = c.meta[1:]
			return
		}
		if !c.decide(0) {
			c.logf("refused")
		}
		runRecord(c)
	case "stabilize":
		c.quiet = td.HasArg("quiet")
		c.stabilize(c.first(td))
		c.quiet = false
	case "status":
		runStatus(c, c.first(td)[0])
	case "log":
		for _, e := range c.first(td)[0].seen.entries {
			c.logf("%s", describeEntry(e))
		}
	case "net":
		for i := range c.net {
			c.logf("%s", describeMessage(&c.net[i]))
		}
	case "corrupt":
		n := c.first(td)[0]
		n.corrupt(intArg(td, "seq", 0))
	case "record":
		runRecord(c)
	default:
		t.Fatalf("unknown command %q", td.Cmd)
	}
}

func runRecord(c *cluster) {
	c.logf("version %d epoch %d primary %s in-sync %v replicas %v", c.record.Version, c.record.Epoch, c.record.Primary, c.record.InSync, c.record.Replicas)
	if h := c.record.Prepared; h != nil {
		c.logf("  prepared for %s in epoch %d", h.Target, h.Epoch)
	}
}

func runPropose(t *testing.T, c *cluster, td *datadriven.TestData) {
	n := c.first(td)[0]
	b := &rhumb.Batch{Range: testRange}
	if id := intArg(td, "id", 0); id != 0 {
		b.ID = rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(id)}
	}
	m := rhumb.Mutation{Table: 1}
	kinds := map[string]rhumb.MutationKind{"put": rhumb.Put, "delete": rhumb.Delete, "patch": rhumb.Patch, "insert": rhumb.Insert}
	m.Kind = kinds[td.CmdArgs[1].Key]
	rest := td.CmdArgs[2:]
	if m.Kind != rhumb.Insert {
		m.Name = []byte(rest[0].Key)
		rest = rest[1:]
	}
	switch m.Kind {
	case rhumb.Put, rhumb.Insert:
		m.Value = rhumb.EncodeOpaque(nil, []byte(rest[0].Key))
	case rhumb.Patch:
		m.Value = rhumb.EncodeRecord(nil, parseRecord(t, rest[0].Key))
	}
	kind, arg, _ := strings.Cut(stringArg(td, "if"), ":")
	switch kind {
	case "absent":
		m.Cond.Kind = rhumb.IfAbsent
	case "present":
		m.Cond.Kind = rhumb.IfPresent
	case "version":
		v, err := rhumb.ParseVersion(arg)
		if err != nil {
			t.Fatal(err)
		}
		m.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: v}
	case "newer":
		m.Cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{arg}}
	}
	b.Mutations = []rhumb.Mutation{m}
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	for c.logf("proposal %d", n.proposeWith(b, td.HasArg("forgotten"))); b.ID.Seq < uint64(intArg(td, "to", 0)); {
		next := *b // the replica keeps the first
		next.ID.Seq++
		b = &next
		n.proposeWith(b, false)
	}
}

func parseRecord(t *testing.T, s string) rhumb.Record {
	var fields []rhumb.Field
	for part := range strings.SplitSeq(s, "+") {
		name, value, _ := strings.Cut(part, ":")
		v, err := rhumb.ParseField(rhumb.FieldInt64, value)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, rhumb.Field{Name: name, Value: v})
	}
	rec, err := rhumb.NewRecord(fields...)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func runNet(c *cluster, td *datadriven.TestData) {
	from, to, kind := intArg(td, "from", 0), intArg(td, "to", 0), stringArg(td, "kind")
	left := intArg(td, "count", len(c.net))
	for i := 0; i < len(c.net) && left > 0; {
		m := &c.net[i]
		if from != 0 && int(m.From) != from || to != 0 && int(m.To) != to || kind != "" && m.Kind.String() != kind {
			i++
			continue
		}
		left--
		c.logf("%s", describeMessage(m))
		switch td.Cmd {
		case "deliver":
			c.deliver(i)
		case "drop":
			c.net = slices.Delete(c.net, i, i+1)
		case "repeat":
			c.net = append(c.net, *m)
			i++
		}
	}
}

// stabilize runs the nodes until nothing is left to do among them.
func (c *cluster) stabilize(nodes []*testNode) {
	for busy := true; busy; {
		busy = false
		for _, n := range nodes {
			if n.r != nil && n.r.HasReady() {
				n.ready()
				busy = true
			}
			for n.r != nil && len(n.pending) > 0 {
				n.persist()
				busy = true
			}
		}
		for i := 0; i < len(c.net); {
			m := &c.net[i]
			among := func(id rhumb.NodeID) bool {
				return slices.ContainsFunc(nodes, func(n *testNode) bool { return n.id == id })
			}
			if !among(m.From) || !among(m.To) {
				i++
				continue
			}
			c.logf("deliver %s", describeMessage(m))
			c.deliver(i)
			busy = true
		}
	}
}

func runStatus(c *cluster, n *testNode) {
	s := n.r.Status()
	c.logf("%s %s epoch %d primary %s last %d:%d durable %d commit %d trim %d start %d", s.Self, s.State, s.Epoch, s.Primary,
		s.Last.Epoch, s.Last.Seq, s.Durable, s.Commit, s.Trim, s.Start)
	if s.Quarantine != "" {
		c.logf("  quarantined: %s", s.Quarantine)
	}
	if s.State == Primary || s.State == Activating {
		_, _, readable := n.r.Readable()
		pending := ""
		if s.Pending != nil {
			pending = fmt.Sprintf(" pending %v", s.Pending)
		}
		c.logf("  in-sync %v%s lease from %v readable %v waiting %d", s.InSync, pending, n.r.LeaseSet(), readable, s.Proposals)
	}
	for _, p := range s.Peers {
		flags := ""
		if !p.Connected {
			flags += " cut"
		}
		if p.Suspect {
			flags += " suspect"
		}
		why := ""
		if p.Why != "" {
			why = ": " + p.Why
		}
		c.logf("  %s %s match %d next %d commit %d%s%s", p.Node, p.Flow, p.Match, p.Next, p.Commit, flags, why)
	}
}

// corrupt restarts the node from a disk whose last entry, at seq, has another content under the
// same epoch.
func (n *testNode) corrupt(seq int) {
	n.crash(len(n.pending))
	n.disk.entries = n.disk.entries[:seq]
	e := *n.disk.entries[seq-1]
	e.Requests = slices.Clone(e.Requests)
	e.Requests[0].HLC--
	e.Seal(nil)
	n.disk.entries[seq-1] = &e
	n.start()
	n.r.Describe(n.c.record)
	for _, m := range n.c.nodes {
		m.r.Peer(n.c.now, n.id, true, false)
	}
}
