package sim

import (
	cryptorand "crypto/rand"
	"io"
	"math/rand/v2"
	"sync"
)

// lent is the random source of crypto/rand. Raft draws its election timeouts from crypto/rand
// and the storage engine its ids; a run repeats only if its seed determines those draws.
// crypto/rand.Reader is one variable for the whole process, so only one world can hold it at a
// time.
var lent struct {
	sync.Mutex
	// from is the source of the world that holds the lock, or nil outside of withChance.
	from *rand.Rand
	real io.Reader
}

func init() {
	lent.real = cryptorand.Reader
	cryptorand.Reader = lentReader{}
}

// lentReader reads from the world that holds lent, or from the operating system.
type lentReader struct{}

// Read fills b. It implements io.Reader.
func (lentReader) Read(b []byte) (int, error) {
	if lent.from == nil {
		return io.ReadFull(lent.real, b)
	}
	// One draw per byte: the number of draws, and so the state of the source, depends on nothing
	// but the number of bytes read.
	for i := range b {
		b[i] = byte(lent.from.Uint32())
	}
	return len(b), nil
}

// withChance runs do with crypto/rand reading from the source of the world. Calls nest: a process
// that is resumed inside of withChance may itself end up here.
func (w *world) withChance(do func()) {
	// The lock is not reentrant, and the outer call already holds it.
	if w.lending {
		do()
		return
	}
	lent.Lock()
	lent.from, w.lending = w.rnd, true
	defer func() {
		lent.from, w.lending = nil, false
		lent.Unlock()
	}()
	do()
}
