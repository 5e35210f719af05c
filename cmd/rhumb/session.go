package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/client"
)

// session holds the state that the commands share: output, input and connection.
type session struct {
	// Printer prints results and errors in the format of -o.
	*output.Printer
	inputs
	// conn holds the flags of the connection, filled when a command is parsed.
	conn connect.Flags
}

// connected adds the flags of a connection to a command.
func (s *session) connected(c *cobra.Command) *cobra.Command {
	// All commands register the same fields. Only one command runs in a process, so they do not collide.
	s.conn.Register(c.Flags())
	if run := c.RunE; run != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			// The note comes first, because a command that fails may have failed for this reason.
			s.noteExpiry()
			return run(cmd, args)
		}
	}
	return c
}

// waitMost is how long a command waits by --timeout. 0 means the default there, as for the client.
func (s *session) waitMost() time.Duration { return cmp.Or(s.conn.Timeout, target.TimeoutDefault) }

// answerPause is the time between two attempts of awaitAnswer.
const answerPause = 200 * time.Millisecond

// awaitAnswer asks a node, and asks again while no node answers, until most is over. It is for the first commands of a
// cluster, which are often in the same script as the start of its nodes. An answer ends it at once, a refusal too.
//
// Other commands do not wait: on a cluster that exists, a node that is away is news.
func awaitAnswer[T any](ctx context.Context, s *session, most time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var last error
	for {
		answer, err := ask(ctx)
		switch {
		case err == nil || rhumb.KindOf(err) != rhumb.Unavailable:
			return answer, err
		case ctx.Err() != nil:
			// An attempt that the deadline cut short says less than the one before.
			return answer, cmp.Or(last, err)
		// Once only, so that a script's log has one line for the whole wait.
		case last == nil:
			s.Notef("%s; trying again for %v", rhumb.Message(err), most)
		}
		last = err
		select {
		case <-ctx.Done():
			return answer, last
		case <-time.After(answerPause):
		}
	}
}

// withTable runs fn with a client, the table that args[0] names, and the record name in args[1], if
// there is one.
func (s *session) withTable(ctx context.Context, args []string, fn func(context.Context, *client.Client, *client.Table, []byte) error) error {
	// A name that cannot exist fails before the command waits for a cluster.
	var name []byte
	if len(args) > 1 {
		var err error
		if name, err = rhumb.ParseName(args[1]); err != nil {
			return err
		}
	}
	return s.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		t, err := c.Table(ctx, args[0])
		if err != nil {
			return err
		}
		return fn(ctx, c, t, name)
	})
}

// askFor prints a question and returns the line that a person types, or "" if nobody answers.
func (s *session) askFor(question string) string {
	fmt.Fprint(s.Err, question)
	// The reader may take more than one line, so a command asks at most one question.
	line, _ := bufio.NewReader(s.in).ReadString('\n') // at the end of input the answer is ""
	return strings.TrimSpace(line)
}

// inputs opens the files that a command reads; "-" is standard input.
type inputs struct{ in io.Reader }

// standardInput is a file too if it is redirected. It keeps the methods of a file, such as Seek,
// but stays open.
type standardInput struct{ *os.File }

// Close does nothing.
func (standardInput) Close() error { return nil }

// openFile opens a file for reading.
func (i inputs) openFile(name string) (io.ReadCloser, error) {
	const op rhumb.Op = "rhumb.open"
	if name == "-" {
		// A redirected file keeps Seek, which an ingest uses to check gzip before it reads.
		if f, ok := i.in.(*os.File); ok {
			return standardInput{f}, nil
		}
		return io.NopCloser(i.in), nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "there is no file %s", name)
	}
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	// Only the first read would fail, with an error that is not about the argument.
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "%s is a directory; name a file", name)
	}
	return f, nil
}

// openSized opens a file and returns its size in bytes, or -1 if it is not a regular file.
func (i inputs) openSized(name string) (io.ReadCloser, int64, error) {
	src, err := i.openFile(name)
	if err != nil {
		return nil, 0, err
	}
	// A pipe has a Stat as well, but its size means nothing.
	if f, ok := src.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return src, info.Size(), nil
		}
	}
	return src, -1, nil
}

// readFile reads a file of at most limit bytes.
func (i inputs) readFile(name string, limit int64) ([]byte, error) {
	const op rhumb.Op = "rhumb.read"
	src, err := i.openFile(name)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	// One byte more than the limit shows that the file is too large without reading it all.
	content, err := io.ReadAll(io.LimitReader(src, limit+1))
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Other, "%s: %v", name, err)
	}
	if int64(len(content)) > limit {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "%s has more than %d bytes", name, limit)
	}
	return content, nil
}

// commandGroup returns a command that only holds others.
func commandGroup(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(sub...)
	return c
}
