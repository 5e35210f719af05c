// Package merging is a model of the merge of two neighbouring ranges (docs/replication.md#rule-merge): the right
// range ends by an entry of its log, the left one takes its slots by an entry of its own, and each member
// unites its copies. [Explore] visits every state within small bounds. Leaving out a rule ([Mutation]) must
// break an invariant.
//
// The model existed before the code, because it shows which rules the code must keep. It found two rules of the
// first design that the code does without: reads of the right range stop with its end, so its leases do
// not matter to a later primary of the left one; and a member acknowledges a takeover only with the end, so
// the in-sync sets of both ranges change apart.
//
// # Scope of the model
//
// Each range has a primary and an in-sync set. An election names a primary of one range in a new epoch, and of the
// other one if the node is a member there; a node learns of it for each range apart. A member copies the log
// of a primary in one step, which is also its acknowledgement. An entry is committed when all members that
// the primary counts have it, and the primary has committed the start of its epoch. A lease lasts until the
// elected node has promised the next epoch of that range, and any time longer. Nodes that left a set may come
// back.
//
// Only writes to slots of the right range are modelled: into the log of the right range before the merge, and
// of the left one after it. Disks lose nothing, and no message is late: package model has both.
package merging
