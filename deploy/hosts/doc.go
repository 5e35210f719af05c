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
// A host needs root, the programs of iproute2 and util-linux, and a kernel with overlay file systems. Supported reports what is missing.
package hosts
