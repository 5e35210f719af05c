package doctor

import (
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// healthy returns the facts of a machine, a node and a cluster without a fault.
func healthy() *Facts {
	return &Facts{
		Now: now,
		Machine: &Machine{
			FilesSoft: 1 << 20, FilesHard: 1 << 20, MemoryLimit: 16 << 30, MemoryAvailable: 12 << 30, MemoryAsked: 8 << 30, ImageBudget: 1 << 30,
			LimitFrom: "machine", HugePages: "madvise", HugePagesShm: "never",
		},
		Shm: &Shm{
			Dir: "/dev/shm/rhumb", Mount: Mount{"tmpfs", "/dev/shm", []string{"rw", "nosuid", "huge=advise"}}, Exists: true, Size: 8 << 30, Free: 7 << 30,
			Mode: 0o755, ImageBudget: 1 << 30,
		},
		Disks: []Disk{
			{
				Dir: "/var/lib/rhumb", Exists: true, Mount: Mount{"ext4", "/", []string{"rw"}}, Device: 1, Size: 100 << 30, Free: 50 << 30, FilesFree: 1 << 20,
				Mode: 0o700, SyncMedian: 2 * time.Millisecond, SyncSlowest: 9 * time.Millisecond,
			},
			{Dir: "/disk2", Mount: Mount{"xfs", "/disk2", nil}, Device: 2, Size: 100 << 30, Free: 50 << 30, SyncMedian: time.Millisecond, SyncSlowest: time.Millisecond},
		},
		Clock:   &Clock{Synchronized: true, MaxError: 20 * time.Millisecond},
		Offsets: []Offset{{"n1", 3 * time.Millisecond, time.Millisecond}, {"n2", -40 * time.Millisecond, 30 * time.Millisecond}},
		Binds:   []Bind{{Use: "clients", Network: "tcp", Addr: "127.0.0.1:7600"}, {Use: "gossip", Network: "udp", Addr: "127.0.0.1:7602", InUse: true, Node: "n1"}},
		Reaches: []Reach{{Node: "n1", Region: "bern", Use: "clients", Network: "tcp", Addr: "10.0.0.1:7600", Took: time.Millisecond}},
		Identities: []Identity{{
			Of: "node in /var/lib/rhumb", Cert: "node.crt", CA: "ca.crt", Name: "node eu-1", Cluster: "c", NotBefore: now.Add(-time.Hour),
			NotAfter: now.Add(100 * time.Hour), WarnBefore: 50 * time.Hour,
		}},
		Members: []Member{
			{ID: "n1", Region: "bern", Version: "v1", Stores: []Store{{"/d", 1 << 30, 50 << 30}}},
			{ID: "n2", Region: "basel", Version: "v1"},
		},
		Version: "v1",
	}
}

// TestHealthy guards that a machine without a fault gets no advice, and that every check is made.
func TestHealthy(t *testing.T) {
	findings := Judge(healthy())
	for _, f := range findings {
		if f.Level != Good || f.Remedy != "" {
			t.Errorf("%+v", f)
		}
	}
	if len(findings) < len(checks) {
		t.Errorf("%d findings of %d checks", len(findings), len(checks))
	}
	if got := Judge(&Facts{Now: now}); len(got) != 0 {
		t.Errorf("without facts: %+v", got)
	}
}

// TestFaults guards what each fault is called, how much it weighs, and that it comes with a remedy.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		break_ func(f *Facts)
		level  Level
		area   string
		what   string // part of the finding
		remedy string // part of the remedy
	}{
		{"few open files", func(f *Facts) { f.Machine.FilesHard = 4096 }, Warning, AreaMachine, "may open 4096 files", "LimitNOFILE"},
		{"too few open files", func(f *Facts) { f.Machine.FilesHard = 1024 }, Wrong, AreaMachine, "needs 4096", "LimitNOFILE"},
		{"too much memory", func(f *Facts) { f.Machine.MemoryAsked = 15<<30 + 1 }, Wrong, AreaMachine, "1.0 GiB in shared memory", "--memory"},
		{"memory in use", func(f *Facts) { f.Machine.MemoryAvailable = 8<<30 - 1 }, Warning, AreaMachine, "are free", "--memory"},
		{"swap", func(f *Facts) { f.Machine.SwapTotal = 2 << 30 }, Warning, AreaMachine, "2.0 GiB of swap", "swapoff"},
		{"strict overcommit", func(f *Facts) { f.Machine.Overcommit = 2 }, Warning, AreaMachine, "overcommit_memory is 2", "sysctl"},
		{"huge pages always", func(f *Facts) { f.Machine.HugePages = "always" }, Warning, AreaMachine, "transparent huge pages", "madvise"},
		{"no huge pages", func(f *Facts) { f.Machine.HugePages = "" }, Skipped, AreaMachine, "no transparent huge pages", ""},
		{"huge images, small mount", func(f *Facts) { f.Machine.WantsHugePages, f.Shm.Mount.Options = true, nil }, Warning, AreaMachine, "no effect", "huge=advise"},

		{"no folder", func(f *Facts) { f.Shm.Err = "permission denied" }, Wrong, AreaShm, "permission denied", "install -d"},
		{"images on a disk", func(f *Facts) { f.Shm.Mount.Kind = "ext4" }, Warning, AreaShm, "written to a disk", "tmpfs"},
		{"read-only mount", func(f *Facts) { f.Shm.Mount.Options = []string{"ro"} }, Wrong, AreaShm, "read-only", "remount,rw"},
		{"open folder", func(f *Facts) { f.Shm.Mode = 0o777 }, Wrong, AreaShm, "mode 0777", "chmod"},
		{"small mount", func(f *Facts) { f.Shm.Size = 64 << 20; f.Shm.Free = 64 << 20 }, Wrong, AreaShm, "64.0 MiB", "remount,size=2147483648"},
		{"full mount", func(f *Facts) { f.Shm.Free = 1 << 20 }, Warning, AreaShm, "1.0 MiB of", "remove what fills"},

		{"no directory", func(f *Facts) { f.Disks[0].Err = "permission denied" }, Wrong, AreaDisk, "/var/lib/rhumb: permission", "install -d"},
		{"read-only directory", func(f *Facts) { f.Disks[0].Err = "read-only file system" }, Wrong, AreaDisk, "/var/lib/rhumb: read-only", "remount,rw"},
		{"full directory", func(f *Facts) { f.Disks[0].Err = "no space left on device" }, Wrong, AreaDisk, "/var/lib/rhumb: no space", "make room"},
		{"data in memory", func(f *Facts) { f.Disks[0].Mount.Kind = "tmpfs" }, Wrong, AreaDisk, "forgets everything", "--dir"},
		{"network file system", func(f *Facts) { f.Disks[0].Mount.Kind = "nfs4" }, Warning, AreaDisk, "another machine", "--dir"},
		{"fuse", func(f *Facts) { f.Disks[0].Mount.Kind = "fuse.sshfs" }, Warning, AreaDisk, "another machine", "--dir"},
		{"layer of a container", func(f *Facts) { f.Disks[0].Mount.Kind = "overlay" }, Warning, AreaDisk, "layer of a container", "volume"},
		{"unknown file system", func(f *Facts) { f.Disks[0].Mount.Kind = "bcachefs" }, Warning, AreaDisk, "not tried", "ext4"},
		{"read-only disk", func(f *Facts) { f.Disks[0].Mount.Options = []string{"ro", "relatime"} }, Wrong, AreaDisk, "read-only", "remount,rw"},
		{"little room", func(f *Facts) { f.Disks[0].Free = 9 << 30 }, Warning, AreaDisk, "9.0 GiB of 100.0 GiB free", "room"},
		{"no room", func(f *Facts) { f.Disks[0].Free = 100 << 20 }, Wrong, AreaDisk, "100.0 MiB", "room"},
		{"no inodes", func(f *Facts) { f.Disks[0].FilesFree = 12 }, Wrong, AreaDisk, "12 more files", "inodes"},
		{"slow disk", func(f *Facts) { f.Disks[0].SyncMedian = 30 * time.Millisecond }, Warning, AreaDisk, "30ms (median)", "10 ms"},
		{"pausing disk", func(f *Facts) { f.Disks[0].SyncSlowest = time.Second }, Warning, AreaDisk, "1s (slowest)", "10 ms"},
		{"useless disk", func(f *Facts) { f.Disks[0].SyncMedian = 300 * time.Millisecond }, Wrong, AreaDisk, "300ms", "10 ms"},
		{"lying disk", func(f *Facts) { f.Disks[0].SyncMedian = time.Microsecond }, Warning, AreaDisk, "faster than a disk", "flushes"},
		{"unmeasured disk", func(f *Facts) { f.Disks[0].SyncMedian = 0 }, Skipped, AreaDisk, "not measured", ""},
		{"open directory", func(f *Facts) { f.Disks[0].Mode = 0o755 }, Warning, AreaDisk, "mode 0755", "chmod 700"},
		{"two directories, one disk", func(f *Facts) { f.Disks[1].Device = 1 }, Warning, AreaDisk, "/var/lib/rhumb and /disk2", "disk of its own"},

		{"no time service", func(f *Facts) { f.Clock.Synchronized = false }, Warning, AreaClock, "nothing keeps", "chrony"},
		{"vague clock", func(f *Facts) { f.Clock.MaxError = 3 * time.Second }, Warning, AreaClock, "3s", "near"},
		{"unknown clock", func(f *Facts) { f.Clock.Err = "no permission" }, Skipped, AreaClock, "no permission", ""},
		{"clock ahead", func(f *Facts) { f.Offsets[0].Ahead = time.Second }, Warning, AreaClock, "1s ahead of", "chronyc"},
		{"clock behind by a day", func(f *Facts) { f.Offsets[0].Ahead = -24 * time.Hour }, Wrong, AreaClock, "24h0m0s behind", "chronyc"},

		{"address of another machine", func(f *Facts) { f.Binds[0].Err = "cannot assign requested address" }, Wrong, AreaPorts, "cannot assign", "address of this machine"},
		{"port in use", func(f *Facts) { f.Binds[0].InUse = true }, Warning, AreaPorts, "127.0.0.1:7600 (clients, tcp) is in use", "ss -tulpn"},
		{"closed port", func(f *Facts) { f.Reaches[0].Err = "i/o timeout" }, Wrong, AreaPorts, "10.0.0.1:7600 of n1 in bern", "pass TCP"},

		{"bad certificate", func(f *Facts) { f.Identities[0].Err = "key does not match" }, Wrong, AreaCertificates, "key does not match", "rhumb cert"},
		{"old certificate", func(f *Facts) { f.Identities[0].NotAfter = now.Add(time.Hour) }, Warning, AreaCertificates, "2026-01-02T04:04:05Z", "renew"},

		{"no cluster", func(f *Facts) { f.ClusterErr = "no answer" }, Wrong, AreaCluster, "no answer", "--addr"},
		{"node down", func(f *Facts) { f.Members[0].Err = "connection refused" }, Wrong, AreaCluster, "n1 in bern does not answer", "log"},
		{"fenced node down", func(f *Facts) { f.Members[0].Err, f.Members[0].Fenced = "refused", true }, Warning, AreaCluster, "fenced", "node forget n1"},
		{"node not ready", func(f *Facts) { f.Members[0].NotReady = "starting" }, Warning, AreaCluster, "starting", "wait"},
		{"full node", func(f *Facts) { f.Members[0].Stores[0].Free = 1 << 20 }, Warning, AreaCluster, "1.0 MiB free in /d", "add nodes to bern"},
		{"two versions", func(f *Facts) { f.Members[0].Version = "v2" }, Warning, AreaCluster, "v1 on n2; v2 on n1", "upgrade"},
		{"an unfinished upgrade", func(f *Facts) { f.Upgrade = "an upgrade is under way" }, Warning, AreaCluster, "under way", "rhumb upgrade status"},
		{"another program", func(f *Facts) { f.Version = "v3" }, Warning, AreaCluster, "this program is v3", "nodes' version"},
		{"missed heartbeats", func(f *Facts) { f.Members[0].Suspects = []string{"n2"} }, Warning, AreaCluster, "n1 in bern misses heartbeats of n2 in basel", "7601"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.break_(f)
			var bad []Finding
			for _, found := range Judge(f) {
				if found.Level != Good {
					bad = append(bad, found)
				}
			}
			if len(bad) != 1 {
				t.Fatalf("%d findings: %+v", len(bad), bad)
			}
			got := bad[0]
			if got.Level != tt.level || got.Area != tt.area || !strings.Contains(got.What, tt.what) || !strings.Contains(got.Remedy, tt.remedy) || (got.Remedy == "") != (got.Level == Skipped) {
				t.Errorf("%+v", got)
			}
		})
	}
}
