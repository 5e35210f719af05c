package image

import (
	"context"
	"fmt"
)

// measureScale lets 1, 2, … processes do the same at once and compares the time (Fernandes et al., equation 1): each does
// N(1) operations, in an order of keys of its own, after a barrier.
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
	cases := []scaleCase{{"get", "get", "", r.ops(1)}, {"multiget ×32", "mget", "", r.ops(1)}, {"lock", "locks", "", 200_000}, {"attach", "attaches", "", 20}}
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

// scaleTiles is how many tiles each process asks for.
const scaleTiles = 2000

type scaleCase struct {
	name, what, tiles string
	ops               int
}

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
		for p := 1; p <= len(clients); p++ {
			if err := r.freshKeysOf(clients[:p], c.ops); err != nil {
				return err
			}
			got, err := together(clients[:p], c.what, c.ops, 32)
			if err != nil {
				return err
			}
			w, u := elapsed(got)
			wall[p], cpu[p] = append(wall[p], w), append(cpu[p], u)
		}
	}
	for p := 1; p <= len(clients); p++ {
		t := spreadOf(wall[p]).Median
		r.report.Scale = append(r.report.Scale, Scale{
			Case: c.name, Processes: p, Ops: float64(p*c.ops) / t * 1e9, Latency: t / float64(c.ops) / 1e3,
			Scaleup: ratios(wall[1], wall[p]), ScaleCPU: ratios(cpu[1], cpu[p]),
		})
	}
	return nil
}

func (r *run) freshKeysOf(clients []*worker, ops int) error {
	for _, w := range clients {
		if _, err := w.do("keys", min(ops, r.cfg.Records), r.next); err != nil {
			return err
		}
	}
	r.next += uint64(ops)
	return nil
}

// elapsed gives the time from the first begin to the last end, and the processor time of the average client.
func elapsed(got []reply) (wall, cpu float64) {
	first, last := got[0].Start, got[0].Start+got[0].Wall
	for _, g := range got {
		first, last = min(first, g.Start), max(last, g.Start+g.Wall)
		cpu += float64(g.CPU)
	}
	return float64(last - first), cpu / float64(len(got))
}

// ratios gives a/b round by round. As N(P) = P*N(1), this is the paper's scale-up for times of one and of P clients.
func ratios(a, b []float64) Spread {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return spreadOf(out)
}

func (s Scale) String() string { return fmt.Sprintf("%s, %d processes", s.Case, s.Processes) }
