package main

import (
	"runtime"
	"runtime/debug"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
)

// version is the version of the release. The Makefile sets it with -ldflags "-X main.version=…".
var version = "dev"

// versionDoc is what `rhumb version` prints.
type versionDoc struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
	Dirty   bool   `json:"dirty"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

// describeVersion returns the version and the build information of the Go toolchain.
func describeVersion() versionDoc {
	doc := versionDoc{Version: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return doc
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			doc.Commit = s.Value
		case "vcs.time":
			doc.Date = s.Value
		case "vcs.modified":
			doc.Dirty = s.Value == "true"
		}
	}
	return doc
}

// versionCommand is `rhumb version`. It needs no cluster.
func versionCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		Example: "  rhumb version\n  rhumb version -o json",
		RunE: func(*cobra.Command, []string) error {
			doc := describeVersion()
			return s.Print(doc, func(t table.Writer) {
				t.AppendRow(table.Row{"rhumb", doc.Version, doc.Commit, doc.Go, doc.System})
			})
		},
	}
}

// shells lists the shells for which cobra can generate completions.
var shells = []string{"bash", "zsh", "fish", "powershell"}

// completionCommand is `rhumb completion`, which prints a script for a shell.
func completionCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "completion {bash|zsh|fish|powershell}", Short: "Print a completion script for a shell",
		Example:   "  rhumb completion bash > /etc/bash_completion.d/rhumb\n  source <(rhumb completion zsh)",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			const op rhumb.Op = "rhumb.completion"
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return rhumb.Wrap(op, root.GenBashCompletionV2(s.Out, true))
			case "zsh":
				return rhumb.Wrap(op, root.GenZshCompletion(s.Out))
			case "fish":
				return rhumb.Wrap(op, root.GenFishCompletion(s.Out, true))
			}
			return rhumb.Wrap(op, root.GenPowerShellCompletionWithDesc(s.Out))
		},
	}
}
