package main

import "github.com/spf13/cobra"

func (a *app) snapshotCommand() *cobra.Command {
	return noArgsGroup("snapshot", "Look at images of tables in shared memory", a.snapshotBenchCommand())
}
