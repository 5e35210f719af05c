package image

import (
	"context"
	"fmt"
)

// measureScale lets 1, 2, … processes do the same work at once and compares the times (Fernandes et
// al., equation 1). Each process executes N(1) operations in its own order of keys, after a
// barrier.
func (r *run) measureScale(ctx context.Context) error {
	if err := r.makeTiles(); err != nil {
		return err
	}
	var clients []*worker
	for i := range r.cfg.Processes {
		w, err := r.startC(ctx, 100+i, "huge")
		if err != nil {
			return err
		}
		clients = append(clients, w)
	}
	cases := []scaleCase{{"get", "get", "", r.turnSize(1)}, {"multiget ×32", "mget", "", r.turnSize(1)}, {"lock", "locks", "", 200_000}, {"attach", "attaches", "", 20}}
	for _, side := range sides[1:] {
		name := tileName("area", side)
		cases = append(cases, scaleCase{fmt.Sprintf("tiles of %g km", side), "bbox", name, scaleTiles})
	}
	for _, c := range cases {
		if err := r.scaleOne(clients, c); err != nil {
			return err
		}
	}
	return nil
}

// scaleTiles is the number of tiles that each process queries.
const scaleTiles = 2000

// scaleCase is one case of the scale-up.
type scaleCase struct {
	name, what, tiles string
	ops               int
}

// scaleOne measures one case with every number of clients.
func (r *run) scaleOne(clients []*worker, c scaleCase) error {
	if c.tiles != "" {
		for _, w := range clients {
			if _, err := w.do("tiles", 0, r.tiles[c.tiles]); err != nil {
				return err
			}
		}
	}
	wall, cpu := map[int][]float64{}, map[int][]float64{}
	for range r.cfg.Rounds {
		// The numbers of clients alternate, so that the ratios of a round stay comparable.
		for p := 1; p <= len(clients); p++ {
			if err := r.freshKeysOf(clients[:p], c.ops); err != nil {
				return err
			}
			got, err := runTogether(clients[:p], c.what, c.ops, 32)
			if err != nil {
				return err
			}
			// The clients start together, so the slowest one decides the elapsed time.
			w, u := elapsedTimes(got)
			wall[p], cpu[p] = append(wall[p], w), append(cpu[p], u)
		}
	}
	for p := 1; p <= len(clients); p++ {
		t := spreadOf(wall[p]).Median
		r.report.Scale = append(r.report.Scale, Scale{
			Case: c.name, Processes: p, Ops: float64(p*c.ops) / t * 1e9, Latency: t / float64(c.ops) / 1e3,
			Scaleup: roundRatios(wall[1], wall[p]), ScaleCPU: roundRatios(cpu[1], cpu[p]),
		})
	}
	return nil
}

// freshKeysOf sends the clients their keys for the next turn.
func (r *run) freshKeysOf(clients []*worker, ops int) error {
	for _, w := range clients {
		if _, err := w.do("keys", min(ops, r.cfg.Records), r.next); err != nil {
			return err
		}
	}
	r.next += uint64(ops)
	return nil
}

// elapsedTimes returns the time from the first start to the last end, and the mean processor time
// of the clients.
func elapsedTimes(got []reply) (wall, cpu float64) {
	first, last := got[0].Start, got[0].Start+got[0].Wall
	for _, g := range got {
		first, last = min(first, g.Start), max(last, g.Start+g.Wall)
		cpu += float64(g.CPU)
	}
	return float64(last - first), cpu / float64(len(got))
}

// roundRatios returns a/b round by round. As N(P) = P*N(1), that is the scale-up of the paper for
// the times of one and of P clients.
func roundRatios(a, b []float64) Spread {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return spreadOf(out)
}

// String names the case and the number of processes.
func (s Scale) String() string { return fmt.Sprintf("%s, %d processes", s.Case, s.Processes) }
