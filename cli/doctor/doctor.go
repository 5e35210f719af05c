// Package doctor judges a machine, a node on it and the cluster around it. Each check is a pure
// function over gathered facts; each finding that is not good has a remedy.
//
// Package probe gathers the facts. The separation keeps this package without I/O: each rule has a
// table of facts and findings as its test, and a machine that is broken in a rare way is a literal
// of a struct.
//
// # A new check
//
// A check is a function in the list checks. It returns nothing if its facts were not gathered, a
// good finding if there is nothing to do, and otherwise the fact, measured, and the remedy as a
// command to type. A finding is wrong if a node would fail or lose data, and a warning if the node
// would only be slower or less safe: scripts stop at the first and not at the second. Limits are
// named constants with the reason in their comment.
package doctor

// Level is the weight of a finding.
type Level string

// The levels, lightest first.
const (
	// Good is a check that found nothing.
	Good Level = "ok"
	// Skipped is a check without facts.
	Skipped Level = "skipped"
	// Warning is worth a change, and the node works without it.
	Warning Level = "warning"
	// Wrong has to be corrected.
	Wrong Level = "wrong"
)

// Finding is the result of a check.
//
// The texts are for the person who has to act: What has the measured value in it, so that the
// reader can disagree with the limit, and Remedy is a command wherever there is one.
type Finding struct {
	Area  string `json:"area"`
	Check string `json:"check"`
	Level Level  `json:"level"`
	// What describes the fact that the level judges.
	What string `json:"what"`
	// Remedy says what to do. It is empty if the level is Good or Skipped.
	Remedy string `json:"remedy,omitempty"`
}

// Areas of findings, in the order of the report.
const (
	AreaMachine      = "machine"
	AreaShm          = "shared memory"
	AreaDisk         = "disk"
	AreaClock        = "clock"
	AreaPorts        = "ports"
	AreaCertificates = "certificates"
	AreaCluster      = "cluster"
)

// checks are all checks, in the order of the report.
var checks = []func(*Facts) []Finding{
	checkOpenFiles, checkMemory, checkSwap, checkOvercommit, checkHugePages,
	checkShm, checkDisks, checkSharedDisks,
	checkClock, checkOffsets,
	checkBinds, checkReaches,
	checkIdentities,
	checkMembers, checkVersions, checkUpgrade, checkSuspicions,
}

// Judge runs all checks.
//
// A check without facts returns nothing, so one list serves a machine without a node, a node
// without a cluster, and a command on a laptop.
func Judge(f *Facts) []Finding {
	findings := []Finding{}
	for _, check := range checks {
		findings = append(findings, check(f)...)
	}
	return findings
}

// Count returns the number of findings of a level.
func Count(findings []Finding, level Level) (n int) {
	for _, f := range findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// area makes findings of one area.
type area string

func (a area) good(check, what string) Finding { return Finding{string(a), check, Good, what, ""} }

func (a area) skipped(check, what string) Finding {
	return Finding{string(a), check, Skipped, what, ""}
}

func (a area) warning(check, what, remedy string) Finding {
	return Finding{string(a), check, Warning, what, remedy}
}

func (a area) wrong(check, what, remedy string) Finding {
	return Finding{string(a), check, Wrong, what, remedy}
}

// one returns a list of one finding.
func one(f Finding) []Finding { return []Finding{f} }
