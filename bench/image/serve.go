package image

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// WorkerArgs is the number of arguments of Serve: the directory of the image, the table, the number
// of records and a seed.
const WorkerArgs = 4

// server is a worker in Go.
type server struct {
	client  *reader.Client
	table   string
	records uint64
	seed    uint64

	view, old           reader.View
	current, superseded reader.Table

	keys   []uint64
	values [][]byte
	tiles  []format.Box
	sum    uint64
	now    time.Duration // start of the present case

	heap   *mapHeap
	forest *forest
}

// Serve is a worker: it attaches to an image and executes the cases in in until it ends.
func Serve(args []string, in io.Reader, out io.Writer) error {
	if len(args) != WorkerArgs {
		return fmt.Errorf("a worker needs %d arguments, got %d", WorkerArgs, len(args))
	}
	// threadCPU measures this thread.
	runtime.LockOSThread()
	records, err := strconv.ParseUint(args[2], 10, 63)
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return err
	}
	s := &server{table: args[1], records: records, seed: seed, values: make([][]byte, groupMax)}
	// A view may stay locked for a whole section, so no lock expires.
	if s.client, err = reader.Attach(args[0], reader.Options{Populate: true, HugePages: true, MaxLockAge: time.Hour}); err != nil {
		return err
	}
	if err := s.lockNew(); err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := enc.Encode(s.runCase(lines.Text())); err != nil {
			return err
		}
	}
	// The views must be released before the mapping is closed.
	s.view.Unlock()
	s.old.Unlock()
	return s.client.Close()
}

// groupMax is the greatest number of keys in one MultiGet.
const groupMax = 64

// runCase executes one line.
func (s *server) runCase(line string) (r reply) {
	var name, arg string
	var ops int
	var at int64
	if _, err := fmt.Sscan(line, &name, &ops, &arg, &at); err != nil {
		return reply{Error: fmt.Sprintf("line %q: %v", line, err)}
	}
	do, ok := cases[name]
	if !ok {
		return reply{Error: "unknown case " + name}
	}
	for monotonicNow() < time.Duration(at) {
		// Spin: all workers must begin at the same moment, and a sleep would wake late.
		continue
	}
	s.now = monotonicNow()
	cpu := threadCPU()
	err := do(s, ops, arg, &r)
	r.CPU, r.Wall, r.Start = int64(threadCPU()-cpu), int64(monotonicNow()-s.now), int64(s.now)
	r.Ops, r.Sum = uint64(ops), s.sum&0xffff
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// cases are the cases of a worker in Go.
var cases = map[string]func(s *server, ops int, arg string, r *reply) error{
	"keys":     (*server).makeKeys,
	"tiles":    (*server).readTiles,
	"lock-new": func(s *server, _ int, _ string, _ *reply) error { return s.lockNew() },
	"lock-old": func(s *server, _ int, _ string, _ *reply) error { return s.lockOld() },
	"get": func(s *server, ops int, _ string, r *reply) error {
		return s.getKeys(&s.current, ops, r)
	},
	"get-old": func(s *server, ops int, _ string, r *reply) error {
		return s.getKeys(&s.superseded, ops, r)
	},
	"mget": func(s *server, ops int, arg string, r *reply) error {
		return s.multiGet(&s.current, ops, arg, r)
	},
	"mget-old": func(s *server, ops int, arg string, r *reply) error {
		return s.multiGet(&s.superseded, ops, arg, r)
	},
	"locks":      (*server).lockViews,
	"bbox":       (*server).searchImage,
	"map-build":  (*server).buildMap,
	"map":        (*server).getMap,
	"map-free":   func(s *server, _ int, _ string, _ *reply) error { s.heap = nil; runtime.GC(); return nil },
	"tree-build": (*server).buildForest,
	"soa":        (*server).searchSoA,
	"aos":        (*server).searchAoS,
	"cells":      (*server).searchCells,
	"tree-free":  func(s *server, _ int, _ string, _ *reply) error { s.forest = nil; runtime.GC(); return nil },
	"watch":      (*server).watchStamps,
	"pairs":      (*server).watchPairs,
}
