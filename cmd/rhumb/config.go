package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/settings"
	"github.com/rhumbdb/rhumb/node/memory"
)

// opSettings is the operation of errors about the configuration as a whole.
const opSettings rhumb.Op = "rhumb.settings"

// settingDoc is a setting as `config show` prints it.
type settingDoc struct {
	// Key is the name in the configuration file.
	Key string `json:"key"`
	// Value is the text of the value in effect, and the default if nothing sets it.
	Value string `json:"value"`
	// Origin names the source of the value: a flag, the environment, a file, a context, or "default".
	Origin string `json:"origin"`
	// About is one line of help.
	About string `json:"about"`
}

// configCommand returns the group `rhumb config`. Its commands connect to nothing.
func (a *app) configCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "show", Short: "Print every setting, its value and where the value is from", Args: cobra.NoArgs,
		Example: "  rhumb config show\n  RHUMB_TIMEOUT=2s rhumb config show -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.showConfig(append(settingFlags(cmd.Root()), cmd.Root().PersistentFlags()))
		},
	}
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Check a configuration file and the environment", Args: cobra.MaximumNArgs(1),
		Example: "  rhumb config check\n  rhumb config check ./rhumb.yaml",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.checkConfig(settingFlags(cmd.Root()), args) },
	}
	return commandGroup("config", "Show and check the configuration", show, check)
}

// settingFlags returns the flags of single commands that settings can set: those of `start`, which
// are the node's, then those that connect a command to a cluster.
func settingFlags(root *cobra.Command) []*pflag.FlagSet {
	var sets []*pflag.FlagSet
	for _, name := range []string{"start", "status"} {
		c, _, err := root.Find([]string{name})
		must(err)
		sets = append(sets, c.Flags())
	}
	return sets
}

// showConfig prints all settings and, after them, the parts of the memory that follow from them.
func (a *app) showConfig(sets []*pflag.FlagSet) error {
	// The selected context holds settings, too, and a broken one has to be reported here.
	if err := a.settings.LoadContext(); err != nil {
		return err
	}
	var docs []settingDoc
	// Every known setting is listed, and not only those that a source sets.
	for _, s := range settings.All {
		doc := settingDoc{Key: s.Key, Value: defaultOf(sets, s.Flag()), Origin: "default", About: s.About}
		if value, origin, ok := a.settings.Shown(s.Key); ok {
			doc.Value, doc.Origin = value, origin
		}
		docs = append(docs, doc)
	}
	parts, err := a.memoryParts()
	if err != nil {
		return err
	}
	docs = append(docs, parts...)
	return a.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"KEY", "VALUE", "ORIGIN", "ABOUT"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Key, d.Value, d.Origin, d.About})
		}
	})
}

// defaultOf returns the default of the first flag with a name: --addr of `start` comes before
// --addr of other commands.
func defaultOf(sets []*pflag.FlagSet, name string) string {
	for _, set := range sets {
		if f := set.Lookup(name); f != nil {
			return flags.DefaultOf(f)
		}
	}
	return ""
}

// memoryParts returns how a node that starts with these settings divides its memory.
func (a *app) memoryParts() ([]settingDoc, error) {
	var total flags.ByteSize
	// The origin of all parts is the memory, because they are computed from it.
	origin := "memory"
	if text := a.settings.Text("memory"); text != "" {
		if err := total.Set(text); err != nil {
			from, _ := a.settings.Origin("memory")
			return nil, rhumb.Ef(opSettings, rhumb.InvalidArgument, "%s: memory: %v", from, err)
		}
	} else {
		_, from := memory.Limit()
		total, origin = flags.ByteSize(memory.Default(1)), "half of the "+string(from)
	}
	// cache_size is in MiB, and each data directory has a store with memtables of its own.
	p, err := memory.Split(int64(total), a.settings.Int("cache_size")<<20, max(len(a.settings.List("dir")), 1))
	if err != nil {
		return nil, err
	}
	var docs []settingDoc
	for _, part := range []struct {
		key   string
		bytes int64
		about string
	}{
		{"total", p.Total, "memory of the node, without images in shared memory"},
		{"cache", p.Cache, "block cache of all stores"},
		{"memtable", p.MemTable, fmt.Sprintf("one memtable; a store has up to %d", memory.MemTablesPerStore)},
		{"requests", p.Requests, "requests of clients until they are answered"},
		{"uncommitted", p.Uncommitted, "entries of this node's ranges until they are committed"},
		{"answers", p.Answers, "answers that clients have not read yet"},
		{"streams", p.Streams, "streams of clients in the buffers of the network"},
		{"peers_in", p.PeersIn, "entries of other nodes that wait to be applied"},
		{"peers_out", p.PeersOut, "frames on their way to other nodes"},
		{"tails", p.Tails, "committed entries for nodes that lag"},
		{"recent", p.Recent, "entries for images until they are committed"},
		{"names", p.Names, "names of records in their order, for scans of few records"},
		{"rows", p.Rows, "records that are read often"},
		{"heap", p.Heap, "limit of the Go runtime, which holds all of these except cache and memtables"},
	} {
		docs = append(docs, settingDoc{Key: "memory." + part.key, Value: fmt.Sprintf("%dMiB", part.bytes>>20), Origin: origin, About: "start: " + part.about})
	}
	return docs, nil
}

// checkConfig reads the settings as a command would, and tries each value on the flags that it can
// set.
func (a *app) checkConfig(sets []*pflag.FlagSet, args []string) error {
	s := settings.Settings{File: a.settings.File}
	if len(args) == 1 {
		s.File = args[0]
	}
	var faults []string
	// Several faults are collected, so that one run of the command shows them all.
	add := func(err error) {
		if err == nil {
			return
		}
		// A flag that several commands have is wrong on each of them.
		if text := exit.Describe(err).Message; !slices.Contains(faults, text) {
			faults = append(faults, text)
		}
	}
	// If a source cannot be read, its values are unknown and nothing else can be checked.
	err := s.Load()
	add(err)
	if err == nil {
		for _, set := range sets {
			add(s.Apply(set))
		}
	}
	// Names that no setting has are most likely misspelt, so they are faults.
	faults = append(faults, s.Unknown()...)
	if len(faults) > 0 {
		return rhumb.E(opSettings, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return a.Print(map[string]bool{"ok": true}, func(t table.Writer) { t.AppendRow(table.Row{"ok"}) })
}
