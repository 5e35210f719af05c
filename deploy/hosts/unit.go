//go:build linux

package hosts

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
	"golang.org/x/sys/unix"
)

// unitPath lists the folders of unit files; the first that has a unit wins, as with systemd.
var unitPath = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// honoured lists the settings of [Service] that the stand-in obeys.
var honoured = []string{
	"Type", "ExecStartPre", "ExecStart", "ExecReload", "User", "Group", "SupplementaryGroups", "UMask", "WorkingDirectory", "Environment", "EnvironmentFile",
	"StateDirectory", "StateDirectoryMode", "RuntimeDirectory", "RuntimeDirectoryMode", "ConfigurationDirectory", "ConfigurationDirectoryMode",
	"LimitNOFILE", "LimitMEMLOCK", "LimitCORE", "LimitNPROC", "Restart", "RestartSec", "TimeoutStartSec", "TimeoutStopSec", "KillSignal",
	"NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities", "ProtectSystem", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ProtectHome", "PrivateTmp",
	"SystemCallFilter", "SystemCallErrorNumber", "OOMScoreAdjust", "NotifyAccess", "RestartPreventExitStatus",
}

// passedOver lists the settings of [Service] that need systemd, a control group or a kernel feature that the stand-in does not set up.
var passedOver = []string{
	// Control groups: processes are found by their group instead, and nothing bounds memory or the number of tasks.
	"KillMode", "MemoryMax", "MemoryHigh", "MemorySwapMax", "MemoryAccounting", "TasksMax", "CPUAccounting", "CPUWeight", "IOAccounting", "IOWeight",
	// Devices, networks and kernel interfaces: a host has few of them, and none that a service could use.
	"DevicePolicy", "DeviceAllow", "Delegate", "IPAddressDeny", "IPAddressAllow", "LockPersonality", "MemoryDenyWriteExecute", "PrivateDevices", "PrivateUsers",
	"ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
	"ProcSubset", "RemoveIPC", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures",
	// Output always goes to the log of the unit.
	"StandardOutput", "StandardError", "SyslogIdentifier", "OOMPolicy", "WatchdogSec", "KeyringMode", "SocketBindAllow", "SocketBindDeny", "PrivateMounts",
}

// settings are those of one section of a unit, in order. An empty value clears what came before.
type settings map[string][]string

// last returns the value that counts for a setting that is not a list.
func (s settings) last(key, otherwise string) string {
	if v := s[key]; len(v) > 0 {
		return v[len(v)-1]
	}
	return otherwise
}

// truth reports whether a setting is switched on.
func (s settings) truth(key string) bool {
	return slices.Contains([]string{"yes", "true", "on", "1"}, strings.ToLower(s.last(key, "no")))
}

// words returns the members of a setting that is a list of words.
func (s settings) words(key string) (words []string) {
	for _, v := range s[key] {
		words = append(words, strings.Fields(v)...)
	}
	return words
}

// unitFile holds the settings of a unit and its drop-ins.
//
// It holds texts and no values. Names of users and variables of environment files can be resolved
// only at the start, since the package or an administrator may change them until then.
type unitFile struct {
	name, path    string
	unit, service settings
	wantedBy      []string
}

// loadUnit reads the file of a unit and its drop-ins below root.
func loadUnit(root, name string) (*unitFile, error) {
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	if !strings.HasSuffix(name, ".service") || strings.Contains(name, "/") {
		return nil, fmt.Errorf("unit %s: only units of services are known here", name)
	}
	// Aliases and templates are not resolved: the unit is the file of that name.
	u := &unitFile{name: name, unit: settings{}, service: settings{}}
	// The first folder that has the unit hides the others.
	for _, dir := range unitPath {
		path := filepath.Join(root, dir, name)
		if _, err := os.Stat(path); err == nil {
			u.path = path
			break
		}
	}
	if u.path == "" {
		return nil, fmt.Errorf("unit %s could not be found in %s", name, strings.Join(unitPath, " "))
	}
	if err := u.read(u.path); err != nil {
		return nil, err
	}
	// Drop-ins of administrators come after those of packages, so that they win.
	for _, dir := range slices.Backward(unitPath) {
		drops, err := filepath.Glob(filepath.Join(root, dir, name+".d", "*.conf"))
		if err != nil {
			return nil, err
		}
		for _, path := range drops {
			if err := u.read(path); err != nil {
				return nil, err
			}
		}
	}
	return u, nil
}

// read adds the settings of a file to the unit.
func (u *unitFile) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	options, err := unit.DeserializeOptions(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, o := range options {
		var into settings
		switch o.Section {
		case "Unit":
			into = u.unit
		case "Service":
			// A setting that is neither obeyed nor known to be passed over could be a mistake or a restriction that matters.
			if !slices.Contains(honoured, o.Name) && !slices.Contains(passedOver, o.Name) {
				return fmt.Errorf("%s: setting %s= is not known to this stand-in for systemd", path, o.Name)
			}
			into = u.service
		case "Install":
			if o.Name == "WantedBy" {
				u.wantedBy = append(u.wantedBy, strings.Fields(o.Value)...)
			}
			continue
		default:
			return fmt.Errorf("%s: section [%s] is not known", path, o.Section)
		}
		// CapabilityBoundingSet= with no value means "none", which is more than a cleared list.
		// An empty value clears a list, except where it is itself a value.
		if o.Value == "" {
			into[o.Name] = []string{}
			continue
		}
		into[o.Name] = append(into[o.Name], o.Value)
	}
	return nil
}

// plan holds the resolved settings of a unit, with IDs and paths of this host.
//
// A plan is complete: nothing of the unit is looked up while the service runs. So a service that
// runs can be stopped and restarted after its files were removed or broken.
type plan struct {
	// Each field is named for the setting that it resolves. Times have the defaults of systemd.
	// Type=, and the commands of Exec*=.
	kind           string // Type=
	start          command
	before, reload []command
	// The confinement of every command without the prefix "+".
	box sandbox
	// Restart= and the settings that bound it.
	restart      string
	restartAfter time.Duration
	startMost    time.Duration
	stopMost     time.Duration
	// KillSignal=, which asks for an orderly end.
	kill           unix.Signal
	preventRestart []int
	startsMost     int
	startsWithin   time.Duration
	// NotifyAccess=all: messages of children count too.
	notifyFromAll bool
	runtimeDir    []string
	// Folders to make and to hand to the user. Those in runtimeDir are removed at the end.
	ownedDirs   []ownedDir
	environment []string
}

// command is one line of Exec*=.
type command struct {
	argv   []string
	mayBad bool // "-": a failure does not count
	root   bool // "+": with all rights
}

// ownedDir is a folder that belongs to the user of the service.
type ownedDir struct {
	path string
	mode fs.FileMode
}

// condition returns the first condition of the unit that is not met, or "".
func (u *unitFile) condition() string {
	for _, text := range u.unit["ConditionPathExists"] {
		path, negated := strings.CutPrefix(text, "!")
		if _, err := os.Stat(path); (err == nil) == negated {
			return "ConditionPathExists=" + text
		}
	}
	return ""
}

// resolve turns settings into a plan.
func (u *unitFile) resolve(host string) (*plan, error) {
	r := resolver{u: u, host: host, p: &plan{}}
	r.commands()
	r.environment()
	r.identity()
	r.limits()
	r.folders()
	r.isolation()
	// The first mistake is enough for a message: the operator sees the next one after mending it.
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", u.name, r.err)
	}
	return r.p, nil
}

// resolver turns settings into a plan and keeps the first mistake.
type resolver struct {
	u    *unitFile
	host string
	p    *plan
	err  error
}

// fail keeps the first error.
func (r *resolver) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

// commands reads what to run, and when to run it again.
func (r *resolver) commands() {
	s := r.u.service
	// Types that fork or use the bus would need more of systemd than a stand-in should have.
	r.p.kind = s.last("Type", "simple")
	if !slices.Contains([]string{"simple", "exec", "notify", "oneshot"}, r.p.kind) {
		r.fail(fmt.Errorf("the setting Type=%s is not known here", r.p.kind))
	}
	if len(s["ExecStart"]) != 1 {
		r.fail(fmt.Errorf("%d ExecStart=, want one", len(s["ExecStart"])))
		return
	}
	r.p.start = r.command(s["ExecStart"][0])
	for _, line := range s["ExecStartPre"] {
		r.p.before = append(r.p.before, r.command(line))
	}
	for _, line := range s["ExecReload"] {
		r.p.reload = append(r.p.reload, r.command(line))
	}
	r.p.restart = s.last("Restart", "no")
	if !slices.Contains([]string{"no", "on-failure", "always", "on-abnormal"}, r.p.restart) {
		r.fail(fmt.Errorf("the setting Restart=%s is not known here", r.p.restart))
	}
	r.p.restartAfter = r.duration("RestartSec", 100*time.Millisecond)
	r.p.startsWithin = r.durationOf(r.u.unit, "StartLimitIntervalSec", 10*time.Second)
	r.p.startsMost = 5
	if text := r.u.unit.last("StartLimitBurst", ""); text != "" {
		n, err := strconv.Atoi(text)
		r.fail(err)
		r.p.startsMost = n
	}
	r.p.startMost = r.duration("TimeoutStartSec", 90*time.Second)
	r.p.stopMost = r.duration("TimeoutStopSec", 90*time.Second)
	r.p.kill = unix.SignalNum(s.last("KillSignal", "SIGTERM"))
	if r.p.kill == 0 {
		r.fail(fmt.Errorf("KillSignal=%s is no signal", s.last("KillSignal", "")))
	}
	for _, w := range s.words("RestartPreventExitStatus") {
		n, err := strconv.Atoi(w)
		r.fail(err)
		r.p.preventRestart = append(r.p.preventRestart, n)
	}
	r.p.notifyFromAll = s.last("NotifyAccess", "main") == "all"
}

// command parses one line of Exec*= with its prefixes.
func (r *resolver) command(line string) (c command) {
	line = strings.TrimSpace(line)
	// Prefixes may be combined.
	for line != "" && strings.ContainsRune("-+:@!", rune(line[0])) {
		switch line[0] {
		case '-':
			c.mayBad = true
		case '+':
			c.root = true
		default:
			r.fail(fmt.Errorf("command %q: prefix %c is not known here", line, line[0]))
		}
		line = line[1:]
	}
	// Specifiers first, as with systemd: a name may contain no quotes.
	words, err := splitWords(r.specifiers(line))
	r.fail(err)
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		r.fail(fmt.Errorf("command %q does not begin with an absolute path", line))
		return c
	}
	c.argv = words
	return c
}

// specifiers replaces the %-specifiers of systemd.
func (r *resolver) specifiers(text string) string {
	prefix := strings.TrimSuffix(r.u.name, ".service")
	// Instances of templates are not known here, so %i is empty.
	return strings.NewReplacer("%%", "%", "%n", r.u.name, "%N", prefix, "%p", prefix, "%H", r.host, "%l", r.host,
		"%t", "/run", "%S", "/var/lib", "%E", "/etc", "%L", "/var/log", "%i", "").Replace(text)
}

// duration reads a time of [Service], which is in seconds without a unit.
func (r *resolver) duration(key string, otherwise time.Duration) time.Duration {
	return r.durationOf(r.u.service, key, otherwise)
}

// durationOf reads a time of a section.
func (r *resolver) durationOf(s settings, key string, otherwise time.Duration) time.Duration {
	text := s.last(key, "")
	if text == "" {
		return otherwise
	}
	if text == "infinity" {
		return 24 * time.Hour
	}
	// A bare number is in seconds.
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(n) * time.Second
	}
	d, err := time.ParseDuration(strings.NewReplacer(" ", "", "min", "m", "sec", "s").Replace(text))
	if err != nil {
		r.fail(fmt.Errorf("%s=%s: %w", key, text, err))
	}
	return d
}

// environment reads Environment= and the files of EnvironmentFile=, which win.
func (r *resolver) environment() {
	s := r.u.service
	// systemd starts services with little more than this.
	env := []string{"PATH=" + hostPath, "LANG=C.UTF-8"}
	for _, line := range s["Environment"] {
		words, err := splitWords(r.specifiers(line))
		r.fail(err)
		env = append(env, words...)
	}
	for _, name := range s["EnvironmentFile"] {
		name, optional := strings.CutPrefix(r.specifiers(name), "-")
		more, err := readEnvironment(name)
		if optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r.fail(err)
		env = append(env, more...)
	}
	r.p.environment = lastOfEach(env)
}

// lastOfEach keeps the last value of each variable: a program sees the first one.
func lastOfEach(env []string) (kept []string) {
	seen := map[string]bool{}
	for _, pair := range slices.Backward(env) {
		if name, _, _ := strings.Cut(pair, "="); !seen[name] {
			seen[name] = true
			kept = append(kept, pair)
		}
	}
	slices.Reverse(kept)
	return kept
}

// readEnvironment reads lines NAME=VALUE with optional quotes, as EnvironmentFile= has them.
func readEnvironment(name string) (env []string, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for n, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		// Shell syntax such as `export` is not understood by systemd, and refused here.
		key, value, ok := strings.Cut(line, "=")
		if !ok || key == "" || strings.ContainsAny(key, " \t") {
			return nil, fmt.Errorf("%s:%d: want NAME=VALUE", name, n+1)
		}
		if q := value; len(q) >= 2 && (q[0] == '"' || q[0] == '\'') && q[len(q)-1] == q[0] {
			value = q[1 : len(q)-1]
		}
		env = append(env, key+"="+value)
	}
	return env, nil
}

// folders plans the folders that systemd makes for a service.
func (r *resolver) folders() {
	s := r.u.service
	for _, kind := range []struct{ key, parent, variable string }{
		{"StateDirectory", "/var/lib", "STATE_DIRECTORY"},
		{"RuntimeDirectory", "/run", "RUNTIME_DIRECTORY"},
		{"ConfigurationDirectory", "/etc", "CONFIGURATION_DIRECTORY"},
	} {
		// Modes are octal with or without a leading 0.
		mode, err := strconv.ParseUint(s.last(kind.key+"Mode", "0755"), 8, 32)
		r.fail(err)
		var paths []string
		for _, name := range s.words(kind.key) {
			path := filepath.Join(kind.parent, name)
			paths = append(paths, path)
			r.p.ownedDirs = append(r.p.ownedDirs, ownedDir{path: path, mode: fs.FileMode(mode)})
			// systemd leaves the configuration to root: a service that is broken into cannot change its own settings.
			if kind.key != "ConfigurationDirectory" {
				r.p.box.ReadWrite = append(r.p.box.ReadWrite, path)
			}
			if kind.key == "RuntimeDirectory" {
				r.p.runtimeDir = append(r.p.runtimeDir, path)
			}
		}
		if len(paths) > 0 {
			r.p.environment = append(r.p.environment, kind.variable+"="+strings.Join(paths, ":"))
		}
	}
}

// splitWords splits a line as systemd does: at spaces, outside of quotes.
func splitWords(line string) (words []string, err error) {
	// One pass over the bytes: UTF-8 has no byte of a quote or a space within a character.
	var word strings.Builder
	var quote byte
	inWord := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		// A backslash takes the meaning from the next character, in quotes too.
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			inWord = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("%q: a quote %c has no end", line, quote)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// expand replaces ${NAME} in words, and a word that is $NAME by the words of its value.
func expand(words, env []string) (out []string) {
	// The environment of the service, not of this process.
	values := map[string]string{}
	for _, pair := range env {
		k, v, _ := strings.Cut(pair, "=")
		values[k] = v
	}
	for _, w := range words {
		// A word of its own may become several words, or none.
		if name, ok := strings.CutPrefix(w, "$"); ok && !strings.HasPrefix(name, "{") {
			out = append(out, strings.Fields(values[name])...)
			continue
		}
		out = append(out, os.Expand(strings.ReplaceAll(w, "$$", "\x00"), func(name string) string { return values[name] }))
		out[len(out)-1] = strings.ReplaceAll(out[len(out)-1], "\x00", "$")
	}
	return out
}
