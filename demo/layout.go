package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/geo/rtt"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/wan"
)

// NodesPerRegionMax and RegionsMax bound a demo, because all its processes share one machine.
const (
	NodesPerRegionMax = 9
	RegionsMax        = 9
)

// Layout describes the processes and files of a demo. It is saved in two places: in the directory
// of the demo, so that a demo that is continued has the same addresses, and in the file where
// commands without --addr look for a demo (ContextPath). Its field names are stable.
type Layout struct {
	Ready     bool   `json:"ready"`
	ClusterID string `json:"cluster_id"`
	// PID is the process of the demo itself.
	PID         int    `json:"pid"`
	Dir         string `json:"dir"`
	LatencyFile string `json:"latency_file"`
	// SnapshotDir is the folder of the nodes' images.
	SnapshotDir string `json:"snapshot_dir"`
	// AuthorityAddr is where the authority of a secure demo serves, and
	// Identity the certificate for commands on this machine. A demo
	// without TLS has neither.
	AuthorityAddr string    `json:"authority_addr,omitempty"`
	Identity      *Identity `json:"identity,omitempty"`
	Regions       []Region  `json:"regions"`
	Nodes         []Node    `json:"nodes"`
}

// Region is a region of a demo.
type Region struct {
	Name     string  `json:"name"`
	Lat      float64 `json:"lat"`
	Lon      float64 `json:"lon"`
	location rhumb.Point
}

// Node is one node of a demo.
type Node struct {
	// ID is the number that the cluster assigned to the node; 0 before the node joined.
	ID            rhumb.NodeID `json:"id"`
	Region        string       `json:"region"`
	Zone          string       `json:"zone"`
	PID           int          `json:"pid"`
	Addr          string       `json:"addr"`
	HeartbeatAddr string       `json:"heartbeat_addr"`
	GossipAddr    string       `json:"gossip_addr"`
	AdminAddr     string       `json:"admin_addr"`
	Dir           string       `json:"dir"`
}

// opLayout is the operation of errors about the layout.
const opLayout rhumb.Op = "demo.Layout"

// parseRegions parses names of well-known regions, or NAME=LAT:LON.
func parseRegions(names []string) ([]Region, error) {
	if len(names) == 0 {
		names = rtt.DefaultRegions()
	}
	if len(names) > RegionsMax {
		return nil, rhumb.Ef(opLayout, rhumb.InvalidArgument, "there are %d regions; a demo has at most %d", len(names), RegionsMax)
	}
	var out []Region
	for _, name := range names {
		r, err := parseRegion(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o Region) bool { return o.Name == r.Name }) {
			return nil, rhumb.Ef(opLayout, rhumb.InvalidArgument, "region %q is named twice", r.Name)
		}
		out = append(out, r)
	}
	return out, nil
}

// parseRegion parses one region.
func parseRegion(s string) (Region, error) {
	name, place, own := strings.Cut(s, "=")
	if !own {
		known, ok := rtt.Lookup(name)
		if !ok {
			return Region{}, rhumb.Ef(opLayout, rhumb.InvalidArgument,
				"%q is not a well-known region; write NAME=LAT:LON, or one of %s", name, strings.Join(knownRegions(), ", "))
		}
		return Region{known.Name, known.Location.Lat, known.Location.Lon, known.Location}, nil
	}
	v, err := rhumb.ParseField(rhumb.FieldPoint, strings.Replace(place, ":", ",", 1))
	if err != nil || rhumb.ValidateTableName(name) != nil {
		return Region{}, rhumb.Ef(opLayout, rhumb.InvalidArgument, "region %q does not have the form NAME=LAT:LON, for example bern=46.9:7.4", s)
	}
	p, _ := v.Point()
	return Region{name, p.Lat, p.Lon, p}, nil
}

// knownRegions returns the names of the well-known regions.
func knownRegions() (names []string) {
	for _, r := range rtt.Regions() {
		names = append(names, r.Name)
	}
	return names
}

// newLayout returns the layout of a new demo in dir, or of the demo whose directory it is.
func newLayout(dir string, regions []Region, nodesPerRegion int, secure bool) (*Layout, error) {
	if nodesPerRegion < 1 || nodesPerRegion > NodesPerRegionMax {
		return nil, rhumb.Ef(opLayout, rhumb.InvalidArgument, "%d nodes per region, want 1 to %d", nodesPerRegion, NodesPerRegionMax)
	}
	if old, err := ReadLayout(filepath.Join(dir, layoutName)); err == nil {
		if had := old.AuthorityAddr != ""; had != secure {
			// The choice of TLS cannot change: certificates are in the directories of the nodes.
			return nil, rhumb.Ef(opLayout, rhumb.Conflict, "%s holds a demo that was started with --secure=%t; start it so again, or choose another --dir", dir, had)
		}
		return old.resumeDemo(dir, regions, nodesPerRegion)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l := &Layout{
		PID: os.Getpid(), Dir: dir, LatencyFile: filepath.Join(dir, "latency.yaml"), SnapshotDir: imagesIn(dir), Regions: regions,
	}
	// Fixed for the life of the directory: the metadata of the cluster contains the addresses.
	addrs, err := freeport.Take(4*nodesPerRegion*len(regions) + 1)
	if err != nil {
		return nil, err
	}
	for _, r := range regions {
		for i := range nodesPerRegion {
			l.Nodes = append(l.Nodes, Node{
				Region: r.Name, Zone: string(rune('a' + i)),
				Addr: addrs[0], HeartbeatAddr: addrs[1], GossipAddr: addrs[2], AdminAddr: addrs[3],
				Dir: filepath.Join(dir, fmt.Sprintf("%s-%c", r.Name, 'a'+i)),
			})
			addrs = addrs[4:]
		}
	}
	if secure {
		l.AuthorityAddr = addrs[0]
	}
	return l, nil
}

// imagesIn returns the default folder for the images of a demo in dir: in memory, or in dir on a
// machine without a file system in memory.
func imagesIn(dir string) string {
	if s, err := os.Stat(filepath.Dir(publish.DirDefault)); err == nil && s.IsDir() {
		return publish.DirDefault
	}
	return filepath.Join(dir, "images")
}

// layoutName is the file in the directory of a demo that holds its layout.
const layoutName = "demo.json"

// resumeDemo checks that a directory holds the requested demo, and that no process uses it.
func (l *Layout) resumeDemo(dir string, regions []Region, nodesPerRegion int) (*Layout, error) {
	if isRunning(l.PID) && l.PID != os.Getpid() {
		return nil, rhumb.Ef(opLayout, rhumb.Unavailable, "process %d runs the demo in %s; stop it first, or choose another --dir", l.PID, dir)
	}
	same := len(l.Regions) == len(regions) && len(l.Nodes) == nodesPerRegion*len(regions)
	for i := range regions {
		// Regions are compared by name and in order, because the nodes are listed in this order.
		same = same && l.Regions[i].Name == regions[i].Name
	}
	if !same {
		return nil, rhumb.Ef(opLayout, rhumb.Conflict, "%s holds a demo with other regions or nodes; choose another --dir, or remove it", dir)
	}
	// The cluster knows its nodes by these addresses, so others cannot replace them.
	for _, n := range l.Nodes {
		for _, addr := range []string{n.Addr, n.HeartbeatAddr, n.GossipAddr, n.AdminAddr} {
			if err := tryListen(addr); err != nil {
				return nil, rhumb.Ef(opLayout, rhumb.Unavailable, "the demo in %s needs %s, which is in use: %v", dir, addr, err)
			}
		}
	}
	// Ready is false until the cluster serves again.
	l.Ready, l.PID, l.Dir, l.Regions, l.SnapshotDir = false, os.Getpid(), dir, regions, imagesIn(dir)
	return l, nil
}

// tryListen reports whether an address is free, by listening on it.
func tryListen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// latencyFor returns the latency file of a demo: "real" round trips, "none", or those of a file.
// With cuts, the file names the nodes, by their directories.
func (l *Layout) latencyFor(how string, cuts bool) (*wan.File, error) {
	file := &wan.File{}
	switch how {
	case "", "real":
		var regions []rhumb.Region
		for i, r := range l.Regions {
			regions = append(regions, rhumb.Region{ID: rhumb.RegionID(i + 1), Name: r.Name, Location: r.location})
		}
		file.RoundTrips = rtt.Matrix(regions)
	case "none":
		file.RoundTrips = zeroMatrix(l.Regions)
		// The addresses in the file are replaced below: only the demo knows those of its nodes.
	default:
		read, err := wan.ReadFile(how)
		if err != nil {
			return nil, err
		}
		file = read
	}
	file.Addresses, file.Nodes = map[string]string{}, map[string][]string{}
	for _, n := range l.Nodes {
		addrs := []string{n.Addr, n.HeartbeatAddr, n.GossipAddr}
		for _, addr := range addrs {
			file.Addresses[addr] = n.Region
		}
		if cuts {
			file.Nodes[filepath.Base(n.Dir)] = addrs
		}
	}
	return file, file.Validate()
}

// zeroMatrix returns a round trip of 0 for every pair of regions.
func zeroMatrix(regions []Region) map[string]map[string]float64 {
	m := map[string]map[string]float64{}
	for i, a := range regions {
		// Pairs are listed once, in the order of regions, because Validate rejects duplicates.
		for _, b := range regions[i+1:] {
			if m[a.Name] == nil {
				m[a.Name] = map[string]float64{}
			}
			m[a.Name][b.Name] = 0
		}
	}
	return m
}

// Save writes the layout to a file atomically.
func (l *Layout) Save(path string) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return rhumb.Wrap(opLayout, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return rhumb.Wrap(opLayout, err)
	}
	// Readers never see half a layout: the file appears under its name when it is complete.
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(part, append(text, '\n'), 0o600); err != nil {
		return rhumb.Wrap(opLayout, err)
	}
	return rhumb.Wrap(opLayout, os.Rename(part, path))
}

// ReadLayout reads a layout that Save wrote. The error is fs.ErrNotExist if the file does not
// exist.
func ReadLayout(path string) (*Layout, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := &Layout{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, rhumb.Ef(opLayout, rhumb.Corrupt, "%s: %v; remove it", path, err)
	}
	// The location is not stored: it repeats Lat and Lon.
	for i := range l.Regions {
		l.Regions[i].location = rhumb.Point{Lat: l.Regions[i].Lat, Lon: l.Regions[i].Lon}
	}
	return l, nil
}

// ContextPath returns the file in which a running demo leaves its layout for commands without
// --addr: the file in RHUMB_DEMO, or rhumb/demo.json in XDG_STATE_HOME or ~/.local/state.
func ContextPath() string {
	if path := os.Getenv("RHUMB_DEMO"); path != "" {
		return path
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = os.TempDir()
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "rhumb", "demo.json")
}

// Running reports whether the process of the demo runs.
func (l *Layout) Running() bool { return isRunning(l.PID) }
