package closed

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
)

func rangeOf(i int) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i)} }

func claim(i int, at rhumb.Timestamp, seq rhumb.Seq) RangeClaim {
	return RangeClaim{rangeOf(i), Claim{at, seq}}
}

// second is one second of timestamps.
var second = rhumb.MakeTimestamp(1000, 0)

// TestIdleCostsNothing guards that an idle range is sent once, and a range that moves once per
// move.
func TestIdleCostsNothing(t *testing.T) {
	var s Sender
	var r Receiver
	step := func(want int, claims ...RangeClaim) {
		t.Helper()
		s.Set(claims)
		f := s.Frame()
		if len(f.Covers) != want {
			t.Fatalf("frame %+v has %d covers, want %d", f, len(f.Covers), want)
		}
		if !r.Take(&f) {
			t.Fatalf("%+v is not taken after %d", f, r.Applied())
		}
		s.Confirm(r.Applied())
	}
	step(2, claim(1, 100, 7), claim(2, 90, 3))
	step(0, claim(1, 110, 7), claim(2, 120, 3))
	step(1, claim(1, 130, 8), claim(2, 130, 3))
	step(0, claim(1, 140, 8), claim(2, 140, 3))
	for _, c := range []struct {
		rng, upTo int
		want      rhumb.Timestamp
	}{{1, 8, 140}, {1, 9, 140}, {1, 7, 110}, {1, 6, 0}, {2, 3, 140}, {2, 2, 0}, {3, 9, 0}} {
		if got := r.At(rangeOf(c.rng), rhumb.Seq(c.upTo)); got != c.want {
			t.Errorf("range %d up to %d is closed up to %d, want %d", c.rng, c.upTo, got, c.want)
		}
	}
	step(1, claim(1, 150, 8))
	if got := r.At(rangeOf(2), 3); got != 140 {
		t.Errorf("a range that is told of no more is closed up to %d, want 140 as before", got)
	}
}

// TestLaggardsAreLeftOut guards that a range whose closed timestamp stands still does not hold back
// the others.
func TestLaggardsAreLeftOut(t *testing.T) {
	var s Sender
	var r Receiver
	for i := range rhumb.Timestamp(30) {
		s.Set([]RangeClaim{claim(1, (i+1)*second/4, 1), claim(2, second/4, 1)})
		f := s.Frame()
		r.Take(&f)
		s.Confirm(r.Applied())
	}
	if one, two := r.At(rangeOf(1), 1), r.At(rangeOf(2), 1); one != 30*second/4 || two != second/4 {
		t.Errorf("closed up to %d and %d, want %d and %d", one, two, 30*second/4, second/4)
	}
}

// TestManyRanges guards that changes that do not fit in one frame follow in the next, with no
// timestamp before the last of them.
func TestManyRanges(t *testing.T) {
	var s Sender
	var r Receiver
	var claims []RangeClaim
	for i := range 2*CoversMax + 1 {
		claims = append(claims, claim(i, 100, 1))
	}
	for turn := range 3 {
		s.Set(claims)
		f := s.Frame()
		if last := turn == 2; len(f.Covers) > CoversMax || (f.At != 0) != last || !r.Take(&f) {
			t.Fatalf("frame %d: %d covers, at %d", turn, len(f.Covers), f.At)
		}
		s.Confirm(r.Applied())
	}
	for i := range claims {
		if got := r.At(rangeOf(i), 1); got != 100 {
			t.Fatalf("range %d is closed up to %d, want 100", i, got)
		}
	}
}

// TestClaimsAreTrue plays frames that are lost, repeated and reordered between ends that restart.
// Every claim that a receiver makes about a range must follow from a claim that its sender was
// given.
func TestClaimsAreTrue(t *testing.T) {
	believed, resets := 0, 0
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		if err := playClaims(rnd, &believed, &resets); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Logf("%d claims were believed, over %d restarts", believed, resets)
	if believed == 0 || resets == 0 {
		t.Error("the schedules do not reach everything")
	}
}

func playClaims(rnd *rand.Rand, believed, resets *int) error {
	const ranges = 5
	var s Sender
	var r Receiver
	var given [ranges][]Claim
	var seq [ranges]rhumb.Seq
	var hidden [ranges]bool
	deaf := 1 + rnd.IntN(12)
	var frames []Frame
	var confirms []uint64 // of the receiver's present life
	life := 0
	var lives []int // of the sender, when each frame was sent
	now := second
	for range 200 {
		now += rhumb.Timestamp(rnd.Uint64N(uint64(second) / 4))
		switch rnd.IntN(25) {
		case 0: // the receiver restarts; frames that were on their way to its earlier life may still come
			*resets++
			r, confirms = Receiver{}, nil
			s.Reset()
		case 1: // the sender restarts
			*resets++
			s, life = Sender{}, life+1
			r.Reset()
			confirms = nil
		}
		var claims []RangeClaim
		for i := range ranges {
			if rnd.IntN(3) == 0 {
				seq[i]++
			}
			if rnd.IntN(10) == 0 {
				hidden[i] = !hidden[i]
			}
			if !hidden[i] {
				c := Claim{now - rhumb.Timestamp(rnd.Uint64N(uint64(second)*5/4)), seq[i] + 1}
				claims = append(claims, RangeClaim{rangeOf(i), c})
				given[i] = append(given[i], c)
			}
		}
		s.Set(claims)
		frames, lives = append(frames, s.Frame()), append(lives, life)
		for range 3 {
			k := max(0, len(frames)-1-rnd.IntN(1+rnd.IntN(40)))
			if lives[k] == life { // package lease drops frames of earlier lives
				r.Take(&frames[k])
				confirms = append(confirms, r.Applied())
			}
		}
		if n := len(confirms); n > 0 && rnd.IntN(deaf) == 0 {
			s.Confirm(confirms[rnd.IntN(n)])
		}
		for i := range ranges {
			for upTo := seq[i] - min(seq[i], 10); upTo < seq[i]+2; upTo++ {
				at := r.At(rangeOf(i), upTo)
				if at == 0 {
					continue
				}
				*believed++
				if !follows(given[i], Claim{at, upTo}) {
					return fmt.Errorf("range %d is believed to be closed up to %d by position %d, but given was %v", i, at, upTo, given[i])
				}
			}
		}
	}
	return nil
}

// follows reports whether c follows from a given claim: a timestamp that is not lower, at a
// position that is not higher.
func follows(given []Claim, c Claim) bool {
	for _, g := range given {
		if g.At >= c.At && g.Seq <= c.Seq {
			return true
		}
	}
	return false
}
