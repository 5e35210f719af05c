package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
)

// Exit codes stand in scripts: never renumber. docs/cli.md lists them.
const (
	exitOK           = 0
	exitFailure      = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitPrecondition = 4
	exitUnavailable  = 5
	exitAuth         = 6
	exitUnknown      = 7
)

// exitCode tells what sort of thing went wrong.
func exitCode(err error) int {
	switch rhumb.KindOf(err) {
	case rhumb.InvalidArgument, rhumb.TooLarge:
		return exitUsage
	case rhumb.NotFound:
		return exitNotFound
	case rhumb.AlreadyExists, rhumb.ConditionFailed, rhumb.Conflict:
		return exitPrecondition
	case rhumb.NotPrimary, rhumb.Unavailable, rhumb.Overloaded, rhumb.DeadlineExceeded, rhumb.DiskFull:
		return exitUnavailable
	case rhumb.Unauthenticated, rhumb.PermissionDenied:
		return exitAuth
	case rhumb.Unknown, rhumb.Expired:
		return exitUnknown
	}
	return exitFailure
}

// nextSteps tell what to do about an error, where its message cannot know the command line.
var nextSteps = map[rhumb.Kind]string{
	rhumb.Unavailable:      "try again; `rhumb status` says which nodes answer",
	rhumb.DeadlineExceeded: "try again with a longer --timeout; `rhumb status` says which nodes answer",
	rhumb.Overloaded:       "try again later, or send less at once",
	rhumb.Unknown:          "the write may or may not have been applied: read the record before you write again",
	rhumb.Expired:          "whether the write was applied cannot be known any more: read the record",
	rhumb.ConditionFailed:  "read the record again, then decide",
	rhumb.Conflict:         "something else changed it at the same time: look again, then repeat",
	rhumb.DiskFull:         "`rhumb status` says which node has no room",
}

// usageError makes an error of usage of what cobra says.
func usageError(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*rhumb.Error](err); ok {
		return err
	}
	msg := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n\n", "; ")
	msg = strings.Join(strings.Fields(msg), " ")
	if strings.Contains(msg, "arg(s)") { // it says how many, not which
		msg += ": " + cmd.UseLine()
	}
	return rhumb.E("rhumb.usage", rhumb.InvalidArgument, fmt.Sprintf("%s; see `%s --help`", msg, cmd.CommandPath()))
}

// errorDoc is an error as -o json prints it. Field names are stable.
type errorDoc struct {
	Kind    string `json:"kind"`
	Op      string `json:"op,omitempty"`
	Message string `json:"message"`
	Range   string `json:"range,omitempty"`
	Node    string `json:"node,omitempty"`
	// CurrentVersion is the version that the record has, when a condition on it failed; left out when there is no record.
	CurrentVersion string `json:"current_version,omitempty"`
	NextStep       string `json:"next_step,omitempty"`
	ExitCode       int    `json:"exit_code"`
}

// imageSteps tell what to do where an image has no room: neither the cluster's disks nor its load are to blame.
var imageSteps = map[rhumb.Kind]string{
	rhumb.Overloaded: "readers go on with the last version; docs/runbooks/snapshot.md says how to make room",
	rhumb.DiskFull:   "readers go on with the last version; docs/runbooks/snapshot.md says how to make room",
}

func describeError(err error) errorDoc {
	doc := errorDoc{
		Kind: rhumb.KindOf(err).String(), Message: err.Error(), ExitCode: exitCode(err), NextStep: nextSteps[rhumb.KindOf(err)],
	}
	bare := true // nothing was said yet
	for e := err; e != nil; e = cause(e) {
		typed, ok := e.(*rhumb.Error)
		if !ok {
			if bare && doc.Op != "" { // what the operating system says, without the operations that it passed through
				doc.Message = e.Error()
			}
			bare = false
			continue
		}
		bare = bare && typed.Msg == ""
		doc.Op = string(typed.Op)
		if typed.Msg != "" {
			doc.Message = typed.Msg
			if typed.Err != nil {
				doc.Message += ": " + rhumb.Message(typed.Err)
			}
		}
		if !typed.Range.IsZero() {
			doc.Range = typed.Range.String()
		}
		if typed.Node != rhumb.NoNode {
			doc.Node = typed.Node.String()
		}
	}
	if step := imageSteps[rhumb.KindOf(err)]; step != "" && doc.Op == string(opSnapshot) {
		doc.NextStep = step
	}
	if doc.Op == "host.Host.Discard" || doc.Op == "rhumb.unsafe-recover" { // the message says what to do
		doc.NextStep = ""
	}
	if v := rhumb.CurrentOf(err); !v.IsZero() {
		doc.CurrentVersion = v.String()
	}
	return doc
}

// cause gives what stands within an error, the first where several were joined.
func cause(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return errors.Unwrap(err)
}

// printError writes an error to the error stream, as JSON when the command line asks for it.
func (a *app) printError(args []string, err error) {
	doc := describeError(err)
	if a.output == outputJSON || asksForJSON(args) {
		_ = json.NewEncoder(visibleJSON{a.err}).Encode(map[string]errorDoc{"error": doc})
		return
	}
	fmt.Fprintf(a.err, "rhumb: %s: %s\n", strings.ReplaceAll(doc.Kind, "_", " "), visibleLines(doc.Message))
	if doc.NextStep != "" {
		fmt.Fprintf(a.err, "  next: %s\n", doc.NextStep)
	}
}

// asksForJSON finds -o json in a command line that could not be parsed.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		if slices.Contains([]string{"-ojson", "-o=json", "--output=json"}, arg) {
			return true
		}
		if (arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == outputJSON {
			return true
		}
	}
	return false
}
