package node

import (
	"context"

	"github.com/rhumbdb/rhumb/node/publish"
)

// image implements the HTTP endpoints of the node's image.
type image struct{ n *Node }

// Dir returns the directory of the image.
func (i image) Dir() (string, error) {
	m, err := i.n.requireMember()
	if err != nil {
		return "", err
	}
	return publish.ImageDir(i.n.cfg.Snapshot.Dir, m.cluster, m.self.Node), nil
}

// Publish publishes a version with everything that is committed.
func (i image) Publish(ctx context.Context) (uint64, error) {
	m, err := i.n.requireMember()
	if err != nil {
		return 0, err
	}
	return m.publisher.Publish(ctx)
}
