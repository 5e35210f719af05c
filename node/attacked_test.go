package node

import (
	"context"
	"flag"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

var attack = flag.Bool("attack", false, "attack the main ports for longer, to measure heartbeats")

// attackTime is how long the main port is attacked, and watched before. With -attack it is attackLong.
const (
	attackTime = 1500 * time.Millisecond
	attackLong = 6 * time.Second
)

// TestHeartbeatsUnderAttack measures the gaps between heartbeats of three nodes before and while strangers attack the main port of
// each, and guards that no node is fenced.
func TestHeartbeatsUnderAttack(t *testing.T) {
	took := attackTime
	if *attack {
		took = attackLong
	}
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	watch := func(name string, d time.Duration) {
		before := heartbeatGaps(t, nodes)
		time.Sleep(d)
		after := heartbeatGaps(t, nodes)
		count, sum := after.GetSampleCount()-before.GetSampleCount(), after.GetSampleSum()-before.GetSampleSum()
		if count == 0 {
			t.Fatalf("%s: no heartbeats", name)
		}
		// Bounds of the histogram: the 99th of a hundred gaps and the longest one are at most these.
		var most, p99 float64
		for i, b := range after.Bucket {
			n := b.GetCumulativeCount() - before.Bucket[i].GetCumulativeCount()
			if most = b.GetUpperBound(); p99 == 0 && n*100 >= count*99 {
				p99 = most
			}
			if n == count {
				break
			}
		}
		t.Logf("%s: %d heartbeats, mean gap %.0f ms, 99 %% within %.0f ms, all within %.0f ms", name, count, sum/float64(count)*1e3, p99*1e3, most*1e3)
	}
	watch("at rest", took)
	// A busy machine may stop all three nodes for longer than they may be silent. It hardly does that twice in the same moment.
	fenced := attackOnce(t, nodes, a, took, watch)
	if fenced != "" {
		t.Logf("%s; once more", fenced)
		awaitReady(t, nodes...)
		fenced = attackOnce(t, nodes, a, took, watch)
	}
	if fenced != "" {
		t.Error(fenced)
	}
}

// attackOnce attacks the main ports of nodes for a time, and names a node that was fenced during the attack.
func attackOnce(t *testing.T, nodes []*Node, a *identitytest.Authority, took time.Duration, watch func(string, time.Duration)) (fenced string) {
	t.Helper()
	lives := map[rhumb.NodeID]rhumb.BootSeq{}
	for _, n := range nodes {
		lives[n.Identity().Node] = n.Identity().Boot
	}
	ctx, stop := context.WithTimeout(t.Context(), took)
	defer stop()
	var wait sync.WaitGroup
	for _, n := range nodes {
		h := &hostile{t: t, n: n, a: a, ports: map[string]string{"main": n.Addr()}}
		// Handshakes cost the node most; idle connections fill its gate.
		for range 8 {
			wait.Go(func() {
				for ctx.Err() == nil {
					if c, err := h.secure("main", "h2"); err == nil {
						_, _ = c.Write(make([]byte, 4<<10))
						_ = c.Close()
					}
				}
			})
		}
		wait.Go(func() {
			var held []net.Conn
			for len(held) < hostileIdle/len(nodes) && ctx.Err() == nil {
				if c, err := h.dial("main"); err == nil {
					held = append(held, c)
				}
			}
			<-ctx.Done()
			for _, c := range held {
				_ = c.Close()
			}
		})
	}
	watch("while the main ports are attacked", took)
	wait.Wait()
	for d := range nodes[0].State().Nodes() {
		if d.State == rhumb.NodeFenced || d.Boot != lives[d.ID] {
			fenced = fmt.Sprintf("%s was fenced during the attack: state %v, life %v, before %v", d.Name, d.State, d.Boot, lives[d.ID])
		}
	}
	return fenced
}

// heartbeatGaps returns the sum of the histograms of all nodes.
func heartbeatGaps(t *testing.T, nodes []*Node) *dto.Histogram {
	t.Helper()
	var sum *dto.Histogram
	for _, n := range nodes {
		families, err := n.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "rhumb_peer_heartbeat_gap_seconds" {
				continue
			}
			h := f.Metric[0].Histogram
			if sum == nil {
				sum = h
				continue
			}
			*sum.SampleCount += h.GetSampleCount()
			*sum.SampleSum += h.GetSampleSum()
			for i, b := range h.Bucket {
				*sum.Bucket[i].CumulativeCount += b.GetCumulativeCount()
			}
		}
	}
	return sum
}
