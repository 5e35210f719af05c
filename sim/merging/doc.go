// Package merging is a model of the merge of two neighbouring ranges as decision 50 designs it: the right range ends by an entry of
// its log, the left one takes its slots by an entry of its own, and each member unites its copies. [Explore] visits every state within
// small bounds. Leaving out a rule ([Mutation]) must break an invariant.
//
// Rhumb does not merge ranges yet. The model exists before the code, because it shows which rules the code must keep.
//
// # Scope of the model
//
// Both ranges have one primary and one in-sync set, which change in one command. An election names a primary in a new epoch; a node
// learns of it for each range apart. A member copies the whole log of a primary in one step, which is also its acknowledgement.
// An entry is committed when all members that the primary counts have it, and the primary has committed the start of its epoch. A
// lease lasts until the elected node has promised the next epoch of that range, and any time longer. Nodes that left the set may
// come back.
//
// Only writes to slots of the right range are modelled: into the log of the right range before the merge, and of the left one after
// it. Disks lose nothing, and no message is late: package model has both.
package merging
