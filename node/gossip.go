package node

import (
	"crypto/rand"

	"github.com/rhumbdb/rhumb"
)

// newGossipKey draws a key of gossip.
func newGossipKey(id uint32) rhumb.GossipKey {
	secret := make([]byte, rhumb.GossipSecretSize)
	_, _ = rand.Read(secret) // never fails
	return rhumb.GossipKey{ID: id, Secret: secret}
}
