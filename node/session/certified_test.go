package session

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/connectivity"

	"github.com/rhumbdb/rhumb/identity"
)

// TestCertified guards that a connection with a certificate is authenticated before its first call, and that one without is a stranger
// until its bearer logs in.
func TestCertified(t *testing.T) {
	w := newWorld(t, nil)
	early := func() float64 { return testutil.ToFloat64(w.g.Collectors()[1]) }
	for _, tt := range []struct {
		name  string
		early float64
	}{{"", 1}, {"cert", 1}} { // the second connection adds none
		c := w.dial(w.source(identity.RoleUser, tt.name), nil)
		c.Connect()
		for state := c.GetState(); state != connectivity.Ready; state = c.GetState() {
			if !c.WaitForStateChange(t.Context(), state) {
				t.Fatalf("%q does not connect: %v", tt.name, state)
			}
		}
		// The client is ready a moment before the server has looked at its certificate.
		for end := time.Now().Add(10 * time.Second); early() != tt.early; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after %q connected, %v connections are unauthenticated, want %v", tt.name, early(), tt.early)
			}
		}
	}
}
