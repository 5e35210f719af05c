package sidebyside

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/bench/rounds"
)

// Report holds everything that Measure measured.
type Report struct {
	// Started is when the measurement began, in UTC.
	Started time.Time `json:"started"`
	// Machine describes the processors, the memory and the kernel.
	Machine string `json:"machine"`
	// Rounds is the number of rounds that count, Measure the length of each case.
	Rounds  int           `json:"rounds"`
	Measure time.Duration `json:"measure_ns"`
	// Peers ran, Missing did not.
	Peers   []PeerVersion         `json:"peers"`
	Missing []rounds.MissingError `json:"missing"`
	// Rows has the medians, Ratios those of Rhumb to each peer within a round.
	Rows   []rounds.Row   `json:"rows"`
	Ratios []rounds.Ratio `json:"ratios"`
	// Disturbed is the number of measurements of all in Runs during which other processes kept more
	// than DisturbedCores busy.
	Disturbed int          `json:"disturbed"`
	Runs      []rounds.Run `json:"runs"`
}

// PeerVersion is a peer with the version that ran.
type PeerVersion struct {
	Peer
	Version string `json:"version"`
}

// DisturbedCores is the number of cores above which other processes disturb a measurement. The
// databases whose turn it is not use about a fifth of a core to wait.
const DisturbedCores = 0.4

// summarise computes rows and ratios from the runs.
func (r *Report) summarise(runs []rounds.Run) {
	r.Runs, r.Rows = runs, rounds.Rows(runs)
	// Only peers that started have ratios.
	var pairs [][2]string
	for _, p := range r.Peers {
		pairs = append(pairs, [2]string{p.Rhumb, p.Name})
	}
	r.Ratios = rounds.Ratios(runs, pairs)
	r.Disturbed = countDisturbed(runs)
}

// countDisturbed returns the number of measurements during which other processes kept more than DisturbedCores busy.
func countDisturbed(runs []rounds.Run) (n int) {
	for _, x := range runs {
		if x.OtherCores > DisturbedCores {
			n++
		}
	}
	return n
}

// Verdict says in one sentence whether the ratios can be relied on.
func (r *Report) Verdict() string { return verdictOf(r.Disturbed, len(r.Runs)) }

// verdictOf reports whether the ratios are reliable although some measurements were disturbed.
func verdictOf(disturbed, runs int) string {
	text := fmt.Sprintf("Other processes kept more than %.1f cores busy during %d of %d measurements", DisturbedCores, disturbed, runs)
	// A few disturbed measurements do not move a median.
	if disturbed*10 > runs {
		return text + ": the figures show a direction and no more."
	}
	return text + "."
}

// Version returns the version of a target, or an empty string for Rhumb and the machine.
func (r *Report) Version(target string) string {
	for _, p := range r.Peers {
		if p.Name == target {
			return p.Version
		}
	}
	return ""
}

// RatioTo returns the ratio of Rhumb to a peer in a case, or nil.
func (r *Report) RatioTo(row rounds.Row) *rounds.Ratio { return ratioTo(r.Ratios, row) }

// ratioTo returns the ratio to the target of a row, or nil.
func ratioTo(ratios []rounds.Ratio, row rounds.Row) *rounds.Ratio {
	// A peer has one ratio in each case.
	for i, x := range ratios {
		if x.Peer == row.Target && x.Case == row.Case {
			return &ratios[i]
		}
	}
	return nil
}

// describeMachine returns the processors, the memory and the kernel of this machine in one line.
func describeMachine() string {
	cpu := runtime.GOARCH
	text, _ := os.ReadFile("/proc/cpuinfo") // the architecture is better than nothing
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	var info unix.Sysinfo_t
	var name unix.Utsname
	_ = unix.Sysinfo(&info) // a memory of 0 is visibly wrong
	_ = unix.Uname(&name)
	return fmt.Sprintf("%d × %s, %.0f GiB, Linux %s, %s", runtime.NumCPU(), cpu, float64(info.Totalram)*float64(info.Unit)/(1<<30),
		unix.ByteSliceToString(name.Release[:]), runtime.Version())
}
