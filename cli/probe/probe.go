// Package probe gathers facts about this machine and about the ports of nodes, for package doctor
// to judge. Facts that the operating system does not report are left empty.
//
// Every question has a bound in time, because the answer may be a firewall that drops packets or a
// disk that hangs, and a doctor that hangs is of no use. Nothing is changed on the machine or the
// cluster but for small files in the data directories, which are removed.
//
// The questions are asked as the user who runs the command. A node usually runs as another user, so
// the permissions of folders are judged by the mode of the folders too, and not by the success of
// this process alone.
package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/memory"
)

const (
	// syncs is how many writes measure a disk, and syncsFor bounds the time for them. An odd number
	// has a median that was measured, and 21 of them take a tenth of a second on a good disk.
	syncs    = 21
	syncsFor = 3 * time.Second
	// syncBytes is the size of such a write.
	syncBytes = 4 << 10
	// dialTimeout bounds an attempt to connect, and udpWait the wait for a refusal: a gossip port
	// does not answer strangers.
	dialTimeout = 3 * time.Second
	udpWait     = 300 * time.Millisecond
	// dialsAtOnce bounds the connections that are attempted at the same time.
	dialsAtOnce = 64
)

// Machine describes the limits and the memory of this machine, for a node with this much memory.
func Machine(asked, imageBudget int64, wantsHugePages bool) *doctor.Machine {
	m := &doctor.Machine{MemoryAsked: asked, ImageBudget: imageBudget, WantsHugePages: wantsHugePages}
	limit, from := memory.Limit()
	m.MemoryLimit, m.LimitFrom = limit, string(from)
	// The default of a node, computed by the same function, so that the doctor judges the value
	// that the node will use.
	if m.MemoryAsked == 0 {
		m.MemoryAsked = memory.Default(1)
	}
	fields := memInfo(readText("/proc/meminfo"))
	m.MemoryAvailable, m.SwapTotal = min(fields["MemAvailable"], limit), fields["SwapTotal"]
	m.Overcommit, _ = strconv.Atoi(readText("/proc/sys/vm/overcommit_memory"))
	m.HugePages = bracketed(readText("/sys/kernel/mm/transparent_hugepage/enabled"))
	m.HugePagesShm = bracketed(readText("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
	m.FilesSoft, m.FilesHard = openFiles()
	return m
}

// Shm describes the folder for images. The folder itself may not exist: the first node of the
// machine creates it.
func Shm(dir string, imageBudget int64) *doctor.Shm {
	s := &doctor.Shm{Dir: dir, ImageBudget: imageBudget}
	at, err := existing(dir)
	if err == nil {
		s.Exists = at == filepath.Clean(dir)
		err = writable(at)
	}
	if err != nil {
		s.Err = describe(err)
	}
	s.Mount = mountOf(at, parseMounts(readText("/proc/self/mountinfo")))
	if room, err := roomOf(at); err == nil {
		s.Size, s.Free = room.size, room.free
	}
	if info, err := os.Stat(at); err == nil && s.Exists {
		s.Mode = modeOf(info)
	}
	return s
}

// Disk describes a data directory and measures how long a sync takes there. A directory that does
// not exist is judged by the folder in which it will be created.
func Disk(dir string) doctor.Disk {
	d := doctor.Disk{Dir: dir}
	at, err := existing(dir)
	if err == nil {
		err = writable(at)
	}
	if err != nil {
		d.Err = describe(err)
		return d
	}
	d.Exists = at == filepath.Clean(dir)
	d.Mount = mountOf(at, parseMounts(readText("/proc/self/mountinfo")))
	if room, err := roomOf(at); err == nil {
		d.Size, d.Free, d.FilesFree = room.size, room.free, room.filesFree
	}
	if info, err := os.Stat(at); err == nil {
		d.Mode = modeOf(info)
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			d.Device = uint64(st.Dev)
		}
	}
	d.SyncMedian, d.SyncSlowest, err = syncTimes(at)
	if err != nil {
		d.Err = describe(err)
	}
	return d
}

// existing returns the nearest folder of a path that exists. It is where a node that is not
// installed yet will create its directories.
func existing(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return path, err
	}
	for {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			return path, &os.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
		}
		if !errors.Is(err, os.ErrNotExist) || path == "/" {
			return path, err
		}
		path = filepath.Dir(path)
	}
}

// writable returns an error if this user cannot create files in a folder. Permissions alone are no
// proof: the file system may be read-only, and the user may be root without the right to write
// there, as in a container.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".rhumb-doctor-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// syncTimes measures how long a small write takes to become durable.
func syncTimes(dir string) (median, slowest time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".rhumb-doctor-*")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	var times []time.Duration
	for begin := time.Now(); len(times) < syncs && time.Since(begin) < syncsFor; {
		start := time.Now()
		// Each write extends the file, as that of a log does, so the sync includes the metadata of
		// the file system.
		if _, err := f.Write(make([]byte, syncBytes)); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], times[len(times)-1], nil
}

// Bind tries to listen on an address and releases it again at once. A port that is in use is not an
// error: a node may run there.
func Bind(use, network, addr string) doctor.Bind {
	b := doctor.Bind{Use: use, Network: network, Addr: addr}
	var err error
	if network == "udp" {
		var c net.PacketConn
		if c, err = net.ListenPacket(network, addr); err == nil {
			err = c.Close()
		}
	} else {
		var l net.Listener
		if l, err = net.Listen(network, addr); err == nil {
			err = l.Close()
		}
	}
	// Kept apart because the answer depends on who asks: for a new node it is a fault, for a
	// machine that runs one it is the normal state.
	if errors.Is(err, syscall.EADDRINUSE) {
		b.InUse = true
	} else if err != nil {
		b.Err = describe(err)
	}
	return b
}

// Dial tries to connect to each port, many at once, and fills in what came of it. A firewall that
// drops packets costs the full timeout, so the ports of a cluster cannot be tried one after the
// other.
func Dial(ctx context.Context, reaches []doctor.Reach) {
	slots := make(chan struct{}, dialsAtOnce)
	var work sync.WaitGroup
	for i := range reaches {
		// Taken before the goroutine is made, so that a list of thousands of ports does not become
		// thousands of goroutines.
		slots <- struct{}{}
		work.Go(func() {
			dial(ctx, &reaches[i])
			<-slots
		})
	}
	work.Wait()
}

// dial tries one port. The connection is closed unused, which each server has to bear from anybody.
func dial(ctx context.Context, r *doctor.Reach) {
	start := time.Now()
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, r.Network, r.Addr)
	// Dialling UDP sends nothing and so proves nothing.
	if err == nil && r.Network == "udp" {
		err = refusal(conn)
	}
	r.Took = time.Since(start)
	if conn != nil {
		_ = conn.Close()
	}
	if err != nil {
		r.Err = describe(err)
	}
}

// refusal sends a datagram and returns an error if the machine says that nobody listens. Silence
// counts as an open port.
func refusal(conn net.Conn) error {
	if _, err := conn.Write([]byte{0}); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(udpWait)); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// Identity loads a certificate with its key and authorities as a node or a client would.
//
// roles are those that the bearer may have; none means any. A node refuses the certificate of a user in its directory, however valid
// it is.
func Identity(of string, files identity.Files, roles ...identity.Role) doctor.Identity {
	id := doctor.Identity{Of: of, Cert: files.Cert, CA: files.CA}
	// The same code as in a node: the doctor must not accept files that a node refuses.
	src, err := identity.OpenSource(identity.SourceConfig{Files: files, Roles: roles})
	if err != nil {
		id.Err = rhumb.Message(err)
		return id
	}
	defer src.Close()
	if name, ok := src.Name(); ok {
		leaf := src.Leaf()
		id.Name, id.Cluster = name.Short(), name.Cluster.String()
		id.NotBefore, id.NotAfter, id.WarnBefore = leaf.NotBefore, leaf.NotAfter, identity.ExpiryWarning(leaf)
	}
	return id
}

// describe returns the cause of an error without the operations around it.
func describe(err error) string {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return cmp.Or(e.Err, err).Error()
	}
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return filepath.Dir(e.Path) + ": " + e.Err.Error()
	}
	return err.Error()
}

// readText returns a small file of the kernel, or "".
func readText(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// modeOf returns the permissions of a file as chmod writes them, with the sticky bit, which makes a
// folder that everybody may write safe.
func modeOf(info os.FileInfo) uint32 {
	mode := uint32(info.Mode().Perm())
	if info.Mode()&os.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// AuthorityClock compares the clock of the authority with that of this machine. HTTP dates have
// seconds, which is enough: certificates are valid a while before they are issued. With the
// authorities in caFile the server has to prove that it is one of them.
func AuthorityClock(ctx context.Context, addr, caFile string) (doctor.Offset, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} // nothing but the date is used
	if caFile != "" {
		src, err := identity.OpenSource(identity.SourceConfig{Files: identity.Files{CA: caFile}})
		if err != nil {
			return doctor.Offset{}, err
		}
		defer src.Close()
		cfg = src.ClientConfig(identity.Want{Roles: []identity.Role{identity.RoleAuthority}})
	}
	transport := &http.Transport{TLSClientConfig: cfg}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "https://"+addr+"/livez", nil)
	if err != nil {
		return doctor.Offset{}, err
	}
	start := time.Now()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return doctor.Offset{}, err
	}
	took := time.Since(start)
	_ = resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return doctor.Offset{}, err
	}
	// The date is rounded down to seconds.
	ahead := date.Add(time.Second / 2).Sub(start.Add(took / 2))
	return doctor.Offset{Of: "the authority at " + addr, Ahead: ahead, Uncertainty: time.Second/2 + took/2}, nil
}
