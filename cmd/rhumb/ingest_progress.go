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
	// lineInterval is how often progress is printed as a line if standard error is not a terminal.
	lineInterval = 10 * time.Second
	// rejectsShown bounds the malformed lines that are reported on standard error. --reject keeps
	// them all.
	rejectsShown = 100
)

// countingReader counts the bytes that are read from an input, before they are decompressed: only
// these compare with the size of the file.
type countingReader struct {
	// src is the input before decompression, and read the number of bytes taken from it.
	src  io.Reader
	read atomic.Int64
}

// Seek lets a run read a file twice, which it does to check gzip. The count follows the position.
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

// Read counts the bytes that it passes on.
func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	r.read.Add(int64(n))
	return n, err
}

// showProgress shows the progress of a run on standard error until stop is called.
func (ic *ingestion) showProgress(r *ingest.Run, input *countingReader, size int64) (stop func()) {
	interval, show := lineInterval, func() { ic.Notef("%s", progressLine(r.Counts(), input.read.Load(), size)) }
	// Without a terminal, bar is nil, and finish does nothing.
	finish := func() {}
	if bar := ic.Bar(size, progressbar.OptionShowBytes(true), progressbar.OptionThrottle(output.BarInterval/2)); bar != nil {
		// The bar shows bytes, which say when the run ends; events per second say how fast the
		// cluster is.
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
	// The figures are read while the run goes through the input; they are atomic.
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
	// No line is printed after stop has returned, so that the result follows the progress.
	return func() {
		close(quit)
		done.Wait()
		finish()
	}
}

// doneLines returns the number of lines whose outcome is known.
func doneLines(c ingest.Counts) int64 { return c.Applied + c.AlreadyThere + c.Rejected + c.Failed }

// progressLine returns a line of progress. A size of 0 or less means that the length of the input is not known, and the line
// has no percentage.
func progressLine(c ingest.Counts, read, size int64) string {
	part := ""
	if size > 0 {
		part = fmt.Sprintf(" (%.0f %% of the file)", 100*float64(read)/float64(size))
	}
	return fmt.Sprintf("ingest: %d events%s: %d applied, %d already there, %d rejected", doneLines(c), part, c.Applied, c.AlreadyThere, c.Rejected)
}

// rejects writes malformed lines to the files of --reject and reports the first of them on standard
// error.
type rejects struct {
	// notes prints the first malformed lines for people.
	notes *output.Printer
	// lines and reasons are nil without --reject.
	lines, reasons *os.File
	toLines        *bufio.Writer
	toReasons      *bufio.Writer
	// reported counts the malformed lines of the run, including those that were not printed.
	reported int
}

// opReject is the operation of errors about the files of --reject.
const opReject rhumb.Op = "rhumb.reject"

// reasonsFile returns the name of the file for the reasons of rejected lines.
func reasonsFile(path string) string { return path + ".reasons" }

// checkRejects returns an error if a file for rejected lines is also an input, under whatever name,
// or if lines and reasons would go to the same file. An input that grows by its own malformed lines
// might never end.
func checkRejects(path string, inputs []fs.FileInfo) error {
	if path == "" {
		return nil
	}
	var last fs.FileInfo
	for _, target := range []string{path, reasonsFile(path)} {
		info, err := os.Stat(target)
		// A file that does not exist yet cannot be an input, and a pipe or a device may be anything.
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if slices.ContainsFunc(inputs, func(input fs.FileInfo) bool { return os.SameFile(info, input) }) {
			return rhumb.Ef(opReject, rhumb.InvalidArgument, "--reject: %s is a file that this ingest reads; name another file for malformed lines", target)
		}
		if last != nil && os.SameFile(info, last) {
			return rhumb.Ef(opReject, rhumb.InvalidArgument, "--reject: %s and %s are one file; name another file", path, target)
		}
		last = info
	}
	return nil
}

// openRejects opens the files for rejected lines and their reasons. It appends, because an ingest
// that is run again must not lose the lines that the first run rejected.
func openRejects(notes *output.Printer, path string) (r *rejects, err error) {
	r = &rejects{notes: notes}
	if path == "" {
		return r, nil
	}
	if r.lines, err = appendTo(path); err != nil {
		return nil, err
	}
	if r.reasons, err = appendTo(reasonsFile(path)); err != nil {
		// Nothing was written to it, so its error does not matter.
		_ = r.lines.Close()
		return nil, err
	}
	// The operator may have expected an empty file.
	if info, err := r.lines.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		notes.Notef("--reject: %s already holds %d bytes; malformed lines are appended", path, info.Size())
	}
	r.toLines, r.toReasons = bufio.NewWriter(r.lines), bufio.NewWriter(r.reasons)
	return r, nil
}

// appendTo opens a file for appending, and creates it if it does not exist.
func appendTo(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
	}
	return f, nil
}

// addRejection writes and reports one malformed line.
func (r *rejects) addRejection(rej ingest.Rejection) error {
	reason := fmt.Sprintf("line %d: %s", rej.Line, exit.Describe(rej.Err).Message)
	if r.reported < rejectsShown {
		r.notes.Notef("%s", reason)
	} else if r.reported == rejectsShown {
		r.notes.Notef("more lines are malformed; only --reject keeps all of them")
	}
	r.reported++
	// Without --reject the line was counted and printed, which is all.
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

// close flushes and closes the files.
func (r *rejects) close() error {
	if r.lines == nil {
		return nil
	}
	// Each writer is flushed before its file is closed. The first error ends the loop, because the process is about to end.
	for _, close := range []func() error{r.toLines.Flush, r.lines.Close, r.toReasons.Flush, r.reasons.Close} {
		if err := close(); err != nil {
			return rhumb.Ef(opReject, rhumb.Other, "--reject: %v", err)
		}
	}
	return nil
}
