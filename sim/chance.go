package sim

import (
	cryptorand "crypto/rand"
	"io"
	"math/rand/v2"
	"sync"
)

// Raft and the storage engine draw from crypto/rand. While a world runs code that may, it lends them its own source, so that
// the seed decides; the worlds of one process take turns.
var lent struct {
	sync.Mutex
	from *rand.Rand
	real io.Reader
}

func init() {
	lent.real = cryptorand.Reader
	cryptorand.Reader = lentReader{}
}

type lentReader struct{}

func (lentReader) Read(b []byte) (int, error) {
	if lent.from == nil {
		return io.ReadFull(lent.real, b)
	}
	for i := range b {
		b[i] = byte(lent.from.Uint32())
	}
	return len(b), nil
}

// withChance runs do with crypto/rand drawing from the world's source.
func (w *world) withChance(do func()) {
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
