package rhumb

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// Numbers and names of kinds stand on the wire and in scripts: this list may only grow at its end.
func TestKindsAreFixed(t *testing.T) {
	want := strings.Fields(`other invalid_argument not_found already_exists condition_failed not_primary unavailable
		overloaded unknown_outcome corrupt unauthenticated permission_denied deadline_exceeded canceled too_large disk_full
		wrong_cluster incompatible conflict expired internal`)
	kinds := Kinds()
	if len(kinds) < len(want) {
		t.Fatalf("%d kinds, there were %d", len(kinds), len(want))
	}
	for i, name := range want {
		if kinds[i] != Kind(i) || kinds[i].String() != name {
			t.Errorf("kind %d is %d %q, want %q", i, kinds[i], kinds[i], name)
		}
	}
	if got := Kind(200).String(); got != "kind_200" {
		t.Errorf("an unknown kind is shown as %q", got)
	}
}

// A kind that says "not applied" lets a client send the write again: the list of those that do not say it is what safety
// rests on.
func TestNotApplied(t *testing.T) {
	unsure := map[Kind]bool{Other: true, Unknown: true, Corrupt: true, DeadlineExceeded: true, Expired: true, Internal: true}
	for _, k := range Kinds() {
		if got := k.NotApplied(); got == unsure[k] {
			t.Errorf("%v: NotApplied is %v", k, got)
		}
	}
	if Kind(200).NotApplied() {
		t.Error("an unknown kind, from a newer node, counts as not applied")
	}
}

// The present version is found beneath what callers wrap around it, and only where a condition failed.
func TestCurrentOf(t *testing.T) {
	v := Version{HLC: 5, Node: 6}
	base := &Error{Op: "replica.Propose", Kind: ConditionFailed, Current: v}
	for err, want := range map[error]Version{
		base: v, Wrap("client.Put", base): v, fmt.Errorf("line 1: %w", Wrap("client.Put", base)): v,
		WrapKind("client.Put", Unknown, base): {}, E("a", ConditionFailed, "absent"): {}, io.EOF: {},
	} {
		if got := CurrentOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if got := CurrentOf(nil); !got.IsZero() {
		t.Errorf("no error has version %s", got)
	}
}

func TestErrorIsAs(t *testing.T) {
	base := &Error{Op: "storage.Get", Kind: NotFound, Range: RangeID{1, 2}, Node: 3, Msg: "no such key"}
	wrapped := fmt.Errorf("while reading: %w", Wrap("client.Get", base))
	if !errors.Is(wrapped, ErrNotFound) || errors.Is(wrapped, ErrUnavailable) {
		t.Error("errors.Is does not go by kind")
	}
	if errors.Is(wrapped, &Error{Kind: NotFound, Msg: "another"}) {
		t.Error("a target with a message matches errors of its kind")
	}
	got, ok := errors.AsType[*Error](wrapped)
	if !ok || got.Op != "client.Get" || got.Kind != NotFound {
		t.Errorf("the outermost error is %+v", got)
	}
	if !errors.Is(wrapped, base) {
		t.Error("the cause is lost")
	}
}

func TestErrorText(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{E("keys.Decode", Corrupt, "bad kind at offset 8"), "keys.Decode: corrupt: bad kind at offset 8"},
		{&Error{Op: "host.Propose", Kind: NotPrimary, Range: RangeID{1, 2}, Node: 3}, "host.Propose: not_primary (range 1/2) (node n3)"},
		{&Error{Kind: Unavailable}, "unavailable"},
		{WrapKind("storage.Open", DiskFull, io.ErrShortWrite), "storage.Open: disk_full: short write"},
		{Ef("a.B", TooLarge, "%d > %d", 2, 1), "a.B: too_large: 2 > 1"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("got  %q\nwant %q", got, tc.want)
		}
	}
}

func TestWrap(t *testing.T) {
	if Wrap("a.B", nil) != nil || WrapKind("a.B", Corrupt, nil) != nil {
		t.Error("wrapping nil gives an error")
	}
	for _, tc := range []struct {
		err  error
		want Kind
	}{
		{nil, Other},
		{io.EOF, Other},
		{Wrap("a.B", io.EOF), Other},
		{Wrap("a.B", E("c.D", Expired, "")), Expired},
		{WrapKind("a.B", Unknown, E("c.D", Expired, "")), Unknown},
		{errors.Join(io.EOF, E("c.D", Corrupt, "")), Corrupt},
	} {
		if got := KindOf(tc.err); got != tc.want {
			t.Errorf("%v: kind %v, want %v", tc.err, got, tc.want)
		}
	}
}
