package exit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestExitCodes guards the table in docs/cli.md: every kind has its code, and the document names
// it.
func TestExitCodes(t *testing.T) {
	want := map[rhumb.Kind]int{
		rhumb.Other: 1, rhumb.InvalidArgument: 2, rhumb.NotFound: 3, rhumb.AlreadyExists: 4, rhumb.ConditionFailed: 4, rhumb.NotPrimary: 5,
		rhumb.Unavailable: 5, rhumb.Overloaded: 5, rhumb.Unknown: 7, rhumb.Corrupt: 1, rhumb.Unauthenticated: 6, rhumb.PermissionDenied: 6,
		rhumb.DeadlineExceeded: 5, rhumb.Canceled: 1, rhumb.TooLarge: 2, rhumb.DiskFull: 5, rhumb.WrongCluster: 1, rhumb.Incompatible: 1,
		rhumb.Conflict: 4, rhumb.Expired: 7, rhumb.Internal: 1,
	}
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range rhumb.Kinds() {
		if code, ok := want[kind]; !ok || Code(rhumb.E("x", kind, "y")) != code {
			t.Errorf("kind %s has exit code %d, want %d (listed: %v)", kind, Code(rhumb.E("x", kind, "y")), code, ok)
		}
		if !bytes.Contains(doc, []byte("`"+kind.String()+"`")) {
			t.Errorf("docs/cli.md does not name kind %s", kind)
		}
	}
	if Code(fmt.Errorf("any")) != Failure || Code(rhumb.Wrap("x", rhumb.ErrNotFound)) != NotFound {
		t.Error("other errors and wrapped errors")
	}
}

// TestDescribe guards which of several messages a person sees, and that operations stay out of it.
func TestDescribe(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "/d/STORE", Err: errors.New("no such file or directory")}
	for name, test := range map[string]struct {
		err           error
		message, step string
	}{
		"plain":                    {errors.New("broken"), "broken", ""},
		"innermost message":        {rhumb.Wrap("a.B", rhumb.E("c.D", rhumb.NotFound, "there is no table t")), "there is no table t", ""},
		"message with its cause":   {rhumb.Ef("a.B", rhumb.Other, "%s: %v", "/d", missing), "/d: open /d/STORE: no such file or directory", ""},
		"operating system":         {rhumb.Wrap("a.B", missing), "open /d/STORE: no such file or directory", ""},
		"first of joined errors":   {errors.Join(rhumb.E("a.B", rhumb.NotFound, "first"), errors.New("second")), "first", ""},
		"next step of the kind":    {rhumb.E("a.B", rhumb.ConditionFailed, "stale"), "stale", "read the record again, then decide"},
		"next step of an image":    {rhumb.E(OpSnapshot, rhumb.DiskFull, "full"), "full", "readers keep the last version; docs/runbooks/snapshot.md describes how to make room"},
		"an answer was no":         {rhumb.E("rhumb.node", rhumb.ConditionFailed, "nothing was changed; --yes"), "nothing was changed; --yes", ""},
		"no node answers":          {rhumb.E("client.Ping", rhumb.Unavailable, "refused"), "refused", "check the address, and that a node runs there; `rhumb doctor` checks the way to it"},
		"a directory in use":       {rhumb.E("storage.Open", rhumb.Unavailable, "in use; stop it"), "in use; stop it", ""},
		"a refused change":         {rhumb.E("server.Op", rhumb.Conflict, "n1 is live; drain it"), "n1 is live; drain it", ""},
		"the message has the step": {rhumb.E("rhumb.unsafe-recover", rhumb.Conflict, "nothing was changed"), "nothing was changed", ""},
	} {
		if doc := Describe(test.err); doc.Message != test.message || doc.NextStep != test.step || doc.ExitCode != Code(test.err) {
			t.Errorf("%s: %+v", name, doc)
		}
	}
}
