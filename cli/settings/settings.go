// Package settings reads the configuration file, a context and the
// environment, and applies them to the flags that the command line leaves
// unset. The file is the weakest source, then the context, then the
// environment, then the command line. A context applies only to the flags
// that connect a command to a cluster, so it never configures a node.
package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/contexts"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// FileDefault is read if it exists and neither --config nor RHUMB_CONFIG names another file.
const FileDefault = "/etc/rhumb/rhumb.yaml"

// Setting is a flag that the configuration file can set under its name with '_' for '-', and the
// environment as RHUMB_ and that name in capitals.
type Setting struct {
	Key   string
	About string
}

// Flag returns the name of the flag.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Key, "_", "-") }

// All lists the settings. A flag that is not listed cannot be configured.
var All = []Setting{
	{"addr", "addresses of nodes to connect to; for `start`, the address to listen on"},
	{"admin_addr", "start: address of the operators' HTTP server"},
	{"advertise", "start: host that others connect to"},
	{"ca", "certificates of the authorities to trust"},
	{"cache_size", "start: block cache in MiB"},
	{"cert", "certificate of the user; for `start`, of the node"},
	{"cluster", "ID of the cluster; a command refuses nodes of another"},
	{"connection_bytes", "start: maximum bytes per second of one connection"},
	{"connection_requests", "start: maximum requests per second of one connection"},
	{"dir", "start: data directories, one per disk"},
	{"drain_timeout", "start: how long a stop waits for primaries to move away"},
	{"experimental_node_log", "start: give the directories a log of their own, which earlier builds do not read"},
	{"from", "region in which a command runs"},
	{"gossip_addr", "start: address for gossip"},
	{"heartbeat_addr", "start: address for heartbeats"},
	{"insecure", "connect without TLS, to loopback addresses only"},
	{"join", "start: addresses of other nodes, HOST or HOST:PORT as in their addr"},
	{"key", "key of the certificate"},
	{"latency_file", "round trips to imitate between regions"},
	{"location", "start: LAT,LON of the node"},
	{"log_level", "start: debug, info, warn or error"},
	{"max_connections", "start: maximum connections of clients on each port"},
	{"max_unauthenticated", "start: maximum connections on each port whose caller is not identified yet"},
	{"memory", "start: maximum memory of the node, such as 4GiB"},
	{"no_color", "print without colors"},
	{"output", "how to print data"},
	{"password_file", "file that holds the password of the user"},
	{"region", "start: region of the node"},
	{"snapshot_budget", "start: maximum size of the image of published tables, in MiB"},
	{"snapshot_count", "start: number of log entries that make a version of the image before its interval is over"},
	{"snapshot_dir", "folder for images of published tables"},
	{"snapshot_group", "start: group whose members can read the image"},
	{"snapshot_group_readable", "start: only the owner and the group of the files can read the image"},
	{"snapshot_huge_pages", "start: ask for huge pages"},
	{"snapshot_interval", "start: minimum time between two versions of the image"},
	{"snapshot_leash", "start: how long readers may keep a replaced file of the image before it counts as overdue"},
	{"snapshot_on_demand", "start: make versions only when asked"},
	{"snapshot_overdue", "start: maximum size of overdue files of the image, in MiB, in addition to its budget"},
	{"timeout", "how long a command waits for the cluster"},
	{"token", "start: file with a one-time token, for the first start of a node"},
	{"user", "user to log in as, with a password"},
	{"user_bytes", "start: maximum bytes per second of one user"},
	{"user_requests", "start: maximum requests per second of one user"},
	{"zone", "start: failure domain of the node within its region"},
}

// reserved lists environment variables with the prefix that are not settings.
var reserved = []string{"RHUMB_CONTEXT", "RHUMB_DEMO", "RHUMB_TESTDATA", "RHUMB_PYTHON", "RHUMB_CONFIG", "RHUMB_CLIENT_GRPC"}

const op rhumb.Op = "rhumb.settings"

// prefix begins the name of every variable.
const prefix = "RHUMB_"

// Settings holds the values in the configuration file, the context and the
// environment.
type Settings struct {
	File    string // the value of --config
	Context string // the value of --context

	file, env source
	context   source
	name      string   // of the context; "" if there is none
	unknown   []string // variables with the prefix that name no setting
}

// source holds the values of one source, and where each is from.
//
// The origin of each value is kept for messages and for `rhumb config show`: with four sources,
// "wrong --ca" alone would send people to the wrong file.
type source struct {
	values  *koanf.Koanf
	origins map[string]string
}

// newSource returns a source without values.
func newSource() source { return source{koanf.New("."), map[string]string{}} }

// has reports whether the source sets a key. The zero source sets none.
func (s *source) has(key string) bool { return s.values != nil && s.values.Exists(key) }

// rank orders the sources of a value: a stronger one wins.
type rank int

const (
	unset rank = iota
	fromFile
	fromContext
	fromEnv
	fromFlag
)

// connection lists the settings that say which cluster a command uses, and as
// whom. A context is a set of them.
var connection = []string{"addr", "ca", "cert", "cluster", "from", "insecure", "key", "password_file", "user"}

// rivals lists settings that exclude each other. The stronger source wins as
// a whole: a user in the environment replaces the certificate of a context.
var rivals = [][2][]string{
	{{"insecure"}, {"ca", "cert", "key", "user", "password_file"}},
	{{"cert", "key"}, {"user", "password_file"}},
}

// rivalsOfNode are those of a node. A demo starts its nodes with --insecure,
// whatever the environment holds for other commands.
var rivalsOfNode = [][2][]string{
	{{"insecure"}, {"advertise", "ca", "cert", "key", "token"}},
}

func isSetting(key string) bool {
	return slices.ContainsFunc(All, func(s Setting) bool { return s.Key == key })
}

// Load reads the file and the environment.
func (s *Settings) Load() error {
	s.file, s.env, s.context, s.unknown = newSource(), newSource(), source{}, nil
	if err := s.loadFile(); err != nil {
		return err
	}
	return s.loadEnv()
}

// LoadContext reads the context that --context or RHUMB_CONTEXT names, else
// the current one. Commands that connect to no cluster do without, so that a
// broken file does not stop a node.
func (s *Settings) LoadContext() error {
	name := s.Context
	if name == "" {
		name = os.Getenv("RHUMB_CONTEXT")
	}
	s.context, s.name = newSource(), name
	if name == contexts.Demo {
		return nil
	}
	path, err := contexts.Path()
	if err != nil && name == "" {
		return nil // a service without a home directory
	}
	var file contexts.File
	if err == nil {
		file, err = contexts.Load(path)
	}
	if err != nil {
		return err
	}
	if name == "" {
		if name = file.Current; name == "" || name == contexts.Demo {
			s.name = name
			return nil
		}
	}
	c, err := file.Find(name)
	if err != nil {
		return err
	}
	s.name = name
	for key, value := range c.Values() {
		if err := s.context.values.Set(key, value); err != nil {
			return rhumb.Wrap(op, err)
		}
		s.context.origins[key] = "context " + name
	}
	return nil
}

// ContextName returns the name of the context that LoadContext read, or "".
func (s *Settings) ContextName() string { return s.name }

// onlyDemo reports whether the command asks for the demo on this machine and
// not for what the other sources name.
func (s *Settings) onlyDemo() bool { return s.name == contexts.Demo }

// find returns the strongest source of a key. connects selects the meaning of
// settings that a node has too, such as addr.
func (s *Settings) find(key string, connects bool) (rank, *source) {
	// The context demo means the demo and nothing else: an address in the environment must not send
	// its commands to another cluster.
	if connects && s.onlyDemo() && key != "from" && slices.Contains(connection, key) {
		return unset, nil
	}
	switch {
	case s.env.has(key):
		return fromEnv, &s.env
	case connects && s.context.has(key):
		return fromContext, &s.context
	case s.file.has(key):
		return fromFile, &s.file
	}
	return unset, nil
}

// defeated returns the settings that lose against their rivals in a stronger
// source. connects says whether they are for a command that connects to a
// cluster, or for a node. given reports whether the command line sets a flag,
// and to what.
func (s *Settings) defeated(connects bool, given func(key string) (value string, ok bool)) []string {
	strength := func(key string) rank {
		if value, ok := given(key); ok {
			// `--insecure=false` on the command line takes part in no rivalry: it asks for the
			// absence of the setting.
			if value == "false" {
				return unset
			}
			return fromFlag
		}
		r, from := s.find(key, connects)
		if from != nil && key == "insecure" && fmt.Sprint(from.values.Get(key)) != "true" {
			return unset
		}
		return r
	}
	var lost []string
	strongest := func(keys []string) (r rank) {
		for _, key := range keys {
			if !slices.Contains(lost, key) {
				r = max(r, strength(key))
			}
		}
		return r
	}
	pairs := rivalsOfNode
	if connects {
		pairs = rivals
	}
	for _, pair := range pairs {
		switch a, b := strongest(pair[0]), strongest(pair[1]); {
		case a > b:
			lost = append(lost, pair[1]...)
		case b > a:
			lost = append(lost, pair[0]...)
		}
	}
	return lost
}

// Apply sets the flags that the command line leaves unset.
func (s *Settings) Apply(set *pflag.FlagSet) error {
	connects := flags.Connects(set)
	if connects {
		if err := s.LoadContext(); err != nil {
			return err
		}
	}
	lost := s.defeated(connects, func(key string) (string, bool) {
		f := set.Lookup(Setting{Key: key}.Flag())
		if f == nil || !f.Changed {
			return "", false
		}
		return f.Value.String(), true
	})
	for _, setting := range All {
		f := set.Lookup(setting.Flag())
		if f == nil || f.Changed || flags.IsLiteral(f) || slices.Contains(lost, setting.Key) {
			continue
		}
		_, from := s.find(setting.Key, connects)
		if from == nil {
			continue
		}
		if err := setFlag(f, from.values.Get(setting.Key)); err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s: %s: %v", from.origins[setting.Key], setting.Key, err)
		}
	}
	return nil
}

// setFlag sets a flag to a configured value. The flag counts as changed from then on, as if it were
// on the command line, so that required flags and checks of flags treat both alike.
func setFlag(f *pflag.Flag, value any) error {
	text := fmt.Sprint(value)
	if list, ok := value.([]any); ok {
		var parts []string
		for _, v := range list {
			parts = append(parts, fmt.Sprint(v))
		}
		text = strings.Join(parts, ",") // as flags of lists take it
	}
	if err := f.Value.Set(text); err != nil {
		return err
	}
	f.Changed = true
	return nil
}

// loadFile reads the configuration file: the one that --config or RHUMB_CONFIG names, which has to exist, or the usual one if there is one. A key
// that names no setting is an error.
func (s *Settings) loadFile() error {
	path := s.File
	if path == "" {
		path = os.Getenv("RHUMB_CONFIG")
	}
	// Only a file that somebody named has to exist.
	optional := path == ""
	if optional {
		path = FileDefault
	}
	read := koanf.New(".")
	err := read.Load(file.Provider(path), yaml.Parser())
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "configuration file %s: %v", path, err)
	}
	var unknown []string
	for key := range read.Raw() {
		if !isSetting(key) {
			unknown = append(unknown, key)
			continue
		}
		s.file.origins[key] = path
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return rhumb.Ef(op, rhumb.InvalidArgument, "configuration file %s: unknown key %s; `rhumb config show` lists the keys",
			path, strings.Join(unknown, ", "))
	}
	return rhumb.Wrap(op, s.file.values.Merge(read))
}

// loadEnv reads the variables that name settings. Variables with the prefix that name none are no
// error, because other programs set some: for a service named rhumb, Kubernetes sets RHUMB_PORT.
// Only `rhumb config check` reports them.
func (s *Settings) loadEnv() error {
	provider := env.Provider(".", env.Opt{
		Prefix: prefix,
		TransformFunc: func(name, value string) (string, any) {
			key := strings.ToLower(strings.TrimPrefix(name, prefix))
			if !isSetting(key) {
				if !slices.Contains(reserved, name) {
					s.unknown = append(s.unknown, "environment: "+name+" is not a setting")
				}
				return "", nil
			}
			s.env.origins[key] = "environment " + name
			return key, value
		},
	})
	return rhumb.Wrap(op, s.env.values.Load(provider, nil))
}

// Unknown describes the environment variables that look like settings but are not.
func (s *Settings) Unknown() []string { return s.unknown }

// Shown returns the value of a key and its origin, for a person: for settings
// of a connection as commands see them, with the context if LoadContext read
// one. ok is false if no source sets it.
func (s *Settings) Shown(key string) (value, origin string, ok bool) {
	if slices.Contains(s.defeated(true, func(string) (string, bool) { return "", false }), key) {
		return "", "", false
	}
	_, from := s.find(key, slices.Contains(connection, key))
	if from == nil {
		return "", "", false
	}
	return fmt.Sprint(from.values.Get(key)), from.origins[key], true
}

// Origin returns where the value of a key of a node is from. ok is false if
// neither the file nor the environment sets it.
func (s *Settings) Origin(key string) (origin string, ok bool) {
	_, from := s.find(key, false)
	if from == nil {
		return "", false
	}
	return from.origins[key], true
}

// Text returns the value of a key of a node, or "" if it is not set.
func (s *Settings) Text(key string) string {
	if _, from := s.find(key, false); from != nil {
		return fmt.Sprint(from.values.Get(key))
	}
	return ""
}

// Int returns the value of a key of a node as a number, or 0.
func (s *Settings) Int(key string) int64 {
	if _, from := s.find(key, false); from != nil {
		return from.values.Int64(key)
	}
	return 0
}

// List returns the value of a key of a node as a list. The environment has no
// lists, only text with commas, as flags take it.
func (s *Settings) List(key string) []string {
	_, from := s.find(key, false)
	if from == nil {
		return nil
	}
	if text, ok := from.values.Get(key).(string); ok {
		return strings.Split(text, ",")
	}
	return from.values.Strings(key)
}
