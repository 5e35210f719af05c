package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/benchcmd"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/imagecmd"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/settings"
)

// streams are the standard streams of a run.
type streams struct {
	// in is the standard input. Commands read it if an argument or flag is "-", and to ask for a confirmation.
	in io.Reader
	// out receives the data that a command prints, and err everything else, so that a script can pipe the data.
	out, err io.Writer
}

// app is one run of the program: the session that its command uses, and the settings that were
// applied to the flags.
type app struct {
	*session
	// settings are those of the configuration file, the environment and the selected context. prepare applies them to the
	// flags.
	settings settings.Settings
	// entered is set when a command begins. Errors before that are errors of usage.
	entered bool
}

// newApp returns a run that prints to the streams and reads from them. It does nothing until run.
func newApp(s streams) *app {
	return &app{session: &session{Printer: &output.Printer{Out: s.out, Err: s.err}, inputs: inputs{s.in}}}
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, s streams) int {
	a := newApp(s)
	// A point that begins with a minus sign would be taken for a flag, so it is moved after "--".
	root := a.rootCommand()
	root.SetArgs(flags.PlaceLast(root, args))
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	cmd, err := root.ExecuteContextC(ctx)
	// The command has printed its data by now, so there is nothing left to do.
	if err == nil {
		return exit.OK
	}
	// The command never began: cobra rejected the line, or prepare rejected a flag.
	if !a.entered {
		err = usageError(cmd, err)
	}
	// A signal ends ctx. What fails for that reason fails with whatever error the interrupted call
	// returns.
	if ctx.Err() != nil && rhumb.KindOf(err) == rhumb.Other {
		err = rhumb.Ef("rhumb.run", rhumb.Canceled, "interrupted before it was done: %s", rhumb.Message(err))
	}
	// formatAsked is used rather than a.Format, because flags may not have been parsed at this point.
	a.PrintError(err, formatAsked(args))
	return exit.Code(err)
}

// rootCommand returns the command rhumb with its global flags and all commands below it.
func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rhumb",
		Short: "A geo-partitioned key-value database",
		Long: `Rhumb stores each record in the region that first writes it, answers requests there,
and keeps working when nodes die. This program is the node, its tools and a demonstration.`,
		Example: `  rhumb demo                                             three regions on this machine, with a live feed
  rhumb put flights SWR8 ident=SWR8 location=47.4,8.5    in another terminal
  rhumb get flights SWR8 --from virginia
  rhumb status`,
		// run prints errors itself, in the format that the caller asked for, and without the usage text in front of them.
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	// completionCommand takes the place of the command that cobra adds.
	root.CompletionOptions.HiddenDefaultCmd = true
	// These flags belong to every command.
	set := root.PersistentFlags()
	set.StringVarP(&a.Format, "output", "o", output.Table, "how to print data: "+strings.Join(output.Formats, ", "))
	set.BoolVar(&a.NoColor, "no-color", false, "print without colors; NO_COLOR does the same")
	set.StringVar(&a.settings.File, "config", "", "configuration file")
	flags.Default(set, "config", settings.FileDefault+" if it exists")
	set.StringVar(&a.settings.Context, "context", "", "connection to use, of those that rhumb context ls lists")
	flags.Default(set, "context", "RHUMB_CONTEXT, else the current one")
	// Shells complete the names of contexts from the user's file, without a connection.
	must(root.RegisterFlagCompletionFunc("context", completeContexts))
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Formats, cobra.ShellCompDirectiveNoFileComp)))

	// The order of the groups is the order in which the help lists them.
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupData, Title: "Use data:"},
		&cobra.Group{ID: groupCluster, Title: "Look after a cluster:"},
	)
	root.AddCommand(a.commands()...)
	return root
}

// prepare applies the settings and checks the flags before a command begins.
func (a *app) prepare(cmd *cobra.Command) error {
	// The settings come first: they may set flags that the checks below look at.
	if err := a.settings.Load(); err != nil {
		return err
	}
	if err := a.settings.Apply(cmd.Flags()); err != nil {
		return err
	}
	// The connection is opened later, and then needs to know whether a context was selected.
	a.conn.Context = a.settings.ContextName()
	if err := flags.CheckBounds(cmd.Flags()); err != nil {
		return err
	}
	if !slices.Contains(output.Formats, a.Format) {
		return rhumb.Ef("rhumb.flags", rhumb.InvalidArgument, "-o %q is none of %s", a.Format, strings.Join(output.Formats, ", "))
	}
	// Cobra checks these only after PersistentPreRunE; here their errors still count as errors of
	// usage.
	if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
		return err
	}
	a.entered = true
	return nil
}

// The groups of commands in the help.
const (
	// groupRun holds the commands that run something until it is stopped.
	groupRun = "run"
	// groupData holds the commands that read and write records and images.
	groupData = "data"
	// groupCluster holds the commands for operators.
	groupCluster = "cluster"
)

// grouped puts commands into a group of the help.
func grouped(id string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = id
	}
	return commands
}

// commands returns all commands.
func (a *app) commands() []*cobra.Command {
	// Commands with the same receiver share a session: its printer, its input and its connection.
	s := a.session
	read, write := &readCommands{s}, &writeCommands{s}
	cluster, ranges, authorities := &clusterCommands{s}, &rangeCommands{s}, &authorityCommands{session: s}
	rights := &accessCommands{s}
	// The group `image` is from another package, and its benchmark from a third one; they meet here.
	images := imagecmd.Command(s.Printer, &s.conn)
	images.AddCommand(benchcmd.ImageCommand(s.Printer, s.in))
	return slices.Concat(
		grouped(groupRun, demoCommand(s), startCommand(s), cluster.initCommand(authorities), ingestCommand(s), benchcmd.Command(s.Printer, &s.conn)),
		grouped(groupData, read.getCommand(), write.putCommand(), write.insertCommand(), write.patchCommand(), write.deleteCommand(),
			write.batchCommand(), read.scanCommand(), images),
		grouped(groupCluster,
			cluster.statusCommand(),
			doctorCommand(s),
			cluster.nodeCommand(),
			cluster.regionCommand(),
			ranges.rangeCommand(),
			(&operationCommands{session: s}).operationCommand(),
			(&operationCommands{session: s}).settingCommand(),
			(&operationCommands{session: s}).rebalanceCommand(),
			(&planCommands{s}).command(),
			(&operationCommands{session: s}).voterCommand(),
			(&tableCommands{s}).tableCommand(),
			authorities.authorityCommand(),
			authorities.tokenCommand(),
			authorities.certCommand((&trustCommands{s}).certCommands()...),
			(&trustCommands{s}).gossipCommand(),
			rights.userCommand(),
			rights.roleCommand(),
			rights.grantCommand(),
			rights.revokeCommand(),
			rights.whoAmICommand(),
			keyCommand(s),
			storeCommand(s),
			auditCommand(s),
			(&upgradeCommands{s}).upgradeCommand(),
			unsafeRecoverCommand(s),
		),
		[]*cobra.Command{contextCommand(s), a.configCommand(), versionCommand(s), completionCommand(s), manCommand(s)},
	)
}

// usageError turns an error of cobra into an error of usage.
func usageError(cmd *cobra.Command, err error) error {
	// An error of this program already has a kind and says what to do.
	if _, ok := errors.AsType[*rhumb.Error](err); ok {
		return err
	}
	// Cobra writes several lines; an error of rhumb is one line.
	msg := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n\n", "; ")
	msg = strings.Join(strings.Fields(msg), " ")
	// Cobra says how many arguments it wants, but not which.
	if strings.Contains(msg, "arg(s)") {
		given := msg[strings.LastIndexByte(msg, ' ')+1:]
		msg = fmt.Sprintf("wrong number of arguments (%s); write %s", given, cmd.UseLine())
	}
	if names, found := strings.CutPrefix(msg, "required flag(s) "); found {
		names = strings.TrimSuffix(names, " not set")
		msg = "give " + strings.ReplaceAll(strings.ReplaceAll(names, ` "`, " --"), `"`, "")
	}
	return rhumb.E("rhumb.usage", rhumb.InvalidArgument, fmt.Sprintf("%s; see `%s --help`", msg, cmd.CommandPath()))
}

// formatAsked finds the value of -o in a command line. It does not use the
// parsed flag because a command line that cannot be parsed fails too, and a
// program that asked for documents gets its error as one.
func formatAsked(args []string) (format string) {
	// The last -o wins, as in the parser of flags.
	for i, arg := range args {
		// Arguments after -- are data, even if they look like flags.
		if arg == "--" {
			break
		}
		for _, prefix := range []string{"--output=", "-o=", "-o"} {
			if value, ok := strings.CutPrefix(arg, prefix); ok && value != "" {
				format = value
				break
			}
		}
		if (arg == "-o" || arg == "--output") && i+1 < len(args) {
			format = args[i+1]
		}
	}
	return format
}

// must panics on errors that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
