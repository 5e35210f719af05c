package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// The commands of this file only start and watch. The metadata leader does the work, whoever that is at the moment, so a command may be
// interrupted at any time: the operation continues, and another command can watch it. For the same reason a command that waits
// ignores errors of single requests. The node that it asks may be the one that is being removed.

// operationCommands are `rhumb operation` and `rhumb setting`, and the commands that start long operations.
type operationCommands struct {
	*session
	// noWait is set by --no-wait. The command then returns as soon as the metadata has recorded the operation.
	noWait bool
}

// operationPoll is how often a waiting command asks how far an operation is.
const operationPoll = 500 * time.Millisecond

// operationDoc is an operation. Times that have not come are omitted.
type operationDoc struct {
	// ID has the form op12. Commands name the operation by it.
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// About names the object, such as a range or nodes.
	About string `json:"about"`
	State string `json:"state"`
	// By is the caller who started the operation.
	By string `json:"by"`
	// Percent is from 0 to 100.
	Percent float64 `json:"percent"`
	// Done and Total count steps of work; DoneBytes and TotalBytes measure them.
	Done       uint64 `json:"done"`
	Total      uint64 `json:"total"`
	DoneBytes  uint64 `json:"done_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
	// RanSeconds is how long the operation has run.
	RanSeconds float64 `json:"ran_seconds"`
	// ETASeconds is the estimated time left, or nil without an estimate.
	ETASeconds *float64 `json:"eta_seconds,omitempty"`
	// Waits says why the operation makes no progress at the moment.
	Waits   string     `json:"waits_for,omitempty"`
	Error   string     `json:"error,omitempty"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Steps are in the order in which they are taken. The list is never nil.
	Steps []operationsStep `json:"steps"`
}

// operationsStep is a step of an operation as commands print it.
type operationsStep struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// aboutOperation returns the object of an operation, such as "n3 -> n5".
func aboutOperation(o *rhumb.Operation, n names) string {
	var words []string
	if !o.Range.IsZero() {
		words = append(words, "range "+o.Range.String())
	}
	if o.Region != rhumb.LocalRegion {
		words = append(words, n.nameOf(o.Region))
	}
	if o.Node != rhumb.NoNode {
		words = append(words, o.Node.String())
	}
	if o.Target != rhumb.NoNode {
		words = append(words, "-> "+o.Target.String())
	}
	return strings.Join(words, " ")
}

// describeOperation returns the document of an operation. now is needed for running times and the expected end.
func (n names) describeOperation(o *rhumb.Operation, now time.Time) operationDoc {
	doc := operationDoc{
		ID: o.ID.String(), Kind: o.Kind.String(), About: aboutOperation(o, n), State: o.State.String(), By: o.By, Percent: 100 * o.Progress.Share(),
		Done: o.Progress.Done, Total: o.Progress.Total, DoneBytes: o.Progress.DoneBytes, TotalBytes: o.Progress.TotalBytes,
		RanSeconds: o.Running(now).Seconds(), Waits: o.Waits, Error: o.Error, Started: o.Started, Steps: []operationsStep{},
	}
	// Progress may end below 100 % if less had to be done than was planned.
	if o.State == rhumb.OperationDone {
		doc.Percent = 100
	}
	if eta, ok := o.ETA(now); ok {
		seconds := eta.Seconds()
		doc.ETASeconds = &seconds
	}
	if !o.Ended.IsZero() {
		doc.Ended = &o.Ended
	}
	for _, s := range o.Steps {
		doc.Steps = append(doc.Steps, operationsStep{s.Name, s.State.String()})
	}
	return doc
}

// etaText returns the estimated time left for an operation, for people.
func (d *operationDoc) etaText() string {
	if d.ETASeconds == nil {
		return ""
	}
	return time.Duration(*d.ETASeconds * float64(time.Second)).Round(time.Second).String()
}

// operationCommand returns the group `rhumb operation`.
func (oc *operationCommands) operationCommand() *cobra.Command {
	var all bool
	ls := &cobra.Command{
		Use: "ls", Short: "List the long operations that are not over, and the newest that are", Args: cobra.NoArgs,
		Example: "  rhumb operation ls\n  rhumb operation ls --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error { return oc.listOperations(ctx, c, all) })
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "all that the cluster remembers, not only the newest ten that are over")
	describe := &cobra.Command{
		Use: "describe OPERATION", Short: "Show an operation with its steps", Args: cobra.ExactArgs(1), Example: "  rhumb operation describe op12",
		RunE: oc.onOperation(func(ctx context.Context, c *client.Client, id rhumb.OperationID) error {
			o, err := c.Operation(ctx, id)
			if err != nil {
				return err
			}
			return oc.printOperation(c, o)
		}),
	}
	// pause, resume and cancel differ in the action only.
	control := func(use, short string, action uint32) *cobra.Command {
		return &cobra.Command{
			Use: use + " OPERATION", Short: short, Args: cobra.ExactArgs(1), Example: "  rhumb operation " + use + " op12",
			RunE: oc.onOperation(func(ctx context.Context, c *client.Client, id rhumb.OperationID) error {
				o, err := c.ControlOperation(ctx, id, action)
				if err != nil {
					return err
				}
				if o.Kind == rhumb.OperationRemoveRegion && o.State == rhumb.OperationCancelled {
					if note := movedAway(o.Region, c.Regions(), c.Nodes(), c.Ranges(), c.Tables()); note != "" {
						oc.Notef("%s", note)
					}
				}
				return oc.printOperation(c, o)
			}),
		}
	}
	wait := &cobra.Command{
		Use: "wait OPERATION", Short: "Wait until an operation is over, and show its progress", Args: cobra.ExactArgs(1),
		Long: `Wait until an operation is over. The operation goes on if this command ends. The command fails if the operation fails or is
cancelled.`,
		Example: "  rhumb operation wait op12",
		RunE: oc.onOperation(func(ctx context.Context, c *client.Client, id rhumb.OperationID) error {
			return oc.await(ctx, c, id)
		}),
	}
	group := commandGroup("operation", "List, pause, resume and cancel long operations of the cluster", oc.connected(ls), oc.connected(describe),
		oc.connected(control("pause", "Pause an operation: it moves nothing until it is resumed", client.PauseOperation)),
		oc.connected(control("resume", "Resume a paused operation", client.ResumeOperation)),
		oc.connected(control("cancel", "Cancel an operation; what it has moved stays where it is", client.CancelOperation)), oc.connected(wait))
	return group
}

// onOperation runs a command for the operation that its argument names.
func (oc *operationCommands) onOperation(fn func(context.Context, *client.Client, rhumb.OperationID) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		id, err := rhumb.ParseOperationID(args[0])
		if err != nil {
			return err
		}
		return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error { return fn(ctx, c, id) })
	}
}

// operationsOverShown is how many operations that are over `operation ls` shows without --all.
const operationsOverShown = 10

// listOperations prints the operations in progress, or all that the metadata still remembers.
func (oc *operationCommands) listOperations(ctx context.Context, c *client.Client, all bool) error {
	list, err := c.Operations(ctx)
	if err != nil {
		return err
	}
	// Operations that are not over are always shown, however many there are. The list is in the order of IDs, so the oldest of
	// those that are over are left out.
	over := 0
	for _, o := range list {
		if o.State.IsOver() {
			over++
		}
	}
	n, docs := regionNames(c), []operationDoc{}
	for _, o := range list {
		if o.State.IsOver() && !all && over > operationsOverShown {
			over--
			continue
		}
		docs = append(docs, n.describeOperation(o, time.Now()))
	}
	return oc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"OPERATION", "KIND", "ABOUT", "STATE", "DONE", "RAN", "ETA", "BY", "WAITS FOR"})
		for _, d := range docs {
			// An operation that is over waits for nothing, so the column has either a reason or an error.
			t.AppendRow(table.Row{d.ID, d.Kind, d.About, d.State, d.progress(), ran(d.RanSeconds), d.etaText(), d.By, d.Waits + d.Error})
		}
	})
}

// progress returns the progress for people.
func (d *operationDoc) progress() string {
	what := "ranges"
	if d.Kind == rhumb.OperationMoveVote.String() {
		what = "votes"
	}
	// Bytes are estimates by the reports of primaries, and ranges that hold nothing have none.
	if d.TotalBytes == 0 {
		return fmt.Sprintf("%.0f%% (%d of %d %s)", d.Percent, d.Done, d.Total, what)
	}
	return fmt.Sprintf("%.0f%% (%d of %d %s, %s of %s)", d.Percent, d.Done, d.Total, what, bytesText(d.DoneBytes), bytesText(d.TotalBytes))
}

// barText returns the text next to the bar of an operation. Without the reason of a wait, a bar that does not move would look like a command
// that hangs.
func (d *operationDoc) barText() string {
	text := d.ID + " " + d.Kind
	if d.About != "" {
		text += " " + d.About
	}
	if d.Waits != "" {
		text += ", " + d.Waits
	}
	return output.Shorten(text)
}

// bytesText returns a number of bytes for people, in the unit that leaves few digits.
func bytesText(b uint64) string {
	switch {
	case b < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(b)/(1<<10))
	case b < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(b)/(1<<30))
}

// ran returns a running time, given in seconds, as text.
func ran(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// printOperation prints an operation with its steps.
func (oc *operationCommands) printOperation(c *client.Client, o *rhumb.Operation) error {
	doc := regionNames(c).describeOperation(o, time.Now())
	// A rebalance of all regions is about no object.
	what := strings.TrimSpace(doc.Kind + " " + doc.About)
	title := fmt.Sprintf("%s: %s, %s, %s done in %s, started by %s", doc.ID, what, doc.State, doc.progress(), ran(doc.RanSeconds), doc.By)
	if eta := doc.etaText(); eta != "" {
		title += ", about " + eta + " left"
	}
	if doc.Waits != "" {
		title += "; waits: " + doc.Waits
	}
	if doc.Error != "" {
		title += "; error: " + doc.Error
	}
	return oc.PrintTitled(doc, title, func(t table.Writer) {
		t.AppendHeader(table.Row{"STEP", "STATE"})
		for _, s := range doc.Steps {
			t.AppendRow(table.Row{s.Name, s.State})
		}
	})
}

// addNoWait adds --no-wait to a command that starts an operation.
func (oc *operationCommands) addNoWait(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&oc.noWait, "no-wait", false, "return once the operation has begun")
	return oc.connected(c)
}

// start starts an operation and waits for it unless --no-wait is given.
func (oc *operationCommands) start(ctx context.Context, c *client.Client, o rhumb.Operation) error {
	begun, err := c.StartOperation(ctx, o)
	if err != nil {
		return err
	}
	if oc.noWait {
		return oc.printOperation(c, begun)
	}
	return oc.await(ctx, c, begun.ID)
}

// endsWait reports whether an error of a request ends the wait for an operation. After any other the operation continues, for example while it
// stops the node that was asked, and another node may answer. These stay until somebody changes something.
func endsWait(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.NotFound, rhumb.PermissionDenied, rhumb.Unauthenticated, rhumb.Incompatible, rhumb.WrongCluster:
		return true
	}
	return false
}

// await shows the progress of an operation until it is over. The operation does not depend on this process.
func (oc *operationCommands) await(ctx context.Context, c *client.Client, id rhumb.OperationID) error {
	// The bar shows percent and not ranges, because the share follows bytes where sizes are known. Without a terminal there is no bar, and
	// each change is a line instead, so that the log of a script says what happened.
	bar := oc.Bar(100)
	// The last text is kept so that a line is printed only if it differs.
	last := ""
	note := func(text string) {
		if text == last {
			return
		}
		last = text
		if bar != nil {
			_ = bar.Clear()
		}
		oc.Notef("%s", text)
	}
	for {
		o, err := c.Operation(ctx, id)
		switch {
		case err != nil && (ctx.Err() != nil || endsWait(err)):
			return err
		case err != nil:
			note(fmt.Sprintf("%s: no answer: %s; the operation goes on, and is asked for again", id, rhumb.Message(err)))
		default:
			doc := regionNames(c).describeOperation(o, time.Now())
			text := fmt.Sprintf("%s %s: %s", doc.ID, doc.State, doc.progress())
			if doc.Waits != "" {
				text += ", " + doc.Waits
			}
			if bar != nil {
				bar.Describe(output.EscapeLines(doc.barText()))
				_ = bar.Set64(int64(doc.Percent)) // a failure to draw must not fail the work
				last = ""                         // the bar has taken the place of a note
			} else {
				note(text)
			}
			if o.State.IsOver() {
				if bar != nil {
					_ = bar.Finish()
				}
				return oc.finish(c, o)
			}
		}
		select {
		case <-ctx.Done():
			return rhumb.Ef("rhumb.operation", rhumb.Canceled, "%s goes on; `rhumb operation wait %s` waits again, `rhumb operation cancel %s` ends it", id, id, id)
		case <-time.After(operationPoll):
		}
	}
}

// finish prints an operation that is over, and fails if it did not reach its end.
func (oc *operationCommands) finish(c *client.Client, o *rhumb.Operation) error {
	if err := oc.printOperation(c, o); err != nil {
		return err
	}
	// The exit code shows a waiting script whether the node can be stopped.
	if o.State != rhumb.OperationDone {
		why := o.Error
		if why == "" {
			why = fmt.Sprintf("`rhumb operation describe %s` shows how far it came", o.ID)
		}
		return rhumb.Ef("rhumb.operation", rhumb.Conflict, "operation %s is %s: %s", o.ID, o.State, why)
	}
	return nil
}

// moveCommand is `rhumb range move`.
func (oc *operationCommands) moveCommand() *cobra.Command {
	move := &cobra.Command{
		Use: "move REGION/SLOT FROM TO", Short: "Move one copy of a range to another node",
		Long: `Move the copy of a range from one node to another node of its region, with the role of primary if the copy has it. The new copy is
in sync before the old one goes.
` + connect.NodeHelp,
		Example: "  rhumb range move frankfurt/12 n1 n4",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			named, err := connect.ParseNodes(args[1:]...)
			if err != nil {
				return err
			}
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				// The name of the region is resolved here, because the request has its number.
				id, err := parseRange(c, args[0])
				if err != nil {
					return err
				}
				nodes, err := connect.FindNodes(named, c.Nodes())
				if err != nil {
					return err
				}
				return oc.start(ctx, c, rhumb.Operation{Kind: rhumb.OperationMove, Range: id, Node: nodes[0], Target: nodes[1]})
			})
		},
	}
	return oc.addNoWait(move)
}
