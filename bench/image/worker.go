package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// reply is the answer of a worker to one line.
type reply struct {
	Ops   uint64 `json:"ops"`
	Found uint64 `json:"found"`
	CPU   int64  `json:"cpu_ns"`
	Wall  int64  `json:"wall_ns"`
	Start int64  `json:"start_ns"`
	// Sum keeps the compiler from removing reads.
	Sum   uint64 `json:"sum"`
	Error string `json:"error,omitempty"`
	// Bad counts wrong reads, Versions the versions seen. Latencies are sorted samples in ns.
	Bad       uint64  `json:"bad,omitempty"`
	Versions  uint64  `json:"versions,omitempty"`
	Latencies []int64 `json:"latencies,omitempty"`
}

// perOp returns the processor time of one operation in ns.
func (r reply) perOp() float64 { return float64(r.CPU) / float64(max(r.Ops, 1)) }

// worker is a process that takes turns with others.
type worker struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// startWorker starts a process, which ends with ctx or stop.
func startWorker(ctx context.Context, name string, command ...string) (*worker, error) {
	w := &worker{name: name, cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	return w, nil
}

// stop ends the process and ignores its last output.
func (w *worker) stop() {
	if w == nil {
		return
	}
	_ = w.in.Close()
	_ = w.cmd.Wait()
}

// send sends a worker its next case. arg contains no space. at is the start time by
// CLOCK_MONOTONIC, or 0 to start at once.
func (w *worker) send(name string, ops int, arg any, at time.Duration) error {
	text := fmt.Sprint(arg)
	// A line always has four fields.
	if text == "" {
		text = "-"
	}
	_, err := fmt.Fprintf(w.in, "%s %d %s %d\n", name, ops, text, int64(at))
	return w.wrapError(name, err)
}

// receive waits for the answer.
func (w *worker) receive(name string) (r reply, err error) {
	line, err := w.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	if err == nil && r.Error != "" {
		err = errors.New(strings.TrimSpace(r.Error))
	}
	return r, w.wrapError(name, err)
}

// wrapError adds the worker and the case to an error.
func (w *worker) wrapError(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker %s, case %s: %w", w.name, name, err)
}

// do runs one case and waits for its answer.
func (w *worker) do(name string, ops int, arg any) (reply, error) {
	if err := w.send(name, ops, arg, 0); err != nil {
		return reply{}, err
	}
	return w.receive(name)
}

// runTogether makes workers start the same case at the same moment, and returns their answers.
func runTogether(workers []*worker, name string, ops int, arg any) (out []reply, err error) {
	// 5 ms is enough for all workers to read their line before the common start.
	at := monotonicNow() + 5*time.Millisecond
	for _, w := range workers {
		if err := w.send(name, ops, arg, at); err != nil {
			return nil, err
		}
	}
	for _, w := range workers {
		r, e := w.receive(name)
		out, err = append(out, r), errors.Join(err, e)
	}
	return out, err
}
