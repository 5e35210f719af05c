package storage

import "github.com/rhumbdb/rhumb"

// Life is what a node stores about its present life: the nonce under which this start registers, and the nonce of the
// start before, which the catalog must know. The zero value is that of a node that never registered.
type Life struct {
	// Previous is the nonce that was stored before Nonce; 0 when there was none.
	Previous uint64
	// Nonce is random and drawn once per start.
	Nonce uint64
	// Number is the life that the catalog counted for Nonce; 0 until it is known.
	Number uint64
}

// localLife is the key of SpaceStore that holds the life: previous(8) nonce(8) number(8), big endian.
const localLife = "life"

// lifeSize is the size of a stored life in bytes.
const lifeSize = 24

// Life returns the stored life; ok is false when none was stored.
func (e *Engine) Life() (life Life, ok bool, err error) {
	const op rhumb.Op = "storage.Engine.Life"
	v, ok, err := e.Local(SpaceStore).Get([]byte(localLife))
	switch {
	case err != nil || !ok:
		return Life{}, false, rhumb.Wrap(op, err)
	case len(v) != lifeSize:
		return Life{}, false, rhumb.Ef(op, rhumb.Corrupt, "%s: the life has %d bytes, want %d", e.stores[0].Dir(), len(v), lifeSize)
	}
	return Life{Previous: word(v, 0), Nonce: word(v, 1), Number: word(v, 2)}, true, nil
}

// SetLife stores the life and waits until it is durable. A node registers a nonce only after it is stored: an unknown
// previous nonce then proves that the disk is an older copy.
func (e *Engine) SetLife(life Life) error {
	return rhumb.Wrap("storage.Engine.SetLife", e.Local(SpaceStore).Set([]byte(localLife), encodeWords(life.Previous, life.Nonce, life.Number)))
}
