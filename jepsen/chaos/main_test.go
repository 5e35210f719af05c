package main

import "testing"

// TestInterrupts guards that the first interrupt of a run ends its faults only, and the next one
// everything.
func TestInterrupts(t *testing.T) {
	ended := false
	ends := &interrupts{all: func() { ended = true }}
	enough := ends.begin()
	isClosed := func() bool {
		select {
		case <-enough:
			return true
		default:
			return false
		}
	}
	if isClosed() {
		t.Fatal("the faults ended without an interrupt")
	}
	ends.next()
	if !isClosed() || ended {
		t.Fatalf("after the first interrupt, faults ended is %v and everything ended is %v", isClosed(), ended)
	}
	if ends.next(); !ended {
		t.Error("the second interrupt did not end everything")
	}
	early := false
	before := &interrupts{all: func() { early = true }}
	if before.next(); !early {
		t.Error("an interrupt before the faults did not end everything")
	}
}
