package publish

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestFoldersOfOthers guards images against other users of the machine, who may create folders in /dev/shm before the
// node does.
func TestFoldersOfOthers(t *testing.T) {
	root := filepath.Join(t.TempDir(), "rhumb")
	cluster, image := filepath.Join(root, "c"), filepath.Join(root, "c", "n1")
	check := func() error { return checkFolders(root, cluster, image) }
	if err := check(); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	if err := os.MkdirAll(image, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Errorf("own folders: %v", err)
	}
	// A link leads the node into a folder of somebody's choice.
	elsewhere := t.TempDir()
	if err := errors.Join(os.RemoveAll(cluster), os.Symlink(elsewhere, cluster)); err != nil {
		t.Fatal(err)
	}
	if err := check(); rhumb.KindOf(err) != rhumb.PermissionDenied {
		t.Errorf("a link in place of the folder: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away; run as root")
	}
	if err := errors.Join(os.Remove(cluster), os.MkdirAll(image, 0o755), os.Chown(root, 65_534, 65_534)); err != nil {
		t.Fatal(err)
	}
	if err := check(); rhumb.KindOf(err) != rhumb.PermissionDenied {
		t.Errorf("the folder of another user: %v", err)
	}
}

// TestDefaultFolder guards that a node without a folder of its own for images uses the default in every place.
func TestDefaultFolder(t *testing.T) {
	w := newWorld(t, Policy{})
	if err := w.driver.Close(); err != nil {
		t.Fatal(err)
	}
	w.root = ""
	w.open(Policy{})
	if root := w.driver.cfg.Root; root != DirDefault {
		t.Errorf("images are created in %q, want %q", root, DirDefault)
	}
}
