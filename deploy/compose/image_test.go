package compose

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"golang.org/x/sys/unix"
)

// roleContainer is the argument under which this test program becomes the first process of a container.
const roleContainer = "become-container"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == roleContainer {
		fmt.Fprintln(os.Stderr, becomeContainer(os.Args[2], os.Args[3:]))
		os.Exit(125)
	}
	os.Exit(m.Run())
}

// image is what the last stage of the Containerfile says.
type image struct {
	from, user, dir string
	entrypoint, cmd []string
	env             []string
	signal          string
}

// readImage parses the Containerfile with BuildKit's parser, which fails for what BuildKit does not know.
func readImage(t *testing.T) (img image) {
	t.Helper()
	file, err := os.Open("../container/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tree, err := parser.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	img.from = last.BaseName
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			img.user = c.User
		case *instructions.WorkdirCommand:
			img.dir = c.Path
		case *instructions.EntrypointCommand:
			img.entrypoint = c.CmdLine
		case *instructions.CmdCommand:
			img.cmd = c.CmdLine
		case *instructions.StopSignalCommand:
			img.signal = c.Signal
		case *instructions.EnvCommand:
			for _, pair := range c.Env {
				img.env = append(img.env, pair.Key+"="+pair.Value)
			}
		case *instructions.CopyCommand:
			if c.From != "build" || fmt.Sprint(c.SourcePaths) != "[/out/]" || c.DestPath != "/" {
				t.Errorf("the image has more than compile.sh writes: %s", c)
			}
		case *instructions.RunCommand, *instructions.AddCommand:
			t.Errorf("the image has more than compile.sh writes: %v", c)
		}
	}
	return img
}

// TestImage guards that the root file system of the image suffices: the program runs in it as the image's user, with a read-only root, no
// capabilities and no way to gain rights. No container engine is needed.
func TestImage(t *testing.T) {
	img := readImage(t)
	if img.from != "scratch" || img.user != "65532:65532" || img.signal != "SIGTERM" {
		t.Errorf("the image is from %q, runs as %q, stops by %q", img.from, img.user, img.signal)
	}
	if os.Geteuid() != 0 {
		t.Skip("makes a mount namespace with a root of its own; run as root")
	}
	root := filepath.Join(t.TempDir(), "root")
	args := []string{"test", root}
	if program := os.Getenv("RHUMB_STATIC"); program != "" {
		args = append(args, program) // saves minutes of compiling
	}
	if out, err := exec.Command("../container/compile.sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(append([]string{roleContainer, root}, img.entrypoint...), img.cmd...)
	node := exec.Command(self, append(argv, "--insecure", "--region", "frankfurt", "--memory", "256MiB")...)
	// The socket of notifications is abstract: it needs no file in the container, but is in its network namespace, so none is given.
	node.Env = img.env
	node.Stderr = os.Stderr
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	defer func() { _ = node.Process.Kill() }()

	// run runs the program once more in the same container.
	run := func(args ...string) (string, error) {
		all := append([]string{fmt.Sprintf("--target=%d", node.Process.Pid), "--all", "--root", "--wdns=/", "--setuid=65532", "--setgid=65532", "--", "/usr/bin/rhumb"}, args...)
		out, err := exec.CommandContext(t.Context(), "nsenter", all...).CombinedOutput()
		return string(out), err
	}
	var out string
	for deadline := time.Now().Add(30 * time.Second); ; {
		if out, err = run("init", "--insecure"); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the node ended: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("init: %v: %s", err, out)
		}
	}
	for _, command := range []string{
		"table create notes --replicas 1 --snapshot --insecure", "put notes hello text=world --insecure", "get notes hello --insecure",
	} {
		if out, err = run(strings.Fields(command)...); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	if !strings.Contains(out, "world") {
		t.Errorf("the record is %q", out)
	}
	checkConfinement(t, node.Process.Pid)
	if err := node.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the node did not end after SIGTERM")
	}
}

// checkConfinement reads from outside what the process may do.
func checkConfinement(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65532\t65532\t65532\t65532", "Gid:\t65532\t65532\t65532\t65532", "NoNewPrivs:\t1", "CapBnd:\t0000000000000000", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("the process is not confined: no %q in\n%s", want, status)
		}
	}
	for _, dir := range []string{"", "usr/bin", "etc"} {
		name := fmt.Sprintf("/proc/%d/root/%s/file", pid, dir)
		if err := os.WriteFile(name, nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("/%s of the container can be written to: %v", dir, err)
		}
	}
}

// becomeContainer mounts what an engine mounts for compose.yaml, makes root the root, drops all rights and becomes the program.
func becomeContainer(root string, argv []string) error {
	for _, m := range []struct {
		from, to, kind string
		flags          uintptr
		data           string
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{root, root, "", unix.MS_BIND, ""},
		{"", root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID, ""},
		{"proc", root + "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", root + "/sys", "sysfs", unix.MS_RDONLY | unix.MS_NOSUID, ""},
		{"tmpfs", root + "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755"},
		{"tmpfs", root + "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", root + "/var/lib/rhumb", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0750,uid=65532,gid=65532"},
	} {
		if err := unix.Mount(m.from, m.to, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	if err := os.Mkdir(root+"/dev/shm", 0o1777); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root+"/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=256m"); err != nil {
		return err
	}
	for _, name := range []string{"null", "urandom"} {
		if err := errors.Join(os.WriteFile(root+"/dev/"+name, nil, 0o666), unix.Mount("/dev/"+name, root+"/dev/"+name, "", unix.MS_BIND, "")); err != nil {
			return err
		}
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/var/lib/rhumb")); err != nil {
		return err
	}
	// Rights belong to threads, and the thread that drops them becomes the program.
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) // an older kernel knows fewer
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65532), syscall.Setuid(65532), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// raiseLoopback brings up the loopback interface of a new network namespace.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(uint16(net.FlagUp) | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
