package flags

import (
	"testing"
)

// TestByteSize guards that sizes parse, print in their largest unit, and that a size without a unit
// is rejected.
func TestByteSize(t *testing.T) {
	for _, tc := range []struct {
		in, out string
		bytes   int64
	}{
		{"512MiB", "512MiB", 512 << 20},
		{"4 GiB", "4GiB", 4 << 30},
		{"2048MiB", "2GiB", 2 << 30},
		{"1000B", "1000B", 1000},
		{"3KiB", "3KiB", 3 << 10},
		{"1TiB", "1TiB", 1 << 40},
		{"0B", "", 0},
	} {
		var b ByteSize
		if err := b.Set(tc.in); err != nil || int64(b) != tc.bytes || b.String() != tc.out {
			t.Errorf("%s: %d bytes, %q, %v, want %d, %q", tc.in, b, b.String(), err, tc.bytes, tc.out)
		}
	}
	for _, in := range []string{"", "5", "MiB", "-1MiB", "1.5GiB", "512MB", "9223372036854775807KiB"} {
		var b ByteSize
		if err := b.Set(in); err == nil {
			t.Errorf("%q is taken for %d bytes", in, b)
		}
	}
}
