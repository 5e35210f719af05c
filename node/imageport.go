package node

import (
	"context"

	"github.com/rhumbdb/rhumb/node/publish"
)

// image is the node's image as its port for operators shows it.
type image struct{ n *Node }

// Dir gives the directory of the image.
func (i image) Dir() (string, error) {
	m, err := i.n.joined()
	if err != nil {
		return "", err
	}
	return publish.ImageDir(i.n.cfg.Snapshot.Dir, m.cluster, m.self.Node), nil
}

// Publish makes a version of all that is committed.
func (i image) Publish(ctx context.Context) (uint64, error) {
	m, err := i.n.joined()
	if err != nil {
		return 0, err
	}
	return m.publisher.Publish(ctx)
}
