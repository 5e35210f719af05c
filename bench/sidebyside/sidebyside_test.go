package sidebyside

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/node"
)

// TestMeasure checks a run on a real node without a program for the peers: the machine and the node
// complete every case without an error, and each peer is named with the reason and a command.
func TestMeasure(t *testing.T) {
	n, err := node.Start(node.Config{
		Dirs: []string{t.TempDir()}, Region: "test", Location: rhumb.Point{Lat: 1, Lon: 2}, Insecure: true,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	conn, err := api.Connect(n.Addr(), nil, api.PlainText())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := rhumbpb.NewClusterClient(conn).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	cfg := Quick()
	cfg.Dir, cfg.Binary, cfg.Records, cfg.Measure = t.TempDir(), "/nonexistent/peers", 500, 100*time.Millisecond
	cfg.Progress = func(string) {}
	cfg.Clusters = []bench.Rhumb{{Client: client.Config{Addrs: []string{n.Addr()}, Insecure: true}, PIDs: []int{os.Getpid()}, Replicas: 1}}
	r, err := Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Missing) != len(Peers()) || r.Missing[0].Install == "" {
		t.Errorf("missing are %+v", r.Missing)
	}
	if len(r.Rows) != len(cfg.makeCases()) {
		t.Errorf("%d rows of %d cases", len(r.Rows), len(cfg.makeCases()))
	}
	measured := 0
	for _, row := range r.Rows {
		// On a busy machine a case may end without a call. That of reads of memory counts 100,000 of them as one.
		if row.Ops > 0 && row.Target == machine {
			measured++
		}
		if row.Errors > 0 || row.P50 > row.P99 || row.P99 > row.P999 {
			t.Errorf("%+v", row)
		}
		if isMachine := row.Target == machine; isMachine != limitOf(row) {
			t.Errorf("%s ran %s", row.Target, row.Title())
		}
	}
	if measured == 0 {
		t.Error("no limit of the machine was measured")
	}
	checkPage(t, r, len(r.Rows)-len(limitCases()))
}

func limitOf(row rounds.Row) bool {
	for _, c := range limitCases() {
		if c.Op == row.Op {
			return true
		}
	}
	return false
}

// checkPage checks that the page of a report is well formed and has as many bars as rows.
func checkPage(t *testing.T, r *Report, bars int) string {
	t.Helper()
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	d := xml.NewDecoder(&page)
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	found := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			found++
		}
	}
	if found != bars {
		t.Errorf("the page has %d bars, want %d", found, bars)
	}
	return text
}

// TestReport checks how a report reads: ratios in the rows of the peers, the verdict on a busy machine,
// errors, and text from elsewhere, which must not become markup.
func TestReport(t *testing.T) {
	r := &Report{Rounds: 1, Peers: []PeerVersion{{Peers()[0], "3.7"}}, Missing: []rounds.MissingError{{Peer: "kafka", Reason: "<b>no java</b>", Install: "get it"}}}
	var runs []rounds.Run
	for i, target := range []string{"rhumb-1", "etcd-1"} {
		x := rounds.Run{Target: target}
		x.Op, x.Callers, x.OpsPerSecond, x.P50, x.P99, x.P999 = load.Put, 64, float64(20_000/(i+1)), 1500, 2500, 2_500_000
		x.OtherCores = 1.5
		runs = append(runs, x)
	}
	runs[1].Errors, runs[1].FirstError = 3, "refused & closed"
	r.summarise(runs)
	if got := r.RatioTo(r.Rows[1]); got == nil || got.Ops.Median != 2 || r.RatioTo(r.Rows[0]) != nil {
		t.Errorf("the ratios are %+v", r.Ratios)
	}
	text := checkPage(t, r, 2)
	for _, want := range []string{"2.00 [2.00..2.00]", "20,000/s", "1.5 ms", "2.50 s", "during 2 of 2 measurements: the figures show a direction", "&lt;b&gt;no java", "get it", "refused &amp; closed", "put, 64 callers", `<td class="better">2.00</td>`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestConfig checks that values out of bounds and unknown peers are refused by name.
func TestConfig(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		"51 rounds":    func(c *Config) { c.Rounds = RoundsMax + 1 },
		"0 records":    func(c *Config) { c.Records = 0 },
		"0 callers":    func(c *Config) { c.Callers = []int{1, 0} },
		"a case of 1h": func(c *Config) { c.Measure = time.Hour },
		"not a peer":   func(c *Config) { c.Peers = []string{"etcd"} },
	} {
		c := Full()
		change(&c)
		if _, err := Measure(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, c := range []Config{Full(), Quick()} {
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestCycle checks that a walk through the memory reads every word before it repeats one.
func TestCycle(t *testing.T) {
	words := makeCycle(1000)
	at, steps := words[0], 1
	for ; at != 0; steps++ {
		at = words[at]
	}
	if steps != len(words) {
		t.Errorf("the walk returns after %d of %d words", steps, len(words))
	}
}

// TestMeasureLogs checks that each log runs each case without an error, that the callers of a group share syncs, and that the node log is read
// back whole and leaves nothing on the disk.
func TestMeasureLogs(t *testing.T) {
	cfg := LogsConfig{Dir: t.TempDir(), Callers: []int{1, 16}, Rounds: 1, Measure: 400 * time.Millisecond, ValueBytes: 100, Progress: func(string) {}}
	r, err := MeasureLogs(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 8 || len(r.Ratios) == 0 || r.RatioTo(r.Rows[1]) == nil {
		t.Errorf("%d rows, ratios %+v", len(r.Rows), r.Ratios)
	}
	values := int64(0)
	for _, x := range r.Runs {
		if x.Target == nodeLog {
			values += x.Ops
		}
	}
	// Values of the time for warming up are records too, so the records alone bound nothing.
	if u := r.Log; u.Records == 0 || u.Syncs < u.Records || u.Replayed != u.Records || u.Bytes < values*100 || u.SyncNanos <= 0 {
		t.Errorf("the node log reports %+v for %d values", u, values)
	}
	if left, err := os.ReadDir(cfg.Dir); err != nil || len(left) > 0 {
		t.Errorf("%d files remain, %v", len(left), err)
	}
}
