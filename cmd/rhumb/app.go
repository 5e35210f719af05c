package main

import (
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rhumbdb/rhumb"
)

// streams are where a command reads and writes. Data goes to out, all else to err.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is one run of the program: what its global flags say, and where it reads and writes.
type app struct {
	streams
	settings settings
	output   string
	noColor  bool
	conn     connFlags
	// entered is set when a command begins: errors before that are errors of usage.
	entered bool
}

// run carries out one command line and gives the exit code.
func run(ctx context.Context, args []string, s streams) int {
	a := &app{streams: s}
	root := a.rootCommand()
	root.SetArgs(places(root, args))
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !a.entered {
		err = usageError(cmd, err)
	}
	if ctx.Err() != nil && rhumb.KindOf(err) == rhumb.Other { // what failed because a signal ended it
		err = rhumb.Ef("rhumb.run", rhumb.Canceled, "broken off before it was done: %s", rhumb.Message(err))
	}
	a.printError(args, err)
	return exitCode(err)
}

// southWest matches a place or box that lies south or west, such as -10.5,35,-9,45.
var southWest = regexp.MustCompile(`^-[0-9.]+(,-?[0-9.]+){2,3}$`)

// takesPlace marks the commands that have a place or box as an argument.
const takesPlace = "takes-place"

// places lets no place pass for a flag because it begins with a minus sign: what reads numbers skips the space. It leaves the
// arguments of all other commands alone, where the same text may be a key or a value.
func places(root *cobra.Command, args []string) []string {
	if cmd, _, err := root.Find(args); err != nil || cmd.Annotations[takesPlace] == "" {
		return args
	}
	out := slices.Clone(args)
	for i, arg := range out {
		if southWest.MatchString(arg) {
			out[i] = " " + arg
		}
	}
	return out
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rhumb",
		Short: "A geo-partitioned key-value database",
		Long: `Rhumb keeps records in the region that writes them, answers from the nearest copy,
and goes on when nodes die. This one program is the node, its tools and a demonstration.`,
		Example: `  rhumb demo                                            three regions on this machine, with a live feed
  rhumb put flights SWR8 ident=SWR8 location=47.4,8.5    in another terminal
  rhumb get flights SWR8 --from virginia
  rhumb status`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settings.load(cmd); err != nil {
				return err
			}
			if !slices.Contains(outputs, a.output) {
				return rhumb.Ef("rhumb.flags", rhumb.InvalidArgument, "-o %q is none of %s", a.output, strings.Join(outputs, ", "))
			}
			if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
				return err
			}
			a.entered = true
			return nil
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", "table", "how to print data: table or json")
	flags.BoolVar(&a.noColor, "no-color", false, "print without colours; NO_COLOR does the same")
	flags.StringVar(&a.settings.file, "config", "", "configuration file (default "+configFileDefault+" where it exists)")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)))

	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupData, Title: "Use data:"},
		&cobra.Group{ID: groupCluster, Title: "Look after a cluster:"},
	)
	root.AddCommand(a.commands()...)
	return root
}

// The groups of commands in the help.
const (
	groupRun     = "run"
	groupData    = "data"
	groupCluster = "cluster"
)

// grouped puts commands into a group of the help.
func grouped(id string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = id
	}
	return commands
}

// commands lists all commands.
func (a *app) commands() []*cobra.Command {
	return slices.Concat(
		grouped(groupRun, a.demoCommand(), a.startCommand(), a.initCommand(), a.ingestCommand(), a.benchCommand()),
		grouped(groupData, a.getCommand(), a.putCommand(), a.insertCommand(), a.patchCommand(), a.deleteCommand(),
			a.batchCommand(), a.scanCommand(), a.snapshotCommand()),
		grouped(groupCluster, a.statusCommand(), a.nodeCommand(), a.regionCommand(), a.rangeCommand(), a.tableCommand(),
			a.keyCommand(), a.storeCommand(), a.unsafeRecoverCommand()),
		[]*cobra.Command{a.configCommand(), a.versionCommand(), a.completionCommand()},
	)
}

// must panics on errors that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// noArgsGroup makes a command that only holds others.
func noArgsGroup(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(sub...)
	return c
}
