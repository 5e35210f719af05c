// Package hosts brings up hosts on one Linux machine, for tests and for the local Terraform layer. A host is a network namespace
// with an address of its own on a bridge, and a process tree with a root file system, users, /var/lib/rhumb, /etc/rhumb, /dev/shm
// and /run of its own. Services are started with the user, the command, the environment, the limits and the sandbox that
// their systemd units describe.
//
// A fleet is a set of hosts with one state directory. The directory records every name before it is used, so that Destroy removes
// whatever a crashed run has left, and nothing else. Fleets have different networks and run side by side.
//
// # Layers of a host
//
//	network     a named network namespace and a veth pair to the bridge of the fleet; survives Kill
//	root        an overlay: the machine's root below, changes on a tmpfs of the fleet; survives Kill
//	data        /var/lib/rhumb and /var/lib/rhumb-authority, bound from the state directory on the machine's disk; survives Kill
//	memory      /run, /tmp, /dev/shm; lost with Kill, as with a power cut
//	processes   a PID namespace; its first process is the program init.go, which also answers the host's `systemctl`
//
// A host needs root, the programs of iproute2 and util-linux, and a kernel with overlay file systems. Supported reports the missing parts.
//
// # The life of `systemctl start`
//
// The functions that a start passes, in order. The first two run in the caller's process on the host, the next ones in the host's first
// process, and the last ones in the process of the service.
//
//	systemctl.go   systemctlCall.runUnit   sends the order to the host's first process
//	manager.go     manager.obey            finds the service
//	unit.go        loadUnit                reads the unit and its drop-ins
//	unit.go        unitFile.resolve        turns settings into a plan, or refuses a setting
//	service.go     service.start           waits until the service is ready
//	service.go     service.run             restarts the service as Restart= says
//	service.go     service.once            makes folders and the socket for notifications
//	service.go     service.spawn           starts the launcher in a new mount namespace
//	manager.go     manager.spawn           enters the child, so that the reaper knows it
//	sandbox.go     sandbox.mounts          changes the view of the file system
//	sandbox.go     sandbox.apply           sets limits and drops capabilities
//	sandbox.go     sandbox.dropRights      becomes the user of the service
//	syscalls.go    syscallFilter.load      restricts system calls
//
// # Limits of the imitation
//
// Hosts share the kernel, its clock, its page cache and the machine's memory. Hosts and services have no control groups, so
// MemoryMax= has no effect, and a program that exhausts memory harms its neighbours. User IDs differ between hosts, but root is root:
// a host does not confine programs that want to escape.
package hosts
