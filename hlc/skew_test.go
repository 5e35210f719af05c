package hlc

import (
	"testing"
	"time"
)

// TestSkew guards what each word means, and that other text is refused.
func TestSkew(t *testing.T) {
	for _, tc := range []struct {
		text   string
		lasted time.Duration
		want   time.Duration
	}{
		{"", time.Hour, 0},
		{"offset=-1h\n", 0, -time.Hour},
		{"offset=1h strobe=200ms", 199 * time.Millisecond, time.Hour},
		{"offset=1h strobe=200ms", 200 * time.Millisecond, 0},
		{"offset=1h strobe=200ms", 400 * time.Millisecond, time.Hour},
		{"rate=1.05", 20 * time.Second, time.Second},
		{"rate=0.5 offset=3s", 2 * time.Second, 2 * time.Second},
	} {
		s, err := ParseSkew(tc.text)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
		}
		if got := s.At(tc.lasted); (got - tc.want).Abs() > time.Microsecond {
			t.Errorf("%q after %v: %v, want %v", tc.text, tc.lasted, got, tc.want)
		}
	}
	for _, text := range []string{"1h", "offset", "offset=1", "strobe=0s", "rate=0", "rate=NaN", "offset=9999h", "offset=1s x=2"} {
		if s, err := ParseSkew(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, s)
		}
	}
}
