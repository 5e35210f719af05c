package doctor

import "time"

// Facts describes a machine, a node on it and the cluster around it. A part that was not looked at
// is nil or empty.
type Facts struct {
	Now     time.Time
	Machine *Machine
	Shm     *Shm
	Disks   []Disk
	Clock   *Clock
	Offsets []Offset
	Binds   []Bind
	Reaches []Reach
	// Identities are the certificates of the node and of the caller.
	Identities []Identity
	Members    []Member
	// Version is the version of this program.
	Version string
	// Upgrade describes an upgrade that is not finalized, "" if there is none.
	Upgrade string
	// ClusterErr says why the cluster could not be asked, if that was tried.
	ClusterErr string
}

// Machine describes the limits and the memory of the machine.
type Machine struct {
	// FilesSoft and FilesHard limit the open files of a process.
	FilesSoft, FilesHard uint64
	// MemoryLimit is the memory of the machine or of the control group, named in LimitFrom;
	// MemoryAsked is the memory of the node, ImageBudget the size of its image in shared memory.
	MemoryLimit, MemoryAvailable, MemoryAsked, ImageBudget int64
	LimitFrom                                              string
	SwapTotal                                              int64
	// Overcommit is vm.overcommit_memory.
	Overcommit int
	// HugePages is the setting of transparent huge pages, HugePagesShm that of shared memory: the
	// word in brackets.
	HugePages, HugePagesShm string
	// WantsHugePages is set if the node asks for huge pages.
	WantsHugePages bool
}

// Mount is a mounted file system.
type Mount struct {
	Kind    string // such as ext4
	At      string
	Options []string
}

// Shm describes the folder for images of published tables.
type Shm struct {
	Dir    string
	Mount  Mount
	Exists bool // the folder; else it will be created
	// Err says why the folder cannot be written.
	Err         string
	Size, Free  int64
	Mode        uint32
	ImageBudget int64
}

// Disk describes a data directory.
type Disk struct {
	Dir    string
	Exists bool
	Mount  Mount
	// Device identifies the file system.
	Device      uint64
	Size, Free  int64
	FilesFree   uint64
	Mode        uint32
	SyncMedian  time.Duration
	SyncSlowest time.Duration
	// Err says why the directory cannot be used.
	Err string
}

// Clock describes how the kernel's clock is kept.
type Clock struct {
	Synchronized bool
	// MaxError bounds the error of the clock.
	MaxError time.Duration
	Err      string
}

// Offset is how far another clock is ahead of this one.
type Offset struct {
	Of          string // n1 at 10.0.0.1:7600
	Ahead       time.Duration
	Uncertainty time.Duration
}

// Bind is an attempt to listen on an address.
type Bind struct {
	Use, Network, Addr string
	InUse              bool
	// Node is the node that listens there already, if InUse.
	Node string
	Err  string
}

// Reach is an attempt to connect to a port of a node.
type Reach struct {
	Node, Region string
	Use          string // clients, heartbeats, gossip, admin
	Network      string // tcp or udp
	Addr         string
	Took         time.Duration
	Err          string
}

// Identity is a certificate with its key and authorities.
type Identity struct {
	Of            string // node in DIR, or this command
	Cert, CA      string
	Name, Cluster string
	NotBefore     time.Time
	NotAfter      time.Time
	// WarnBefore is how long before its end a certificate should have been renewed.
	WarnBefore time.Duration
	// Err says why the identity cannot be used: a file that is missing or too open, a key that does
	// not match, an authority that did not issue it, a name or a time that is wrong.
	Err string
}

// Member is a node as the cluster sees it.
type Member struct {
	ID, Region, Version string
	Fenced              bool
	// Err says why it could not be asked.
	Err string
	// NotReady says why it does not serve.
	NotReady string
	// Suspects lists nodes whose heartbeats it misses.
	Suspects []string
	// Stores are its data directories.
	Stores []Store
}

// Store is a data directory of another node.
type Store struct {
	Dir        string
	Used, Free int64
}
