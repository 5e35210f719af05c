package flags

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestPlaceLast guards that places south or west are not taken for flags, that flags stay flags,
// and that keys and values of other commands are left alone.
func TestPlaceLast(t *testing.T) {
	root := &cobra.Command{Use: "rhumb"}
	root.PersistentFlags().StringP("output", "o", "", "")
	image := &cobra.Command{Use: "snapshot"}
	for _, name := range []string{"bbox", "radius", "nearest", "get"} {
		c := &cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}
		c.Flags().Int("limit", 0, "")
		if name != "get" {
			TakesPlace(c)
		}
		image.AddCommand(c)
	}
	root.AddCommand(image, &cobra.Command{Use: "put", Run: func(*cobra.Command, []string) {}})
	for args, want := range map[string]string{
		"snapshot|bbox|n1|t|-10,35,-9.5,45|--limit|-1|-o|json|-h": "snapshot|bbox|n1|t|--limit|-1|-o|json|-h|--|-10,35,-9.5,45",
		"-o|json|snapshot|radius|n1|t|-33.9,151.2,20000":          "-o|json|snapshot|radius|n1|t|--|-33.9,151.2,20000",
		"snapshot|nearest|n1|t|-7,8|10,-1,2":                      "snapshot|nearest|n1|t|-7,8|10,-1,2",
		"snapshot|nearest|n1|t|--|-7,8,2":                         "snapshot|nearest|n1|t|--|-7,8,2",
		"put|t|--|-1,2,3|-4,5,6":                                  "put|t|--|-1,2,3|-4,5,6",
		"put|t|-1,2,3":                                            "put|t|-1,2,3",
		"snapshot|get|n1|t|-1,2,3":                                "snapshot|get|n1|t|-1,2,3",
		"no-such-command|-1,2,3":                                  "no-such-command|-1,2,3",
	} {
		if got := strings.Join(PlaceLast(root, strings.Split(args, "|")), "|"); got != want {
			t.Errorf("%q becomes %q, want %q", args, got, want)
		}
	}
}

// TestDefault guards that a documented default shows in help and in DefaultOf, and that a zero
// value does not pass for one.
func TestDefault(t *testing.T) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Int("workers", 0, "batches in flight")
	set.Int("count", 0, "entries")
	set.Duration("timeout", 1e9, "how long to wait")
	set.Bool("insecure", false, "talk without TLS")
	Default(set, "workers", "1024")
	for name, want := range map[string]string{"workers": "1024", "count": "", "timeout": "1s", "insecure": "false"} {
		if got := DefaultOf(set.Lookup(name)); got != want {
			t.Errorf("--%s: default %q, want %q", name, got, want)
		}
	}
	if got := set.FlagUsages(); !strings.Contains(got, "batches in flight (default 1024)") {
		t.Errorf("help is %q", got)
	}
}

// TestPositive guards that zero, in whatever form, is rejected where it would silently mean the
// default.
func TestBounds(t *testing.T) {
	for arg, ok := range map[string]bool{
		"--n=0": false, "--n=-1": false, "--n=1": true, "--d=0s": false, "--d=-1s": false, "--d=10s": true, "--d=500ms": true, "--m=0": true,
		"--m=10": true, "--m=11": false, "--s=1,10": true, "--s=1,0": false, "--s=-5": false, "--s=1,11": false,
	} {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.Int("n", 0, "")
		set.Int("m", 0, "")
		set.Duration("d", 0, "")
		set.IntSlice("s", []int{99}, "")
		Positive(set, "n", "d", "s")
		AtMost(set, 10, "m", "s")
		if err := set.Parse([]string{arg}); err != nil {
			t.Fatal(err)
		}
		if err := CheckBounds(set); (err == nil) != ok {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
