package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// The types of this file are the documents that -o json prints. Their field names are stable:
// programs depend on them. New fields may be added.

// receiptDoc is a receipt: which node answered, and how it was found.
type receiptDoc struct {
	// Region is the name of the region that answered, or its number if the client does not know the
	// name.
	Region string `json:"region"`
	// Node and Range are empty if no single one answered.
	Node  string `json:"node"`
	Range string `json:"range"`
	// Epoch is that of the range when it answered.
	Epoch uint64 `json:"epoch"`
	// AgeMs bounds the staleness of the answer, in milliseconds. It is 0 for a strong read.
	AgeMs float64 `json:"age_ms"`
	// Hops counts the nodes that handled the request: 1 means that the first one served it.
	Hops int `json:"hops"`
	// Searched counts the regions other than the caller's that were asked for the home of the record.
	Searched int `json:"searched"`
	// Unasked names the dead regions, which may hold the record too.
	Unasked []string `json:"unasked,omitempty"`
	// Timestamp is the cluster time of the answer.
	Timestamp string `json:"timestamp,omitempty"`
}

// recordDoc is a record as get and scan print it.
type recordDoc struct {
	// Table and Name are the key of the record.
	Table string `json:"table"`
	Name  string `json:"name"`
	// Home is the slot of the record, and Region the name of its region. --home accepts both.
	Home   string `json:"home"`
	Region string `json:"region"`
	// Version changes with each write, and `--if-version` accepts it.
	Version string `json:"version"`
	output.Value
	// Receipt is set by get. A scan has many records and many receipts.
	Receipt *receiptDoc `json:"receipt,omitempty"`
}

// writeDoc is the outcome of a write.
type writeDoc struct {
	Table  string `json:"table"`
	Name   string `json:"name"`
	Home   string `json:"home"`
	Region string `json:"region"`
	// Applied is false if the condition of the write did not hold.
	Applied bool `json:"applied"`
	// Existed reports whether the record was there before.
	Existed bool `json:"existed"`
	// Version is that of the record after the write, if the write was applied.
	Version string `json:"version,omitempty"`
	// Key is set for names that the server chose, in the form of `rhumb key explain`.
	Key     string     `json:"key,omitempty"`
	Receipt receiptDoc `json:"receipt"`
}

// names maps regions to their names.
type names map[rhumb.RegionID]string

// regionNames returns the names of the regions in the catalog of a client.
func regionNames(c *client.Client) names {
	n := names{}
	for _, r := range c.Regions() {
		n[r.ID] = r.Name
	}
	return n
}

// nameOf returns the name of a region, its number if the name is unknown, and "" for no region.
func (n names) nameOf(id rhumb.RegionID) string {
	if id == rhumb.LocalRegion {
		return ""
	}
	if name, ok := n[id]; ok {
		return name
	}
	return id.String()
}

// describeReceipt returns the document of a receipt, with names in place of numbers where they are known.
func (n names) describeReceipt(r rhumb.Receipt) receiptDoc {
	doc := receiptDoc{
		Region: n.nameOf(r.Region), Node: nodeName(r.Node), Range: rangeName(r.Range), Epoch: uint64(r.Epoch),
		AgeMs: float64(r.Age) / float64(time.Millisecond), Hops: r.Hops, Searched: r.Searched,
	}
	for _, id := range r.Unasked {
		doc.Unasked = append(doc.Unasked, n.nameOf(id))
	}
	// A zero timestamp means that the node sent none.
	if r.Timestamp != 0 {
		doc.Timestamp = r.Timestamp.String()
	}
	return doc
}

// describeRecord returns the document of a record of a table. The error is that of a value that cannot be decoded.
func (n names) describeRecord(table string, it rhumb.Item) (recordDoc, error) {
	value, err := output.DescribeValue(it.Value)
	return recordDoc{
		Table: table, Name: rhumb.NameString(it.Key.Name), Home: it.Key.Home.String(), Region: n.nameOf(it.Key.Home.Region),
		Version: it.Version.String(), Value: value,
	}, err
}

// describeWrite returns the document of a write to a table.
func (n names) describeWrite(table string, r client.Result) writeDoc {
	doc := writeDoc{
		Table: table, Name: rhumb.NameString(r.Key.Name), Home: rangeName(r.Key.Home), Region: n.nameOf(r.Key.Home.Region),
		Applied: r.Applied, Existed: r.Existed, Receipt: n.describeReceipt(r.Receipt),
	}
	// A write that was not applied has no version.
	if !r.Version.IsZero() {
		doc.Version = r.Version.String()
	}
	return doc
}

// regionDoc is a region of the cluster.
type regionDoc struct {
	ID       uint32        `json:"id"`
	Name     string        `json:"name"`
	Location inspect.Place `json:"location"`
	// State is live, partial (some nodes serve), down (none does), dead (clients do not ask it), empty (no nodes),
	// leaving (it is being removed) or removed.
	State     string `json:"state"`
	Nodes     int    `json:"nodes"`
	NodesLive int    `json:"nodes_live"`
	// Zones are those of its nodes, Voters its votes in the metadata group.
	Zones  []string `json:"zones"`
	Voters int      `json:"voters"`
	// Ranges have their home in the region. Copies and Primaries are on its nodes, also of ranges of other regions.
	Ranges    int `json:"ranges"`
	Copies    int `json:"copies"`
	Primaries int `json:"primaries"`
	// Pinned lists the tables that are confined to this region and others.
	Pinned []string `json:"pinned_tables"`
	// Into takes the ranges of a region that leaves or was removed. Lost counts those that were given up.
	Into        string   `json:"into,omitempty"`
	Lost        uint32   `json:"lost_ranges,omitempty"`
	RoundTripMs *float64 `json:"round_trip_ms,omitempty"`
}

// nodeDoc is a node of the cluster and its report about itself.
type nodeDoc struct {
	ID string `json:"id"`
	// Name is empty on a cluster without certificates.
	Name   string `json:"name,omitempty"`
	Region string `json:"region"`
	Zone   string `json:"zone"`
	// State is the state in the metadata, and Ready the node's own answer.
	State string `json:"state"`
	Ready bool   `json:"ready"`
	// Reason says why a node is not ready. If the node did not answer, ErrorKind is the kind of the error.
	Reason        string `json:"reason,omitempty"`
	ErrorKind     string `json:"error_kind,omitempty"`
	Addr          string `json:"addr"`
	HeartbeatAddr string `json:"heartbeat_addr"`
	AdminAddr     string `json:"admin_addr"`
	// Voter and Leader are roles in the group of the metadata.
	Voter  bool `json:"voter"`
	Leader bool `json:"metadata_leader"`
	// Witness nodes vote and hold no data.
	Witness bool `json:"witness,omitempty"`
	// Meta is the part of the node in that group in a word or two, as the table shows it, omitted for a node without one.
	Meta      string `json:"meta,omitempty"`
	Ranges    int    `json:"ranges"`
	Primaries int    `json:"primaries"`
	// UsedBytes is the sum of the stores.
	UsedBytes uint64 `json:"used_bytes"`
	// Revision is that of the metadata that the node has applied. It shows how far the node lags.
	Revision uint64 `json:"revision"`
	// Boot is the number of the node's present life.
	Boot          uint64  `json:"boot"`
	Version       string  `json:"version,omitempty"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	// RoundTripMs is the time from this command to the node and back, in milliseconds.
	RoundTripMs float64 `json:"round_trip_ms"`
	// Suspected lists the nodes that this node suspects.
	Suspected []string `json:"suspected,omitempty"`
	// Short is true if the disk had lost acknowledged data when the present life of the node began.
	Short bool `json:"short,omitempty"`
	// Metadata is the state of the node's replica of the metadata, omitted while it is healthy.
	Metadata *client.MetadataReplica `json:"metadata,omitempty"`
	// Troubles counts the troubles of replicas on the node, and of the replicas that they send to.
	Troubles map[client.TroubleKind]int `json:"troubles,omitempty"`
	Stores   []storeDoc                 `json:"stores,omitempty"`
	Location inspect.Place              `json:"location"`
	// Copies counts the node's copies of ranges according to the metadata. Stays is why it cannot be removed for
	// good, or which operation removes it; Operation is the one that moves its copies away. Holds has all that in words, as the table shows it.
	Copies    *int   `json:"copies,omitempty"`
	Stays     string `json:"stays,omitempty"`
	Operation string `json:"operation,omitempty"`
	Holds     string `json:"holds,omitempty"`
	// Removed reports that the node was given up for good. ReplacedBy is the node that returned in its place.
	Removed    bool   `json:"removed,omitempty"`
	ReplacedBy string `json:"replaced_by,omitempty"`
	// Relapses counts how often the node failed soon after it had become healthy, and FailedAt is the last time. Fail-back waits longer
	// with each.
	Relapses uint32    `json:"relapses,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	// Start holds how long each phase of the start of the node's process took, in seconds.
	Start map[string]float64 `json:"start_seconds,omitempty"`
	// DeferredLosses counts what ranges of tables that defer syncs lost, or may have lost, in the node's present life.
	DeferredLosses *client.DeferredLosses `json:"deferred_losses,omitempty"`
}

// used returns the bytes on the disks of the node, for people.
func (d *nodeDoc) used() string {
	if len(d.Stores) == 0 {
		return ""
	}
	return bytesText(d.UsedBytes)
}

// describeMeta returns the part of the node in the metadata group.
func (d *nodeDoc) describeMeta() string {
	// A leader is a voter too, so the stronger word is the one that counts.
	meta := ""
	switch {
	case d.Leader:
		meta = "leader"
	case d.Voter:
		meta = "voter"
	}
	if d.Witness {
		meta = strings.TrimSpace(meta + " witness")
	}
	return meta
}

// roundTrip returns the round trip in milliseconds for people, and "" for a node that did not answer.
func (d *nodeDoc) roundTrip() string {
	if d.UptimeSeconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", d.RoundTripMs)
}

// storeDoc is a store of a node.
type storeDoc struct {
	Dir       string `json:"dir"`
	ID        string `json:"id"`
	UsedBytes uint64 `json:"used_bytes"`
	FreeBytes uint64 `json:"free_bytes"`
	Ranges    int    `json:"ranges"`
	// Refuses says why the store accepts no writes. It is empty while it does.
	Refuses string `json:"refuses,omitempty"`
	// Damages lists the damage that the store has found. DamagedRanges counts the ranges that it
	// affects.
	Damages       []client.StoreDamage `json:"damages,omitempty"`
	DamagedRanges int                  `json:"damaged_ranges,omitempty"`
}

// rangeDoc is a range as the catalog records it.
type rangeDoc struct {
	ID string `json:"id"`
	// Last is the last slot of the range, and Slots the number of its slots. Reserved reports that the range is about to be
	// split off from the one before it, to which its slots still belong.
	Last     uint32 `json:"last_slot"`
	Slots    uint32 `json:"slots"`
	Reserved bool   `json:"reserved,omitempty"`
	// Kept reports that an operator split the range off from the one before it. The cluster does not merge it back on its own.
	Kept   bool   `json:"kept,omitempty"`
	Region string `json:"region"`
	Class  string `json:"class"`
	// Epoch is the fencing number. Version grows with every change of the record.
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
	Primary string `json:"primary"`
	// Preferred is the node that should be primary while it is healthy and in sync.
	Preferred string `json:"preferred"`
	// InSync and Replicas are never nil. Replicas that are not in InSync are learners.
	InSync   []string `json:"in_sync"`
	Replicas []string `json:"replicas"`
	// Quarantined lists the replicas with damaged data.
	Quarantined []string `json:"quarantined,omitempty"`
	// Prepared is the node to which the primary is to hand the range over.
	Prepared string `json:"prepared_handover,omitempty"`
	// Former is the node that was preferred until it was dead for long. The range returns to it when it is back.
	Former string `json:"former,omitempty"`
	// Leaving lists the replicas whose copies are to go. MergingWith is the neighbour with which the range is about to become one.
	Leaving     []string `json:"leaving,omitempty"`
	MergingWith string   `json:"merging_with,omitempty"`
	// Recovery is the last loss that an operator accepted.
	Recovery *recoveryDoc `json:"recovery,omitempty"`
}

// recoveryDoc is a loss that an operator accepted: the copy from which the range continued, and the
// state that the copies reported then.
type recoveryDoc struct {
	// Epoch began with the recovery, and Node held the copy from which the range continued.
	Epoch uint64 `json:"epoch"`
	Node  string `json:"node"`
	// Gone lists the nodes whose copies were given up.
	Gone []string `json:"gone,omitempty"`
	// End is the position at which that copy ended, and EndTime the time there, if it is known.
	End     uint64 `json:"end"`
	EndTime string `json:"end_time,omitempty"`
	// Known is the greatest position that any copy knew as committed. If it is above End, acknowledged writes were lost.
	Known uint64 `json:"known_committed"`
}

// describeRecovery returns nil if no loss was accepted.
func describeRecovery(r *rhumb.Recovery) *recoveryDoc {
	if r == nil {
		return nil
	}
	doc := &recoveryDoc{Epoch: uint64(r.Epoch), Node: r.Node.String(), End: uint64(r.End), Known: uint64(r.Known)}
	if len(r.Gone) > 0 {
		doc.Gone = nodeNames(r.Gone)
	}
	if r.EndTime > 0 {
		doc.EndTime = r.EndTime.String()
	}
	return doc
}

// tableDoc is a table and its settings.
type tableDoc struct {
	ID    uint32 `json:"id"`
	Name  string `json:"name"`
	Class string `json:"class"`
	// Colocate is one character, up to which names are hashed. It is empty if names are hashed whole.
	Colocate      string `json:"colocate,omitempty"`
	LocationField string `json:"location_field"`
	// HistorySecs is how long old versions are kept, in seconds.
	HistorySecs float64 `json:"history_seconds"`
	Snapshot    string  `json:"snapshot,omitempty"`
	// Mode, Replicas, MinInSync, Durability, Survival, Regions and HashSlots are those of the class of the table.
	Mode      string `json:"mode"`
	Replicas  int    `json:"replicas"`
	MinInSync int    `json:"min_in_sync"`
	// Durability is "sync", or "deferred=" with the time within which writes are synced.
	Durability string   `json:"durability"`
	Survival   string   `json:"survival"`
	Regions    []string `json:"regions,omitempty"`
	HashSlots  int      `json:"hash_slots"`
	Buckets    int      `json:"buckets"` // slots over which names are hashed; 0 in tables of cluster version 1
	ShardSize  int64    `json:"shard_size_bytes"`
	// Ranges counts the ranges of the class, which its tables share.
	Ranges int `json:"ranges"`
}

// describeTable returns the document of a table.
func describeTable(t client.TableStatus) tableDoc {
	doc := tableDoc{
		ID: uint32(t.ID), Name: t.Name, Class: t.Class.String(), LocationField: t.LocationField, HistorySecs: t.History.Seconds(), Snapshot: t.Snapshot.String(),
		Mode: t.Settings.Mode.String(), Replicas: t.Settings.Replicas, MinInSync: t.Settings.MinInSync, Durability: t.Settings.Durability.String(),
		Survival: t.Settings.Survival.String(), Regions: t.Settings.Regions.Names(), HashSlots: t.Settings.HashSlots, Buckets: t.Settings.Buckets, ShardSize: t.Settings.ShardSize, Ranges: t.Ranges,
	}
	if t.Colocate != 0 { // a zero byte means that names are hashed whole
		doc.Colocate = string(rune(t.Colocate))
	}
	return doc
}

// describeRange returns the document of a range, with the names of nodes and regions.
func (n names) describeRange(r *rhumb.Range) rangeDoc {
	doc := rangeDoc{
		ID: r.ID.String(), Last: uint32(r.LastSlot()), Slots: uint32(r.LastSlot()-r.ID.Slot) + 1, Reserved: r.Birth != 0, Kept: r.Kept, Region: n.nameOf(r.ID.Region), Class: r.Class.String(), Epoch: uint64(r.Epoch), Version: r.Version,
		Primary: nodeName(r.Primary), Preferred: nodeName(r.Preferred), InSync: nodeNames(r.InSync), Replicas: nodeNames(r.Replicas),
	}
	// An empty list is omitted, because a range without damage is the normal case.
	if len(r.Quarantined) > 0 {
		doc.Quarantined = nodeNames(r.Quarantined)
	}
	if r.Prepared != nil {
		doc.Prepared = nodeName(r.Prepared.Target)
	}
	doc.Recovery, doc.Former = describeRecovery(r.Recovery), nodeName(r.Former)
	if len(r.Leaving) > 0 {
		doc.Leaving = nodeNames(r.Leaving)
	}
	return doc
}

// mergingWith returns the neighbour that a range is being merged with, "" for none. The records of both have the same mark.
func mergingWith(r *rhumb.Range, ranges []*rhumb.Range) string {
	for _, o := range ranges {
		right, left := r.TakesOver != 0 && o.Ends == r.TakesOver, r.Ends != 0 && o.TakesOver == r.Ends
		if o.ID.Region == r.ID.Region && (right && o.ID.Slot == r.LastSlot()+1 || left && o.LastSlot()+1 == r.ID.Slot) {
			return o.ID.String()
		}
	}
	return ""
}

// changesText lists the changes of copies and slots that a range waits for, for people.
func (d *rangeDoc) changesText() string {
	var words []string
	if len(d.Leaving) > 0 {
		words = append(words, "leaving: "+strings.Join(d.Leaving, " "))
	}
	if d.MergingWith != "" {
		words = append(words, "merging with "+d.MergingWith)
	}
	return strings.Join(words, "; ")
}

// nodeName returns the name of a node, and "" for no node: some answers involve none.
func nodeName(id rhumb.NodeID) string {
	if id == rhumb.NoNode {
		return ""
	}
	return id.String()
}

// rangeName returns the name of a range, and "" for no range.
func rangeName(id rhumb.RangeID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// nodeNames returns a list that is never nil, so that -o json prints [] and not null.
func nodeNames(ids []rhumb.NodeID) []string {
	out := []string{}
	for _, id := range ids {
		out = append(out, id.String())
	}
	return out
}

// shardKey returns the sixteen bytes of a server-named key as hexadecimal digits, which `rhumb key
// explain` accepts. It returns "" for other keys.
func shardKey(k rhumb.Key) string {
	if len(k.Name) != rhumb.SequenceNameSize {
		return ""
	}
	return hex.EncodeToString(keys.AppendShardKey(nil, rhumb.ShardKey{Home: k.Home, Sequence: binary.BigEndian.Uint64(k.Name)}))
}
