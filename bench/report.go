package bench

import (
	"strings"

	"github.com/rhumbdb/rhumb/bench/rounds"
)

// KVReport holds everything that RunKV measured.
type KVReport struct {
	Rows   []rounds.Row   `json:"rows"`
	Ratios []rounds.Ratio `json:"ratios"`
	Runs   []rounds.Run   `json:"runs"`
}

// reportOf computes rows and ratios from the runs.
func reportOf(runs []rounds.Run) *KVReport {
	return &KVReport{Rows: rounds.Rows(runs), Ratios: rounds.Ratios(runs, pairsOf(runs)), Runs: runs}
}

// pairsOf returns which target is compared with which: Rhumb with a peer of as many nodes, and Rhumb
// of another kind (such as secureSuffix) with Rhumb of as many nodes.
func pairsOf(runs []rounds.Run) (out [][2]string) {
	seen := map[string]bool{}
	for _, x := range runs {
		// A peer of as many nodes has the same suffix. Clusters of several regions have no peer.
		nodes, ok := strings.CutPrefix(x.Target, "rhumb-")
		if !ok || seen[x.Target] {
			continue
		}
		seen[x.Target] = true
		peer := "etcd-" + nodes
		if size, kind, _ := strings.Cut(nodes, "-"); kind != "" {
			peer = "rhumb-" + size
		}
		out = append(out, [2]string{x.Target, peer})
	}
	return out
}
