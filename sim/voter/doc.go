// Package voter checks the rule by which a voter of the metadata group takes part again after a
// restart, although its disk may have lost synced data: entries of its log, its term and its vote.
// It models Raft as small as possible, with three or five voters, and the rule on top of it. The
// rule only filters messages, so it can be built around a Raft library without changing the
// library; package raftmeta does so (docs/replication.md#rule-voter).
//
// # The rule
//
// A voter that starts is silent: it does not campaign, votes for nobody, and its acknowledgements
// do not count. It returns in one of two ways.
//
// Asking: the voter asks every other voter for its term and for the term and end of its log. When
// all have answered, the voter takes part. It votes in no term up to the greatest in the answers.
// While its own log ends before the greatest log in the answers, it does not campaign. It votes for
// no candidate whose log ends before that log.
//
// Admission: a leader appends an entry that admits this life of the voter. A majority of the voters
// commits the entry without the acknowledgement of the admitted one. The voter receives the log as
// a learner does and takes part once it holds the committed entry; it votes only in later terms
// than that of the leader. Removing the voter from the configuration, adding it as a learner and
// promoting it has the same effect; this is modelled as well (Config.Learning, rule_learn.go).
//
// # Steps
//
// A vote counts when it is cast, and the candidate takes office at any later time. An APPEND stays
// in flight and may be delivered late and repeatedly; a full network loses any of them. A restart
// keeps everything or loses a suffix of the log, with or without term and vote.
//
// # Search
//
// [Explore] visits every reachable state within the bounds of a [Config], breadth first, so a trace
// to a broken invariant is the shortest one. States that differ only in the names of the voters
// count once. [Findings] leaves out one part of the rule at a time and names the invariant that
// then breaks.
package voter
