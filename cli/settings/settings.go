// Package settings reads the configuration file and the environment, and applies them to the flags
// that the command line leaves unset. The file is the weakest source, then the environment, then
// the command line.
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
	{"cache_size", "start: block cache in MiB"},
	{"dir", "start: data directories, one per disk"},
	{"drain_timeout", "start: how long a stop waits for primaries to move away"},
	{"from", "region in which a command runs"},
	{"gossip_addr", "start: address for gossip"},
	{"heartbeat_addr", "start: address for heartbeats"},
	{"insecure", "connect without TLS, to loopback addresses only"},
	{"join", "start: gossip addresses of other nodes"},
	{"latency_file", "round trips to imitate between regions"},
	{"location", "start: LAT,LON of the node"},
	{"log_level", "start: debug, info, warn or error"},
	{"memory", "start: maximum memory of the node, such as 4GiB"},
	{"no_color", "print without colors"},
	{"output", "how to print data"},
	{"region", "start: region of the node"},
	{"snapshot_budget", "start: maximum size of the image of published tables, in MiB"},
	{"snapshot_count", "start: number of log entries that make a version of the image before its interval is over"},
	{"snapshot_dir", "folder for images of published tables"},
	{"snapshot_group_readable", "start: only the owner and the group of the files can read the image"},
	{"snapshot_huge_pages", "start: ask for huge pages"},
	{"snapshot_interval", "start: minimum time between two versions of the image"},
	{"snapshot_leash", "start: how long readers may keep a replaced file of the image before it counts as overdue"},
	{"snapshot_on_demand", "start: make versions only when asked"},
	{"snapshot_overdue", "start: maximum size of overdue files of the image, in MiB, in addition to its budget"},
	{"timeout", "how long a command waits for the cluster"},
	{"zone", "start: failure domain of the node within its region"},
}

// reserved lists environment variables with the prefix that are not settings.
var reserved = []string{"RHUMB_DEMO", "RHUMB_TESTDATA", "RHUMB_PYTHON", "RHUMB_CONFIG"}

const op rhumb.Op = "rhumb.settings"

// prefix begins the name of every variable.
const prefix = "RHUMB_"

// Settings holds the values in the configuration file and the environment.
type Settings struct {
	File    string // the value of --config
	values  *koanf.Koanf
	origins map[string]string // where each value is from, by key
	unknown []string          // variables with the prefix that name no setting
}

func isSetting(key string) bool {
	return slices.ContainsFunc(All, func(s Setting) bool { return s.Key == key })
}

// Load reads the file and the environment.
func (s *Settings) Load() error {
	s.values, s.origins, s.unknown = koanf.New("."), map[string]string{}, nil
	if err := s.loadFile(); err != nil {
		return err
	}
	return s.loadEnv() // after the file, whose values it overwrites
}

// Apply sets the flags that the command line leaves unset.
func (s *Settings) Apply(flags *pflag.FlagSet) error {
	for _, setting := range All {
		f := flags.Lookup(setting.Flag())
		if f == nil || f.Changed || !s.values.Exists(setting.Key) {
			continue
		}
		if err := setFlag(f, s.values.Get(setting.Key)); err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s: %s: %v", s.origins[setting.Key], setting.Key, err)
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
		s.origins[key] = path
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return rhumb.Ef(op, rhumb.InvalidArgument, "configuration file %s: unknown key %s; `rhumb config show` lists the keys",
			path, strings.Join(unknown, ", "))
	}
	return rhumb.Wrap(op, s.values.Merge(read))
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
			s.origins[key] = "environment " + name
			return key, value
		},
	})
	return rhumb.Wrap(op, s.values.Load(provider, nil))
}

// Unknown describes the environment variables that look like settings but are not.
func (s *Settings) Unknown() []string { return s.unknown }

// Origin returns where the value of a key is from. ok is false if neither the file nor the
// environment sets it.
func (s *Settings) Origin(key string) (origin string, ok bool) {
	origin, ok = s.origins[key]
	return origin, ok
}

// Text returns the value of a key, or "" if it is not set.
func (s *Settings) Text(key string) string {
	if !s.values.Exists(key) {
		return ""
	}
	return fmt.Sprint(s.values.Get(key))
}

// Int returns the value of a key as a number, or 0.
func (s *Settings) Int(key string) int64 { return s.values.Int64(key) }

// List returns the value of a key as a list. The environment has no lists, only text with commas,
// as flags take it.
func (s *Settings) List(key string) []string {
	if text, ok := s.values.Get(key).(string); ok {
		return strings.Split(text, ",")
	}
	return s.values.Strings(key)
}
