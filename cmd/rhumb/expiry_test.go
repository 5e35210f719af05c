package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// TestRenewalHint guards that people learn in the last third of a certificate's life what to run, programs in the last week,
// and nobody before.
func TestRenewalHint(t *testing.T) {
	a := identitytest.New(t)
	begin := time.Now().Add(-time.Hour)
	life := identitytest.Valid(begin, begin.Add(90*24*time.Hour))
	alice, app, node := a.Operator(t, "alice", life), a.User(t, "app", life), a.Node(t, "eu-1", life)
	for _, tt := range []struct {
		cert     *identitytest.Issued
		day      int
		terminal bool
		want     string // part of the hint; "" for none
	}{
		{alice, 0, true, ""},
		{alice, 59, true, ""},
		{alice, 61, true, "expires in 28 days; where the authority is, run `rhumb authority operator alice --authority DIR --out alice.new`"},
		{alice, 61, false, ""},
		{alice, 84, false, "certificate of operator alice (x/alice/operator.crt) expires in"},
		{app, 61, true, "`rhumb cert create user app --authority DIR"},
		{alice, 91, true, ""},
		{node, 61, true, ""},
	} {
		got := renewalHint("x/alice/operator.crt", tt.cert.Cert, begin.Add(time.Duration(tt.day)*24*time.Hour), tt.terminal)
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("day %d, terminal %v: %q, want %q", tt.day, tt.terminal, got, tt.want)
		}
	}
}
