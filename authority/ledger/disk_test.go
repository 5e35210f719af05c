package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestLinks guards that no file of a ledger is followed elsewhere: root runs commands on the folder of a service, whose
// user could make root change the owner of any file, or write into it.
func TestLinks(t *testing.T) {
	cluster := rhumb.ClusterID{1}
	for _, name := range []string{lockName, FileName} {
		for how, link := range map[string]func(string, string) error{"soft": os.Symlink, "hard": os.Link} {
			t.Run(how+" "+name, func(t *testing.T) {
				dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
				if err := Create(dir, cluster, false, time.Now); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(victim, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, name)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := link(victim, path); err != nil {
					t.Fatal(err)
				}
				l, err := Open(dir, cluster, time.Now, nil)
				if err == nil {
					l.Close()
				}
				if err == nil {
					t.Error("opened with a link")
				}
				if text, err := os.ReadFile(victim); err != nil || len(text) > 0 {
					t.Errorf("the file behind the link has %d bytes, %v", len(text), err)
				}
			})
		}
	}
}
