package inspect

import (
	"encoding/hex"
	"iter"
	"math"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Query is a query as a person types it. At most one of BBox, Radius, Nearest and Prefix is set. If
// none is set, the query returns the whole table, in key order if the table is ordered.
type Query struct {
	// BBox is W,S,E,N in degrees; W greater than E crosses the antimeridian.
	BBox string
	// Radius is LAT,LON,METRES, Nearest LAT,LON,K.
	Radius, Nearest string
	// Prefix is a prefix of names, as text or as 0x and hexadecimal digits.
	Prefix string
}

// Measured reports whether the resulting records have a distance.
func (q Query) Measured() bool { return q.Radius != "" || q.Nearest != "" }

// NearestMax bounds the records of a nearest-neighbour query.
const NearestMax = 10_000

const opQuery rhumb.Op = "inspect.Query"

// Run returns the records of a table that match the query. It fails with kind InvalidArgument if
// the query is invalid.
func (q Query) Run(t reader.Table) (iter.Seq2[reader.Item, error], error) {
	set := 0
	for _, s := range []string{q.BBox, q.Radius, q.Nearest, q.Prefix} {
		if s != "" {
			set++
		}
	}
	switch {
	case set > 1:
		return nil, rhumb.E(opQuery, rhumb.InvalidArgument, "use only one of bbox, radius, nearest and prefix")
	case q.BBox != "":
		v, err := parseNumbers("bbox", "W,S,E,N", q.BBox, 4)
		if err != nil {
			return nil, err
		}
		return t.BBox(rhumb.Box{Min: rhumb.Point{Lat: v[1], Lon: v[0]}, Max: rhumb.Point{Lat: v[3], Lon: v[2]}}), nil
	case q.Radius != "":
		v, err := parseNumbers("radius", "LAT,LON,METRES", q.Radius, 3)
		if err != nil {
			return nil, err
		}
		return t.Radius(rhumb.Point{Lat: v[0], Lon: v[1]}, v[2]), nil
	case q.Nearest != "":
		v, err := parseNumbers("nearest", "LAT,LON,K", q.Nearest, 3)
		if err != nil {
			return nil, err
		}
		if v[2] != math.Trunc(v[2]) || v[2] < 1 || v[2] > NearestMax {
			return nil, rhumb.Ef(opQuery, rhumb.InvalidArgument, "nearest: K is a whole number from 1 to %d, not %v", NearestMax, v[2])
		}
		return t.Nearest(rhumb.Point{Lat: v[0], Lon: v[1]}, int(v[2])), nil
	case q.Prefix != "":
		prefix, err := rhumb.ParseName(q.Prefix)
		if err != nil {
			return nil, err
		}
		return t.Scan(prefix), nil
	case t.Info().Ordered():
		return t.Scan(nil), nil
	}
	return t.All(), nil
}

// parseNumbers parses numbers that are separated by commas.
func parseNumbers(name, form, text string, n int) ([]float64, error) {
	parts := strings.Split(text, ",")
	if len(parts) != n {
		return nil, rhumb.Ef(opQuery, rhumb.InvalidArgument, "%s=%q: want %s", name, text, form)
	}
	var out []float64
	for _, p := range parts {
		v, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, rhumb.Ef(opQuery, rhumb.InvalidArgument, "%s=%q: %q is not a number; want %s", name, text, p, form)
		}
		out = append(out, v)
	}
	return out, nil
}

// Get returns a record by its key as tools print it: a number, or a name as text or as 0x and
// hexadecimal digits. The 32 digits of a complete shard key identify a record that the server
// named.
func Get(t reader.Table, key string) (reader.Item, error) {
	if t.Info().KeyKind == format.KeyUint64 {
		// Anything else falls through to a name: the 8 bytes of a number in big-endian order are a
		// valid key too.
		if n, err := strconv.ParseUint(key, 10, 64); err == nil {
			return t.GetUint64(n)
		}
	}
	name, err := rhumb.ParseName(key)
	if err != nil {
		return reader.Item{}, err
	}
	if t.Info().KeyKind == format.KeyUint64 && len(name) != 8 {
		return reader.Item{}, rhumb.Ef(opQuery, rhumb.InvalidArgument, "table %q has numbers as keys, and %q is not a number", t.Info().Name, key)
	}
	// A name of 0x and 32 digits is tried as a name first: a client may have chosen such a name.
	it, err := t.Get(name)
	if rhumb.KindOf(err) != rhumb.NotFound {
		return it, err
	}
	if digits, ok := strings.CutPrefix(key, "0x"); ok && len(digits) == 2*rhumb.ShardKeySize {
		if b, err := hex.DecodeString(digits); err == nil {
			return t.GetShardKey(shardKeyOf(b))
		}
	}
	return it, err
}

// Take returns the first most items, or all if most is 0. After the walk, *more reports whether
// items were left out.
func Take(items iter.Seq2[reader.Item, error], most int) (taken iter.Seq2[reader.Item, error], more *bool) {
	more = new(bool)
	return func(yield func(reader.Item, error) bool) {
		n := 0
		for it, err := range items {
			// The walk stops only when one more item arrives, because only that item proves that
			// something was left out.
			if err == nil && most > 0 && n == most {
				*more = true
				return
			}
			if n++; !yield(it, err) {
				return
			}
		}
	}, more
}
