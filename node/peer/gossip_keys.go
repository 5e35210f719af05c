package peer

import (
	"bytes"
	"crypto/rand"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/rhumbdb/rhumb"
)

// gossipKeys are the keys that gossip uses, and their version in the metadata.
//
// memberlist encrypts only with a key at hand. So a node that has not learned the keys of its
// cluster begins with a random key that nobody else has: it sends nothing readable and rejects
// everything.
type gossipKeys struct {
	ring *memberlist.Keyring

	mu      sync.Mutex // guards the fields below, and makes changes of ring one at a time
	current rhumb.GossipKeys
}

// newGossipKeys returns a ring with a random key.
func newGossipKeys() *gossipKeys {
	secret := make([]byte, rhumb.GossipSecretSize)
	_, _ = rand.Read(secret) // never fails
	ring, err := memberlist.NewKeyring(nil, secret)
	if err != nil {
		panic("peer: memberlist rejects a key of 32 bytes: " + err.Error())
	}
	return &gossipKeys{ring: ring}
}

// SetKeys replaces the keys of gossip: the first one encrypts, and all of them decrypt. Keys of the
// installed version or of an older one are ignored, since they may arrive late. Without encryption
// SetKeys does nothing.
func (g *Gossip) SetKeys(keys rhumb.GossipKeys) error {
	const op rhumb.Op = "peer.Gossip.SetKeys"
	k := g.keys
	if k == nil || len(keys.Keys) == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if keys.Version <= k.current.Version {
		return nil
	}
	// New keys are added before the first one changes, and old keys go last: in between, the node
	// reads what every other node may send.
	for _, key := range keys.Keys {
		if err := k.ring.AddKey(key.Secret); err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "key %d of gossip: %v", key.ID, err)
		}
	}
	if err := k.ring.UseKey(keys.Keys[0].Secret); err != nil {
		return rhumb.WrapKind(op, rhumb.Internal, err)
	}
	// The random key of the beginning leaves the ring here too.
	for _, old := range k.ring.GetKeys() {
		if !slices.ContainsFunc(keys.Keys, func(key rhumb.GossipKey) bool { return bytes.Equal(key.Secret, old) }) {
			if err := k.ring.RemoveKey(old); err != nil {
				return rhumb.WrapKind(op, rhumb.Internal, err)
			}
		}
	}
	k.current = keys
	return nil
}

// Keys returns the installed keys. The version is 0 before the first SetKeys, and without
// encryption.
func (g *Gossip) Keys() rhumb.GossipKeys {
	if g.keys == nil {
		return rhumb.GossipKeys{}
	}
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	return g.keys.current
}

// Encrypted reports whether gossip is encrypted.
func (g *Gossip) Encrypted() bool { return g.keys != nil }
