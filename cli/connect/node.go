package connect

import (
	"slices"
	"strconv"

	"github.com/rhumbdb/rhumb"
)

// NodeHelp is the sentence about arguments that are nodes, for the help of commands.
const NodeHelp = `A node is named by its number as rhumb node ls prints it, such as n3, or by the name in its certificate, such as eu-1.`

const opNode rhumb.Op = "rhumb.node"

// NodeArg is a node as an operator names it on the command line.
//
// It is parsed before a command connects, so that a text that can name no node fails at once, and found in the cluster
// afterwards, because only the metadata knows the names.
type NodeArg struct {
	text string
	// id is 0 if the text is a name.
	id rhumb.NodeID
}

// ParseNode parses a node: its number, such as n3 or 3, or the name in its certificate. A text that can be both is a number, since
// commands print numbers.
func ParseNode(s string) (NodeArg, error) {
	// The letter alone is left to the names: a node may be called n.
	digits := s
	if len(s) > 1 && s[0] == 'n' {
		digits = s[1:]
	}
	if id, err := strconv.ParseUint(digits, 10, 32); err == nil && id > 0 {
		return NodeArg{s, rhumb.NodeID(id)}, nil
	}
	// Names begin with a letter. Numbers that are out of range, such as n0, would otherwise count as names that nobody has.
	if _, err := strconv.ParseUint(digits, 10, 64); err == nil || rhumb.ValidateNodeName(s) != nil {
		return NodeArg{}, rhumb.Ef(opNode, rhumb.InvalidArgument, "%q is not a node; write its number, such as n1, or its name, as `rhumb node ls` prints them", s)
	}
	return NodeArg{text: s}, nil
}

// ParseNodes parses several nodes, each as ParseNode does.
func ParseNodes(texts ...string) ([]NodeArg, error) {
	var nodes []NodeArg
	for _, s := range texts {
		n, err := ParseNode(s)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Find returns the number of the node among the nodes of a cluster. The error is NotFound if no node has the name. A number is
// returned although no node has it: the metadata refuses it, and it may know newer nodes than the given ones.
func (a NodeArg) Find(nodes []rhumb.Node) (rhumb.NodeID, error) {
	if a.id != 0 {
		return a.id, nil
	}
	// The name of a removed node may belong to another one.
	i := slices.IndexFunc(nodes, func(n rhumb.Node) bool { return n.Name == a.text && !n.Forgotten })
	if i < 0 {
		return 0, rhumb.Ef(opNode, rhumb.NotFound, "there is no node %s; `rhumb node ls` lists the nodes", a.text)
	}
	return nodes[i].ID, nil
}

// FindNodes returns the numbers of several nodes, each as Find does.
func FindNodes(args []NodeArg, nodes []rhumb.Node) ([]rhumb.NodeID, error) {
	var ids []rhumb.NodeID
	// The result is in the order of the arguments, whose places have a meaning: OLD NEW, or FROM TO.
	for _, a := range args {
		id, err := a.Find(nodes)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
