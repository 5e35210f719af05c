package sidebyside

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/bench/load"
)

// Operations of the machine. They put the figures of the databases into proportion: a database cannot
// acknowledge a lone write faster than a sync and an echo take, and a database that reaches half of a
// limit has little left to gain.
const (
	// syncAppend appends a block to a file and syncs it; syncOverwrite overwrites a block that was
	// written before. A write that is acknowledged after a sync cannot be faster than the latter.
	syncAppend    load.Op = "sync appended 4 KiB"
	syncOverwrite load.Op = "sync overwritten 4 KiB"
	// echo sends 64 bytes over loopback and receives them: the least that a call costs.
	echo load.Op = "echo 64 B over TCP"
	// chase reads words of memory, each at an address that the word before it holds.
	chase load.Op = "dependent reads of memory"
)

const (
	blockBytes = 4096
	// fileBlocks is the number of blocks that are overwritten in turn.
	fileBlocks = 4096
	echoBytes  = 64
	// chaseReads is the number of reads of one call, so that the clock costs nothing.
	chaseReads = 100_000
)

// limitCases returns the cases of the machine.
func limitCases() []load.Case {
	return []load.Case{
		{Op: syncAppend, Callers: 1, Keys: 1},
		{Op: syncOverwrite, Callers: 1, Keys: fileBlocks},
		{Op: echo, Callers: 1, Keys: 1},
		{Op: echo, Callers: callers, Keys: 1},
		{Op: chase, Callers: 1, Batch: chaseReads, Keys: chaseReads},
	}
}

// limits measures the machine.
type limits struct {
	appended, overwritten *os.File
	block                 []byte // random, so that no disk compresses it
	// conns has a connection to listener for each caller of the echo.
	listener net.Listener
	conns    []net.Conn
	memory   []uint32 // each word holds the index of the next
	// at is where the walk through the memory is.
	at atomic.Uint32
}

// openLimits creates the files and fills the memory.
func openLimits(dir string, memoryBytes int) (*limits, error) {
	l := &limits{block: make([]byte, blockBytes), memory: makeCycle(memoryBytes / 4)}
	random := rand.NewChaCha8([32]byte{2})
	_, _ = random.Read(l.block) // never fails
	// The files are in the directory of the databases, and so on the same disk.
	var err error
	if l.appended, err = os.Create(filepath.Join(dir, "appended")); err != nil {
		return nil, err
	}
	if l.overwritten, err = os.Create(filepath.Join(dir, "overwritten")); err != nil {
		l.Stop()
		return nil, err
	}
	// Blocks must have been written once: overwriting allocates nothing, and the sync writes no metadata
	// of the file system.
	for range fileBlocks {
		if _, err := l.overwritten.Write(l.block); err != nil {
			l.Stop()
			return nil, err
		}
	}
	if err := l.listen(); err != nil {
		l.Stop()
		return nil, err
	}
	return l, l.overwritten.Sync()
}

// makeCycle returns a random permutation of n indices that is one cycle, by the method of Sattolo:
// whoever follows it reads all of them.
func makeCycle(n int) []uint32 {
	words := make([]uint32, n)
	for i := range words {
		words[i] = uint32(i)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for i := n - 1; i > 0; i-- {
		// j is never i, which makes it one cycle.
		j := random.IntN(i)
		words[i], words[j] = words[j], words[i]
	}
	return words
}

// listen opens the connections of the echo, and a goroutine at the other end of each.
func (l *limits) listen() (err error) {
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	for range callers {
		c, err := net.Dial("tcp", l.listener.Addr().String())
		if err != nil {
			return err
		}
		l.conns = append(l.conns, c)
		other, err := l.listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = other.Close() }()
			b := make([]byte, echoBytes)
			for {
				if _, err := io.ReadFull(other, b); err != nil {
					return // the connection was closed
				}
				if _, err := other.Write(b); err != nil {
					return
				}
			}
		}()
	}
	return nil
}

// Name returns the name of the target in the report.
func (l *limits) Name() string { return machine }

// Offers reports whether a case is one of the machine.
func (l *limits) Offers(c load.Case) bool {
	for _, x := range limitCases() {
		if c.Workload == "" && x.Op == c.Op {
			return true
		}
	}
	return false
}

// Run runs a case. All processor time is that of the client, since there are no servers.
func (l *limits) Run(ctx context.Context, c load.Case) (load.Result, error) {
	r := load.Run(ctx, c, nil, l.call)
	// Without limits there is nothing to compare with, and the disk or loopback is broken.
	if r.Ops == 0 && r.Errors > 0 {
		return r, errors.Join(errors.New("the machine cannot be measured"), errors.New(r.FirstError))
	}
	return r, nil
}

func (l *limits) call(_ context.Context, s load.Step) error {
	switch s.Op {
	case syncAppend:
		return writeSynced(l.appended, l.block, -1)
	case syncOverwrite:
		return writeSynced(l.overwritten, l.block, int64(s.Key)*blockBytes)
	case echo:
		// Each caller has its connection, and one message is under way on it.
		b := make([]byte, echoBytes)
		if _, err := l.conns[s.Caller].Write(b); err != nil {
			return err
		}
		_, err := io.ReadFull(l.conns[s.Caller], b)
		return err
	}
	at := l.at.Load()
	for range s.Keys {
		at = l.memory[at]
	}
	// The next call begins where this one ended, and the compiler must not drop the reads.
	l.at.Store(at)
	return nil
}

// writeSynced writes a block at an offset, or at the end if that is negative, and syncs the data.
func writeSynced(f *os.File, block []byte, offset int64) error {
	var err error
	if offset < 0 {
		_, err = f.Write(block)
	} else {
		_, err = f.WriteAt(block, offset)
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("fdatasync", unix.Fdatasync(int(f.Fd())))
}

// Stop closes and removes what openLimits made.
func (l *limits) Stop() {
	for _, f := range []*os.File{l.appended, l.overwritten} {
		if f != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}
	for _, c := range l.conns {
		_ = c.Close()
	}
	if l.listener != nil {
		_ = l.listener.Close()
	}
}
