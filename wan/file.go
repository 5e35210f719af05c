package wan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"go.yaml.in/yaml/v3"
)

// RoundTripMax bounds a round trip of a latency file, and JitterMax its jitter.
const (
	RoundTripMax = time.Minute
	JitterMax    = 10 * time.Second
)

// File is a latency file: the round trips to simulate between addresses. It is YAML:
//
//	round_trips_ms:          # each pair of regions once; within a region 0 unless given
//	  singapore: {frankfurt: 156, virginia: 253.5}
//	  frankfurt: {virginia: 88}
//	jitter_ms: 0             # optional: the greatest random addition to each one-way delay
//	addresses:               # every host:port that is dialed or sent to
//	  127.0.0.1:7400: singapore
//	  127.0.0.1:7410: frankfurt
//	nodes:                   # optional: the addresses of a node; links between two of these nodes can be cut
//	  a: ['127.0.0.1:7400', '127.0.0.1:7401']
//	  b: ['127.0.0.1:7410']
//	cut:                     # optional: links that carry nothing in either direction
//	  - [singapore, virginia]
//	cut_one_way:             # optional: links that carry nothing from the first to the second
//	  - [a, b]
//	half_open:               # optional: connections that are open when the pair is first read stay
//	  - [b, a]               # open, but lose everything the first sends; new connections work
//
// record, if set, is a folder into which every process writes what it sends and receives between regions, for tests of
// residency; it applies to connections whose ends are delayed or are nodes of the file, from the next byte on.
//
// Cuts name two regions, two nodes, or one of each. An unknown key is an error, and so is dialing
// an address that the file does not name: otherwise a missing delay would go unnoticed.
type File struct {
	RoundTrips map[string]map[string]float64 `yaml:"round_trips_ms"`
	Jitter     float64                       `yaml:"jitter_ms,omitempty"`
	Addresses  map[string]string             `yaml:"addresses"`
	Nodes      map[string][]string           `yaml:"nodes,omitempty"`
	Cut        [][]string                    `yaml:"cut,omitempty"`
	CutOneWay  [][]string                    `yaml:"cut_one_way,omitempty"`
	HalfOpen   [][]string                    `yaml:"half_open,omitempty"`
	Record     string                        `yaml:"record,omitempty"`
}

// ReadFile reads and validates a latency file.
func ReadFile(path string) (*File, error) {
	const op rhumb.Op = "wan.ReadFile"
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, rhumb.Ef(op, rhumb.NotFound, "latency file %s does not exist", path)
	case err != nil:
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	f, err := Parse(b)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "latency file %s: %v", path, err)
	}
	return f, nil
}

// Parse reads and validates the text of a latency file.
func Parse(text []byte) (*File, error) {
	const op rhumb.Op = "wan.Parse"
	// A misspelled key would otherwise be ignored, and the delay or cut with it.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	f := &File{}
	if err := dec.Decode(f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, rhumb.E(op, rhumb.InvalidArgument, "the latency file is empty")
		}
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	// A second document would be ignored silently.
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "the latency file has a second document; write one")
	}
	return f, f.Validate()
}

// Marshal returns the text of the file, as Parse reads it.
func (f *File) Marshal() ([]byte, error) {
	const op rhumb.Op = "wan.File.Marshal"
	b, err := yaml.Marshal(f)
	return b, rhumb.WrapKind(op, rhumb.Internal, err)
}

// Save writes the file to path atomically, so that a Network that watches path never reads a part
// of it.
func (f *File) Save(path string) error {
	const op rhumb.Op = "wan.File.Save"
	text, err := f.Marshal()
	if err != nil {
		return err
	}
	// The process ID keeps two programs that save at the same time from writing one temporary file.
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return rhumb.Wrap(op, err)
	}
	return rhumb.Wrap(op, os.Rename(part, path))
}

// Regions returns the regions that the file names, in ascending order.
func (f *File) Regions() []string {
	var names []string
	for a, row := range f.RoundTrips {
		names = append(names, a)
		for b := range row {
			names = append(names, b)
		}
	}
	for _, r := range f.Addresses {
		names = append(names, r)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RegionOf returns the region of an address. ok is false if the file does not name the address.
// "localhost" and "[::1]" are treated as 127.0.0.1.
func (f *File) RegionOf(addr string) (string, bool) {
	region, ok := f.Addresses[addr]
	if ok {
		return region, true
	}
	// Files contain 127.0.0.1, but a user may pass localhost to a client.
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host != "localhost" && host != "::1" {
		return "", false
	}
	region, ok = f.Addresses[net.JoinHostPort("127.0.0.1", port)]
	return region, ok
}

// RoundTrip returns the round trip between two regions. ok is false if the file has none. Within a
// region it is 0 unless the file contains one.
func (f *File) RoundTrip(a, b string) (time.Duration, bool) {
	ms, ok := f.RoundTrips[a][b]
	if !ok {
		ms, ok = f.RoundTrips[b][a]
	}
	return milliseconds(ms), ok || a == b
}

// milliseconds converts a number of milliseconds.
func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Validate reports all faults of the file in one error.
func (f *File) Validate() error {
	const op rhumb.Op = "wan.File"
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	f.validateRoundTrips(fault)
	// Negated, so that NaN is rejected too.
	if !(f.Jitter >= 0 && f.Jitter <= float64(JitterMax.Milliseconds())) {
		fault("jitter_ms is %v, want 0 to %d", f.Jitter, JitterMax.Milliseconds())
	}
	for addr, region := range f.Addresses {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			fault("address %q is not of the form host:port", addr)
		}
		if region == "" {
			fault("address %q has no region", addr)
		}
	}
	// All pairs are required: a demo in which one pair had no delay would look fine.
	regions := f.Regions()
	for i, a := range regions {
		for _, b := range regions[i+1:] {
			if _, ok := f.RoundTrip(a, b); !ok {
				fault("no round trip between %s and %s", a, b)
			}
		}
	}
	f.validateNodes(fault)
	f.validateCuts(fault)
	if len(faults) > 0 {
		// Maps have no order, but the message of one file should be stable.
		slices.Sort(faults)
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// validateNodes reports faults of the nodes.
func (f *File) validateNodes(fault func(string, ...any)) {
	regions, owner := f.Regions(), map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(f.Nodes)) {
		// Cuts name regions and nodes alike, so a shared name would be ambiguous.
		if name == "" || slices.Contains(regions, name) {
			fault("node %q: want a name that no region has", name)
		}
		for _, addr := range f.Nodes[name] {
			if _, ok := f.RegionOf(addr); !ok {
				fault("node %s: address %s is not listed under addresses", name, addr)
			}
			// An address identifies the node of a connection, so it can belong to one node only.
			if other, twice := owner[addr]; twice {
				fault("address %s belongs to node %s and to node %s", addr, other, name)
			}
			owner[addr] = name
		}
	}
}

// validateCuts reports faults of the lists of cuts.
func (f *File) validateCuts(fault func(string, ...any)) {
	names := slices.Concat(f.Regions(), slices.Collect(maps.Keys(f.Nodes)))
	for _, list := range []struct {
		key   string
		pairs [][]string
	}{{"cut", f.Cut}, {"cut_one_way", f.CutOneWay}, {"half_open", f.HalfOpen}} {
		for _, pair := range list.pairs {
			if len(pair) != 2 || !slices.Contains(names, pair[0]) || !slices.Contains(names, pair[1]) {
				fault("%s %q does not name two regions or nodes of the file", list.key, pair)
			}
		}
	}
}

// validateRoundTrips reports faults of the round trips.
func (f *File) validateRoundTrips(fault func(string, ...any)) {
	for a, row := range f.RoundTrips {
		for b, ms := range row {
			if a == "" || b == "" {
				fault("round trip %q to %q: a region has no name", a, b)
			}
			if !(ms >= 0 && ms <= float64(RoundTripMax.Milliseconds())) {
				fault("round trip %s to %s is %v ms, want 0 to %d", a, b, ms, RoundTripMax.Milliseconds())
			}
			// Both rows have the pair; a < b reports it once.
			if _, twice := f.RoundTrips[b][a]; twice && a < b {
				fault("round trip between %s and %s is given twice", a, b)
			}
		}
	}
}
