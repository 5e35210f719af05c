package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// clusterSettingDoc is a setting of the cluster.
type clusterSettingDoc struct {
	// Name and Value are the arguments of `rhumb setting set`.
	Name  string `json:"name"`
	Value string `json:"value"`
	// Default is the value if nobody has set one, and Help is a line about the meaning.
	Default string `json:"default"`
	Help    string `json:"help"`
}

// settingCommand is `rhumb setting`.
func (oc *operationCommands) settingCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the settings of the cluster", Args: cobra.NoArgs, Example: "  rhumb setting ls",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return oc.conn.With(cmd.Context(), oc.listSettings)
		},
	}
	// Both commands print all settings afterwards, so that the operator sees the change in place.
	change := func(ctx context.Context, name, value string) error {
		return oc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
			if err := c.SetSetting(ctx, name, value); err != nil {
				return err
			}
			return oc.listSettings(ctx, c)
		})
	}
	set := &cobra.Command{
		Use: "set NAME VALUE", Short: "Change a setting of the cluster", Args: cobra.ExactArgs(2), Example: "  rhumb setting set replace_after 5m",
		RunE: func(cmd *cobra.Command, args []string) error {
			// The request takes an empty value as a reset, which nobody should cause by an empty variable.
			if args[1] == "" {
				return rhumb.E("rhumb.setting", rhumb.InvalidArgument, "the value is empty; `rhumb setting reset NAME` restores the default")
			}
			return change(cmd.Context(), args[0], args[1])
		},
	}
	reset := &cobra.Command{
		Use: "reset NAME", Short: "Restore the default of a setting", Args: cobra.ExactArgs(1), Example: "  rhumb setting reset replace_after",
		RunE: func(cmd *cobra.Command, args []string) error { return change(cmd.Context(), args[0], "") },
	}
	return commandGroup("setting", "List and change settings of the cluster", oc.connected(ls), oc.connected(set), oc.connected(reset))
}

// listSettings prints the settings of the cluster with their defaults.
func (oc *operationCommands) listSettings(ctx context.Context, c *client.Client) error {
	values, err := c.Settings(ctx)
	if err != nil {
		return err
	}
	docs := []clusterSettingDoc{}
	// The names, defaults and texts are those of this program. The cluster returns the values that were set.
	for _, s := range rhumb.Settings() {
		doc := clusterSettingDoc{Name: s.Name, Value: s.Default, Default: s.Default, Help: s.Help}
		if v, ok := values[s.Name]; ok {
			doc.Value = v
		}
		docs = append(docs, doc)
	}
	return oc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NAME", "VALUE", "DEFAULT", "HELP"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Name, d.Value, d.Default, d.Help})
		}
	})
}
