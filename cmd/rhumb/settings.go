package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// configFileDefault is read where it exists and --config names no other.
const configFileDefault = "/etc/rhumb/rhumb.yaml"

// setting is a flag that may also stand in the configuration file, under its name with '_' for '-', and in the
// environment as RHUMB_ and that name in capitals.
type setting struct {
	key   string
	about string
}

// known lists the settings. A flag that is not listed cannot be configured.
var known = []setting{
	{"addr", "addresses of nodes to connect to; of `start`, the address to listen on"},
	{"admin_addr", "start: where operators' HTTP is served"},
	{"cache_size", "start: MiB of block cache"},
	{"dir", "start: data directories, one per disk"},
	{"drain_timeout", "start: how long a stop waits for primaries to move away"},
	{"from", "the region that a command stands in"},
	{"gossip_addr", "start: where gossip is served"},
	{"heartbeat_addr", "start: where heartbeats are served"},
	{"insecure", "talk without TLS, to loopback addresses only"},
	{"join", "start: gossip addresses of other nodes"},
	{"latency_file", "distances to imitate between regions"},
	{"location", "start: LAT,LON of the node"},
	{"log_level", "start: debug, info, warn or error"},
	{"memory", "start: most memory that the node may take, like 4GiB"},
	{"no_color", "print without colours"},
	{"output", "how to print data"},
	{"region", "start: the node's region"},
	{"snapshot_budget", "start: MiB that the image of published tables may take"},
	{"snapshot_count", "start: log entries that make a version of the image before its interval is over"},
	{"snapshot_dir", "folder for images of published tables"},
	{"snapshot_group_readable", "start: only the files' owner and group read the image"},
	{"snapshot_huge_pages", "start: ask for huge pages"},
	{"snapshot_interval", "start: least time between two versions of the image"},
	{"snapshot_leash", "start: how long readers may keep a replaced file of the image until it counts as overdue"},
	{"snapshot_on_demand", "start: make versions only when asked"},
	{"snapshot_overdue", "start: MiB that overdue files of the image may take beside its budget"},
	{"timeout", "how long a command waits for the cluster"},
	{"zone", "start: the node's failure domain within its region"},
}

// envElsewhere are variables of our prefix that are no settings.
var envElsewhere = []string{"RHUMB_DEMO", "RHUMB_TESTDATA", "RHUMB_PYTHON", "RHUMB_CONFIG"}

const opSettings rhumb.Op = "rhumb.settings"

// settings are what the configuration file and the environment say: file < environment < flags.
type settings struct {
	file    string // of --config
	values  *koanf.Koanf
	origins map[string]string // by key
	faults  []string          // of the environment; only `config check` minds them
}

func isSetting(key string) bool {
	return slices.ContainsFunc(known, func(s setting) bool { return s.key == key })
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// load reads the file and the environment, and gives their values to the flags that the command line leaves out.
func (s *settings) load(cmd *cobra.Command) error {
	s.values, s.origins = koanf.New("."), map[string]string{}
	if err := s.loadFile(); err != nil {
		return err
	}
	if err := s.loadEnv(); err != nil {
		return err
	}
	for _, k := range known {
		if !s.values.Exists(k.key) {
			continue
		}
		f := cmd.Flags().Lookup(flagName(k.key))
		if f == nil || f.Changed {
			continue
		}
		if err := setFlag(f, s.values.Get(k.key)); err != nil {
			return rhumb.Ef(opSettings, rhumb.InvalidArgument, "%s: %s: %v", s.origins[k.key], k.key, err)
		}
	}
	return nil
}

// setFlag gives a flag a configured value. The flag then counts as changed, as if it stood on the command line.
func setFlag(f *pflag.Flag, value any) error {
	text := fmt.Sprint(value)
	if list, ok := value.([]any); ok {
		var parts []string
		for _, v := range list {
			parts = append(parts, fmt.Sprint(v))
		}
		text = strings.Join(parts, ",")
	}
	if err := f.Value.Set(text); err != nil {
		return err
	}
	f.Changed = true
	return nil
}

func (s *settings) loadFile() error {
	path := s.file
	if path == "" {
		path = os.Getenv("RHUMB_CONFIG")
	}
	optional := path == ""
	if optional {
		path = configFileDefault
	}
	read := koanf.New(".")
	err := read.Load(file.Provider(path), yaml.Parser())
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return rhumb.Ef(opSettings, rhumb.InvalidArgument, "configuration file %s: %v", path, err)
	}
	var unknown []string
	for key := range read.Raw() {
		if !isSetting(key) {
			unknown = append(unknown, key)
			continue
		}
		s.origins[key] = path
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return rhumb.Ef(opSettings, rhumb.InvalidArgument, "configuration file %s: unknown key %s; `rhumb config show` lists the keys",
			path, strings.Join(unknown, ", "))
	}
	return rhumb.Wrap(opSettings, s.values.Merge(read))
}

// loadEnv takes the variables that name settings. Others with our prefix may come from elsewhere (Kubernetes makes
// RHUMB_PORT and its like for a service of that name), so they are only told by `config check`.
func (s *settings) loadEnv() error {
	provider := env.Provider(".", env.Opt{
		Prefix: "RHUMB_",
		TransformFunc: func(name, value string) (string, any) {
			key := strings.ToLower(strings.TrimPrefix(name, "RHUMB_"))
			if !isSetting(key) {
				if !slices.Contains(envElsewhere, name) {
					s.faults = append(s.faults, "environment: "+name+" names no setting")
				}
				return "", nil
			}
			s.origins[key] = "environment " + name
			return key, value
		},
	})
	return rhumb.Wrap(opSettings, s.values.Load(provider, nil))
}

// settingDoc is a setting as `config show` prints it.
type settingDoc struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	About  string `json:"about"`
}

func (a *app) configCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "show", Short: "Print every setting, its value and where it comes from", Args: cobra.NoArgs,
		Example: "  rhumb config show\n  RHUMB_TIMEOUT=2s rhumb config show -o json",
		RunE:    func(*cobra.Command, []string) error { return a.showConfig() },
	}
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Check a configuration file and the environment", Args: cobra.MaximumNArgs(1),
		Example: "  rhumb config check\n  rhumb config check ./rhumb.yaml",
		RunE:    func(_ *cobra.Command, args []string) error { return a.checkConfig(args) },
	}
	return noArgsGroup("config", "Show and check the configuration", show, check)
}

func (a *app) showConfig() error {
	var docs []settingDoc
	for _, k := range known {
		doc := settingDoc{Key: k.key, Value: defaultOf(k.key), Origin: "default", About: k.about}
		if origin, ok := a.settings.origins[k.key]; ok {
			doc.Value, doc.Origin = fmt.Sprint(a.settings.values.Get(k.key)), origin
		}
		docs = append(docs, doc)
	}
	parts, err := a.memoryParts()
	if err != nil {
		return err
	}
	docs = append(docs, parts...)
	return a.print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"KEY", "VALUE", "ORIGIN", "ABOUT"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Key, d.Value, d.Origin, d.About})
		}
	})
}

// memoryParts shows how a node that is started here divides its memory.
func (a *app) memoryParts() ([]settingDoc, error) {
	var total byteSize
	origin := "memory"
	if text := a.settings.values.String("memory"); text != "" {
		if err := total.Set(text); err != nil {
			return nil, rhumb.Ef(opSettings, rhumb.InvalidArgument, "%s: memory: %v", a.settings.origins["memory"], err)
		}
	} else {
		_, from := memory.Limit()
		total, origin = byteSize(memory.Default(1)), "half of the "+string(from)
	}
	p, err := memory.Split(int64(total), a.settings.values.Int64("cache_size")<<20, max(len(a.settings.values.Strings("dir")), 1))
	if err != nil {
		return nil, err
	}
	var docs []settingDoc
	for _, part := range []struct {
		key   string
		bytes int64
		about string
	}{
		{"total", p.Total, "what the node may take, without images in shared memory"},
		{"cache", p.Cache, "block cache of all stores"},
		{"memtable", p.MemTable, fmt.Sprintf("one memtable; a store has up to %d", memory.MemTablesPerStore)},
		{"requests", p.Requests, "requests of clients until they are answered"},
		{"uncommitted", p.Uncommitted, "entries of this node's ranges until they are committed"},
		{"answers", p.Answers, "answers that clients have not taken"},
		{"streams", p.Streams, "streams of clients in the network's buffers"},
		{"peers_in", p.PeersIn, "entries of other nodes that wait"},
		{"peers_out", p.PeersOut, "frames on their way to other nodes"},
		{"tails", p.Tails, "committed entries for nodes that lag"},
		{"recent", p.Recent, "entries for images until they are committed"},
		{"heap", p.Heap, "limit of the Go runtime, which holds all of these but cache and memtables"},
	} {
		docs = append(docs, settingDoc{Key: "memory." + part.key, Value: fmt.Sprintf("%dMiB", part.bytes>>20), Origin: origin, About: "start: " + part.about})
	}
	return docs, nil
}

// saidDefault finds the default that the help of a flag names.
var saidDefault = regexp.MustCompile(`\(default:? (.*)\)$`)

// defaultOf gives what holds where nothing is configured: what the flag has, or what its help says. Empty is none.
func defaultOf(key string) string {
	a := &app{}
	for _, flags := range []*pflag.FlagSet{a.startCommand().Flags(), a.statusCommand().Flags(), a.rootCommand().PersistentFlags()} {
		f := flags.Lookup(flagName(key))
		if f == nil {
			continue
		}
		if !slices.Contains([]string{"", "0", "0s", "[]"}, f.DefValue) {
			return f.DefValue
		}
		if said := saidDefault.FindStringSubmatch(f.Usage); said != nil {
			return strings.Trim(said[1], `"`)
		}
		return ""
	}
	return ""
}

// checkConfig reads the settings as a command would, and tries each value on the flag it belongs to.
func (a *app) checkConfig(args []string) error {
	s := settings{file: a.settings.file}
	if len(args) == 1 {
		s.file = args[0]
	}
	faults := []string{}
	for _, cmd := range []*cobra.Command{a.startCommand(), a.statusCommand()} {
		s.faults = nil
		if err := s.load(cmd); err != nil && !slices.Contains(faults, describeError(err).Message) {
			faults = append(faults, describeError(err).Message)
		}
	}
	faults = append(faults, s.faults...)
	if len(faults) > 0 {
		return rhumb.E(opSettings, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return a.print(map[string]bool{"ok": true}, func(t table.Writer) { t.AppendRow(table.Row{"ok"}) })
}
