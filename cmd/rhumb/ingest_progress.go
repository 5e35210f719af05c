package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/ingest"
)

const (
	// lineInterval is how often a line is written where no bar can be shown.
	lineInterval = 10 * time.Second
	// rejectsShown bounds the malformed lines that are told on the error stream; --reject keeps all.
	rejectsShown = 100
)

// countingReader counts what is read of an input, before it is unpacked.
type countingReader struct {
	src  io.Reader
	read atomic.Int64
}

// Seek lets a run read a file twice, where the input is one; what is counted follows the place.
func (r *countingReader) Seek(offset int64, whence int) (int64, error) {
	s, ok := r.src.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	at, err := s.Seek(offset, whence)
	if err == nil {
		r.read.Store(at)
	}
	return at, err
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	r.read.Add(int64(n))
	return n, err
}

// showProgress shows how far a run is, on the error stream, until stop is called.
func (ic *ingestion) showProgress(r *ingest.Run, input *countingReader, size int64) (stop func()) {
	interval, show := lineInterval, func() { ic.Notef("%s", progressLine(r.Counts(), input.read.Load(), size)) }
	finish := func() {}
	if bar := ic.Bar(size, progressbar.OptionShowBytes(true), progressbar.OptionThrottle(output.BarInterval/2)); bar != nil {
		last, lastTime := int64(0), time.Now()
		interval, show = output.BarInterval, func() {
			done := doneLines(r.Counts())
			rate := float64(done-last) / time.Since(lastTime).Seconds()
			last, lastTime = done, time.Now()
			bar.Describe(fmt.Sprintf("%d events, %.0f/s", done, rate))
			_ = bar.Set64(input.read.Load())
		}
		finish = func() { _ = bar.Finish() }
	}
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				show()
			}
		}
	})
	return func() {
		close(quit)
		done.Wait()
		finish()
	}
}

func doneLines(c ingest.Counts) int64 { return c.Applied + c.AlreadyThere + c.Rejected + c.Failed }

func progressLine(c ingest.Counts, read, size int64) string {
	part := ""
	if size > 0 {
		part = fmt.Sprintf(" (%.0f %% of the file)", 100*float64(read)/float64(size))
	}
	return fmt.Sprintf("ingest: %d events%s: %d applied, %d already there, %d rejected", doneLines(c), part, c.Applied, c.AlreadyThere, c.Rejected)
}

// rejects writes malformed lines to where the flags say, and tells the first of them.
type rejects struct {
	notes          *output.Printer
	lines, reasons *os.File
	toLines        *bufio.Writer
	toReasons      *bufio.Writer
	told           int
}

const opReject rhumb.Op = "rhumb.reject"

// reasonsFile names the file that holds why lines were rejected.
func reasonsFile(path string) string { return path + ".reasons" }

// checkRejects refuses files for rejected lines that the run reads, by whatever name, and one file for both lines and reasons.
func checkRejects(path string, inputs []fs.FileInfo) error {
	if path == "" {
		return nil
	}
	var last fs.FileInfo
	for _, target := range []string{path, reasonsFile(path)} {
		info, err := os.Stat(target)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if slices.ContainsFunc(inputs, func(input fs.FileInfo) bool { return os.SameFile(info, input) }) {
			return rhumb.Ef(opReject, rhumb.InvalidArgument, "--reject: %s is a file that this ingest reads; name another one for the malformed lines", target)
		}
		if last != nil && os.SameFile(info, last) {
			return rhumb.Ef(opReject, rhumb.InvalidArgument, "--reject: %s and %s are one file; name another one", path, target)
		}
		last = info
	}
	return nil
}

// openRejects opens the files for rejected lines and their reasons. What they hold stays: an ingest that is started again
// appends to it.
func openRejects(notes *output.Printer, path string) (r *rejects, err error) {
	r = &rejects{notes: notes}
	if path == "" {
		return r, nil
	}
	if r.lines, err = appendTo(path); err != nil {
		return nil, err
	}
	if r.reasons, err = appendTo(reasonsFile(path)); err != nil {
		_ = r.lines.Close()
		return nil, err
	}
	if info, err := r.lines.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		notes.Notef("--reject: %s holds %d bytes already; malformed lines are appended", path, info.Size())
	}
	r.toLines, r.toReasons = bufio.NewWriter(r.lines), bufio.NewWriter(r.reasons)
	return r, nil
}

func appendTo(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
	}
	return f, nil
}

// take is told of one malformed line at a time.
func (r *rejects) take(rej ingest.Rejection) error {
	reason := fmt.Sprintf("line %d: %s", rej.Line, exit.Describe(rej.Err).Message)
	if r.told < rejectsShown {
		r.notes.Notef("%s", reason)
	} else if r.told == rejectsShown {
		r.notes.Notef("more lines are malformed; only --reject tells all of them")
	}
	r.told++
	if r.lines == nil {
		return nil
	}
	if _, err := fmt.Fprintf(r.toLines, "%s\n", rej.Raw); err != nil {
		return rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
	}
	if _, err := fmt.Fprintln(r.toReasons, reason); err != nil {
		return rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
	}
	return nil
}

// close makes the files whole.
func (r *rejects) close() error {
	if r.lines == nil {
		return nil
	}
	for _, close := range []func() error{r.toLines.Flush, r.lines.Close, r.toReasons.Flush, r.reasons.Close} {
		if err := close(); err != nil {
			return rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
		}
	}
	return nil
}
