package rhumb

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting describes a setting of the cluster, which `rhumb setting` shows and changes.
type Setting struct {
	Name    string `json:"name"`
	Default string `json:"default"`
	Help    string `json:"help"`
	// check returns why a value is not valid.
	check func(value string) error
}

// SettingReplaceAfter is how long a node must be dead before its copies are created on other nodes.
const SettingReplaceAfter = "replace_after"

// SettingFailback is whether ranges return to their preferred primaries without a command.
const SettingFailback = "failback"

// SettingRangeSplitBytes is the size above which a range is split.
const SettingRangeSplitBytes = "range_split_bytes"

// SettingRangeMergeAfter is how long two neighbouring ranges must be small together before they are merged, or RangeMergeNever.
const SettingRangeMergeAfter = "range_merge_after"

// RangeMergeNever is the value of SettingRangeMergeAfter with which the cluster merges no ranges on its own. RangeMergeAfterDefault is the
// default. rangeMergeAfterMin is the smallest value: sizes are reported every few seconds.
const (
	RangeMergeNever        = "never"
	RangeMergeAfterDefault = 10 * time.Minute
	rangeMergeAfterMin     = 5 * time.Second
)

// RangeSplitBytesDefault is its default. rangeSplitBytesMin is the smallest value: below, the records of the ranges would cost
// more than their data. Tests split small ranges.
const (
	RangeSplitBytesDefault int64 = 512 << 20
	rangeSplitBytesMin     int64 = 1 << 20
)

// replaceAfterMin is the smallest value: shorter than the detection of a death and a restart, it would move data for nothing.
const replaceAfterMin = 5 * time.Second

// Settings returns all settings of the cluster, ordered by name.
func Settings() []Setting {
	return []Setting{{
		Name: SettingFailback, Default: "auto",
		Help: "whether ranges return to their preferred primary when its node is healthy again: auto, " +
			"manual (`rhumb node failback`), or never (who took over stays)",
		check: checkChoice("auto", "manual", "never"),
	}, {
		Name: SettingRangeMergeAfter, Default: "10m",
		Help: "how long two neighbouring ranges must have less than a fifth of range_split_bytes together " +
			"before they are merged, or never",
		check: checkDurationOr(RangeMergeNever, rangeMergeAfterMin),
	}, {
		Name: SettingRangeSplitBytes, Default: "512MiB",
		Help:  "the size of its data above which a range is split in two",
		check: checkBytes(rangeSplitBytesMin),
	}, {
		Name: SettingReplaceAfter, Default: "30s",
		Help:  "how long a node must be dead before its copies are created on other nodes of its region",
		check: checkDuration(replaceAfterMin),
	}}
}

// checkBytes returns a check for sizes of at least the given one.
func checkBytes(least int64) func(string) error {
	return func(value string) error {
		if n, err := ParseBytes(value); err != nil || n < least {
			return Ef("rhumb.Setting", InvalidArgument, "%q is not a size of at least %d bytes; write it like 64MiB or 1GiB", value, least)
		}
		return nil
	}
}

// ParseBytes parses a number of bytes with a unit, such as 64MiB.
func ParseBytes(text string) (int64, error) {
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			shift := 10 * (i + 1)
			if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n >= 0 && n <= 1<<(62-shift) {
				return n << shift, nil
			}
		}
	}
	return 0, Ef("rhumb.ParseBytes", InvalidArgument, "%q is not a size with a unit", text)
}

// checkDuration returns a check for durations of at least the given length.
func checkDuration(least time.Duration) func(string) error {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < least {
			return Ef("rhumb.Setting", InvalidArgument, "%q is not a duration of at least %v; write it like 90s or 5m", value, least)
		}
		return nil
	}
}

// checkDurationOr returns a check for a word, or a duration of at least the given length.
func checkDurationOr(word string, least time.Duration) func(string) error {
	return func(value string) error {
		if d, err := time.ParseDuration(value); value != word && (err != nil || d < least) {
			return Ef("rhumb.Setting", InvalidArgument, "%q is neither %s nor a duration of at least %v; write it like 90s or 10m", value, word, least)
		}
		return nil
	}
}

// checkChoice returns a check for one of some words. Values are words and not numbers, so that they explain themselves in
// `rhumb setting ls`.
func checkChoice(words ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return Ef("rhumb.Setting", InvalidArgument, "%q is not one of %s", value, strings.Join(words, ", "))
		}
		return nil
	}
}

// CheckSetting returns an error unless a setting exists and takes the value; "" is the default.
func CheckSetting(name, value string) error {
	all := Settings()
	i := slices.IndexFunc(all, func(s Setting) bool { return s.Name == name })
	switch {
	case i < 0:
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		return E("rhumb.Setting", NotFound, fmt.Sprintf("there is no setting %q; the settings are %s", name, strings.Join(names, ", ")))
	case value == "":
		return nil
	}
	return all[i].check(value)
}
