package probe

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

const mountInfo = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:26 / /dev/shm rw,nosuid,nodev shared:3 - tmpfs tmpfs rw,huge=advise
31 22 0:27 / /data\040one rw shared:4 master:2 - xfs /dev/sdb rw
32 22 0:28 / /data\040one rw - nfs4 server:/x ro
broken line
33 22 0:29 / /dev/shmoo rw - ramfs none rw
`

// TestMountOf guards which mount holds a path: the longest, and the last of several at one place.
func TestMountOf(t *testing.T) {
	mounts := parseMounts(mountInfo)
	for path, want := range map[string]string{
		"/": "ext4", "/var/lib": "ext4", "/dev/shm": "tmpfs", "/dev/shm/rhumb": "tmpfs", "/dev/shmoo": "ramfs", "/dev/shmo": "ext4",
		"/data one/d": "nfs4", "/data": "ext4",
	} {
		if got := mountOf(path, mounts); got.Kind != want {
			t.Errorf("%s is on %+v, want %s", path, got, want)
		}
	}
	if got := strings.Join(mountOf("/dev/shm", mounts).Options, ","); got != "rw,nosuid,nodev,rw,huge=advise" {
		t.Errorf("options %s", got)
	}
}

// FuzzParse guards that nothing the kernel could write crashes the program.
func FuzzParse(f *testing.F) {
	f.Add(mountInfo)
	f.Add("MemTotal: 1 kB\nSwapTotal:\n")
	f.Add("always [madvise] never")
	f.Fuzz(func(t *testing.T, text string) {
		mountOf("/var/lib", parseMounts(text))
		memInfo(text)
		if word := bracketed(text); word != "" && !strings.Contains(text, "["+word+"]") {
			t.Errorf("%q from %q", word, text)
		}
	})
}

// TestParse guards the settings of the kernel.
func TestParse(t *testing.T) {
	fields := memInfo("MemAvailable:   12 kB\nSwapTotal:     3 kB\nHugePages_Total: 5\nOdd\n")
	if fields["MemAvailable"] != 12<<10 || fields["SwapTotal"] != 3<<10 || fields["HugePages_Total"] != 5 {
		t.Errorf("%v", fields)
	}
	for text, want := range map[string]string{"always [madvise] never": "madvise", "": "", "[never]": "never", "[open": ""} {
		if got := bracketed(text); got != want {
			t.Errorf("%q selects %q", text, got)
		}
	}
}

// TestDisk guards that a disk is measured, that nothing stays behind, and that a directory that
// cannot be used says why.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	d := Disk(dir)
	if d.Err != "" || !d.Exists || d.Mount.Kind == "" || d.Free == 0 || d.Size < d.Free || d.SyncMedian == 0 || d.SyncSlowest < d.SyncMedian || d.Device == 0 {
		t.Errorf("%+v", d)
	}
	later := Disk(filepath.Join(dir, "later", "still"))
	if later.Err != "" || later.Exists || later.Mount.Kind != d.Mount.Kind {
		t.Errorf("%+v", later)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below"), "/proc/self"} {
		if d := Disk(path); d.Err == "" {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

// TestMachine guards that the facts of this machine are plausible.
func TestMachine(t *testing.T) {
	m := Machine(0, 1<<20, false)
	if m.FilesHard == 0 || m.MemoryLimit == 0 || m.MemoryAsked == 0 || m.MemoryAsked > m.MemoryLimit || m.LimitFrom == "" {
		t.Errorf("%+v", m)
	}
	s := Shm(filepath.Join(t.TempDir(), "images"), 1<<20)
	if s.Err != "" || s.Exists || s.Mount.Kind == "" || s.Size == 0 {
		t.Errorf("%+v", s)
	}
	if c := ClockState(); c == nil {
		t.Error("no state of the clock")
	}
}

// TestPorts guards what is said of ports that are free, taken, foreign, open and closed.
func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	if b := Bind("clients", "tcp", taken); !b.InUse || b.Err != "" {
		t.Errorf("%+v", b)
	}
	if b := Bind("clients", "tcp", "127.0.0.1:0"); b.InUse || b.Err != "" {
		t.Errorf("%+v", b)
	}
	if b := Bind("clients", "udp", "192.0.2.1:7600"); b.InUse || b.Err == "" {
		t.Errorf("an address of another machine: %+v", b)
	}
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_ = closed.Close()
	reaches := []doctor.Reach{
		{Network: "tcp", Addr: taken},
		{Network: "tcp", Addr: "127.0.0.1:1"},
		{Network: "udp", Addr: silent.LocalAddr().String()},
		{Network: "udp", Addr: closed.LocalAddr().String()},
	}
	Dial(t.Context(), reaches)
	for i, wantErr := range []bool{false, true, false, true} {
		if (reaches[i].Err != "") != wantErr {
			t.Errorf("%+v", reaches[i])
		}
	}
}

// TestIdentity guards what makes an identity unusable: each fault is named.
func TestIdentity(t *testing.T) {
	now := time.Now()
	authority, foreign := identitytest.New(t), identitytest.New(t)
	good := authority.Node(t, "eu-1").Files(t, t.TempDir())
	id := Identity("node", good)
	if id.Err != "" || id.Name == "" || id.Cluster == "" || id.NotAfter.Before(now) || id.WarnBefore <= 0 {
		t.Errorf("%+v", id)
	}
	for name, files := range map[string]func() string{
		"expired": func() string {
			return Identity("node", authority.Node(t, "eu-1", identitytest.Valid(now.Add(-48*time.Hour), now.Add(-time.Hour))).Files(t, t.TempDir())).Err
		},
		"valid from": func() string {
			return Identity("node", authority.Node(t, "eu-1", identitytest.Valid(now.Add(24*time.Hour), now.Add(48*time.Hour))).Files(t, t.TempDir())).Err
		},
		"key": func() string {
			mixed := good
			mixed.Key = authority.Node(t, "eu-1").Files(t, t.TempDir()).Key
			return Identity("node", mixed).Err
		},
		"author": func() string {
			mixed := good
			mixed.CA = foreign.Node(t, "eu-1").Files(t, t.TempDir()).CA
			return Identity("node", mixed).Err
		},
		"no such file": func() string {
			missing := good
			missing.Cert += ".gone"
			return Identity("node", missing).Err
		},
		"wanted a certificate of a node": func() string {
			return Identity("node", authority.User(t, "ann").Files(t, t.TempDir()), identity.RoleNode).Err
		},
		"not a regular file": func() string {
			piped := good
			piped.Key = filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(piped.Key, 0o600); err != nil {
				t.Fatal(err)
			}
			return Identity("node", piped).Err
		},
		"chmod 600": func() string {
			files := authority.Node(t, "eu-1").Files(t, t.TempDir())
			if err := os.Chmod(files.Key, 0o644); err != nil {
				t.Fatal(err)
			}
			return Identity("node", files).Err
		},
	} {
		if got := files(); !strings.Contains(got, name) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAuthorityClock guards the sign of the offset of the authority's clock.
func TestAuthorityClock(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(24*time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer server.Close()
	o, err := AuthorityClock(t.Context(), server.Listener.Addr().String(), "")
	if err != nil || o.Ahead < 23*time.Hour || o.Ahead > 25*time.Hour {
		t.Errorf("%+v, %v", o, err)
	}
}
