package storage

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
)

// Life is what a node stores about its present life: the nonce under which this start registers, and the nonce of the
// start before, which the catalog must know. The zero value is that of a node that never registered.
type Life struct {
	// Previous is the nonce that was stored before Nonce; 0 when there was none.
	Previous uint64
	// Nonce is random and drawn once per life.
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
	return Life{Previous: wordAt(v, 0), Nonce: wordAt(v, 1), Number: wordAt(v, 2)}, true, nil
}

// BeginLife returns the life of a start, and stores it before the caller registers it: an unknown previous nonce then proves
// that the disk is an older copy. nonce must be random. A stored life whose number is not known has served nothing, and
// metadata may or may not know it: BeginLife returns that life again.
func (e *Engine) BeginLife(nonce uint64) (Life, error) {
	stored, ok, err := e.Life()
	if err != nil || ok && stored.Number == 0 {
		return stored, err
	}
	return e.RenewLife(nonce)
}

// RenewLife stores a new life, also when the stored one has served nothing.
func (e *Engine) RenewLife(nonce uint64) (Life, error) {
	stored, ok, err := e.Life()
	if err != nil {
		return Life{}, err
	}
	life := Life{Previous: stored.Nonce, Nonce: nonce}
	if id := e.Identity(); !ok && !id.Cluster.IsZero() {
		// The previous build stored no nonce. It registered the boot before this one with store and boot.
		life.Previous = binary.BigEndian.Uint64(id.Store[:8]) ^ uint64(id.Boot-1)
	}
	return life, e.setLife(life)
}

// ConfirmLife stores the number that metadata counted for a life, and forgets that the node was short: metadata knows. From
// then on the life may serve.
func (e *Engine) ConfirmLife(life Life, number rhumb.BootSeq) error {
	life.Number = uint64(number)
	if err := e.setLife(life); err != nil {
		return err
	}
	return e.ClearShort()
}

// setLife stores the life and waits until it is durable.
func (e *Engine) setLife(life Life) error {
	return rhumb.Wrap("storage.Engine.setLife", e.Local(SpaceStore).Set([]byte(localLife), encodeWords(life.Previous, life.Nonce, life.Number)))
}
