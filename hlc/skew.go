package hlc

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Skew is the error of a wrong wall clock, for tests. It has no clock of its own. The zero value changes nothing.
type Skew struct {
	// Offset is how far the clock is ahead; below zero, it is behind.
	Offset time.Duration
	// Strobe makes the clock jump: it has the offset for this long, and none for as long, in turn. 0 means that the offset stays.
	Strobe time.Duration
	// Rate is how many seconds the clock passes in a second. 0 means 1.
	Rate float64
}

// Bounds of a skew. A second more or less does not matter to a test, but a clock that leaves the years that timestamps have would stop a node.
const (
	skewOffsetMax = 30 * 24 * time.Hour
	skewStrobeMin = time.Millisecond
	skewRateMax   = 100
)

// ParseSkew parses words such as "offset=-1h", "strobe=200ms" and "rate=1.05", separated by spaces. The empty text leaves the clock right.
func ParseSkew(text string) (s Skew, err error) {
	// The last of two equal words counts, as in flags.
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "offset":
			s.Offset, err = time.ParseDuration(value)
			if err == nil && s.Offset.Abs() > skewOffsetMax {
				err = fmt.Errorf("more than %v", skewOffsetMax)
			}
		case "strobe":
			s.Strobe, err = time.ParseDuration(value)
			if err == nil && s.Strobe < skewStrobeMin {
				err = fmt.Errorf("less than %v", skewStrobeMin)
			}
		case "rate":
			s.Rate, err = strconv.ParseFloat(value, 64)
			// Written so that NaN is refused.
			if err == nil && !(s.Rate > 0 && s.Rate <= skewRateMax) {
				err = fmt.Errorf("not above 0 and at most %d", skewRateMax)
			}
		default:
			err = fmt.Errorf("the words are offset=DURATION, strobe=DURATION and rate=NUMBER")
		}
		if err != nil {
			return Skew{}, fmt.Errorf("the error of the clock, %q: %w", word, err)
		}
	}
	return s, nil
}

// At returns how far the clock is ahead when the skew has lasted for a time.
func (s Skew) At(lasted time.Duration) (ahead time.Duration) {
	if s.Strobe == 0 || lasted/s.Strobe%2 == 0 {
		ahead = s.Offset
	}
	// The error of the rate adds up from the moment at which the skew began.
	if s.Rate != 0 {
		ahead += time.Duration((s.Rate - 1) * float64(lasted))
	}
	return ahead
}
