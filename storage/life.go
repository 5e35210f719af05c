package storage

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
)

// Life is the stored part of a node's current life: the nonce that identifies this start, and the
// nonce of the start before, which the catalog must know. The zero value belongs to a node that
// never registered. See docs/replication.md#rule-life.
type Life struct {
	// Previous is the nonce that was stored before Nonce, or 0 if there was none.
	Previous uint64
	// Nonce is random and drawn once for each life.
	Nonce uint64
	// Number is the life that the catalog counted for Nonce, or 0 until the node knows it.
	Number uint64
}

// localLife is the key of SpaceStore that holds the life: previous(8) nonce(8) number(8), big
// endian.
const localLife = "life"

// lifeSize is the size of a stored life in bytes.
const lifeSize = 24

// Life returns the stored life; ok is false if none was stored.
func (e *Engine) Life() (life Life, ok bool, err error) {
	const op rhumb.Op = "storage.Engine.Life"
	v, ok, err := e.Local(SpaceStore).Get([]byte(localLife))
	switch {
	case err != nil || !ok:
		return Life{}, false, rhumb.Wrap(op, err)
	case len(v) != lifeSize:
		return Life{}, false, rhumb.Ef(op, rhumb.Corrupt, "%s: the stored life of the node has %d bytes, not %d", e.stores[0].Dir(), len(v), lifeSize)
	}
	return Life{Previous: wordAt(v, 0), Nonce: wordAt(v, 1), Number: wordAt(v, 2)}, true, nil
}

// BeginLife returns the life of this start and stores it before the caller registers it. The order
// makes an older copy of the disk detectable: if the catalog knows a later nonce than Previous,
// this disk has gone back. nonce must be random.
//
// If the stored life has no number, it has served nothing, and the metadata may or may not have
// counted it. BeginLife returns that life again, so that a start that crashes before its
// registration is answered does not use up a life.
func (e *Engine) BeginLife(nonce uint64) (Life, error) {
	stored, ok, err := e.Life()
	if err != nil || ok && stored.Number == 0 {
		return stored, err
	}
	return e.RenewLife(nonce)
}

// RenewLife stores a new life even if the stored one has served nothing. A node calls it if
// metadata refuses the stored nonce, and when it was fenced while alive.
func (e *Engine) RenewLife(nonce uint64) (Life, error) {
	stored, ok, err := e.Life()
	if err != nil {
		return Life{}, err
	}
	life := Life{Previous: stored.Nonce, Nonce: nonce}
	if id := e.Identity(); !ok && !id.Cluster.IsZero() {
		// A build that stored no nonce registered with one that it derived from the store id and
		// the boot sequence. The life before this one was the boot before this one.
		life.Previous = binary.BigEndian.Uint64(id.Store[:8]) ^ uint64(id.Boot-1)
	}
	return life, e.setLife(life)
}

// ConfirmLife stores the number that metadata counted for a life and clears Short. From then on the
// life may serve. The mark is cleared second: if the node crashes in between, it is short once more
// than needed, and never once less.
func (e *Engine) ConfirmLife(life Life, number rhumb.BootSeq) error {
	life.Number = uint64(number)
	if err := e.setLife(life); err != nil {
		return err
	}
	return e.ClearShort()
}

// setLife stores a life and returns once it is durable.
func (e *Engine) setLife(life Life) error {
	return rhumb.Wrap("storage.Engine.setLife", e.Local(SpaceStore).Set([]byte(localLife), encodeWords(life.Previous, life.Nonce, life.Number)))
}
