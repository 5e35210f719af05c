package rhumb

import (
	"fmt"
	"strings"
	"time"
)

// Durability says when a write of a table may be acknowledged. Synced, the zero value, is the default: every in-sync copy has the
// write on its disk. Any other value is a window. Then every in-sync copy has handed the write to its operating system, and syncs
// it within the window. The end of a process loses no such write, a loss of power may lose those of the last window, if it meets
// all copies that count (docs/replication.md#deferred).
type Durability time.Duration

// Synced acknowledges no write before it is synced on all in-sync copies.
const Synced Durability = 0

// DeferMin and DeferMax bound the window of a table whose syncs are deferred. A shorter window than DeferMin ends before a disk
// has synced anything; a longer one than DeferMax saves no syncs worth mentioning.
const (
	DeferMin = Durability(time.Millisecond)
	DeferMax = Durability(10 * time.Second)
)

// syncedName and deferredName are the text forms of the two kinds of durability.
const (
	syncedName   = "sync"
	deferredName = "deferred"
)

// Window returns within what time a copy syncs a write. It is 0 if a write waits for its sync.
func (d Durability) Window() time.Duration { return time.Duration(d) }

// Deferred reports whether writes are acknowledged before they are synced.
func (d Durability) Deferred() bool { return d != Synced }

// String returns "sync", or "deferred=" with the window.
func (d Durability) String() string {
	if d == Synced {
		return syncedName
	}
	return deferredName + "=" + d.Window().String()
}

// ParseDurability parses the format of Durability.String. "" means the default.
func ParseDurability(s string) (Durability, error) {
	const op Op = "rhumb.ParseDurability"
	if s == "" || s == syncedName {
		return Synced, nil
	}
	// The window has no default: whoever defers syncs says how much may be lost.
	name, text, _ := strings.Cut(s, "=")
	window, err := time.ParseDuration(text)
	if name != deferredName || err != nil {
		return Synced, Ef(op, InvalidArgument, "durability %q is unknown; use sync, or deferred with a window, such as deferred=50ms", s)
	}
	// A window of 0 must not pass for the default, although both are the same number.
	if window == 0 {
		return Synced, E(op, InvalidArgument, Durability(window).fault())
	}
	d := Durability(window)
	return d, d.Validate()
}

// MarshalText implements encoding.TextMarshaler.
func (d Durability) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Durability) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDurability(string(text))
	return err
}

// Validate rejects a window that is too short or too long.
func (d Durability) Validate() error {
	if d != Synced && (d < DeferMin || d > DeferMax) {
		return E("rhumb.Durability", InvalidArgument, d.fault())
	}
	return nil
}

// fault explains why a window is refused.
func (d Durability) fault() string {
	return fmt.Sprintf("the window of a deferred sync is %s, but must be %s to %s", d.Window(), DeferMin.Window(), DeferMax.Window())
}
