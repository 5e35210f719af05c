package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag that takes a number of bytes, with a unit: 512MiB, 4GiB. The zero value is nothing said.
type byteSize int64

// byteUnits are the units of a byteSize, the longer names first.
var byteUnits = []struct {
	name  string
	shift uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}}

// Set reads the flag's value.
func (b *byteSize) Set(text string) error {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64>>u.shift {
			break
		}
		*b = byteSize(n << u.shift)
		return nil
	}
	return fmt.Errorf("%q is no size; write a whole number and a unit, like 512MiB or 4GiB", text)
}

// Type names the kind of value in help.
func (b *byteSize) Type() string { return "size" }

// String gives the size in the greatest unit in which it is a whole number, and "" for nothing said.
func (b *byteSize) String() string {
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
