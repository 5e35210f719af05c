package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// TestNotify guards what systemd hears, on a real socket: READY=1 when the ports answer, changes of readiness as they happen, and
// STOPPING=1 at the end.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	var serves atomic.Bool
	ready := func() error {
		if serves.Load() {
			return nil
		}
		return errors.New("no cluster yet\nrun rhumb init")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		manager{slog.New(slog.DiscardHandler)}.follow(ctx, ready)
	}()
	next := func() string {
		t.Helper()
		buf := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	if got, want := next(), "READY=1\nSTATUS=not ready: no cluster yet run rhumb init"; got != want {
		t.Errorf("first message %q, want %q", got, want)
	}
	serves.Store(true)
	if got, want := next(), "STATUS=ready"; got != want {
		t.Errorf("then %q, want %q", got, want)
	}
	cancel()
	if got, want := next(), "STOPPING=1\nSTATUS=moving primaries to other nodes"; got != want {
		t.Errorf("at the end %q, want %q", got, want)
	}
	<-done
}
