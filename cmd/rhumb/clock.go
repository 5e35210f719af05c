package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb/hlc"
)

// wrongClock is a wall clock with the error that a file holds, for tests of a cluster whose clocks are wrong.
type wrongClock struct {
	log     *slog.Logger
	present atomic.Pointer[skewed]
}

// skewed is an error of the clock and when it began.
type skewed struct {
	hlc.Skew
	since time.Time
}

// setWrongClock makes wallClock follow a file until ctx ends. Without a file, or while it is missing or empty, the clock is right.
func setWrongClock(ctx context.Context, file string, log *slog.Logger) error {
	if file == "" {
		return nil
	}
	w := &wrongClock{log: log}
	w.present.Store(&skewed{since: time.Now()})
	if err := (&faultFile{name: file, log: log, take: w.take}).open(ctx, "clock-error-file"); err != nil {
		return err
	}
	wallClock = w.now
	return nil
}

// now returns the wrong time.
func (w *wrongClock) now() time.Time {
	// One reading of the clock decides both, so that a rate has no jitter.
	s, now := w.present.Load(), time.Now()
	return now.Add(s.At(now.Sub(s.since)))
}

// take makes the error that a text describes the present one.
func (w *wrongClock) take(text string) error {
	s, err := hlc.ParseSkew(text)
	if err != nil {
		return err
	}
	w.present.Store(&skewed{s, time.Now()})
	w.log.Warn("the clock of this node is wrong on purpose", "offset", s.Offset, "strobe", s.Strobe, "rate", s.Rate)
	return nil
}
