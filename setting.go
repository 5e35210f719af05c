package rhumb

import (
	"fmt"
	"slices"
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
		Name: SettingReplaceAfter, Default: "30s",
		Help:  "how long a node must be dead before its copies are created on other nodes of its region",
		check: checkDuration(replaceAfterMin),
	}}
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
