package main

import (
	"encoding/hex"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// keyCommand returns the group `rhumb key`. It needs neither a cluster nor a store.
func keyCommand(s *session) *cobra.Command {
	explain := &cobra.Command{
		Use:   "explain KEY",
		Short: "Decode a key, byte by byte",
		Long: `Decode a key, byte by byte: its home (the region and slot in which it was first written), its table, name and version.
KEY is hexadecimal digits; spaces and a leading 0x are ignored. It is a physical key as it is stored on disk, the sixteen
bytes of a server-named key, or the eight bytes of a range.`,
		Example: "  rhumb key explain 0000000100000402000001000000002a\n  rhumb key explain '00000001 00000402' -o json",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return explainKey(s, args[0]) },
	}
	return commandGroup("key", "Decode keys", explain)
}

// explainKey prints the parts of a key, given as hexadecimal digits. Spaces are ignored, so that a key can be pasted from a
// dump.
func explainKey(s *session, digits string) error {
	const op rhumb.Op = "rhumb.key"
	raw, err := hex.DecodeString(strings.TrimPrefix(strings.Join(strings.Fields(digits), ""), "0x"))
	if err != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "KEY %q is not an even number of hexadecimal digits", digits)
	}
	e, err := keys.Explain(raw)
	if err != nil {
		return err
	}
	return s.PrintTitled(e, e.Form+" "+e.Key, func(t table.Writer) {
		t.AppendHeader(table.Row{"OFFSET", "BYTES", "NAME", "VALUE"})
		for _, p := range e.Parts {
			t.AppendRow(table.Row{p.Offset, p.Bytes, p.Name, p.Value})
		}
	})
}
