package snapshot

import (
	"encoding/binary"
	"sync/atomic"
)

var le = binary.LittleEndian

// storeWord stores 8 bytes as one word.
func storeWord(p []byte, offset int, v uint64) { atomic.StoreUint64(word64(p, offset), v) }

// putWords changes what readers may read at the same time: encode works on a copy, which is stored word by word.
func putWords(p []byte, encode func(p []byte)) {
	b := make([]byte, len(p))
	encode(b)
	for i := 0; i < len(p); i += 8 {
		storeWord(p, i, le.Uint64(b[i:]))
	}
}
