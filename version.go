package rhumb

import (
	"fmt"
	"strconv"
	"strings"
)

// ClusterVersion numbers what all nodes of a cluster have agreed to use: entries of the metadata log,
// fields of stored records, formats on disk and messages between nodes. It is not the version of a
// program. A program supports a few cluster versions, and the metadata holds the active one. An operator
// raises it with `rhumb upgrade finalize` when every node runs a program that supports the next one
// (docs/replication.md#versions).
//
// Until then nothing that the older program cannot read is written or sent, so every node can go back to
// the older program. A version never falls.
type ClusterVersion uint32

// VersionBase is the version of clusters whose metadata names none: the programs that made them did not
// know cluster versions.
const VersionBase ClusterVersion = 1

// VersionOldest and VersionNewest bound the cluster versions that this program supports. A program
// supports the newest version and the one before it, so an upgrade goes one version at a time.
const (
	VersionOldest = VersionBase
	VersionNewest = VersionBase + 1
)

// Feature is an ability that programs of earlier cluster versions lack: a command, a field of a record, a
// format or a message that they cannot read. Code that writes or sends one asks first
// whether the active version has it: state.Version().Has(FeatureSplit).
type Feature uint8

// The features. The list is append only; features below says with which version each came.
const (
	// NoFeature is what every program can read.
	NoFeature Feature = iota
	// FeatureHandover: an epoch is reserved for a planned change of primary, and the primary hands over to it.
	FeatureHandover
	// FeatureTransfer: replicas are rebuilt from the tables of another one, and digests of ranges are compared.
	FeatureTransfer
	// FeatureOperations: long changes of the fleet are records of the metadata, and nodes are decommissioned.
	FeatureOperations
	// FeatureSplit: a range spans many slots, and is split and merged.
	FeatureSplit
	// FeatureSurviveRegion: tables survive the loss of a region, are confined to regions, and are dropped.
	FeatureSurviveRegion
	// FeatureVoters: an operator chooses who votes in the metadata group, and witnesses vote without data.
	FeatureVoters
	// FeaturePebbleFormat: the database on disk has the newest format of Pebble that the program knows, which
	// older programs cannot open.
	FeaturePebbleFormat
	// FeatureRevokeBearer: all certificates of a user or operator are revoked by name and time.
	FeatureRevokeBearer
	// FeatureRebalance: an operator starts the balance of regions as an operation.
	FeatureRebalance
	// FeatureFailover: who takes over does not depend on the order in which nodes fail, and metadata remembers failures of nodes.
	FeatureFailover
	// FeatureDrainingMember: a node that drains joins an in-sync set that lacks live members.
	FeatureDrainingMember
	// FeatureKeepRegions: metadata refuses every change that takes the copies of a range out of regions that it needs, also a
	// swap of equal size.
	FeatureKeepRegions
	// FeatureFormer: the record of a range names the node that it belonged to before that node was replaced because it was dead.
	FeatureFormer
	// FeatureMerge: neighbouring ranges are merged.
	FeatureMerge
	// FeatureLink: nodes exchange the messages of replicas in frames of their own and not by gRPC.
	FeatureLink
	// FeatureRestartEmpty: lost ranges restart empty, when a region is given up whose other ranges had moved.
	FeatureRestartEmpty
	// FeatureDeferred: tables whose writes are acknowledged before they are synced.
	FeatureDeferred
	// FeatureNodeLog: stores have a log of their own in the place of the database's, which older programs do not read.
	FeatureNodeLog
	featureEnd
)

// versions lists all cluster versions with the release that brought them and their features. Append
// only: a released version never gets another feature.
var versions = []struct {
	version  ClusterVersion
	release  string
	features []Feature
}{
	{VersionBase, "0.13", nil},
	{VersionBase + 1, "0.14", []Feature{
		FeatureHandover, FeatureTransfer, FeatureOperations, FeatureSplit, FeatureSurviveRegion, FeatureVoters,
		FeaturePebbleFormat, FeatureRevokeBearer, FeatureRebalance, FeatureFailover, FeatureDrainingMember,
		FeatureKeepRegions, FeatureFormer, FeatureMerge, FeatureLink, FeatureRestartEmpty,
		FeatureDeferred, FeatureNodeLog,
	}},
}

var featureNames = [featureEnd]string{
	NoFeature: "none", FeatureHandover: "handover", FeatureTransfer: "transfer", FeatureOperations: "operations", FeatureSplit: "split",
	FeatureSurviveRegion: "survive-region", FeatureVoters: "voters", FeaturePebbleFormat: "pebble-format",
	FeatureRevokeBearer: "revoke-bearer", FeatureRebalance: "rebalance", FeatureFailover: "failover",
	FeatureDrainingMember: "draining-member", FeatureKeepRegions: "keep-regions", FeatureFormer: "former", FeatureMerge: "merge",
	FeatureLink: "link", FeatureRestartEmpty: "restart-empty", FeatureDeferred: "deferred",
	FeatureNodeLog: "node-log",
}

// String returns the stable name of the feature.
func (f Feature) String() string {
	if f < featureEnd {
		return featureNames[f]
	}
	return "feature_" + strconv.Itoa(int(f))
}

// Since returns the first version that has the feature, or 0 if this program knows no such version.
func (f Feature) Since() ClusterVersion {
	if f == NoFeature {
		return VersionBase
	}
	for _, v := range versions {
		for _, x := range v.features {
			if x == f {
				return v.version
			}
		}
	}
	return 0
}

// Has reports whether every node of a cluster with this active version can read the feature.
func (v ClusterVersion) Has(f Feature) bool {
	since := f.Since()
	return since != 0 && v >= since
}

// String returns the number of the version.
func (v ClusterVersion) String() string { return strconv.FormatUint(uint64(v), 10) }

// Release returns the first release that supports the version.
func (v ClusterVersion) Release() string {
	for _, x := range versions {
		if x.version == v {
			return x.release
		}
	}
	return "a newer one"
}

// Features returns the features that came with the version.
func (v ClusterVersion) Features() []Feature {
	for _, x := range versions {
		if x.version == v {
			return x.features
		}
	}
	return nil
}

// Build is the program of a node: its version, and the cluster versions that it supports.
type Build struct {
	Program  string
	Min, Max ClusterVersion
}

// ThisBuild returns the build of this program, whose version the caller knows.
func ThisBuild(program string) Build { return Build{program, VersionOldest, VersionNewest} }

// buildMark separates the two parts of a build's text.
const buildMark = " cluster/"

// String returns the text that ParseBuild parses, for example "0.14.0 cluster/1-2". It is one string and
// not a record with fields because it stands where programs of VersionBase expect the version of a
// program: they refuse commands and states with fields that they do not know, but they store and pass on any
// string.
func (b Build) String() string {
	if b.Min == VersionBase && b.Max == VersionBase {
		return b.Program
	}
	return fmt.Sprintf("%s%s%d-%d", b.Program, buildMark, b.Min, b.Max)
}

// ParseBuild parses the text of a build. A text without versions, or with malformed ones, is that of a
// program which supports only VersionBase.
func ParseBuild(s string) Build {
	base := Build{s, VersionBase, VersionBase}
	at := strings.LastIndex(s, buildMark)
	if at < 0 {
		return base
	}
	low, high, ok := strings.Cut(s[at+len(buildMark):], "-")
	min, err1 := strconv.ParseUint(low, 10, 32)
	max, err2 := strconv.ParseUint(high, 10, 32)
	// Nodes decide by the text whether a version can be finalized, so an unclear text counts as old.
	if !ok || err1 != nil || err2 != nil || min == 0 || min > max {
		return base
	}
	return Build{s[:at], ClusterVersion(min), ClusterVersion(max)}
}

// span returns the supported versions as text.
func (b Build) span() string {
	if b.Min == b.Max {
		return "version " + b.Min.String() + " only"
	}
	return "versions " + b.Min.String() + " to " + b.Max.String()
}

// Supports reports whether the program can be a member of a cluster with the given active version.
func (b Build) Supports(v ClusterVersion) bool { return b.Min <= v && v <= b.Max }

// CheckActive returns an error, with what to do, if the program cannot be a member of a cluster with the
// given active version.
func (b Build) CheckActive(v ClusterVersion) error {
	const op Op = "rhumb.CheckActive"
	switch {
	case v > b.Max:
		return Ef(op, Incompatible, "the cluster runs at cluster version %d, and this node's program %s supports %s; install release %s, or a newer one that still supports version %d",
			v, b.Program, b.span(), v.Release(), v)
	case v < b.Min:
		return Ef(op, Incompatible, "the cluster runs at cluster version %d, and this node's program %s supports %s; upgrade the cluster to version %d first (release %s, then `rhumb upgrade finalize`)",
			v, b.Program, b.span(), b.Min, b.Min.Release())
	}
	return nil
}
