// Package local runs Rhumb on hosts of this machine, does what faults do, and checks what clients saw.
//
// A host is a network namespace with its own address, processes and files (package deploy/hosts). The cluster is brought up as
// docs/operations describes it: an authority, tokens, TLS, a user with a password and a role. Clients run outside of the hosts.
//
//	cluster.go   brings the cluster up and says whether it is whole
//	fault.go     the faults that need nothing but signals and files
//	links.go     the faults of links, by the packet filters of the hosts
//	shapes.go    the faults of links that work badly: line.go decides about packets, shaper.go has them from the kernel
//	clocks.go    wrong clocks
//	disks.go     disks of their own, that stall, are slow or full
//	members.go   nodes that come, go, and get another program or other certificates
//	resources.go memory, files and threads of the nodes over time
//	changes.go   what operators do meanwhile
//	record.go    when each call began and ended, for the pictures and the time without service
//	load.go      the callers and the list of workloads. Each workload checks its own history: probe.go, register.go, lists.go, transactions.go,
//	             sets.go, bank.go, views.go
//	follow.go    reads the image of a node, as a process on its host
//	errors.go    which errors of calls no fault excuses
//	chaos.go     draws faults from a seed, and judges
//	availability.go  the time without service in many trials of each fault
//	report.go    the text of a result, and picture.go its picture
//
// A fault that had no effect fails the run: a run without faults proves nothing. Each fault therefore returns evidence, such as the
// packets that a filter dropped or the newer life of a node.
package local
