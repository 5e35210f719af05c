// Package voter checks the rule by which a voter of the metadata group takes part again after a restart, although its disk
// may have lost synced data: entries of its log, its term and its vote. It is Raft as small as it can be, with three or five
// voters, and the rule on top of it, so that the rule can be built around a Raft library without changing it.
//
// # The rule
//
// A voter that starts is silent: it does not campaign, votes for nobody and its acknowledgements do not count. There are two ways
// back.
//
// Asking: it asks every other voter for its term and for the last term and end of its log. When all have answered, it takes
// part, but it votes in no term up to the greatest in the answers, and it neither becomes a candidate nor votes for one as
// long as the candidate's log is behind the greatest log in the answers.
//
// Admission: a leader appends an entry that admits this life of the voter. The entry is committed by a majority of the voters
// without the acknowledgement of the admitted one. The voter receives the log as a learner does and takes part once it holds
// the committed entry; it votes only in later terms than that of the leader. Removing the voter from the configuration,
// adding it as a learner and promoting it does all that.
//
// # What a step may do
//
// A vote is counted when it is given, and the candidate takes office at any later time. APPENDs stay under way and are
// delivered late and repeatedly; a full network loses any of them. A restart keeps everything or loses a suffix of the log, with or
// without term and vote.
package voter
