package main

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/contexts"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/client"
)

// opContext is the operation of errors about contexts that the commands find themselves.
const opContext rhumb.Op = "rhumb.context"

// contextDoc is a context as commands print it.
type contextDoc struct {
	// Name identifies the context.
	Name string `json:"name"`
	// Current is set for the context that commands use if they name none.
	Current bool `json:"current"`
	contexts.Context
}

// identity describes the identity with which the context connects.
func (d *contextDoc) identity() string {
	switch {
	case d.Insecure:
		return "none (insecure)"
	case d.User != "":
		return "user " + d.User
	case d.Cert != "":
		return "certificate " + d.Cert
	}
	return "none"
}

// newContext holds the arguments of `rhumb context add`.
type newContext struct {
	contexts.Context
	// check connects before the context is stored, use makes it the current one, and replace allows to overwrite.
	check, use, replace bool
	// timeout bounds the time that check waits, including nodes that are still starting.
	timeout time.Duration
}

// contextCommands are `rhumb context`.
type contextCommands struct{ *session }

// contextCommand returns `rhumb context`. Its commands change one file of the user and, except for
// `add --check`, connect to nothing.
func contextCommand(s *session) *cobra.Command {
	cc := &contextCommands{s}
	ls := &cobra.Command{
		Use: "ls", Short: "List the contexts", Args: cobra.NoArgs,
		Example: "  rhumb context ls\n  rhumb context ls -o json",
		RunE:    func(*cobra.Command, []string) error { return cc.list() },
	}
	show := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, by default the current one", Args: cobra.MaximumNArgs(1),
		Example:           "  rhumb context show\n  rhumb context show prod -o yaml",
		ValidArgsFunction: completeContexts,
		RunE:              func(_ *cobra.Command, args []string) error { return cc.show(args) },
	}
	// none is set by --none. The pair of an argument and this flag is checked in use.
	var none bool
	use := &cobra.Command{
		Use: "use NAME", Short: "Select the context of commands that name none",
		Long: `Select the context of commands that name none. The name demo selects the demo on this machine. With --none, no context
is selected: commands then connect to a demo, if one runs.`,
		Args:              cobra.MaximumNArgs(1),
		Example:           "  rhumb context use prod\n  rhumb context use demo\n  rhumb context use --none",
		ValidArgsFunction: completeContexts,
		RunE:              func(_ *cobra.Command, args []string) error { return cc.use(args, none) },
	}
	use.Flags().BoolVar(&none, "none", false, "select no context")
	rm := &cobra.Command{
		Use: "rm NAME", Short: "Remove a context; the files that it names stay", Args: cobra.ExactArgs(1),
		Example:           "  rhumb context rm prod",
		ValidArgsFunction: completeContexts,
		RunE:              func(_ *cobra.Command, args []string) error { return cc.remove(args[0]) },
	}
	return commandGroup("context", "Keep connections to clusters under names", cc.addCommand(), use, ls, show, rm)
}

// addCommand returns `rhumb context add`. Its flags have the names of the settings that they store.
// They are literal: the environment says how to run this command, not how to connect later.
func (cc *contextCommands) addCommand() *cobra.Command {
	var n newContext
	c := &cobra.Command{
		Use: "add NAME --addr HOST:PORT --ca FILE [flags]", Short: "Keep a connection under a name",
		Long: `Keep the addresses of a cluster and the identity to use there under a name, in rhumb/contexts.yaml of XDG_CONFIG_HOME or
~/.config. The identity is a certificate (--cert, --key) or a user with a password (--user; the password is asked for, or read
from --password-file). The file holds the names of files and never a password.`,
		Example: `  rhumb context add prod --addr eu-1.example.net:7600 --ca ca.crt --cert ada.crt --key ada.key --check --use
  rhumb context add prod-ada --addr eu-1.example.net:7600,us-1.example.net:7600 --ca ca.crt --user ada
  rhumb context add local --addr 127.0.0.1:7600 --insecure`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cc.add(cmd.Context(), args[0], n); err != nil {
				return err
			}
			// The stored context is printed, so that the user sees the absolute paths.
			return cc.show(args)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&n.Addr, "addr", nil, "host:port of a node; repeat the flag for more nodes")
	f.StringVar(&n.CA, "ca", "", "certificates of the cluster's authorities")
	f.StringVar(&n.Cert, "cert", "", "certificate to connect with")
	f.StringVar(&n.Key, "key", "", "key of the certificate")
	f.StringVar(&n.User, "user", "", "user to log in as, with a password")
	f.StringVar(&n.PasswordFile, "password-file", "", "file that holds the password; without it, the password is asked for")
	f.StringVar(&n.Cluster, "cluster", "", "ID of the cluster; nodes of another are refused")
	f.StringVar(&n.From, "from", "", "region in which commands run")
	f.BoolVar(&n.Insecure, "insecure", false, "connect without TLS, to loopback addresses only")
	f.BoolVar(&n.check, "check", false, "connect first, wait for nodes that do not answer yet, and keep nothing if that fails")
	f.BoolVar(&n.use, "use", false, "make it the current context")
	f.BoolVar(&n.replace, "replace", false, "replace a context of this name")
	f.DurationVar(&n.timeout, "timeout", target.TimeoutDefault, "how long --check waits for the cluster")
	// They describe the new context; the environment concerns this command.
	flags.Literal(f, "addr", "ca", "cert", "key", "user", "password-file", "cluster", "from", "insecure")
	return c
}

// add checks a context, connects if that was asked for, and stores it.
// Validation comes before the connection, and the connection before the file, so that a failure keeps the file as it was.
func (cc *contextCommands) add(ctx context.Context, name string, n newContext) error {
	if err := contexts.CheckName(name); err != nil {
		return err
	}
	for _, path := range []*string{&n.CA, &n.Cert, &n.Key, &n.PasswordFile} {
		if *path == "" {
			continue
		}
		// The paths are relative to the folder in which they are typed; commands that use the
		// context run elsewhere.
		abs, err := filepath.Abs(*path)
		if err != nil {
			return rhumb.Wrap(opContext, err)
		}
		*path = abs
	}
	// Validate looks at the combination of the fields only; try reads the files.
	if err := n.Validate(); err != nil {
		return err
	}
	if err := n.try(ctx, cc.session, name); err != nil {
		return err
	}
	return cc.update(func(f *contexts.File) error {
		// Checked under the lock of the file, because two commands may add the same name at once.
		if _, exists := f.Contexts[name]; exists && !n.replace {
			return rhumb.Ef(opContext, rhumb.AlreadyExists, "there is a context %s already; add --replace, or choose another name", name)
		}
		f.Contexts[name] = n.Context
		if n.use {
			f.Current = name
		}
		return nil
	})
}

// try checks the files of a context, and with --check connects and reports the nodes that it found.
//
// Without --check it reads files only, because a context may be made before its cluster exists.
func (n *newContext) try(ctx context.Context, s *session, name string) error {
	// The flags of a connection are filled from the context, so that both are checked by the same code.
	conn := connect.Flags{Target: target.Target{
		Addrs: n.Addr, CA: n.CA, Cert: n.Cert, Key: n.Key, User: n.User, PasswordFile: n.PasswordFile, Cluster: n.Cluster,
		From: n.From, Insecure: n.Insecure, Timeout: n.timeout,
	}}
	if err := conn.Validate(); err != nil {
		return err
	}
	if err := conn.CheckFiles(); err != nil || !n.check {
		return err
	}
	cfg, err := conn.Config()
	if err != nil {
		return err
	}
	c, err := awaitAnswer(ctx, s, n.timeout, func(ctx context.Context) (*client.Client, error) { return client.Open(ctx, cfg) })
	if err != nil {
		return err
	}
	defer c.Close()
	// People add a context to see whether it works, so the answer is worth a line on standard error.
	s.Notef("context %s: cluster %s answers, with %s in %s", name, c.Cluster(),
		output.Counted(len(c.Nodes()), "node", "nodes"), output.Counted(len(c.Regions()), "region", "regions"))
	return nil
}

// list prints all contexts. The demo is not among them, because the file has no entry for it; a
// note says so if it is the current one.
func (cc *contextCommands) list() error {
	file, _, err := cc.load()
	if err != nil {
		return err
	}
	docs := []contextDoc{}
	for _, name := range file.Names() {
		docs = append(docs, contextDoc{name, name == file.Current, file.Contexts[name]})
	}
	if file.Current == contexts.Demo {
		cc.Notef("the current context is the demo on this machine")
	}
	return cc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"CURRENT", "NAME", "ADDR", "IDENTITY", "CLUSTER", "FROM"})
		// The current context is marked rather than put first, so that the order of names is stable.
		for _, d := range docs {
			mark := ""
			if d.Current {
				mark = "*"
			}
			t.AppendRow(table.Row{mark, d.Name, strings.Join(d.Addr, ","), d.identity(), d.Cluster, d.From})
		}
	})
}

// show prints one context with the file that holds it. Paths are printed and never their content.
func (cc *contextCommands) show(args []string) error {
	file, path, err := cc.load()
	if err != nil {
		return err
	}
	name := file.Current
	if len(args) > 0 {
		name = args[0]
	}
	// The demo has no entry in the file; its addresses come and go with its process.
	if name == "" || name == contexts.Demo {
		return rhumb.E(opContext, rhumb.NotFound, "no context of the file is the current one; `rhumb context ls` lists the contexts, `rhumb context use NAME` selects one")
	}
	c, err := file.Find(name)
	if err != nil {
		return err
	}
	doc := contextDoc{name, name == file.Current, c}
	// Rows without a value are left out, because most contexts use one of several identities.
	return cc.Print(doc, func(t table.Writer) {
		for _, row := range [][2]string{
			{"context", name},
			{"addr", strings.Join(c.Addr, ",")},
			{"ca", c.CA},
			{"cert", c.Cert},
			{"key", c.Key},
			{"user", c.User},
			{"password file", c.PasswordFile},
			{"cluster", c.Cluster},
			{"from", c.From},
			{"identity", doc.identity()},
			{"file", path},
		} {
			if row[1] != "" {
				t.AppendRow(table.Row{row[0], row[1]})
			}
		}
	})
}

// use selects the current context. Selecting none is a flag and not an empty name, which a script
// with an unset variable would pass by accident.
func (cc *contextCommands) use(args []string, none bool) error {
	// An empty name would select none: most likely a variable without a value, whose script would then go to another cluster.
	if (len(args) == 0) != none || len(args) == 1 && args[0] == "" {
		return rhumb.E(opContext, rhumb.InvalidArgument, "name a context, or add --none to select none")
	}
	name := ""
	if !none {
		name = args[0]
	}
	// The name is looked up under the lock, so that no command selects a context that another one removes.
	err := cc.update(func(f *contexts.File) error {
		if name != "" && name != contexts.Demo {
			if _, err := f.Find(name); err != nil {
				return err
			}
		}
		f.Current = name
		return nil
	})
	if err != nil {
		return err
	}
	return cc.Print(map[string]string{"current": name}, func(t table.Writer) { t.AppendRow(table.Row{"current", cmp.Or(name, "none")}) })
}

// remove removes a context. If it was the current one, no other takes its place: commands then fail
// or find a demo, instead of going to a cluster that nobody chose.
func (cc *contextCommands) remove(name string) error {
	wasCurrent := false
	err := cc.update(func(f *contexts.File) error {
		if _, err := f.Find(name); err != nil {
			return err
		}
		// The files of certificates and passwords that the context names stay: other contexts may use them.
		delete(f.Contexts, name)
		if wasCurrent = f.Current == name; wasCurrent {
			f.Current = ""
		}
		return nil
	})
	if err != nil {
		return err
	}
	if wasCurrent {
		cc.Notef("%s was the current context; no context is selected now", name)
	}
	return cc.Print(map[string]string{"removed": name}, func(t table.Writer) { t.AppendRow(table.Row{"removed", name}) })
}

// load reads the file and returns its path, too.
func (cc *contextCommands) load() (contexts.File, string, error) {
	path, err := contexts.Path()
	if err != nil {
		return contexts.File{}, "", err
	}
	file, err := contexts.Load(path)
	return file, path, err
}

// update changes the file under its lock.
func (cc *contextCommands) update(change func(*contexts.File) error) error {
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	return contexts.Update(path, change)
}

// completeContexts completes the name of a context.
// It offers the names in the file and "demo", filtered by the text so far. It never offers files, since an argument is
// a name here.
func completeContexts(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	path, err := contexts.Path()
	// Completion has no place for an error: the shell shows nothing instead.
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	file, err := contexts.Load(path)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := slices.DeleteFunc(append(file.Names(), contexts.Demo), func(n string) bool { return !strings.HasPrefix(n, toComplete) })
	return names, cobra.ShellCompDirectiveNoFileComp
}
