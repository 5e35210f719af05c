package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Links are cut by the packet filter of the host that receives, so that each direction can be cut alone. Only links between
// nodes are cut: clients reach every node, because a client that reaches nobody observes nothing.

// chaosTable is the table of the packet filter. That of the firewall is another one.
const chaosTable = "rhumb-chaos"

// linkFaults returns the faults of links.
func linkFaults() []Fault {
	return []Fault{
		{"cut", "F10", "one node loses all links to other nodes", gapFailover, strikeCut},
		{"one-way", "F14", "one node hears nothing from the others, which hear it", gapSlow, strikeOneWay},
		{"partial", "F13", "two nodes lose the link between them, and both reach the others", gapSlow, strikePartial},
		{"ring", "F12", "each node has the links to its two neighbours only", gapSlow, strikeRing},
		{"bridge", "F13", "two halves are apart, with one node between them that reaches both", gapSlow, strikeBridge},
		{"halves", "F11", "a minority loses all links to the majority", gapFailover, strikeHalves},
		{"flap", "F20", "one node loses all links for half a second, again and again", 0, strikeFlap},
	}
}

// deaf lets the host of a node drop all packets from other nodes.
func (n *Node) deaf(ctx context.Context, to []*Node) error {
	var rules strings.Builder
	// Each rule has a counter, from which dropped takes its evidence.
	for _, o := range to {
		fmt.Fprintf(&rules, "ip saddr %s counter drop\n", o.Addr)
	}
	// The first two lines remove an earlier table, and do not fail if there is none.
	return n.filter(ctx, fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\nchain in {\ntype filter hook input priority raw;\n%[2]s}\n}\n",
		chaosTable, rules.String()))
}

// hear removes what deaf made.
func (n *Node) hear(ctx context.Context) error {
	return n.filter(ctx, fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\n", chaosTable))
}

// filter changes the packet filter of a host.
func (n *Node) filter(ctx context.Context, script string) error {
	cmd := n.host.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", n.Name, err, out)
	}
	return nil
}

// dropped returns how many packets the host of a node has dropped.
func (n *Node) dropped(ctx context.Context) (packets int, err error) {
	out, err := n.host.Run(ctx, "nft", "-j", "list", "table", "inet", chaosTable)
	if err != nil {
		return 0, err
	}
	var list struct {
		Nftables []struct {
			Rule struct {
				Expr []struct {
					Counter struct {
						Packets int `json:"packets"`
					} `json:"counter"`
				} `json:"expr"`
			} `json:"rule"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return 0, err
	}
	for _, item := range list.Nftables {
		for _, e := range item.Rule.Expr {
			packets += e.Counter.Packets
		}
	}
	return packets, nil
}

// links holds for each node the nodes whose packets it drops.
type links map[*Node][]*Node

// apart cuts a link in both directions.
func (l links) apart(a, b *Node) {
	l[a] = append(l[a], b)
	l[b] = append(l[b], a)
}

// cut cuts the links.
func (l links) cut(ctx context.Context) error {
	for n, from := range l {
		if err := n.deaf(ctx, from); err != nil {
			// A cut that fails half way is undone, so that the next fault begins with whole links.
			return errors.Join(err, l.heal(ctx))
		}
	}
	return nil
}

// count returns how many packets the hosts have dropped, and an error if one of them dropped none.
func (l links) count(ctx context.Context) (packets int, err error) {
	for n := range l {
		here, err := n.dropped(ctx)
		if err != nil {
			return 0, err
		}
		if err := checkDropped(n.Name, here); err != nil {
			return 0, err
		}
		packets += here
	}
	return packets, nil
}

// strike cuts the links until the strike ends. The evidence is that each host dropped packets.
func (l links) strike(ctx context.Context, what string) (*Strike, error) {
	if err := l.cut(ctx); err != nil {
		return nil, err
	}
	return &Strike{What: what, heal: func(ctx context.Context) (string, error) {
		packets, err := l.count(ctx)
		return fmt.Sprintf("%d packets dropped", packets), errors.Join(err, l.heal(ctx))
	}}, nil
}

// heal restores all links.
func (l links) heal(ctx context.Context) (err error) {
	// All links are restored, even if one of them fails.
	for n := range l {
		err = errors.Join(err, n.hear(ctx))
	}
	return err
}

// others returns all nodes but one.
func (c *Cluster) others(n *Node) (out []*Node) {
	for _, o := range c.nodes {
		if o != n {
			out = append(out, o)
		}
	}
	return out
}

// shuffled returns the nodes in random order.
func (c *Cluster) shuffled(random *rand.Rand) []*Node {
	out := c.Nodes()
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// isolated returns the cut of all links of one node.
func (c *Cluster) isolated(n *Node) links {
	l := links{}
	for _, o := range c.others(n) {
		l.apart(n, o)
	}
	return l
}

// strikeCut isolates one node from all others. Clients still reach it, so it must refuse writes that it cannot commit, and stop serving reads
// when its lease ends.
func strikeCut(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return c.isolated(n).strike(ctx, "cut "+n.Name)
}

// strikeOneWay makes one node deaf. Its packets arrive, so others may believe that it is well, while it hears no answer.
func strikeOneWay(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return links{n: c.others(n)}.strike(ctx, "one-way to "+n.Name)
}

// strikePartial cuts the link between two nodes. A third node reaches both, so nobody is dead, and the two must not be treated as if
// they were.
func strikePartial(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	order, l := c.shuffled(random), links{}
	l.apart(order[0], order[1])
	return l.strike(ctx, "partial "+order[0].Name+" "+order[1].Name)
}

// strikeRing leaves each node two links. In a ring of five nodes, no node reaches a majority directly other than with its neighbours.
func strikeRing(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	order, l := c.shuffled(random), links{}
	n := len(order)
	if n <= 3 {
		// All of three nodes are neighbours: a ring that lacks one link.
		l.apart(order[0], order[1])
	}
	for i := range order {
		for j := i + 2; j < n; j++ {
			// In a ring, each node keeps the links to the next and to the previous one; the first and the last are
			// neighbours, too.
			if n > 3 && (i != 0 || j != n-1) {
				l.apart(order[i], order[j])
			}
		}
	}
	return l.strike(ctx, "ring")
}

// strikeBridge splits the nodes, with one of them in both parts. Each part could take itself for the majority, together with the
// node between them.
func strikeBridge(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	order, l := c.shuffled(random), links{}
	middle := len(order) / 2
	for i := range order {
		for j := range order {
			if i < middle && j > middle {
				l.apart(order[i], order[j])
			}
		}
	}
	return l.strike(ctx, "bridge "+order[middle].Name)
}

// strikeHalves separates a minority from the majority. The majority must keep serving, and the minority must not.
func strikeHalves(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	order, l := c.shuffled(random), links{}
	few := (len(order) - 1) / 2
	var names []string
	for _, a := range order[:few] {
		names = append(names, a.Name)
		for _, b := range order[few:] {
			l.apart(a, b)
		}
	}
	return l.strike(ctx, "halves "+strings.Join(names, " "))
}

// flapPhase is how long links are cut, and whole, in turn.
const flapPhase = 500 * time.Millisecond

// strikeFlap cuts and restores the links of one node again and again. The node must not become primary of everything each time that it
// returns, only to lose it half a second later.
func strikeFlap(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	l := c.isolated(n)
	flapping, stop := context.WithCancel(ctx)
	var packets int
	done := make(chan error, 1)
	go func() {
		var err error
		// The links are whole at the end of each round.
		for err == nil && flapping.Err() == nil {
			if err = l.cut(ctx); err != nil {
				break
			}
			_ = wait(flapping, flapPhase)
			// A phase that was cut short may have dropped nothing; the sum is judged.
			here, _ := l.count(ctx)
			packets += here
			err = l.heal(ctx)
			_ = wait(flapping, flapPhase)
		}
		done <- err
	}()
	return &Strike{What: "flap " + n.Name, heal: func(context.Context) (string, error) {
		stop()
		err := <-done
		if err == nil {
			err = checkDropped("the hosts", packets)
		}
		return fmt.Sprintf("%d packets dropped", packets), err
	}}, nil
}
