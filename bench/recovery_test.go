package bench

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// TestAwaitEnd checks that a killed process counts as ended although its parent has not noticed: the
// measurement of a restart must not begin while the old process holds the directory.
func TestAwaitEnd(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := awaitEnd(short, child.Process.Pid); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a process that runs has ended: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := awaitEnd(t.Context(), child.Process.Pid); err != nil {
		t.Error(err)
	}
}

// TestRetryUntil checks that the time of all attempts counts.
func TestRetryUntil(t *testing.T) {
	calls := 0
	took, err := retryUntil(t.Context(), time.Now().Add(-time.Second), nil, func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("starting")
		}
		return nil
	})
	if err != nil || calls != 3 || took < time.Second {
		t.Errorf("%d calls in %v, %v", calls, took, err)
	}
	ended := make(chan struct{})
	close(ended)
	if _, err := retryUntil(t.Context(), time.Now(), ended, func(context.Context) error { return errors.New("refused") }); err == nil {
		t.Error("a process that ended serves")
	}
}
