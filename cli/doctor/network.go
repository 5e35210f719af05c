package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// offsetWanted is the wanted agreement of clocks. A node that is more than offsetMax off loses
	// its primaries (docs/runbooks/clock.md).
	offsetWanted = 500 * time.Millisecond
	offsetMax    = 8 * time.Second
	// errorWanted is the wanted bound of the kernel for its clock.
	errorWanted = time.Second
)

const clock = area(AreaClock)

// checkClock looks at the kernel's opinion of its own clock. Time services inform the kernel when
// they have synchronized it. In a container, the service runs on the host and its state is seen
// here.
func checkClock(f *Facts) []Finding {
	const check, remedy = "synchronized", "run chrony or systemd-timesyncd, on the host if this is a container"
	switch c := f.Clock; {
	case c == nil:
		return nil
	case c.Err != "":
		return one(clock.skipped(check, "the state of the clock is not known: "+c.Err))
	case !c.Synchronized:
		return one(clock.warning(check, "nothing keeps the clock of this machine right", remedy))
	case c.MaxError > errorWanted:
		return one(clock.warning(check, fmt.Sprintf("the clock may be off by %v", round(c.MaxError)), remedy+", with servers that are near"))
	default:
		return one(clock.good(check, fmt.Sprintf("the clock is kept right to %v", round(c.MaxError))))
	}
}

// checkOffsets compares clocks. The uncertainty of a measurement counts in favour of the clock:
// half of a round trip around the world is not a fault of a clock.
func checkOffsets(f *Facts) []Finding {
	out := []Finding{}
	for _, o := range f.Offsets {
		direction, far := "ahead of", o.Ahead
		if far < 0 {
			direction, far = "behind", -far
		}
		what := fmt.Sprintf("the clock of %s is %v %s that of this machine (to %v)", o.Of, round(far), direction, round(o.Uncertainty))
		const remedy = "run `chronyc makestep` on the machine whose clock is wrong; docs/runbooks/clock.md has more"
		// Only the part of the difference that is certain counts.
		switch far -= o.Uncertainty; {
		case far > offsetMax:
			out = append(out, clock.wrong("offset", what+fmt.Sprintf("; with more than %v, a node takes no primaries", offsetMax), remedy))
		case far > offsetWanted:
			out = append(out, clock.warning("offset", what, remedy))
		default:
			out = append(out, clock.good("offset", what))
		}
	}
	return out
}

const ports = area(AreaPorts)

// checkBinds looks at the ports on which the node will listen. A port that is in use is free for
// the node that runs there, which a ping has named.
func checkBinds(f *Facts) []Finding {
	out := []Finding{}
	for _, b := range f.Binds {
		what := fmt.Sprintf("%s (%s, %s)", b.Addr, b.Use, b.Network)
		switch {
		case b.InUse && b.Node != "":
			out = append(out, ports.good("free", what+": "+b.Node+" runs there"))
		case b.InUse:
			out = append(out, ports.warning("free", what+" is in use by another program, or by a node that does not answer", "find it with `ss -tulpn`, or choose another port"))
		case b.Err != "":
			out = append(out, ports.wrong("free", what+": "+b.Err, "choose an address of this machine; ports below 1024 need a capability"))
		default:
			out = append(out, ports.good("free", what+" is free"))
		}
	}
	return out
}

// checkReaches names every port that is closed, and counts the others of each region.
func checkReaches(f *Facts) []Finding {
	open := map[string]int{}
	slowest := map[string]time.Duration{}
	out := []Finding{}
	for _, r := range f.Reaches {
		if r.Err == "" {
			open[r.Region]++
			slowest[r.Region] = max(slowest[r.Region], r.Took)
			continue
		}
		out = append(out, ports.wrong("reachable", fmt.Sprintf("%s of %s in %s (%s, %s): %s", r.Addr, r.Node, r.Region, r.Use, r.Network, r.Err),
			fmt.Sprintf("start the node if it is down; else let the firewalls between here and %s pass %s to this port", r.Region, strings.ToUpper(r.Network))))
	}
	for _, region := range slices.Sorted(maps.Keys(open)) {
		out = append(out, ports.good("reachable", fmt.Sprintf("%d ports of %s answer, the slowest within %v", open[region], region, round(slowest[region]))))
	}
	return out
}

const certificates = area(AreaCertificates)

// checkIdentities judges certificates. Whether one can be used at all was decided when it was
// loaded, by the rules of the nodes; what remains is how long it lasts. A certificate of a node
// that is past two thirds of its life should have been renewed already.
func checkIdentities(f *Facts) []Finding {
	out := []Finding{}
	for _, id := range f.Identities {
		left := id.NotAfter.Sub(f.Now)
		switch what := fmt.Sprintf("%s: %s is %s of cluster %s, until %s", id.Of, id.Cert, id.Name, id.Cluster, id.NotAfter.UTC().Format(time.RFC3339)); {
		case id.Err != "":
			out = append(out, certificates.wrong("usable", id.Of+": "+id.Err, "`rhumb cert show "+id.Cert+"` shows the certificate; `rhumb cert create` or an enrolment with a new token makes another"))
		// A caller who logs in by password has authorities and no certificate.
		case id.Cert == "":
			out = append(out, certificates.good("usable", id.Of+" trusts the authorities in "+id.CA))
		case left < id.WarnBefore:
			out = append(out, certificates.warning("expiry", what, "renew it: a node renews by itself while it reaches the authority, its log says why it could not"))
		default:
			out = append(out, certificates.good("usable", what))
		}
	}
	return out
}

const cluster = area(AreaCluster)

// checkMembers lists the nodes of the cluster. A node that is fenced and silent was noticed by the
// cluster, which has replaced it where it could, so it weighs less than one that is silent only
// here.
func checkMembers(f *Facts) []Finding {
	if f.ClusterErr != "" {
		return one(cluster.wrong("answers", "the cluster does not answer: "+f.ClusterErr, "start a node, or name others with --addr; add --local to look at this machine only"))
	}
	out := []Finding{}
	for _, m := range f.Members {
		what := m.ID + " in " + m.Region
		switch {
		case m.Fenced && m.Err != "":
			out = append(out, cluster.warning("answers", what+" is fenced and does not answer", "start it again; `rhumb node forget "+m.ID+"` gives it up"))
		case m.Err != "":
			out = append(out, cluster.wrong("answers", what+" does not answer: "+m.Err, "look at its log and at the ports above; `rhumb status` says what the cluster lacks without it"))
		case m.NotReady != "":
			out = append(out, cluster.warning("ready", what+" does not serve: "+m.NotReady, "wait if it has just started; else docs/runbooks/README.md lists what can be wrong"))
		default:
			out = append(out, cluster.good("answers", what+" serves"))
		}
		for _, s := range m.Stores {
			if total := s.Used + s.Free; s.Free < freeMin || s.Free < total/100*freeShareWanted {
				out = append(out, cluster.warning("room", fmt.Sprintf("%s has %s free in %s", what, size(s.Free), s.Dir), "make room there, or add nodes to "+m.Region))
			}
		}
	}
	return out
}

// checkVersions compares the programs. Two versions at once are normal during an upgrade and
// nowhere else; a command of another version may lack what the nodes can do.
func checkVersions(f *Facts) []Finding {
	by := map[string][]string{}
	for _, m := range f.Members {
		if m.Err == "" {
			by[m.Version] = append(by[m.Version], m.ID)
		}
	}
	if len(by) == 0 {
		return nil
	}
	var words []string
	for _, version := range slices.Sorted(maps.Keys(by)) {
		words = append(words, fmt.Sprintf("%s on %s", version, strings.Join(by[version], ", ")))
	}
	what := strings.Join(words, "; ")
	if len(by) > 1 {
		return one(cluster.warning("versions", what, "finish the upgrade: restart the nodes with the old version one after the other"))
	}
	// Only if no node has the version of this program: during an upgrade it is that of one half.
	if len(by[f.Version]) == 0 && f.Version != "" {
		return one(cluster.warning("versions", what+"; this program is "+f.Version, "use the program of the nodes' version"))
	}
	return one(cluster.good("versions", what))
}

// checkUpgrade finds an upgrade that was not finalized: the cluster runs without what its programs could do, and
// the next upgrade cannot begin.
func checkUpgrade(f *Facts) []Finding {
	if f.Upgrade == "" {
		return nil
	}
	return one(cluster.warning("upgrade", f.Upgrade, "finish the upgrade, or go back to the previous release on every node: `rhumb upgrade status`"))
}

// checkSuspicions finds pairs of nodes that do not hear each other.
func checkSuspicions(f *Facts) []Finding {
	out := []Finding{}
	region := map[string]string{}
	for _, m := range f.Members {
		region[m.ID] = m.Region
	}
	for _, m := range f.Members {
		for _, id := range m.Suspects {
			out = append(out, cluster.warning("heartbeats", fmt.Sprintf("%s in %s misses heartbeats of %s in %s", m.ID, m.Region, id, region[id]),
				fmt.Sprintf("if %s runs, let the firewalls between %s and %s pass TCP to the port for heartbeats, 7601", id, m.Region, region[id])))
		}
	}
	return out
}
