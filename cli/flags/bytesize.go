package flags

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ByteSize is a number of bytes as the value of a flag, written with a unit: 512MiB, 4GiB. Zero
// means that the flag is not set.
type ByteSize int64

// byteUnits lists the units of a ByteSize. "B" comes last because it is a suffix of the others.
var byteUnits = []struct {
	name  string
	shift uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}}

// Set parses the value of the flag.
func (b *ByteSize) Set(text string) error {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64>>u.shift { // the shift below must not overflow
			break
		}
		*b = ByteSize(n << u.shift)
		return nil
	}
	return fmt.Errorf("%q is not a size; write a whole number and a unit, such as 512MiB or 4GiB", text)
}

// Type returns the word for the value in help.
func (b *ByteSize) Type() string { return "size" }

// String returns the size in the largest unit in which it is a whole number, or "" for zero.
func (b *ByteSize) String() string {
	if *b == 0 {
		return ""
	}
	best := byteUnits[len(byteUnits)-1]
	for _, u := range byteUnits {
		if u.shift > best.shift && int64(*b)&(1<<u.shift-1) == 0 {
			best = u
		}
	}
	return strconv.FormatInt(int64(*b)>>best.shift, 10) + best.name
}
