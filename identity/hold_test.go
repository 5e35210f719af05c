package identity

import (
	"context"
	"errors"
	"testing"
)

// TestHoldOff guards which failures make the next handshake with a server wait: those for lack of a
// place or of time, which are counted for each server, and not a refused certificate.
func TestHoldOff(t *testing.T) {
	s := &Source{}
	// The pauses end at once, so that the test needs no time.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	count := func(addr string) int {
		n, _ := s.holds.Load(addr)
		failures, _ := n.(int)
		return failures
	}
	for range 3 {
		s.holdOff(ctx, "a:1", errors.New("connection reset"))
	}
	s.holdOff(ctx, "b:1", rejectf(ReasonRevoked, "revoked"))
	if count("a:1") != 3 || count("b:1") != 0 {
		t.Errorf("%d and %d failures count, want 3 and 0", count("a:1"), count("b:1"))
	}
}
