// Package flags extends pflag for the commands of rhumb: defaults that a flag only documents, flags
// that reject zero, sizes in bytes, and places that begin with a minus sign.
package flags

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
)

// Annotations of flags and commands.
const (
	annotationDefault  = "default"       // of a flag: the value that zero means
	annotationPositive = "positive"      // of a flag: zero is an error
	annotationMost     = "most"          // of a flag: the greatest value
	annotationConnects = "connects"      // of a flag: it says which cluster a command uses
	annotationLiteral  = "literal"       // of a flag: no setting sets it
	annotationPlace    = "takes-a-place" // of a command: its last argument is a point or a box
)

// Default documents the value that the program uses when a flag is left at its zero value. Many
// packages treat zero as "use the default", so the flag must not carry the value itself; help and
// `rhumb config show` take it from here.
func Default(set *pflag.FlagSet, name, value string) {
	f := set.Lookup(name)
	must(set.SetAnnotation(name, annotationDefault, []string{value}))
	separator := " "
	if strings.Contains(value, " ") { // a description, not a value
		separator = ": "
	}
	f.Usage += " (default" + separator + value + ")"
}

// DefaultOf returns the default of a flag as text, or "" if the flag has none.
func DefaultOf(f *pflag.Flag) string {
	if value := f.Annotations[annotationDefault]; len(value) > 0 {
		return value[0]
	}
	if slices.Contains([]string{"0", "0s", "[]"}, f.DefValue) {
		return "" // pflag's zero values; whether they mean "none" or "the default" is for Default to say
	}
	return f.DefValue
}

// Connection marks the flags that say which cluster a command uses, and as
// whom. A context sets them; flags of the same name that say how a node runs
// are not marked.
func Connection(set *pflag.FlagSet, names ...string) {
	for _, name := range names {
		must(set.SetAnnotation(name, annotationConnects, nil))
	}
}

// Literal marks flags that only share their name with a setting: neither the
// configuration file nor the environment sets them.
func Literal(set *pflag.FlagSet, names ...string) {
	for _, name := range names {
		must(set.SetAnnotation(name, annotationLiteral, nil))
	}
}

// IsLiteral reports whether Literal marked a flag.
func IsLiteral(f *pflag.Flag) bool {
	_, marked := f.Annotations[annotationLiteral]
	return marked
}

// GivenConnection returns the first flag that is set and that Connection marked, and nil without one.
func GivenConnection(set *pflag.FlagSet) (given *pflag.Flag) {
	set.Visit(func(f *pflag.Flag) {
		if _, marked := f.Annotations[annotationConnects]; marked && given == nil {
			given = f
		}
	})
	return given
}

// Connects reports whether a command connects to a cluster.
func Connects(set *pflag.FlagSet) (found bool) {
	set.VisitAll(func(f *pflag.Flag) {
		_, marked := f.Annotations[annotationConnects]
		found = found || marked
	})
	return found
}

// Positive marks flags that reject zero and less. Zero means the default inside the program, but a
// person who writes 0 means none.
func Positive(set *pflag.FlagSet, names ...string) {
	for _, name := range names {
		must(set.SetAnnotation(name, annotationPositive, nil))
	}
}

// AtMost marks flags, of a number or of several, that reject more than a number.
func AtMost(set *pflag.FlagSet, most int, names ...string) {
	for _, name := range names {
		must(set.SetAnnotation(name, annotationMost, []string{strconv.Itoa(most)}))
	}
}

// CheckBounds returns an error if a flag is set to a value that Positive or AtMost rejects.
func CheckBounds(set *pflag.FlagSet) (err error) {
	set.Visit(func(f *pflag.Flag) {
		// A flag with several numbers has the value "[1,64]".
		for text := range strings.SplitSeq(strings.Trim(f.Value.String(), "[]"), ",") {
			if err == nil {
				err = checkBound(f, text)
			}
		}
	})
	return err
}

// checkBound returns an error if a flag rejects a value.
func checkBound(f *pflag.Flag, text string) error {
	// The value of a counter or of a duration: "0", "-3", "0s".
	digits := strings.TrimLeft(text, "0")
	if _, marked := f.Annotations[annotationPositive]; marked && (strings.HasPrefix(text, "-") || digits == "" || digits == "s") {
		hint := ""
		if value := DefaultOf(f); value != "" {
			hint = "; leave the flag out for the default, " + value
		}
		return rhumb.Ef("rhumb.flags", rhumb.InvalidArgument, "--%s %s: want more than 0%s", f.Name, text, hint)
	}
	if bound, marked := f.Annotations[annotationMost]; marked {
		most, err := strconv.Atoi(bound[0])
		must(err)
		if n, err := strconv.Atoi(text); err == nil && n > most {
			return rhumb.Ef("rhumb.flags", rhumb.InvalidArgument, "--%s %s: want at most %d", f.Name, text, most)
		}
	}
	return nil
}

// southWest matches a point or box whose first number is negative, such as -10.5,35,-9,45.
var southWest = regexp.MustCompile(`^-[0-9.]+(,-?[0-9.]+){2,3}$`)

// TakesPlace marks a command whose last argument is a point or a box, which may begin with a minus
// sign.
func TakesPlace(c *cobra.Command) *cobra.Command {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[annotationPlace] = "yes"
	return c
}

// PlaceLast moves a point or box that begins with a minus sign to the end of the arguments, after
// "--", where pflag does not take it for a flag. The place is the last argument of the commands
// that TakesPlace marked, so the order of the other arguments does not change. Other command lines
// are returned unchanged: there, the same text may be a key or a value.
func PlaceLast(root *cobra.Command, args []string) []string {
	if cmd, _, err := root.Find(args); err != nil || cmd.Annotations[annotationPlace] == "" || slices.Contains(args, "--") {
		return args
	}
	i := slices.IndexFunc(args, southWest.MatchString)
	if i < 0 {
		return args
	}
	return slices.Concat(args[:i], args[i+1:], []string{"--", args[i]})
}

// must panics on errors that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
