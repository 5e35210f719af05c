package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// faultFilePoll is the time between two looks at a file with a fault.
const faultFilePoll = 20 * time.Millisecond

// faultFile is a file with a fault of this node, for tests of a cluster with a bad part. It may change at any time.
type faultFile struct {
	name string
	log  *slog.Logger
	// take makes the fault that a text describes the present one. The empty text, which a missing file has too, is no fault.
	take func(text string) error
	// text is the content of the file at the last look. Only follow uses it after the start.
	text string
}

// open takes the fault and follows the file until ctx ends. flag is the flag with the file.
func (f *faultFile) open(ctx context.Context, flag string) error {
	// The first look is over when the node starts: its certificates are judged by its clock, and its stores are read.
	if err := f.look(); err != nil {
		return rhumb.Ef("rhumb.start", rhumb.InvalidArgument, "--%s %s: %v", flag, f.name, err)
	}
	go f.follow(ctx)
	return nil
}

// look reads the file.
func (f *faultFile) look() error {
	text, err := os.ReadFile(f.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The fault continues while the file is the same: a strobe of a clock must not begin again at each look.
	if string(text) == f.text {
		return nil
	}
	// Also a text that is wrong is kept, so that it is reported once.
	f.text = string(text)
	return f.take(f.text)
}

// follow looks at the file again and again until ctx ends. A text that cannot be read changes nothing.
func (f *faultFile) follow(ctx context.Context) {
	tick := time.NewTicker(faultFilePoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := f.look(); err != nil {
			f.log.Error("a file with a fault is ignored", "file", f.name, "err", err)
		}
	}
}

// openBadDisk returns read faults that follow a file until ctx ends. Without a file there are none.
func openBadDisk(ctx context.Context, file string, log *slog.Logger) (*storage.ReadFaults, error) {
	if file == "" {
		return nil, nil
	}
	faults := &storage.ReadFaults{}
	f := &faultFile{name: file, log: log, take: func(text string) error {
		share, err := parseReadErrors(text)
		if err != nil {
			return err
		}
		faults.SetShare(share)
		log.Warn("the disk of this node is bad on purpose", "read-errors", share)
		return nil
	}}
	return faults, f.open(ctx, "disk-error-file")
}

// parseReadErrors parses "read-errors=SHARE", the share of the reads that fail. The empty text is none.
func parseReadErrors(text string) (share float64, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	value, ok := strings.CutPrefix(text, "read-errors=")
	if ok {
		share, err = strconv.ParseFloat(value, 64)
	}
	// Written so that NaN is refused.
	if !ok || err != nil || !(share >= 0 && share <= 1) {
		return 0, rhumb.Ef("rhumb.start", rhumb.InvalidArgument, "the error of the disk, %q, is not read-errors=SHARE with a share from 0 to 1", text)
	}
	return share, nil
}
