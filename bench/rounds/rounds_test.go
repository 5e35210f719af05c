package rounds

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/bench/load"
)

// counter is a target that counts its runs, and fails from a number of runs on.
type counter struct {
	title    string
	offers   load.Op // the only operation, if not empty
	runs     []load.Case
	failFrom int
}

func (c *counter) Name() string            { return c.title }
func (c *counter) Offers(x load.Case) bool { return c.offers == "" || c.offers == x.Op }
func (c *counter) Stop()                   {}
func (c *counter) Run(_ context.Context, x load.Case) (load.Result, error) {
	c.runs = append(c.runs, x)
	if c.failFrom > 0 && len(c.runs) >= c.failFrom {
		return load.Result{}, errors.New("out of order")
	}
	return load.Result{Case: x, OpsPerSecond: float64(len(c.runs))}, nil
}

// TestPlay checks that targets take turns in each case, that a target which fails takes no further
// part while the others go on, that discarded rounds run and do not count, and that new keys are new
// in each case and round.
func TestPlay(t *testing.T) {
	whole, puts, broken := &counter{title: "whole"}, &counter{title: "puts", offers: load.Put}, &counter{title: "broken", failFrom: 3}
	var dropped []string
	p := Plan{
		Cases: []load.Case{{Op: load.Put, Callers: 1}, {Op: load.Get, Callers: 1}}, Targets: []Target{whole, puts, broken}, Rounds: 2, Discard: 1,
		Progress: func(string) {}, Dropped: func(target string, err error) { dropped = append(dropped, target+": "+err.Error()) },
	}
	runs, err := p.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, x := range runs {
		order = append(order, x.Target+" "+string(x.Op))
	}
	if want := []string{"whole put", "puts put", "whole get", "whole put", "puts put", "whole get"}; !slices.Equal(order, want) {
		t.Errorf("the runs that count are %q, want %q", order, want)
	}
	if len(whole.runs) != 6 || len(puts.runs) != 3 || len(broken.runs) != 3 || !slices.Equal(dropped, []string{"broken: out of order"}) {
		t.Errorf("%d, %d and %d runs; dropped %q", len(whole.runs), len(puts.runs), len(broken.runs), dropped)
	}
	fresh := map[int]bool{}
	for _, x := range whole.runs {
		fresh[x.Fresh] = true
	}
	if len(fresh) != 6 || fresh[0] {
		t.Errorf("new keys begin at %v", fresh)
	}
	p.Dropped, broken.runs = nil, nil
	if _, err := p.Play(t.Context()); err == nil {
		t.Error("the failure of a target ended nothing")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Play(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error of a cancelled run is %v", err)
	}
}

// TestRatios checks that ratios are those of one round, also when a target missed a round, and that a
// round without a call has none.
func TestRatios(t *testing.T) {
	var runs []Run
	add := func(target string, round int, ops float64) {
		x := Run{Target: target, Round: round}
		x.Op, x.Callers, x.OpsPerSecond, x.P50 = load.Put, 1, ops, 10
		runs = append(runs, x)
	}
	for round, ops := range []float64{100, 300, 200, 50} {
		add("a", round, ops)
		if round != 1 {
			add("b", round, ops/2)
		}
	}
	add("a", 4, 0)
	add("b", 4, 100)
	got := Ratios(runs, [][2]string{{"a", "b"}, {"a", "c"}})
	if len(got) != 1 || got[0].Ops != (Spread{2, 2, 2}) || got[0].Peer != "b" {
		t.Errorf("the ratios are %+v", got)
	}
	rows := Rows(runs)
	if len(rows) != 2 || rows[0].OpsSpread != (Spread{100, 0, 300}) || rows[1].Ops != 75 {
		t.Errorf("the rows are %+v", rows)
	}
}

// driver writes a driver that is a shell script.
func driver(t *testing.T, script string) string {
	path := filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPeer checks what becomes of the lines of a driver: a database that is missing, one that ends, and
// one that answers.
func TestPeer(t *testing.T) {
	var missing *MissingError
	for _, binary := range []string{driver(t, `echo '{"failed":"no such program","install":"get it"}'`), "/nonexistent/peers"} {
		if _, err := OpenPeer(binary, "x", t.TempDir()); !errors.As(err, &missing) || missing.Install == "" || missing.Peer != "x" {
			t.Errorf("%s: %v", binary, err)
		}
	}
	if _, err := OpenPeer(driver(t, "exit 3"), "x", t.TempDir()); err == nil || errors.As(err, &missing) && missing.Peer == "" {
		t.Errorf("a driver that ended: %v", err)
	}
	p, err := OpenPeer(driver(t, `echo '{"version":"1.2","ops":["put","get"],"many":["put"]}'
read line; echo '{"ops":7,"ops_per_second":70}'
read line; echo '{"failed":"refused"}'
read line; exit`), "x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for _, x := range []struct {
		c    load.Case
		want bool
	}{
		{load.Case{Op: load.Put}, true},
		{load.Case{Op: load.Append}, false},
		{load.Case{Op: load.Put, Batch: 16}, true},
		{load.Case{Op: load.Get, Batch: 16}, false},
		{load.Case{Workload: "A"}, true},
		{load.Case{Workload: "E"}, false},
	} {
		if got := p.Offers(x.c); got != x.want {
			t.Errorf("%s is offered: %v", CaseOf(x.c).Title(), got)
		}
	}
	if r, err := p.Run(t.Context(), load.Case{Op: load.Put}); err != nil || r.Ops != 7 || p.Version() != "1.2" {
		t.Errorf("%+v, %v of version %s", r, err, p.Version())
	}
	for range 2 {
		if _, err := p.Run(t.Context(), load.Case{Op: load.Put}); err == nil {
			t.Error("a failed case has no error")
		}
	}
}
