package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
)

// clockFilePoll is the time between two looks at the file with the error of the clock.
const clockFilePoll = 20 * time.Millisecond

// wrongClock is a wall clock with the error that a file holds, for tests of a cluster whose clocks are wrong.
type wrongClock struct {
	file string
	log  *slog.Logger
	// text is the content of the file at the last look. Only follow uses it after the start.
	text    string
	present atomic.Pointer[skewed]
}

// skewed is an error of the clock and when it began.
type skewed struct {
	hlc.Skew
	since time.Time
}

// setWrongClock makes wallClock follow a file until ctx ends. Without a file, the clock is right.
func setWrongClock(ctx context.Context, file string, log *slog.Logger) error {
	if file == "" {
		return nil
	}
	w, err := openWrongClock(file, log)
	if err != nil {
		return err
	}
	// The first look has happened: certificates are judged before the node starts.
	go w.follow(ctx)
	wallClock = w.now
	return nil
}

// openWrongClock returns the clock of a file. A missing or empty file leaves the clock right.
func openWrongClock(file string, log *slog.Logger) (*wrongClock, error) {
	w := &wrongClock{file: file, log: log}
	w.present.Store(&skewed{since: time.Now()})
	if err := w.look(); err != nil {
		return nil, rhumb.Ef("rhumb.start", rhumb.InvalidArgument, "--clock-error-file %s: %v", file, err)
	}
	return w, nil
}

// now returns the wrong time.
func (w *wrongClock) now() time.Time {
	// One reading of the clock decides both, so that a rate has no jitter.
	s, now := w.present.Load(), time.Now()
	return now.Add(s.At(now.Sub(s.since)))
}

// look reads the file.
func (w *wrongClock) look() error {
	text, err := os.ReadFile(w.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The error continues while the file is the same: a strobe must not begin again at each look.
	if string(text) == w.text {
		return nil
	}
	// Also a text that is wrong is kept, so that it is reported once.
	w.text = string(text)
	s, err := hlc.ParseSkew(w.text)
	if err != nil {
		return err
	}
	w.present.Store(&skewed{s, time.Now()})
	w.log.Warn("the clock of this node is wrong on purpose", "offset", s.Offset, "strobe", s.Strobe, "rate", s.Rate)
	return nil
}

// follow looks at the file again and again until ctx ends. A text that cannot be read changes nothing.
func (w *wrongClock) follow(ctx context.Context) {
	tick := time.NewTicker(clockFilePoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := w.look(); err != nil {
			w.log.Error("the file with the error of the clock is ignored", "err", err)
		}
	}
}
