// Package exit maps errors to exit codes, to documents for programs and to next steps for people.
// Callers look at the kind of an error and never at its text.
package exit

import (
	"errors"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// Exit codes are part of scripts and must never be renumbered. docs/cli.md lists them.
const (
	OK           = 0
	Failure      = 1
	Usage        = 2
	NotFound     = 3
	Precondition = 4
	Unavailable  = 5
	Auth         = 6
	Unknown      = 7
)

// Code returns the exit code for an error.
func Code(err error) int {
	switch rhumb.KindOf(err) {
	case rhumb.InvalidArgument, rhumb.TooLarge:
		return Usage
	case rhumb.NotFound:
		return NotFound
	case rhumb.AlreadyExists, rhumb.ConditionFailed, rhumb.Conflict:
		return Precondition
	case rhumb.NotPrimary, rhumb.Unavailable, rhumb.Overloaded, rhumb.DeadlineExceeded, rhumb.DiskFull:
		return Unavailable
	case rhumb.Unauthenticated, rhumb.PermissionDenied:
		return Auth
	case rhumb.Unknown, rhumb.Expired:
		// A script must not repeat such a write blindly, so these two have a code of their own.
		return Unknown
	}
	return Failure
}

// OpSnapshot is the operation of errors about images in shared memory.
const OpSnapshot rhumb.Op = "rhumb.snapshot"

// nextSteps say what to do about an error of a kind. The packages that make the errors do not know
// the command line.
var nextSteps = map[rhumb.Kind]string{
	rhumb.Unavailable:      "try again; `rhumb status` shows which nodes answer",
	rhumb.DeadlineExceeded: "try again with a longer --timeout; `rhumb status` shows which nodes answer",
	rhumb.Overloaded:       "try again later, or send less at once",
	rhumb.Unknown:          "the write may or may not have been applied: read the record before you write again",
	rhumb.Expired:          "whether the write was applied can no longer be determined: read the record",
	rhumb.ConditionFailed:  "read the record again, then decide",
	rhumb.DiskFull:         "`rhumb status` shows which node has no room",
}

// imageSteps replace nextSteps where an image has no room: neither the disks nor the load of the
// cluster are to blame.
var imageSteps = map[rhumb.Kind]string{
	rhumb.Overloaded: "readers keep the last version; docs/runbooks/snapshot.md describes how to make room",
	rhumb.DiskFull:   "readers keep the last version; docs/runbooks/snapshot.md describes how to make room",
}

// Doc is an error as -o json prints it. The field names are stable.
type Doc struct {
	Kind    string `json:"kind"`
	Op      string `json:"op,omitempty"`
	Message string `json:"message"`
	Range   string `json:"range,omitempty"`
	Node    string `json:"node,omitempty"`
	// CurrentVersion is the version of the record on which a condition failed. It is empty if the
	// record does not exist.
	CurrentVersion string `json:"current_version,omitempty"`
	NextStep       string `json:"next_step,omitempty"`
	ExitCode       int    `json:"exit_code"`
}

// Describe returns the document of an error. The message is that of the innermost error that has
// one: outer errors add the operations that the error passed through, which mean nothing to a
// person.
func Describe(err error) Doc {
	doc := Doc{Kind: rhumb.KindOf(err).String(), Message: err.Error(), ExitCode: Code(err)}
	bare := true // no error so far had a message
	for e := err; e != nil; e = unwrapFirst(e) {
		typed, ok := e.(*rhumb.Error)
		if !ok {
			// An error of the operating system: leave out the operations around it.
			if bare && doc.Op != "" {
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
	doc.NextStep = nextStep(doc.Op, rhumb.KindOf(err))
	if v := rhumb.CurrentOf(err); !v.IsZero() {
		doc.CurrentVersion = v.String()
	}
	return doc
}

// nextStep returns what to do about an error of a kind, or "" if the message says it.
func nextStep(op string, kind rhumb.Kind) string {
	begins := func(prefix string) bool { return strings.HasPrefix(op, prefix) }
	switch {
	case op == string(OpSnapshot) && imageSteps[kind] != "":
		return imageSteps[kind]
	case op == "host.Host.Discard", op == "rhumb.unsafe-recover", begins("authority."):
		return ""
	// The command asked a question and was not confirmed. It names --yes itself.
	case kind == rhumb.ConditionFailed && begins("rhumb."):
		return ""
	// The directory, the port or the demo of this machine is at fault, so no other node knows more.
	case kind == rhumb.Unavailable && (begins("storage.") || op == "node.listen" || begins("demo.")):
		return ""
	// No command gets an answer there, and `rhumb status` does not either.
	case kind == rhumb.Unavailable && op == "client.Ping":
		return "check the address, and that a node runs there; `rhumb doctor` checks the way to it"
	}
	return nextSteps[kind]
}

// unwrapFirst unwraps an error by one level, to the first of several joined errors.
func unwrapFirst(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return errors.Unwrap(err)
}
